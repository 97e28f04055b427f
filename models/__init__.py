"""The two model families, by name."""

from models.catalog import build, config, names
from models.inference.fold import fold

__all__ = ["build", "config", "fold", "names"]
