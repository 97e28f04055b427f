from tests.training.conftest import imdb, recipe_file, token_recipe

__all__ = ["imdb", "recipe_file", "token_recipe"]
