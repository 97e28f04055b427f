"""Does `screen` find what AutoAttack finds for a quarter of it, and more where models are masked?

Cost counts passes of inputs through the model, a gradient as three. Of elliptical attention
gradients flow through m. AutoAttack's side takes half an hour for each shipped model; `kept` is a
folder where it can be stopped and continued. The masks stand around a small network that is trained
here: they keep its classes, so that AutoAttack on the network says what there is to find.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from torch import nn

from benchmarks.support.attacked import Attacked, attacked
from benchmarks.support.fashion_mlp import images, trained
from benchmarks.support.masked import Purifying, Saturated, Sparse
from benchmarks.support.rows import Row, figure
from benchmarks.support.server import ROOT
from core.stats import wilson
from data.sources import load_inputs, open_images
from robustness.attacks.autoattack import AutoAttack
from robustness.attacks.base import Batch
from robustness.attacks.screen import Screen
from robustness.target import torch_threads
from runtimes.artifact import open_artifact
from runtimes.torch_model import load_torch_model

_SHARE = 0.25  # of AutoAttack's passes
_TRAINED, _MASKED = 16 / 255, "32/255"  # radii of the small network's training and of its attacks
_MASKED_IMAGES = range(100, 200)  # the first hundred served to choose the settings of `screen`


def run(count: int = 500, artifact: str = "", others: int = 500, kept: str = "") -> Iterable[Row]:
    """Compare on an adversarially trained Fashion-MNIST model, another model, and masked ones.

    Args:
        count: images for the shipped Fashion-MNIST model.
        artifact: of a CIFAR-10 model trained on attacked images; without it that part is left out.
        others: images for it.
        kept: a folder where AutoAttack's side is kept.
    """
    with torch_threads(1):
        shipped = ROOT / "artifacts" / "fashion-elliptical-adv"
        yield from _compared(shipped, "fashion-mnist", "24/255", count, kept)
        if artifact:
            yield from _compared(Path(artifact), "cifar10", "8/255", others, kept)
        yield from _masked(kept)


def _compared(path: Path, source: str, eps: str, count: int, kept: str) -> Iterator[Row]:
    found = open_artifact(path)
    model, batch = load_torch_model(found).eval(), _images(source, found.labels, path, count)
    folder = Path(kept) / path.name if kept else None
    full = attacked(model, batch, AutoAttack(name="autoattack", eps=[eps]), kept=folder)
    ours = attacked(model, batch, Screen(name="screen", eps=[eps]))
    about = f"{found.name}, eps {eps}, {count} images"
    yield _held(f"{about}: clean accuracy", full.right)
    yield _held(f"{about}: robust accuracy under AutoAttack", full.held)
    bound = round(float(full.held.mean()), 4)  # as figures are
    yield _held(f"{about}: robust accuracy under screen", ours.held, bound)
    cost = ours.passes.cost / full.passes.cost
    yield figure(f"{about}: passes, screen / AutoAttack", cost, "share", target=_SHARE)
    for name, one in (("AutoAttack", full), ("screen", ours)):
        yield figure(f"{about}: passes an image, {name}", one.passes.cost / count, "passes")


def _images(source: str, labels: list[str], path: Path, count: int) -> Batch:
    """The first of 500 images that were drawn once and for all."""
    given = open_images(source, label_names=labels)
    chosen = np.random.default_rng(0).choice(len(given), 500, replace=False)
    part = given.take(sorted(chosen.tolist())[:count])
    inputs = load_inputs(part, open_artifact(path).image_spec)
    return Batch(inputs=inputs, labels=np.asarray(part.labels, np.int64))


def _masked(kept: str) -> Iterator[Row]:
    inner, batch = trained(_TRAINED), images("test", 500).take(np.asarray(_MASKED_IMAGES))
    about = f"eps {_MASKED}, {len(batch.labels)} images"
    truth, ours = _both("plain", inner, batch, kept)
    yield _held(f"small network, {about}: clean accuracy", truth.right)
    yield _held(f"small network, {about}: robust accuracy under AutoAttack", truth.held)
    yield _held(f"small network, {about}: robust accuracy under screen", ours.held)
    masks = {
        "gradient-masked": Saturated(inner),
        "sparse activation": Sparse(inner, batch.images[0].size, 10),
        "input-purifying": Purifying(inner),
    }
    for name, model in masks.items():
        full, ours = _both(name, model.eval(), batch, kept)
        yield _held(f"{name}, {about}: robust accuracy under AutoAttack", full.held)
        yield _held(f"{name}, {about}: robust accuracy under screen", ours.held)
        gap = full.held.mean() - truth.held.mean()
        share = float((full.held.mean() - ours.held.mean()) / gap) if gap > 0 else 1.0
        what = f"{name}, {about}: of what AutoAttack misses, screen finds"
        yield figure(what, share, "share", target=0.5, better="higher", samples=len(batch.labels))
        cost = ours.passes.cost / full.passes.cost
        yield figure(f"{name}, {about}: passes, screen / AutoAttack", cost, "share")


def _both(name: str, model: nn.Module, batch: Batch, kept: str) -> tuple[Attacked, Attacked]:
    folder = Path(kept) / name.replace(" ", "-") if kept else None
    full = attacked(model, batch, AutoAttack(name="autoattack", eps=[_MASKED]), kept=folder)
    return full, attacked(model, batch, Screen(name="screen", eps=[_MASKED]))


def _held(case: str, held: np.ndarray, target: float | None = None) -> Row:
    share, spread = float(held.mean()), wilson(int(held.sum()), len(held))
    return figure(case, share, "share", target=target, samples=len(held), spread=spread)
