"""Open and run artifacts; nothing here writes one."""
