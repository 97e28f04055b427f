"""The two model families, by name."""

from models.attention.catalog import attentions
from models.catalog import build, config, names
from models.inference.fold import fold

__all__ = ["attentions", "build", "config", "fold", "names"]
