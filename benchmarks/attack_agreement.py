"""Do our attacks flag the images that torchattacks' kernels flag?

Each kernel is run plainly, on one batch of shipped images and two shipped models;
then ours, where fooled samples leave: once with the kernel's own draws, where not a single flag may
differ, and once with the product's draws, one seed an image, where chance remains.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torchattacks
from torch import Tensor, nn

from benchmarks.support.rows import Row
from benchmarks.support.server import ROOT
from core.stats import paired_interval, wilson
from data.sources import load_inputs, open_images
from robustness.attacks.base import input_seed
from robustness.attacks.gradient import GradientAttack
from robustness.attacks.kernels.model import attackable
from robustness.attacks.square import square
from robustness.spec import ATTACKS
from runtimes.artifact import find_artifacts
from runtimes.torch_model import load_torch_model

_RADII = {"fashion-dot": "4/255", "fashion-elliptical-adv": "24/255"}
"""Where about half of the images fall, so that flags can differ."""
_ATTACKS: tuple[str, ...] = ("fgsm", "pgd", "apgd-ce", "apgd-t", "fab-t", "square")
_SAMPLE = ROOT / "artifacts" / "samples" / "fashion-mnist"
_EVERY = 5  # of its 300 images, ordered by class
_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One attack on one model.

    Attributes:
        name: of the model.
        model: logits from pixels.
        images: (N, C, H, W) float32 in [0, 1].
        labels: (N,) int64.
        attack: at one radius.
    """

    name: str
    model: nn.Module
    images: Tensor
    labels: Tensor
    attack: Any  # of one of the classes in `ATTACKS`, at one radius

    @property
    def eps(self) -> float:
        """The radius."""
        return self.attack.budgets()[0].value

    def robust(self, adversarial: Tensor) -> np.ndarray:
        """Flags (N,): right on the clean image and on the adversarial one."""
        with torch.inference_mode():
            right = [self.model(x).argmax(1) == self.labels for x in (self.images, adversarial)]
        return (right[0] & right[1]).numpy()


def run() -> Iterable[Row]:
    """Compare flags for both models and all attacks; a row appears when its attack is done."""
    for artifact in find_artifacts([ROOT / "artifacts"]):
        if artifact.name not in _RADII:
            continue
        sample = open_images(_SAMPLE, label_names=artifact.labels)
        sample = sample.take(range(0, len(sample), _EVERY))
        if sample.labels is None:
            raise ValueError(f"the images of {_SAMPLE.name} must be labeled")
        for name in _ATTACKS:
            case = Case(
                name=artifact.name,
                model=load_torch_model(artifact),
                images=torch.from_numpy(load_inputs(sample, artifact.image_spec)),
                labels=torch.from_numpy(sample.labels),
                attack=ATTACKS[name].model_validate({"name": name, "eps": [_RADII[artifact.name]]}),
            )
            yield from compare(case)


def compare(case: Case) -> Iterator[Row]:
    """Flags under the kernel's draws, then accuracy under the product's, beside the kernel's."""
    samples = len(case.images)
    with torch.random.fork_rng([]):
        torch.manual_seed(_SEED)
        plain = case.robust(_kernel(case)(case.images, case.labels).detach())
    same = case.robust(_ours(case, "kernel"))
    what = f"{case.name}, {case.attack.name}, eps {case.attack.eps[0]}"
    different = int((same != plain).sum())
    low, high = wilson(different, samples)
    yield Row(
        name="attack_agreement",
        case=f"{what}, the kernel's draws, images flagged otherwise; robust {plain.mean():.4f}",
        measured=different,
        unit="images",
        better="lower",
        target=0,
        samples=samples,
        spread=(round(low * samples, 2), round(high * samples, 2)),
    )
    own = case.robust(_ours(case, "own"))
    only_ours, only_plain = int((own & ~plain).sum()), int((plain & ~own).sum())
    low, high = paired_interval(only_ours, only_plain, samples)
    difference = (only_ours - only_plain) / samples
    yield Row(
        name="attack_agreement",
        case=f"{what}, own draws, robust accuracy above the plain kernel's",
        measured=round(difference, 4),
        unit="share",
        better="lower",
        target=round(max(difference - low, 0.0), 4),  # what the paired interval calls chance
        samples=samples,
        spread=(round(low, 4), round(high, 4)),
    )


def _ours(case: Case, draws: Literal["own", "kernel"]) -> Tensor:
    pixels, name = case.images.numpy(), case.attack.name
    seeds = [_SEED] * len(pixels)
    # One generator for all draws row by row what the kernel draws at once.
    rng = [torch.Generator().manual_seed(_SEED)] * len(pixels)
    if draws == "own":
        seeds = [input_seed(_SEED, name, image.tobytes()) for image in pixels]
        rng = [torch.Generator().manual_seed(seed) for seed in seeds]
    if isinstance(case.attack, GradientAttack):
        with attackable(case.model) as model:
            return case.attack.perturb(model, case.images, case.labels, eps=case.eps, rng=rng)

    def predict(images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return case.model(torch.from_numpy(images)).numpy()

    found = square(
        predict, pixels, case.labels.numpy(), norm="Linf", eps=case.eps,
        queries=case.attack.queries, seeds=seeds,
        draws=draws,
    )  # fmt: skip
    return torch.from_numpy(found)


def _kernel(case: Case) -> Callable[[Tensor, Tensor], Tensor]:
    """The kernel as it is run plainly; PGD draws from the generator that the caller seeds."""
    model, eps, steps = case.model, case.eps, case.attack.settings(case.attack.budgets()[0]).steps
    common = {"norm": "Linf", "eps": eps, "n_restarts": 1, "seed": _SEED}
    match case.attack.name:
        case "fgsm":
            return torchattacks.FGSM(model, eps=eps)
        case "pgd":
            return torchattacks.PGD(model, eps=eps, alpha=0.15 * eps, steps=steps)
        case "apgd-ce":
            return torchattacks.APGD(model, steps=steps, loss="ce", rho=0.75, **common)
        case "apgd-t":
            return torchattacks.APGDT(model, steps=steps, rho=0.75, n_classes=10, **common)
        case "fab-t":
            return torchattacks.FAB(
                model, steps=steps, alpha_max=0.1, eta=1.05, beta=0.9, multi_targeted=True,
                n_classes=10, **common,
            )  # fmt: skip
        case _:
            return torchattacks.Square(
                model, n_queries=case.attack.queries, p_init=0.8, loss="margin",
                resc_schedule=False, **common,
            )  # fmt: skip
