"""How much CPU time do our attacks take, and how much torchattacks' kernels run plainly?

Both attack the same images of the adversarially trained model on one thread, one after the other
and in changing order; a ratio is the median over such pairs. Processor time counts, so that other
processes matter less. The plain kernels run in eager float32 and attack every image to
the end; AutoAttack's run on what still holds, and on parameters as training leaves them, which want
gradients of their own. Ours let fooled images leave; SPSA and Square ask the served graph.
"""

import copy
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.attack_agreement import kernel, samples
from benchmarks.support.pairs import in_turn, pair_rows, torch_threads
from benchmarks.support.rows import Row, figure
from benchmarks.support.server import ROOT
from core.progress import Bar
from core.stats import paired_interval
from robustness.attacks.base import Batch, Search, input_seed
from robustness.spec import ATTACKS
from robustness.target import Target
from robustness.text_target import open_model
from runtimes.artifact import open_artifact

_ARTIFACT = "fashion-elliptical-adv"
_EPS = "8/255"  # it was trained at this radius
_NUM_CLASSES = 10


_PLANS = (
    ("pgd", 6, 50, 1 / 1.5),
    ("spsa", 5, 4, 1 / 4),
    ("square", 3, 12, None),
    ("autoattack", 3, 50, 1 / 3),
)
"""Of each attack so many pairs of so many images, and the ratio to reach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """The model under evaluation, and all that attacks it."""

    target: Target
    unfrozen: nn.Module
    images: Tensor
    labels: Tensor


def run() -> Iterable[Row]:
    """Measure each attack; its rows appear when it is done."""
    with torch_threads(1):
        subject = _open()
        for plan in _PLANS:
            yield from _measure(subject, *plan)


def _open() -> _Subject:
    artifact = open_artifact(ROOT / "artifacts" / _ARTIFACT)
    images, labels = samples(artifact)
    # The files lie in order of class: every pair should see all classes.
    order = np.random.default_rng(0).permutation(len(images))
    target = open_model(artifact, threads=1)
    unfrozen = copy.deepcopy(target.require_torch_model()).requires_grad_(True)
    return _Subject(target=target, unfrozen=unfrozen, images=images[order], labels=labels[order])


def _measure(
    subject: _Subject, attack_name: str, count: int, size: int, target: float | None
) -> Iterator[Row]:
    attack = ATTACKS[attack_name].model_validate({"name": attack_name, "eps": [_EPS]})
    plain, ours = (_scored(subject, way, attack, size) for way in (_plain, _ours))
    measured = in_turn(plain.__next__, ours.__next__, count)
    pairs = list(Bar(measured, desc=attack_name, total=count, unit="pair"))
    case = f"{_ARTIFACT}, {attack_name}, eps {_EPS}"
    about = f"{case}, {size} images, CPU time"
    seconds = [(first, second) for (first, _), (second, _) in pairs]
    yield from pair_rows(about, ("plain kernel", "ours"), seconds, target=target)
    of_plain, of_ours = (np.concatenate([one[way][1] for one in pairs]) for way in (0, 1))
    about = f"{case}, robust accuracy above the plain kernel's ({of_plain.mean():.4f})"
    yield _above(about, of_ours, of_plain)


def _above(case: str, ours: np.ndarray, plain: np.ndarray) -> Row:
    """How much higher one robust accuracy is; the target is what the interval calls chance."""
    only_ours, only_plain = int((ours & ~plain).sum()), int((plain & ~ours).sum())
    low, high = paired_interval(only_ours, only_plain, len(ours))
    difference = (only_ours - only_plain) / len(ours)
    chance = round(max(difference - low, 0.0), 4)
    spread = (low, high)
    return figure(case, difference, "share", target=chance, samples=len(ours), spread=spread)


def _scored(
    subject: _Subject, way: Callable[[_Subject, Any], Tensor], attack: Any, size: int
) -> Iterator[tuple[float, np.ndarray]]:
    """Processor time of an attack on one batch after the other, and which images stay right."""
    for images, labels in zip(subject.images.split(size), subject.labels.split(size), strict=True):
        part = replace(subject, images=images, labels=labels)
        start = time.process_time()
        found = way(part, attack)
        seconds = time.process_time() - start
        yield seconds, _right(part, images) & _right(part, found)


def _plain(subject: _Subject, attack: Any) -> Tensor:
    """The kernel; of AutoAttack the four on what still holds, on parameters as training left."""
    model, parts = subject.target.require_torch_model(), [attack]
    if attack.name == "autoattack":
        model, parts = subject.unfrozen, attack.parts(_NUM_CLASSES)
    found = subject.images.clone()
    for index, part in enumerate(parts):
        held = torch.ones(len(found), dtype=torch.bool)
        if index:
            with torch.no_grad():
                held = model(found).argmax(1) == subject.labels
        if held.any():
            # torchattacks draws from the global generator, which is restored afterwards.
            with torch.random.fork_rng([]):
                torch.manual_seed(0)
                attacked = kernel(part, model)(subject.images[held], subject.labels[held])
            found[held] = attacked.detach()
    return found


def _ours(subject: _Subject, attack: Any) -> Tensor:
    """The attack; of AutoAttack the four on what still holds, as an evaluation runs them."""
    parts = attack.parts(_NUM_CLASSES) if attack.name == "autoattack" else [attack]
    found = subject.images.clone()
    for index, part in enumerate(parts):
        held = _held(subject, found) if index else torch.ones(len(found), dtype=torch.bool)
        if held.any():
            images = subject.images[held].numpy()
            seeds = [input_seed(0, part.name, image.tobytes()) for image in images]
            batch = Batch(inputs=images, labels=subject.labels[held].numpy())
            [budget] = part.budgets()
            search = Search(seeds=seeds, variant="stopped")
            made = part.run(subject.target, batch, budget, search)
            found[held] = torch.from_numpy(made.images)
    return found


def _held(subject: _Subject, found: Tensor) -> Tensor:
    with torch.no_grad():
        by_torch = subject.target.require_torch_model()(found).argmax(1) == subject.labels
    return by_torch | torch.from_numpy(_right(subject, found))


def _right(subject: _Subject, images: Tensor) -> np.ndarray:
    """Flags (N,): the served model is right."""
    return subject.target.predict(images.numpy()).argmax(1) == subject.labels.numpy()
