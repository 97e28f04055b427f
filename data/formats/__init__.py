"""Readers of file formats, one a file."""
