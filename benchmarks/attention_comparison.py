"""Every attention of a recipe under one budget of steps: accuracy, attacks, corruptions, in pairs.

Each variant is trained as `./assay train` does it, into the folder of runs; one that was
interrupted continues, one that is finished is not trained again. Models of images are attacked as
PyTorch models, with the same images and draws for all: FGSM and PGD, AutoAttack, SPSA, and the
common corruptions, fog and pixelate also by severity. What was evaluated stays in the folder
of its run. A variant stands beside the first one of the same seed, and an elliptical one beside
its dot-product counterpart: the difference on the same samples with its interval, and the exact
test of McNemar; many pairs are compared, so a small p is no news by itself.

The first rows say how many hours are left, at most for the attacks: fooled images leave early.
"""

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import models
from benchmarks.support.rows import Row, figure
from core.stats import mcnemar, mean_interval, paired_interval, wilson
from robustness import cost, evaluate
from robustness.report.schema import FILE, ModelFlags, Report, read_report
from robustness.spec import EvaluationSpec
from training import run as records
from training.distributed import Processes
from training.plan import expand, plan
from training.recipe import ImageData, Recipe
from training.samples import to_model
from training.splits import open_test, some
from training.trainer import Trainer
from training.validation import predict

VARIANTS = ("deit", "deit-elliptical", "kde", "rkde", "spkde", "mom", "fourier", "mgk",
            "rvt", "rvt-elliptical")  # fmt: skip
_EPS = ["1/255", "2/255"]
ATTACKS: list[tuple[int, list[dict[str, Any]]]] = [
    (500, [{"name": "fgsm", "eps": _EPS}, {"name": "pgd", "eps": _EPS, "steps": 20}]),
    (200, [{"name": "autoattack", "eps": _EPS[:1]}]),
    (100, [{"name": "spsa", "eps": _EPS[:1]}]),
    (500, [{"name": "corruptions"}]),
]
"""How many test images, and the attacks on them."""
BY_SEVERITY = ("fog", "pixelate")
_TIMED = 16  # images of a gradient whose time is measured

Held = np.ndarray
"""By sample, whether the model held (N,) bool, or in what share of the cases (N,) float."""


def run(
    recipe: str = "recipes/cifar10.yaml",
    variants: tuple[str, ...] = VARIANTS,
    seeds: tuple[int, ...] = (0,),
    size: str = "small",
    runs: str = "runs",
) -> Iterable[Row]:
    """Train, attack and compare.

    Args:
        recipe: file of the recipe.
        variants: to compare, the first one with all others.
        seeds: of the runs.
        size: of the recipe.
        runs: folder of the runs.
    """
    for seed in seeds:
        words = [f"variant={','.join(variants)}", f"seed={seed}", f"size={size}"]
        recipes = {str(one.variant): one for one in expand([Path(recipe)], words)}
        yield from _hours(list(recipes.values()), Path(runs))
        found: dict[str, dict[str, Held]] = {}
        for variant, chosen in recipes.items():
            folder = Path(runs) / chosen.run_name
            if not records.finished(folder):
                Trainer(chosen, folder, progress=True).run()
            found[variant] = {}
            others = {variants[0], variant.replace("-elliptical", "")} - {variant}
            for case, held in _answers(chosen, folder):
                found[variant][case] = held
                yield accuracy(f"{chosen.run_name}: {case}", held)
                for other in sorted(others & found.keys()):
                    about = f"{chosen.run_name} minus {recipes[other].run_name}: {case}"
                    yield from difference(about, held, found[other][case])


def _hours(recipes: Sequence[Recipe], runs: Path) -> Iterator[Row]:
    """How long the plan takes from here on."""
    planned = list(plan(recipes, runs))
    if blocked := [str(one.folder) for one in planned if one.differs]:
        raise ValueError(f"move runs of other recipes away first: {', '.join(blocked)}")
    training = sum(one.seconds for one in planned) / 3600
    attacking = sum(_attack_seconds(one, runs / one.run_name) for one in recipes) / 3600
    about = f"{len(recipes)} runs, seed {recipes[0].seed}: hours left"
    yield figure(f"{about}, training", training, "h", samples=len(recipes))
    yield figure(f"{about}, attacks, at most", attacking, "h", samples=len(recipes))


def _attack_seconds(recipe: Recipe, folder: Path) -> float:
    """What the attacks that are left of a run cost at most, from the time of a gradient."""
    left = [part for part in ATTACKS if not (_place(folder, *part) / FILE).is_file()]
    if not left or not isinstance(recipe.data, ImageData):
        return 0.0
    device, spec = Processes().device, recipe.data.image
    model = models.build(**recipe.model).eval().to(device)
    shape = (_TIMED, spec.channels, spec.height, spec.width)
    images = torch.rand(shape, device=device, requires_grad=True)
    model(images).sum().backward()  # warms up
    began = time.perf_counter()
    model(images).sum().backward()
    each = (time.perf_counter() - began) / _TIMED
    ways = [recipe.model.get("attention") == "elliptical"]
    specs = ((count, EvaluationSpec.model_validate({"attacks": given})) for count, given in left)
    return each * sum(
        cost(asked, count, ways, num_classes=len(recipe.labels)) for count, asked in specs
    )


def _answers(recipe: Recipe, folder: Path) -> Iterator[tuple[str, Held]]:
    """Where a finished run's model holds: on the test split, then under each attack."""
    device = Processes().device
    model = records.trained_model(folder, recipe).to(device)
    samples = open_test(recipe, folder / records.TOKENIZER, count=None)
    kept = folder / "answers.npy"
    if not kept.is_file():
        np.save(kept, predict(model, samples, device, progress=folder.name))
    yield "test accuracy", np.load(kept) == samples.labels
    if not isinstance(recipe.data, ImageData):
        return
    for count, attacks in ATTACKS:
        place, chosen = _place(folder, count, attacks), some(len(samples), count)
        if not (place / FILE).is_file():
            (images,) = to_model(samples.batch(chosen), torch.device("cpu"))
            given = {"classes": recipe.labels, "name": folder.name, "folder": place}
            evaluate(model, images, samples.labels[chosen], attacks=attacks, **given)
        yield from held_by_case(read_report(place))


def _place(folder: Path, count: int, attacks: list[dict[str, Any]]) -> Path:
    """Where an evaluation lies: another number of images or other settings have another place."""
    asked = hashlib.sha256(json.dumps([count, attacks]).encode()).hexdigest()[:8]
    return folder / "evaluations" / "-".join([*(one["name"] for one in attacks), asked])


def held_by_case(report: Report) -> Iterator[tuple[str, Held]]:
    """What a report of one model says of each image, by attack and budget."""
    flags: list[ModelFlags] = [sample.models[0] for sample in report.samples]
    cells = [cell for cell in report.spec.cells if cell.attack.info.role == "attack"]
    for index, cell in enumerate(cells):
        held = np.array([one.attacks[index].robust for one in flags])
        yield f"{cell.attack.info.title} {cell.budget.text}, {len(held)} images", held
    corrupted = [one.corruptions for one in flags]
    if not corrupted[0]:
        return
    right = np.array([[each.correct for each in one] for one in corrupted])  # (N, corruptions)
    yield f"common corruptions, mean, {len(right)} images", right.mean(1)
    for index, each in enumerate(corrupted[0]):
        if each.name in BY_SEVERITY:
            yield f"{each.name}, severity {each.severity}, {len(right)} images", right[:, index]


def accuracy(about: str, held: Held) -> Row:
    """The share of samples on which the model holds."""
    count, share = len(held), float(held.mean())
    ends = wilson(int(held.sum()), count) if held.dtype == bool else mean_interval(held.tolist())
    return figure(about, share, "share", better="higher", samples=count, spread=ends)


def difference(about: str, first: Held, second: Held) -> Iterator[Row]:
    """How much more often the first model holds on the same samples, and whether by chance."""
    count, change = len(first), first.astype(float) - second
    told = {"better": "higher", "samples": count}
    if first.dtype != bool:
        low, high = (2 * end - 1 for end in mean_interval(((change + 1) / 2).tolist()))
        yield figure(about, float(change.mean()), "share", spread=(low, high), **told)
        return
    only = int((first & ~second).sum()), int((second & ~first).sum())
    ends = paired_interval(*only, count)
    yield figure(about, float(change.mean()), "share", spread=ends, **told)
    p_value = mcnemar(*only)
    yield figure(f"{about}, McNemar's test", p_value, "p", samples=count)
