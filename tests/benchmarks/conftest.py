from tests.training.conftest import recipe_file

__all__ = ["recipe_file"]
