from tests.training.conftest import imdb, recipe_file, start, text_recipe

__all__ = ["imdb", "recipe_file", "start", "text_recipe"]
