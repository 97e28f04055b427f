"""The two model families, by name."""

from models.catalog import build, config, names

__all__ = ["build", "config", "names"]
