from tests.training.conftest import imdb, recipe_file, text_recipe

__all__ = ["imdb", "recipe_file", "text_recipe"]
