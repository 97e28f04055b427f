"""What is proved of images whose pixels or patches change, and does anything beat the proof?

Of tiny models every bound is compared with what searches find in its set, in float64. Then a small
`transject_image` (`recipes/fashion_mnist_transject.yaml`: width 64, one layer, one expert, random
eigenvalues) is trained on Fashion-MNIST, exported, and proved on test images, one thread, beside
attacks in the same sets; so are three more, whose patches can add 20, 5 and 1 to a logit at most
before the mean, with a loss that counts on two replaced patches, and one of width 128 on CIFAR-10
(`recipes/cifar10_transject.yaml`). The figures are those of these models, not of shipped ones; they
see the place of each patch, but no interaction between patches.
"""

import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import models
from benchmarks.support.rows import Row, figure
from benchmarks.support.server import ROOT
from core.stats import wilson
from data.sets import ImageSet
from data.sources import open_images
from models.analysis.patches import Patches
from robustness.certificates.patchwise import PatchBounds, PatchProof, PixelBounds, SquareBounds
from robustness.evaluation import evaluate
from robustness.logits import margin
from robustness.spec import EvaluationSpec
from robustness.target import ImageTarget, torch_threads
from robustness.text_target import open_model
from runtimes.artifact import open_artifact

_FASHION = "recipes/fashion_mnist_transject.yaml"
_MODELS = {  # recipe and options, by name
    "plain": [_FASHION, "variant=plain"],
    "bounded-20": [_FASHION, "variant=bounded", "size=small", "model.token_bound=20.0"],
    "bounded-5": [_FASHION, "variant=bounded", "size=small"],
    "bounded-1": [_FASHION, "variant=bounded", "size=small", "model.token_bound=1.0"],
    "cifar10": ["recipes/cifar10_transject.yaml"],
}
_PROOFS: list[PatchProof] = [
    PixelBounds(eps=["1/255", "2/255", "4/255"]),
    PixelBounds(norm="L2", eps=["0.1", "0.25", "0.5"]),
    PatchBounds(patches=[1, 2, 4]),
    SquareBounds(patch=[2]),
]
_ATTACKS = [
    {"name": "pgd", "eps": ["1/255", "2/255", "4/255"]},
    {"name": "apgd-ce", "eps": ["1/255", "2/255", "4/255"]},
    {"name": "apgd-ce", "norm": "L2", "eps": ["0.1", "0.25", "0.5"]},
    {"name": "patch-fool", "patches": [1, 2, 4]},
]
_SEARCHES = 60  # of tiny models, one image each


def run(
    images: int = 300,
    artifact: str = "",
    only: str = "",
    sets: tuple[str, ...] = ("checks", "Linf", "L2", "patches", "patch"),
) -> Iterable[Row]:
    """Search for what beats a bound, then train and prove.

    Args:
        images: of the test set.
        artifact: of the model that is named, in place of training it.
        only: one of the models, such as "plain" or "bounded-5"; default all.
        sets: of changes, and checks on tiny models.
    """
    if "checks" in sets:
        yield _searched()
    with tempfile.TemporaryDirectory() as folder, torch_threads(1):
        for name, recipe in _MODELS.items():
            if only in ("", name):
                path = Path(artifact) if artifact else _trained(Path(folder) / name, recipe)
                target = open_model(open_artifact(path), threads=1)
                if not isinstance(target, ImageTarget):
                    raise ValueError(f"artifact must read images, got {artifact}")
                proofs = [proof for proof in _PROOFS if proof.changes in sets]
                part = _drawn("cifar10" if name == "cifar10" else "fashion-mnist", target, images)
                work = Path(folder) / f"{name} work"
                yield from _proved(f"{name}, {images} images", target, part, proofs, work)


def _searched() -> Row:
    """How often a search of 100 steps from 8 starts gets below a bound."""
    beaten, tries = 0, 0
    for seed in range(_SEARCHES):
        model, draw = _tiny(seed % 10), torch.Generator().manual_seed(seed)
        image = (1.6 * torch.rand(1, 6, 6, generator=draw) - 0.3).clamp(0, 1)
        known, exact, label = Patches(model), model.double(), seed % 3
        clean, size = image.double(), float(0.3 * torch.rand((), generator=draw))
        chosen = torch.randperm(9, generator=draw)[:2]
        cell = torch.zeros(9).scatter(0, chosen, 1).reshape(3, 3).kron(torch.ones(2, 2)).bool()

        def box(x: Tensor) -> Tensor:
            """The nearest images in the box."""
            return (clean + (x - clean).clamp(-size, size)).clamp(0, 1)  # noqa: B023

        def ball(x: Tensor) -> Tensor:
            """Images in the ball, along the same directions."""
            change = x - clean  # noqa: B023
            length = change.flatten(1).norm(dim=1)[:, None, None, None]
            return (clean + change * (2 * size / length).clamp(max=1)).clamp(0, 1)  # noqa: B023

        def replaced(x: Tensor) -> Tensor:
            """The clean image but for the two patches."""
            return torch.where(cell, x, clean).clamp(0, 1)  # noqa: B023

        starts = torch.rand(8, 1, 6, 6, generator=draw).double()
        for bound, project in (
            (known.box(image, label, size), box),
            (known.ball(image, label, 2 * size), ball),
            (known.aligned(image, label, [2])[0], replaced),
        ):
            tries += 1
            beaten += _least(exact, starts, label, project, size / 4) < bound.margin - 1e-9
    spread = wilson(beaten, tries)
    case = "tiny models, searches in the sets of l∞, l2 and two patches: below the bound"
    ends = (0, spread[1] * tries)
    return figure(case, beaten, "searches", target=0, samples=tries, spread=ends)


def _tiny(seed: int) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = models.build(
            "transject_image", img_size=6, patch_size=2, in_chans=1, mean=(0.3,), std=(0.4,),
            embed_dim=8, depth=2, num_experts=1, num_classes=3, random_eigenvalues=True,
        )  # fmt: skip
        for name, parameter in model.named_parameters():
            if name.endswith((".r", "bias", ".b1", ".b2")):
                nn.init.normal_(parameter)
    return model.eval().requires_grad_(False)


def _least(
    model: nn.Module, images: Tensor, label: int, project: Callable[[Tensor], Tensor], step: float
) -> float:
    """The least margin along 100 signed steps, which become shorter."""
    least, images = math.inf, project(images)
    for number in range(100):
        images.requires_grad_(True)
        logits = model(images)
        others = torch.cat((logits[:, :label], logits[:, label + 1 :]), dim=1)
        left = logits[:, label] - others.amax(1)
        least = min(least, float(left.min().detach()))
        (gradient,) = torch.autograd.grad(left.sum(), images)
        images = project(images.detach() - step * 0.96**number * gradient.sign())
    return least


def _trained(folder: Path, recipe: Iterable[str]) -> Path:
    run, made = str(folder / "run"), folder / "artifact"
    for words in (
        ["training", "fit", *recipe, "--output", run],
        ["export", run, "--no-program", "--output", str(made)],
    ):
        subprocess.run(
            [sys.executable, "-m", *words], cwd=ROOT, check=True, stdout=sys.stderr, env=os.environ
        )
    return made


def _drawn(name: str, target: ImageTarget, count: int) -> ImageSet:
    source = open_images(name, label_names=target.labels)
    chosen = np.random.default_rng(0).choice(len(source), count, replace=False)
    return source.take(sorted(chosen.tolist()))


def _proved(
    about: str, target: ImageTarget, part: ImageSet, proofs: Sequence[PatchProof], folder: Path
) -> Iterator[Row]:
    images, labels = np.asarray(target.load(part)), np.asarray(part.labels, np.int64)
    count = len(labels)
    right = target.predict(images).argmax(axis=1) == labels
    yield _share(f"{about}: clean accuracy", int(right.sum()), count)
    broken = _broken(target, part, {proof.changes for proof in proofs}, folder)
    known, wrong = Patches(target.require_torch_model()), 0
    pairs = list(zip(torch.from_numpy(images), labels.tolist(), strict=True))
    for proof in proofs:
        for budget in proof.budgets():
            began = time.perf_counter()
            found = {i: proof.bound(known, *pairs[i], budget) for i in np.flatnonzero(right)}
            pace = len(found) / (time.perf_counter() - began) * 60
            case = f"{about}, {proof.describe(budget)}"
            held = [i for i, one in found.items() if one.margin > one.rounding]
            steep = sum(one.alone[0] > one.rounding for one in found.values())
            yield _share(f"{case}: proved accuracy", len(held), count)
            yield _share(f"{case}: proved by the Lipschitz factor alone", steep, count)
            if (proof.changes, budget.value) in broken:
                misled = broken[proof.changes, budget.value] | ~right
                yield _share(f"{case}: robust accuracy", count - int(misled.sum()), count)
                wrong += int(misled[held].sum())
            yield figure(f"{case}: proved", pace, "images a minute", better="higher")
    yield figure(f"{about}: proofs that an attack contradicts", wrong, "proofs", target=0)
    exact = [known.box(*pair, 0.0) for pair in pairs]
    off = margin(target.predict(images), labels) - np.array([one.margin for one in exact])
    off = np.abs(off) / np.array([one.rounding for one in exact])
    case = f"{about}: rounding of the served graph, of what is allowed for at most"
    yield figure(case, float(off.max()), "times", target=1.0, samples=count)


def _broken(
    target: ImageTarget, part: ImageSet, changes: set[str], folder: Path
) -> dict[tuple[str, float], np.ndarray]:
    """What attacks mislead, (N,) bool, by what they change and their budget or a smaller one."""
    attacks = EvaluationSpec.model_validate({"attacks": _ATTACKS}).attacks
    chosen = [attack for attack in attacks if attack.changes in changes]
    if not chosen:
        return {}
    spec = EvaluationSpec.model_validate({"attacks": chosen})
    report = evaluate(spec, [target], part, folder)
    flags = [sample.models[0].attacks for sample in report.samples]
    found: dict[tuple[str, float], np.ndarray] = {}
    for place, cell in enumerate(spec.cells):
        misled = np.array([not (one[place].robust and one[place].confirmed) for one in flags])
        for other in spec.cells:
            key = other.attack.changes, other.budget.value
            if cell.attack.changes == key[0] and cell.budget.value <= key[1]:
                found[key] = found.get(key, False) | misled
    return found


def _share(case: str, number: int, count: int) -> Row:
    spread = wilson(number, count)
    return figure(case, number / count, "share", better="higher", samples=count, spread=spread)
