"""Every recipe that is shipped, in every variant and size."""

from pathlib import Path

import pytest

import models
from training.__main__ import RECIPES, main
from training.distributed import Processes
from training.recipe import Recipe
from training.recipe_file import read_file, read_recipe

FILES = sorted(RECIPES.glob("*.yaml"))


def read(path: Path, variant: str | None, size: str | None) -> Recipe:
    chosen = {"variant": variant, "size": size}
    return read_recipe(path, [f"{key}={value}" for key, value in chosen.items() if value])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_variant_and_size_of_a_recipe_is_a_model_for_its_data(path: Path) -> None:
    for variant in read_file(path).get("variants", [None]):
        for size in (None, *read_file(path)["sizes"]):
            recipe = read(path, variant, size)
            assert recipe.train.batch_size % (2 * Processes().size * recipe.train.accumulate) == 0
            assert models.config(**recipe.model).num_classes >= 2
            assert (recipe.variant, recipe.size) == (variant, size)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_recipe_opens_with_its_command_and_what_became_of_it(path: Path) -> None:
    command, status, *_ = path.read_text().splitlines()
    assert f"-m training fit recipes/{path.name}" in command
    assert "not run yet" in status.lower() or "test accuracy" in status
    assert "small" in read_file(path)["sizes"]


def test_counterparts_differ_in_nothing_but_attention() -> None:
    path = RECIPES / "cifar10.yaml"
    for plain in ("deit", "fan", "deit-pgd", "deit-trades"):
        family, *rest = plain.split("-")
        one = read(path, plain, "small").to_dict()
        other = read(path, "-".join([family, "elliptical", *rest]), "small").to_dict()
        assert one["model"].pop("elliptical") is False and other["model"].pop("elliptical") is True
        for recipe in (one, other):
            del recipe["name"], recipe["variant"], recipe["model"]["name"]
        assert one == other


def test_recipes_are_listed_with_their_variants_and_sizes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == len(FILES)
    (imdb,) = (line for line in listed if "imdb.yaml" in line)
    assert "variant=transject|transject-random|transformer" in imdb and "size=small" in imdb
