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
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torchattacks
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.support.pairs import pair_rows
from benchmarks.support.rows import Row
from benchmarks.support.server import ROOT
from core.stats import paired_interval
from data.sources import load_inputs, open_images
from robustness.attacks.base import input_seed
from robustness.attacks.gradient import GradientAttack
from robustness.attacks.kernels.model import attackable
from robustness.attacks.spsa import spsa
from robustness.attacks.square import square
from robustness.spec import ATTACKS
from runtimes.artifact import find_artifacts
from runtimes.base import Runtime
from runtimes.registry import open_runtime
from runtimes.torch_model import load_torch_model

NAME = "attack_speed"
_ARTIFACT = "fashion-elliptical-adv"
_SAMPLE = ROOT / "artifacts" / "samples" / "fashion-mnist"
_EPS = "8/255"  # it was trained at this radius
_NUM_CLASSES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """How an attack is measured: so many pairs of so many images, and the ratio to reach."""

    attack: str
    pairs: int
    images: int
    target: float | None


_PLANS = (
    _Plan(attack="pgd", pairs=6, images=50, target=1 / 1.5),
    _Plan(attack="spsa", pairs=5, images=4, target=1 / 4),
    _Plan(attack="square", pairs=3, images=12, target=None),
    _Plan(attack="autoattack", pairs=3, images=50, target=1 / 3),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """The model under evaluation, and all that attacks it."""

    torch_model: nn.Module
    unfrozen: nn.Module
    served: Runtime
    images: Tensor
    labels: Tensor


def run() -> Iterable[Row]:
    """Measure each attack; its rows appear when it is done."""
    threads_before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        subject = _open()
        for plan in _PLANS:
            yield from _measure(subject, plan)
    finally:
        torch.set_num_threads(threads_before)


def _open() -> _Subject:
    [artifact] = [a for a in find_artifacts([ROOT / "artifacts"]) if a.name == _ARTIFACT]
    sample = open_images(_SAMPLE, label_names=artifact.labels)
    if sample.labels is None:
        raise ValueError(f"the images of {_SAMPLE.name} must be labeled")
    # The files lie in order of class: every pair should see all classes.
    order = np.random.default_rng(0).permutation(len(sample))
    torch_model = load_torch_model(artifact)
    return _Subject(
        torch_model=torch_model,
        unfrozen=copy.deepcopy(torch_model).requires_grad_(True),
        served=open_runtime(artifact, threads=1),
        images=torch.from_numpy(load_inputs(sample, artifact.image_spec)[order]),
        labels=torch.from_numpy(sample.labels[order]),
    )


def _measure(subject: _Subject, plan: _Plan) -> Iterator[Row]:
    attack = ATTACKS[plan.attack].model_validate({"name": plan.attack, "eps": [_EPS]})
    pairs, robust = [], []
    for index in tqdm(range(plan.pairs), desc=plan.attack, unit="pair"):
        rows = slice(index * plan.images, (index + 1) * plan.images)
        took: dict[str, float] = {}
        flags: dict[str, np.ndarray] = {}
        ways = [("plain", _plain), ("ours", _ours)]
        for name, way in ways[:: 1 if index % 2 else -1]:
            took[name], found = _cpu_seconds(lambda w=way, r=rows: w(subject, attack, r))
            flags[name] = _robust(subject, found, rows)
        pairs.append((took["plain"], took["ours"]))
        robust.append(np.stack([flags["plain"], flags["ours"]]))
    case = f"{_ARTIFACT}, {plan.attack}, eps {_EPS}, {plan.images} images, CPU time"
    yield from pair_rows(NAME, case, ("plain kernel", "ours"), pairs, target=plan.target)
    yield _accuracy(plan, np.concatenate(robust, axis=1))


def _accuracy(plan: _Plan, robust: np.ndarray) -> Row:
    plain, ours = robust
    only_ours, only_plain = int((ours & ~plain).sum()), int((plain & ~ours).sum())
    low, high = paired_interval(only_ours, only_plain, len(ours))
    difference = (only_ours - only_plain) / len(ours)
    return Row(
        name=NAME,
        case=f"{_ARTIFACT}, {plan.attack}, eps {_EPS}, robust accuracy above the plain kernel's "
        f"({plain.mean():.4f})",
        measured=round(difference, 4),
        unit="share",
        better="lower",
        target=round(max(difference - low, 0.0), 4),  # what the paired interval calls chance
        samples=len(ours),
        spread=(round(low, 4), round(high, 4)),
    )


def _plain(subject: _Subject, attack: Any, rows: slice) -> Tensor:
    images, labels = subject.images[rows], subject.labels[rows]
    eps = attack.budgets()[0].value
    if attack.name == "pgd":
        kernel = torchattacks.PGD(
            subject.torch_model, eps=eps, alpha=attack.step_size(eps), steps=attack.steps
        )
    elif attack.name == "autoattack":
        return _plain_autoattack(subject, attack, images, labels)
    elif attack.name == "spsa":
        kernel = torchattacks.SPSA(
            subject.torch_model, eps=eps, delta=0.01, lr=0.01, nb_iter=attack.steps,
            nb_sample=attack.samples, max_batch_size=max(256 // len(images), 1),
        )  # fmt: skip
    else:
        kernel = torchattacks.Square(
            subject.torch_model, norm="Linf", eps=eps, n_queries=attack.queries,
            resc_schedule=False,
        )  # fmt: skip
    with _seeded():
        return kernel(images, labels)


def _ours(subject: _Subject, attack: Any, rows: slice) -> Tensor:
    images, labels = subject.images[rows], subject.labels[rows]
    if attack.name == "autoattack":
        return _our_autoattack(subject, attack, images, labels)
    pixels, truth, eps = images.numpy(), labels.numpy(), attack.budgets()[0].value
    seeds = [input_seed(0, attack.name, image.tobytes()) for image in pixels]
    if isinstance(attack, GradientAttack):
        rng = [torch.Generator().manual_seed(seed) for seed in seeds]
        with attackable(subject.torch_model, variant="stopped") as model:
            return attack.perturb(model, images, labels, eps=eps, rng=rng)
    predict = subject.served.predict
    if attack.name == "spsa":
        found = spsa(
            predict, pixels, truth, eps=eps, steps=attack.steps,
            samples=attack.samples, seeds=seeds,
        )  # fmt: skip
    else:
        found = square(
            predict, pixels, truth, norm="Linf", eps=eps,
            queries=attack.queries, seeds=seeds,
        )  # fmt: skip
    return torch.from_numpy(found)


def _our_autoattack(subject: _Subject, attack: Any, images: Tensor, labels: Tensor) -> Tensor:
    """The four attacks on what still holds, as `robustness.attacking` runs them."""
    found = images.clone()
    for part in attack.parts(_NUM_CLASSES):
        held = _held(subject, found, labels)
        if not held.any():
            break
        rest = replace(subject, images=images[held], labels=labels[held])
        found[held] = _ours(rest, part, slice(None))
    return found


def _plain_autoattack(subject: _Subject, attack: Any, images: Tensor, labels: Tensor) -> Tensor:
    """The four kernels on what still holds; the model's parameters are as training left them."""
    model, eps, found = subject.unfrozen, attack.budgets()[0].value, images.clone()
    more = {"norm": "Linf", "eps": eps, "n_restarts": 1}
    kernels = (
        torchattacks.APGD(model, steps=100, loss="ce", **more),
        torchattacks.APGDT(model, steps=100, n_classes=_NUM_CLASSES, **more),
        torchattacks.FAB(
            model, steps=100, multi_targeted=True, n_classes=_NUM_CLASSES, alpha_max=0.1, **more
        ),
        torchattacks.Square(model, n_queries=5000, resc_schedule=False, **more),
    )
    for kernel in kernels:
        with torch.no_grad():
            held = model(found).argmax(1) == labels
        if not held.any():
            break
        with _seeded():
            found[held] = kernel(images[held], labels[held]).detach()
    return found


def _held(subject: _Subject, found: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad():
        by_torch_model = subject.torch_model(found).argmax(1) == labels
    served = torch.from_numpy(subject.served.predict(found.numpy()))
    return by_torch_model | (served.argmax(1) == labels)


def _robust(subject: _Subject, found: Tensor, rows: slice) -> np.ndarray:
    """Flags (n,): the served model is right on the clean image and on the adversarial one."""
    right = [
        subject.served.predict(inputs.detach().numpy()).argmax(1) == subject.labels[rows].numpy()
        for inputs in (subject.images[rows], found)
    ]
    return right[0] & right[1]


@contextmanager
def _seeded() -> Iterator[None]:
    """Seed the global generator, from which torchattacks draws; it is restored afterwards."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        yield


def _cpu_seconds(call: Callable[[], Tensor]) -> tuple[float, Tensor]:
    start = time.process_time()
    found = call()
    return time.process_time() - start, found
