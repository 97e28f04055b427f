"""From a recipe to a run: train a classifier and record what came out."""
