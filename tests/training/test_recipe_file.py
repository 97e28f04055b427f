import re
from pathlib import Path

import pytest
import yaml

import models
from core.yaml import read_yaml, write_yaml
from training.__main__ import RECIPES, main
from training.distributed import Processes
from training.recipe import ImageData, LanguageData, MaskData, TextData, TokenData, entries
from training.recipe_file import read_file, read_recipe

FILES = sorted(RECIPES.glob("*.yaml"))
ATTACK = "adversarial={eps: 0.1, alpha: 0.1, steps: 1"
TEACHER = "distillation={teacher_epochs: 1}"
OF_IMAGES = [
    ("train.restarts=[3]", "train.restarts must ascend between 0 and epochs, got (3,)"),
    ("distillation={teacher_epochs: 1, weight: 2}", "distillation.weight must lie in (0, 1]"),
    ("train.epoch=1", "unknown key train.epoch; did you mean 'train.epochs'?"),
    ("train.steps=10", "train.either epochs or steps must be given, got 3 and 10"),
    ("train.lr=fast", "train.lr must be a finite number, got 'fast'"),
    ("train.betas=[0.9, 1]", "train.betas must be two numbers in [0, 1), got (0.9, 1.0)"),
    ("train.accumulate=3", "train.batch_size must be a multiple of processes times"),
    ("model.dept=1", "'dept' is no config field"),
    ("model.img_size=16", "data.image must be what the model deit_tiny_elliptical takes"),
    ("labels=[one]", "labels must name every class of the model"),
    ("adversarial={eps: 0, alpha: 1, steps: 1}", "adversarial.eps must lie in (0, 1]"),
    (f"{ATTACK}, method: fgsm}}", "adversarial.method must be one of pgd, trades"),
    ("data.source=nowhere", "nowhere is no file or folder"),
    ("train.batch_size=500", "train.batch_size must be at most the 128 training samples, got 500"),
    ("data.valid=160", "valid must be from 1 to 159, got 160"),
    ("model.depth=deep", "depth must be an integer, got 'deep'"),
    ("train.epochs=[", "the value of train.epochs must be YAML, got '['"),
    ("epochs", "an override must look like key=value, got 'epochs'"),
    ("size=small", "recipe.yaml offers no sizes, got size=small"),
    ("seed=-1", "seed must be at least 0, got -1"),
    ("data.image.height=8.0", "data.image.height must be an integer, got 8.0"),
    ("labels=[no, yes]", "labels[0] must be text, got False"),
    ("logs=[visdom]", "logs[0] must be one of tensorboard, mlflow, wandb"),
    ("data.random_crop=true", "random_crop needs in_memory false"),
    # A teacher is heard only on the images that it saw.
    (f"{TEACHER};data.mixup=0.8", "distillation needs data.mixup and data.cutmix 0"),
    (f"{TEACHER};data.cutmix=1.0", "images, got 0.0 and 1.0"),
    (f"{TEACHER};{ATTACK}}}", "distillation needs adversarial null"),
    (f"{TEACHER};data.in_memory=false", "distillation needs data.in_memory"),
    ("train.short_steps=2;train.short_len=3", "train.short_steps is for sequences only"),
    ("train.replaced=2", "train.replaced needs a transject with random eigenvalues"),
    ("train.replaced=2;data.mixup=0.8", "train.replaced needs data.mixup and data.cutmix 0"),
]
OF_TEXTS = [
    ("variant=other", "got 'other'; known: transject, transformer"),
    ("size=huge", "size must be one of the recipe's sizes, got 'huge'; known: small"),
    ("data.vocab_size=null", "data.vocab_size must be given where a wordpiece tokenizer"),
    ("data.tokenizer=bytes", "data.vocab_size must be given where a wordpiece tokenizer"),
    ("model.seq_len=4", "model.seq_len must be at least 12 for imdb, got 4"),
    (f"{ATTACK}}}", "adversarial is for classes of images only"),
    ("train.short_steps=2", "short_steps and short_len must be given together, got 2 and None"),
    ("train.short_steps=2;train.short_len=0", "train.short_len must be at least 1, got 0"),
    ("data.max_len=0", "data.max_len must be at least 1, got 0"),
]
OF_MASKS = [
    (f"{ATTACK}}}", "adversarial is for classes of images only"),
    (TEACHER, "distillation is for classes of images only"),
    ("data.random_crop=true", "random_crop needs in_memory false"),
    ("data.background=2", "data.background must be one of the 2 classes or null, got 2"),
    ("data.flipp=true", "unknown key data.flipp; did you mean 'data.flip'?"),
    ("model.img_size=9", "img_size must be a multiple of patch_size, got 9 and 2"),
    ("data.image.height=12", "data.image must be what the model segmenter_tiny takes"),
    ("data.valid=24", "valid must be from 1 to 23, got 24"),
    ("data.valid=null", "set has no valid split, only train, test"),
    (
        "labels=[sky, car, road];model.num_classes=3;data.source=fashion-scenes",
        "the classes of fashion-scenes are",
    ),
    ("train.short_steps=2;train.short_len=3", "train.short_steps is for sequences only"),
    ("train.replaced=2", "train.replaced needs one class for each sample, got masks"),
    ("train.momentum=1", "train.momentum must lie in [0, 1), got 1"),
    ("train.power=0", "train.power must be positive, got 0"),
]
OF_LANGUAGE = [
    (
        "data.source=nowhere",
        "nowhere is no file or folder; known names: wikitext-103, enwik8, imdb",
    ),
    ("data.valid=200", "data.valid must be from 1 to 159 for imdb, which holds 160 documents"),
    ("data.test=null;data.valid=144", "data.valid must be from 1 to 143 for imdb, which holds 144"),
    ("data.valid=null", "imdb has no valid split, only train, test"),
    ("data.context=0", "data.context must be at least 1, got 0"),
    ("data.stride=9", "data.stride must be at most context 8, got 9"),
    (
        "data.tokenizer=bytes",
        "data.raw and vocab_size are for a vocabulary of words, got tokenizer",
    ),
    ("data.vocab_size=2", "data.vocab_size must be at least 3, got 2"),
    (
        "data.context=2000;model.seq_len=2000",
        "split of imdb must hold more tokens than data.context",
    ),
    ("model.vocab_size=10", "model.vocab_size must be at least 13 for imdb, got 10"),
    ("model.seq_len=4", "model.seq_len must be at least data.context 8, got 4"),
    ("labels=[a]", "labels must name every class of the model: 1 labels, num_classes=0"),
    ("model={name: transformer}", "model must answer what data holds, got transformer for text"),
    ("model.attention=linformer", "attention must be causal in a language model, got 'linformer'"),
]
OF_TOKENS = [
    ("data.valid=null", "data.valid must be given: lra-text has the splits train, test"),
    ("labels=[pos, neg]", "labels must be"),
    ("model.vocab_size=100", "model.vocab_size must be at least 257 for lra-text, got 100"),
    ("data.size=5", "lra-text is not drawn here"),
    ("data.source=lra-nothing", "name must be one of lra-listops"),
    (
        "data.max_len=null;model={name: deit_tiny, num_classes: 2}",
        "deit_tiny takes images, lra-text gives tokens",
    ),
]


@pytest.mark.parametrize(
    ("file", "overrides", "message"),
    [
        *(("recipe_file", *case) for case in OF_IMAGES),
        *(("text_recipe", f"variant=transject;{given}", message) for given, message in OF_TEXTS),
        *(("token_recipe", *case) for case in OF_TOKENS),
        *(("mask_recipe", *case) for case in OF_MASKS),
        *(("language_recipe", *case) for case in OF_LANGUAGE),
    ],
)
def test_bad_recipe_is_an_error_before_training(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
    overrides: str,
    message: str,
) -> None:
    recipe, run = str(request.getfixturevalue(file)), tmp_path / "run"
    assert main(["fit", recipe, *overrides.split(";"), "--output", str(run)]) == 2
    assert message in capsys.readouterr().err
    assert not run.exists()


def test_numbers_and_texts_that_look_like_them_are_read_as_they_are_meant() -> None:
    assert read_yaml("{lr: 2e-3, decay: 1E-4}") == {"lr": 0.002, "decay": 1e-4}
    values = {"labels": ["1e3", "-2E+4", "12", "1e", "n01440764"], "lr": 1e-6}
    assert read_yaml(write_yaml(values)) == values


def test_variant_and_size_are_laid_over_the_file_and_overrides_come_last(text_recipe: Path) -> None:
    full = read_recipe(text_recipe, ["variant=transject"])
    assert full.name == full.run_name == "words-transject" and full.train.epochs == 8
    small = read_recipe(text_recipe, ["size=small", "variant=transject", "seed=3"])
    assert small.train.epochs == 1 and small.train.batch_size == 16
    assert small.name == "words-transject" and small.run_name == "words-transject-small-seed3"
    assert read_recipe(text_recipe, ["variant=transject", "train.epochs=9"]).train.epochs == 9
    with pytest.raises(ValueError, match="got nothing; known: transject, transformer"):
        read_recipe(text_recipe)


def test_variants_bring_sizes_of_their_own_and_null_takes_a_section_away(recipe_file: Path) -> None:
    none = "distillation: null"
    layers = f"""
distillation: {{teacher_epochs: 1}}
variants:
  plain: {{}}
  alone: {{{none}}}
  attacked: {{{none}, sizes: {{long: {{{none}, train: {{epochs: 9}}}}}}}}
sizes: {{small: {{}}, long: {{distillation: {{teacher_epochs: 2}}, train: {{lr: 0.5}}}}}}
"""
    recipe_file.write_text(recipe_file.read_text() + layers)

    def lengths(variant: str) -> list[tuple[int | None, int | None, float]]:
        chosen = [[f"variant={variant}", f"size={size}"] for size in ("small", "long")]
        recipes = [read_recipe(recipe_file, choice) for choice in chosen]
        teachers = [each.distillation and each.distillation.teacher_epochs for each in recipes]
        trains = [each.train for each in recipes]
        return [(t, each.epochs, each.lr) for t, each in zip(teachers, trains, strict=True)]

    assert lengths("plain") == [(1, 3, 3e-3), (2, 3, 0.5)]
    assert lengths("alone") == [(None, 3, 3e-3), (2, 3, 0.5)]
    assert lengths("attacked") == [(None, 3, 3e-3), (None, 9, 0.5)]


def test_kind_of_data_follows_from_its_keys_and_fills_model_and_labels(text_recipe: Path) -> None:
    resolved = text_recipe.with_name("resolved.yaml")
    text_recipe.write_text(text_recipe.read_text().replace("labels: [neg, pos]\n", ""))
    tokens = "data={source: lra-text, valid: 16}"
    for kind, path, options in (
        (TextData, text_recipe, ["variant=transject", "size=small"]),
        (ImageData, RECIPES / "fashion_mnist_dot.yaml", []),
        (MaskData, RECIPES / "segmentation.yaml", ["variant=segmenter", "size=small"]),
        (LanguageData, RECIPES / "enwik8.yaml", ["variant=dot", "size=small"]),
        (TokenData, text_recipe, ["variant=transject", tokens, "labels=[neg, pos]"]),
    ):
        recipe = read_recipe(path, options)
        assert isinstance(recipe.data, kind)
        resolved.write_text(yaml.safe_dump(recipe.to_dict()))
        assert read_recipe(resolved) == recipe
        if kind is TextData:
            assert recipe.labels == ["neg", "pos"]
            assert recipe.model["vocab_size"] == 60 and recipe.model["seq_len"] == 12
    with pytest.raises(ValueError, match="labels must be given: those of elsewhere are not known"):
        read_recipe(text_recipe, ["variant=transject", "data.source=elsewhere"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_shipped_recipe_is_a_model_for_its_data_in_every_variant_and_size(path: Path) -> None:
    for variant in read_file(path).get("variants", [None]):
        for size in (None, *read_file(path)["sizes"]):
            chosen = {"variant": variant, "size": size}
            recipe = read_recipe(path, [f"{key}={value}" for key, value in chosen.items() if value])
            assert recipe.train.batch_size % (2 * Processes().size * recipe.train.accumulate) == 0
            classes = getattr(models.config(**recipe.model), "num_classes", 0)
            assert classes == len(recipe.labels) != 1
            assert (recipe.variant, recipe.size) == (variant, size)
    command, status, *_ = path.read_text().splitlines()
    entry = "-m training fit" if "torchrun" in command else "./assay train"
    assert f"{entry} recipes/{path.name}" in command
    assert re.search("not run yet|test (accuracy|perplexity)", status.lower())
    assert "small" in read_file(path)["sizes"]


def test_counterparts_differ_in_nothing_but_attention() -> None:
    path = RECIPES / "cifar10.yaml"
    for plain in ("deit", "fan", "rvt", "deit-pgd", "deit-trades", "deit-heads", "deit-distilled"):
        family, *rest = plain.split("-")
        names = (plain, "-".join([family, "elliptical", *rest]))
        one, other = (
            read_recipe(path, [f"variant={name}", "size=small"]).to_dict() for name in names
        )
        attentions = [recipe["model"].pop("attention") for recipe in (one, other)]
        assert attentions == ["dot", "elliptical"]
        for recipe in (one, other):
            del recipe["name"], recipe["variant"], recipe["model"]["name"]
            del recipe["model"]["attention_options"]
        assert one == other


def test_recipes_are_listed_with_their_variants_and_sizes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == len(FILES)
    (imdb,) = (line for line in listed if "imdb.yaml" in line)
    assert "variant=transject|transject-random|transformer" in imdb and "size=small" in imdb


def test_help_tells_what_every_entry_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert all(told for _, found in entries() for told in found.values())
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    for one in (
        "train.lr peak learning rate (0.001)",
        "train.schedule cosine|linear|polynomial|constant: From the peak to `min_lr`; polynomial",
        "data.valid samples held out; null where the task has a split of its own (null)",
        "adversarial.eps radius of the ball",
    ):
        assert one in told
