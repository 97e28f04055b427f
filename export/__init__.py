"""From a run to an artifact, and everything that opens one."""
