from tests.training.conftest import imdb, language_recipe, recipe_file, text_recipe

__all__ = ["imdb", "language_recipe", "recipe_file", "text_recipe"]
