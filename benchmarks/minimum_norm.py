"""How near do minimum-norm attacks come, against FAB-T and against adversarial-library?

Images of Fashion-MNIST that the adversarially trained model classifies correctly; every attack
works on the same ones. A ratio is one of medians over images, below 1 where ours is nearer, with
the 95 % interval of 10,000 resamples of the images. Gradients are counted where they are taken;
FAB-T asks for as many evaluations without one. The library's attacks have its defaults and as many
gradients as ours; they aim at no class. Its images are scored here.

The last rows compare APGD flag by flag within a radius where about half of the images fall. Both
draw the same starts.
"""

import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.attack_agreement import OneGenerator
from benchmarks.peers.running import packages
from benchmarks.support.rows import Row, figure
from benchmarks.support.server import ROOT
from core.environment import code_digest
from core.files import sha256, write_whole
from core.stats import wilson
from data.sources import load_inputs, open_images
from robustness.attacks.base import Norm, change_size
from robustness.attacks.gradient import GradientAttack
from robustness.attacks.minimal import MinimalAttack
from robustness.attacks.tensors import Model, attackable
from robustness.spec import ATTACKS
from robustness.target import torch_threads
from runtimes.artifact import open_artifact
from runtimes.torch_model import load_torch_model

_MODEL = "fashion-elliptical-adv"
_EPS = "24/255"
_NORMS: dict[str, Norm] = {"Linf": "Linf", "L2": "L2", "L1": "L1", "L0": "L0"}
_OURS = {"Linf": ("fmn", "pdpgd"), "L2": ("ddn",), "L1": ("fmn", "pdpgd"), "L0": ("sigma-zero",)}
_THEIRS = {
    "Linf": ("fmn", "pdpgd"),
    "L2": ("ddn", "fmn", "pdgd", "alma"),
    "L1": ("fmn", "pdpgd", "alma"),
    "L0": ("sigma-zero", "fmn", "pdpgd"),
}
_UNITS = {"Linf": "1/255", "L2": "l2", "L1": "l1", "L0": "pixels"}
_BATCH = 25  # images at once, which is quickest on one core
_SEED = 0
_KEPT = ROOT / "build" / "minimum_norm"
FAR = 1e9
_NEAR, _CHEAP, _LEVEL = 1.05, 0.1, 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Images that a model classifies correctly.

    Attributes:
        model: logits from pixels.
        images: (N, C, H, W) float32 in [0, 1].
        labels: (N,) int64.
    """

    model: nn.Module
    images: Tensor
    labels: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What an attack found.

    Attributes:
        distances: (N,), `FAR` where it found nothing.
        gradients: an image.
        others: further evaluations of an image.
    """

    distances: np.ndarray
    gradients: float
    others: float


def run(
    images: int = 100,
    steps: int = 90,
    norms: tuple[str, ...] = ("Linf", "L2", "L1", "L0"),
    against: tuple[str, ...] = ("fab-t", "library", "apgd"),
) -> Iterable[Row]:
    """Compare in every norm; rows of a norm appear when it is done.

    Args:
        images: of the test set, drawn at random.
        steps: of ours and of the library's; of FAB-T they are 100 towards each of nine classes.
        norms: in which distances are compared.
        against: FAB-T, the library's minimum-norm attacks, the flags of its APGD.
    """
    with torch_threads(1):
        case = _open(images)
        for norm in norms if {"fab-t", "library"} & {*against} else ():
            ours = {name: _ours(case, name, norm, steps) for name in _OURS[norm]}
            for name, found in ours.items():
                yield from _alone(case, name, norm, found)
            if "fab-t" in against and norm in ATTACKS["fab-t"].info.norms:
                yield from _against_fab(case, norm, ours)
            if "library" in against:
                yield from _against_library(case, norm, ours, steps)
        for name in ("apgd-ce", "apgd-t") if "apgd" in against else ():
            yield _flags(case, name)


def _open(count: int) -> Case:
    artifact = open_artifact(ROOT / "artifacts" / _MODEL)
    model = load_torch_model(artifact).requires_grad_(False)
    source = open_images("fashion-mnist", label_names=artifact.labels)
    chosen = np.random.default_rng(_SEED).choice(len(source), 2 * count, replace=False)
    part = source.take(sorted(chosen.tolist()))
    images = torch.from_numpy(load_inputs(part, artifact.image_spec))
    labels = torch.from_numpy(np.asarray(part.labels, np.int64))
    with torch.inference_mode():
        right = (model(images).argmax(1) == labels).nonzero().flatten()[:count]
    return Case(model=model, images=images[right], labels=labels[right])


def _against_fab(case: Case, norm: str, ours: dict[str, Found]) -> Iterator[Row]:
    fab = _ours(case, "fab-t", norm, 100)
    yield from _alone(case, "fab-t", norm, fab)
    for name, found in ours.items():
        about = f"{_MODEL}, {norm}"
        aim = None if name == "pdpgd" else _NEAR
        yield compare(f"{about}, median distance, {name} / fab-t", found, fab, aim)
        share = found.gradients / fab.gradients
        yield figure(f"{about}, gradients, {name} / fab-t", share, "ratio", target=_CHEAP)


def _against_library(case: Case, norm: str, ours: dict[str, Found], steps: int) -> Iterator[Row]:
    """Our nearest against its best, and each of ours against the one of its name."""
    theirs = {name: _library(case, name, norm, steps) for name in _THEIRS[norm]}
    for name, one in theirs.items():
        yield from _alone(case, f"adversarial-library's {name}", norm, one)
    [nearest, *_] = sorted(ours, key=lambda name: float(np.median(ours[name].distances)))
    [best, *_] = sorted(theirs, key=lambda name: float(np.median(theirs[name].distances)))
    about = f"{_MODEL}, {norm}, median distance at equal gradients"
    pair = f"{nearest} / adversarial-library's best ({best})"
    yield compare(f"{about}, {pair}", ours[nearest], theirs[best], _LEVEL)
    for name in ours:
        pair = f"{name} / adversarial-library's {name}"
        yield compare(f"{about}, {pair}", ours[name], theirs[name], 1.0)


def _alone(case: Case, name: str, norm: str, found: Found) -> Iterator[Row]:
    about, count = f"{_MODEL}, {norm}, {name}", len(case.images)
    scale = 255 if norm == "Linf" else 1
    yield figure(f"{about}, median distance", (found.distances * scale).tolist(), _UNITS[norm])
    lost = int((found.distances == FAR).sum())
    yield figure(f"{about}, images that nothing misleads", lost, "images", samples=count)
    yield figure(f"{about}, gradients", found.gradients, "an image", samples=count)
    yield figure(f"{about}, other evaluations", found.others, "an image", samples=count)


def compare(about: str, ours: Found, other: Found, target: float | None) -> Row:
    """The ratio of medians, with the interval of its resamples."""
    pairs = np.stack([ours.distances, other.distances])
    rows = np.random.default_rng(_SEED).integers(pairs.shape[1], size=(10_000, pairs.shape[1]))
    drawn = np.median(pairs[:, rows], axis=2)
    low, high = np.quantile(drawn[0] / drawn[1], [0.025, 0.975])
    first, second = np.median(pairs, axis=1)
    return figure(
        about, float(first / second), "ratio", target=target, samples=pairs.shape[1],
        spread=(float(low), float(high)),
    )  # fmt: skip


def _ours(case: Case, name: str, norm: str, steps: int) -> Found:
    attack = ATTACKS[name].model_validate(
        {"name": name, "norm": norm, "eps": ["1"], "steps": steps}
    )
    if not isinstance(attack, MinimalAttack):
        raise ValueError(f"norms must be those of minimum-norm attacks, got {norm!r}")

    def attacked(images: Tensor, labels: Tensor) -> tuple[Tensor, np.ndarray]:
        """The nearest images found, and gradients and other evaluations of all of them."""
        counts = np.zeros(2)
        with attackable(case.model) as ask:
            model = _counted(ask, counts)
            return attack.nearest(model, images, labels, until=0.0, leave=True)[0], counts

    batches = zip(case.images.split(_BATCH), case.labels.split(_BATCH), strict=True)
    parts = [_kept(f"{name} {norm} {steps}", x, partial(attacked, x, y)) for x, y in batches]
    counts = np.sum([one for _, one in parts], axis=0) / len(case.images)
    return scored(case, torch.cat([made for made, _ in parts]), norm, counts)


def _kept(
    what: str, images: Tensor, make: Callable[[], tuple[Tensor, np.ndarray]]
) -> tuple[Tensor, np.ndarray]:
    """What was made of images, made unless the same code did before: the whole takes an hour."""
    about = f"{what} {code_digest()} {Path(__file__).read_text()}".encode()
    path = _KEPT / f"{sha256(about + images.numpy().tobytes())}.npz"
    if not path.is_file():
        made, counts = make()
        content = io.BytesIO()
        np.savez(content, made=made.numpy(), counts=counts)
        write_whole(path, content.getvalue())
    found = np.load(path)
    return torch.from_numpy(found["made"]), found["counts"]


def _counted(ask: Model, counts: np.ndarray) -> Model:
    def answer(images: Tensor) -> Tensor:
        """Logits; counts gradients, then other evaluations."""
        counts[0 if images.requires_grad else 1] += len(images)
        return ask(images)

    return answer


def scored(case: Case, made: Tensor, norm: str, counts: Sequence[float] | np.ndarray) -> Found:
    """How far images (N, C, H, W) that mislead the model are from the clean ones."""
    sizes = change_size(case.images.numpy(), made.numpy(), _NORMS[norm])
    return Found(
        distances=np.where(_misled(case, made), sizes, FAR),
        gradients=float(counts[0]),
        others=float(counts[1]),
    )


def _misled(case: Case, made: Tensor) -> np.ndarray:
    with torch.inference_mode():
        return (case.model(made).argmax(1) != case.labels).numpy()


def _library(case: Case, name: str, norm: str, steps: int) -> Found:
    made, counts = _peer(case, f"{norm} {name}", steps)
    return scored(case, made, norm, counts)


def _peer(case: Case, name: str, steps: int) -> tuple[Tensor, np.ndarray]:
    """Images that adversarial-library makes, and gradients and other evaluations an image."""
    eps = ATTACKS["apgd-ce"].model_validate({"name": "apgd-ce", "eps": [_EPS]}).budgets()[0].value

    def attacked() -> tuple[Tensor, np.ndarray]:
        """The same, in a process of its own."""
        with tempfile.TemporaryDirectory() as folder:
            given, made = Path(folder) / "case.npz", Path(folder) / "found.npz"
            np.savez(
                given, images=case.images.numpy(), labels=case.labels.numpy(), name=name,
                artifact=str(ROOT / "artifacts" / _MODEL), steps=steps, eps=eps, seed=_SEED,
                batch=_BATCH,
            )  # fmt: skip
            own = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(packages("adv-lib"))])}
            command = [sys.executable, "-m", "benchmarks.peers.adv_lib_attacks", given, made]
            subprocess.run(command, check=True, env=os.environ | own, cwd=ROOT, stdout=sys.stderr)
            found = np.load(made)
            return torch.from_numpy(found["images"]), found["counts"]

    return _kept(f"adv-lib {name} {steps}", case.images, attacked)


def _flags(case: Case, name: str) -> Row:
    """On how many images the library's APGD and ours differ, from the same starts."""
    attack = ATTACKS[name].model_validate({"name": name, "eps": [_EPS]})
    if not isinstance(attack, GradientAttack):
        raise ValueError(f"{name!r} follows no gradient")
    eps = attack.budgets()[0].value

    def attacked(images: Tensor, labels: Tensor) -> tuple[Tensor, np.ndarray]:
        """What ours makes with the library's draws."""
        with attackable(case.model) as ask:
            search = OneGenerator(seeds=[_SEED] * len(images))
            return attack.perturb(ask, images, labels, eps, search), np.zeros(2)

    batches = zip(case.images.split(_BATCH), case.labels.split(_BATCH), strict=True)
    parts = [_kept(name, x, partial(attacked, x, y))[0] for x, y in batches]
    ours, found = _misled(case, torch.cat(parts)), _peer(case, name, 100)[0]
    theirs, count = _misled(case, found), len(ours)
    inside = change_size(case.images.numpy(), found.numpy(), "Linf") <= eps + 1e-6
    theirs &= inside
    different, both = int((ours != theirs).sum()), f"{int(ours.sum())} and {int(theirs.sum())}"
    about = f"{_MODEL}, {name}, eps {_EPS}, images flagged otherwise than by adversarial-library"
    return figure(
        f"{about}; misled {both}", different, "images",
        target=0, samples=count, spread=[count * share for share in wilson(different, count)],
    )  # fmt: skip
