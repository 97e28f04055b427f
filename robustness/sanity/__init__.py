"""Signs of a false figure: what would make an expert disbelieve an accuracy under attack."""
