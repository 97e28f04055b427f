"""Attention mechanisms, one a file."""
