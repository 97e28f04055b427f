"""Servers that ours is compared with, each in an environment of its own."""
