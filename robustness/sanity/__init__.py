"""Sanity checks: what would make an expert disbelieve an accuracy under attack."""
