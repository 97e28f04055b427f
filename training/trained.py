"""The classifier that a run left behind."""

from pathlib import Path

from torch import nn

import models
from models.checkpoints import load_weights
from training import run as records
from training.recipe import Recipe


def trained_model(folder: Path, recipe: Recipe) -> nn.Module:
    """The model of a run with its best weights, in eval mode.

    Raises:
        ValueError: the weights are missing, broken, or not those of the recipe's model.
    """
    model = models.build(**recipe.model)
    load_weights(model, folder / records.BEST)
    return model.eval()
