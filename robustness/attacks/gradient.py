"""Gradient attacks on a module: FGSM, PGD, APGD-CE, APGD-T and FAB-T, without side effects.

No global generator, gradient, module's mode or `requires_grad` is changed, also after an error.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from robustness.attacks.apgd import apgd
from robustness.attacks.batch import Model, check_batch
from robustness.attacks.fab import fab
from robustness.attacks.pgd import pgd
from robustness.catalog import Norm, Variant
from robustness.progress import Meter
from robustness.target import device_of, gradient_path, undisturbed

_ATTACKS = ("fgsm", "pgd", "apgd-ce", "apgd-t")


class GradientAttack(Protocol):
    """What an attack is told; `robustness.attack_spec.AttackSpec` is one."""

    @property
    def name(self) -> str:
        """One of fgsm, pgd, apgd-ce, apgd-t, fab-t."""
        ...

    @property
    def norm(self) -> Norm | None:
        """Of the ball; None stands for Linf."""
        ...

    @property
    def num_steps(self) -> int:
        """Gradient steps, of the targeted attacks for each target."""
        ...

    def step_size(self, eps: float) -> float:
        """Length of a step of FGSM and PGD."""
        ...


@contextmanager
def attackable(
    model: nn.Module, *, variant: Variant = "plain", meter: Meter | None = None
) -> Iterator[Model]:
    """A module as attacks ask it: in evaluation mode, its parameters frozen, every call counted.

    Args:
        model: logits from pixels; all of it is as before when the block ends.
        variant: how gradients treat m of elliptical attention.
        meter: told of every model evaluation; its `Cancelled` ends an attack within one step.
    """

    def logits(images: Tensor) -> Tensor:
        if meter is not None:
            meter.before()
        answer = model(images)
        if meter is not None:
            meter.after(len(images))
        return answer

    with undisturbed(model), gradient_path(model, variant):
        yield logits


def perturb(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    attack: GradientAttack,
    eps: float,
    seeds: Sequence[int],
    variant: Variant = "plain",
    leave: bool = True,
    meter: Meter | None = None,
) -> Tensor:
    """Look for misclassified images within a ball, from the model's gradients.

    Args:
        model: logits from pixels; attacked in evaluation mode.
        images: (N, C, H, W) float32 in [0, 1].
        labels: (N,) int64 class indices.
        attack: which one, with its norm, steps and step size.
        eps: radius in pixel units, e.g. 8 / 255.
        seeds: one an image, of all its draws: its result does not depend on the batch, but for the
            last bits of the model.
        variant: see `attackable`.
        leave: stop for a sample at its first fooling input, which costs no more evaluations then.
        meter: see `attackable`.

    Returns:
        The adversarial images (N, C, H, W), within eps of the clean ones. Where nothing fooling was
        found: of FGSM and PGD the last iterate, of APGD that of largest loss, of FAB the clean one.

    Raises:
        ValueError: an argument breaks a rule; apgd-t needs 4 classes, FGSM and PGD know Linf only.
    """
    if attack.name == "fab-t":
        nearest, distance = minimal(
            model, images, labels, norm=attack.norm or "Linf", steps=attack.num_steps, until=eps,
            seeds=seeds, variant=variant, leave=leave, meter=meter,
        )  # fmt: skip
        return torch.where((distance <= eps)[:, None, None, None], nearest, images)
    if attack.name not in _ATTACKS or (attack.norm == "L2" and attack.name in ("fgsm", "pgd")):
        raise ValueError(f"attack must be one of {', '.join(_ATTACKS)}, FGSM and PGD under Linf, "
                         f"got {attack.name!r} under {attack.norm or 'Linf'}")  # fmt: skip
    check_batch(images, labels, seeds)
    if len(images) == 0:
        return images.clone()
    device = device_of(model)
    clean, truth, steps = images.detach().to(device), labels.to(device), attack.num_steps
    rng = [torch.Generator().manual_seed(seed) for seed in seeds]
    with attackable(model, variant=variant, meter=meter) as ask:
        if attack.name in ("fgsm", "pgd"):
            found = pgd(
                ask, clean, truth, eps=eps, alpha=attack.step_size(eps), steps=steps,
                rng=None if attack.name == "fgsm" else rng, leave=leave,
            )  # fmt: skip
        else:
            loss = "cross-entropy" if attack.name == "apgd-ce" else "targeted-dlr"
            found = apgd(
                ask, clean, truth, loss=loss, norm=attack.norm or "Linf", eps=eps, steps=steps,
                rng=rng, leave=leave,
            )  # fmt: skip
    return found.to(images.device)


def minimal(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    norm: Norm,
    steps: int,
    until: float,
    seeds: Sequence[int],
    variant: Variant = "plain",
    leave: bool = True,
    meter: Meter | None = None,
) -> tuple[Tensor, Tensor]:
    """Look for the nearest misclassified images by FAB; see `robustness.attacks.fab.fab`.

    Raises:
        ValueError: images are not float32 in [0, 1], or labels not int64.
    """
    check_batch(images, labels, seeds)
    if len(images) == 0:
        return images.clone(), torch.zeros(0)
    device = device_of(model)
    with attackable(model, variant=variant, meter=meter) as ask:
        nearest, distance = fab(
            ask, images.detach().to(device), labels.to(device), norm=norm, steps=steps,
            until=until, leave=leave,
        )  # fmt: skip
    return nearest.to(images.device), distance.to(images.device)
