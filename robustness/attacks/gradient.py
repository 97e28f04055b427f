"""Gradient attacks: FGSM, PGD, APGD-CE, APGD-T and FAB-T, without their kernels' side effects.

No global generator, gradient, module's mode or `requires_grad` is changed, also after an error.
A sample leaves when its first fooling input is found, and costs no more evaluations.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torchattacks import APGD, FGSM, PGD

from robustness.attacks.batch import check_batch, ranked, target_ranks
from robustness.attacks.boundary import minimal
from robustness.attacks.kernels import (
    Observed,
    OwnDraws,
    TargetedAPGD,
    Watch,
    kernel_draws,
)
from robustness.catalog import Norm, Variant
from robustness.progress import Meter
from robustness.proposals import Aim, Proposer
from robustness.target import device_of, gradient_path, undisturbed

Draws = Literal["own", "kernel"]
_RHO = 0.75  # share of rising steps below which APGD halves its step
_TARGETED_CLASSES = 4  # logits that the targeted loss compares


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
        """Length of a step of PGD."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """One batch under one attack."""

    observed: Observed
    images: Tensor
    labels: Tensor
    attack: GradientAttack
    eps: float
    leave: bool
    generators: list[torch.Generator] | None  # one an image, or None for the kernel's draws

    @property
    def norm(self) -> Norm:
        return self.attack.norm or "Linf"

    def draws(self, rows: Tensor) -> OwnDraws | None:
        """What a kernel draws from when it runs on some of the images."""
        if self.generators is None:
            return None
        return OwnDraws([self.generators[row] for row in rows.tolist()])


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
    draws: Draws = "own",
    proposer: Proposer | None = None,
    meter: Meter | None = None,
) -> Tensor:
    """Look for misclassified images within a ball, from the model's gradients.

    FGSM and PGD take signed steps up the cross-entropy, PGD from a random point; APGD steps with
    momentum and halves its step where it stalls, up the cross-entropy or towards each of the
    likeliest nine wrong classes in turn; fab-t is `minimal`, cut off at eps.

    Args:
        model: logits from pixels; attacked in evaluation mode.
        images: (N, C, H, W) float32 in [0, 1].
        labels: (N,) int64 class indices.
        attack: which one, with its norm, steps and step size.
        eps: radius in pixel units, e.g. 8 / 255.
        seeds: one an image, of all its draws: its result does not depend on the batch, but for the
            last bits of the model.
        variant: how gradients treat m of elliptical attention.
        leave: stop for a sample at its first fooling input; else return what the kernel does (of
            PGD the last iterate, fooling or not).
        draws: "kernel" draws as the kernel run plainly on this batch with the first seed does.
        proposer: the model in bfloat16, to search with; what it finds counts only when the model
            says the same, and where it finds nothing, that is not asked. Needs `leave`.
        meter: told of every model evaluation; its `Cancelled` ends the attack within one step.

    Returns:
        The adversarial images (N, C, H, W), within eps of the clean ones. Where nothing fooling was
        found: of FGSM and PGD the last iterate, of APGD that of largest loss, of FAB the clean one.

    Raises:
        ValueError: an argument breaks a rule; apgd-t needs 4 classes, FGSM and PGD know Linf only.

    Source: Goodfellow et al. 2015; Madry et al. 2018; Croce & Hein 2020, both papers.
    """
    check_batch(images, labels, seeds)
    if attack.name == "fab-t":
        nearest, distance = minimal(
            model, images, labels, norm=attack.norm or "Linf", steps=attack.num_steps, until=eps,
            seeds=seeds, variant=variant, leave=leave, proposer=proposer, meter=meter,
        )  # fmt: skip
        return torch.where((distance <= eps)[:, None, None, None], nearest, images)
    start = _start(attack)
    if len(images) == 0:
        return images.clone()
    device = device_of(model)
    trial = _Trial(
        observed=Observed(model, meter, proposer),
        images=images.detach().to(device), labels=labels.to(device),
        attack=attack, eps=eps, leave=leave,
        generators=None if draws == "kernel" else [_generator(seed) for seed in seeds],
    )  # fmt: skip
    seeded = kernel_draws(seeds[0], device) if draws == "kernel" else nullcontext()
    with undisturbed(model), gradient_path(model, variant), seeded:
        return start(trial).detach().to(images.device)


def _start(attack: GradientAttack) -> Callable[[_Trial], Tensor]:
    if attack.name not in _ATTACKS or (attack.norm == "L2" and attack.name in ("fgsm", "pgd")):
        raise ValueError(f"attack must be one of {', '.join(_ATTACKS)}, FGSM and PGD under Linf, "
                         f"got {attack.name!r} under {attack.norm or 'Linf'}")  # fmt: skip
    return _ATTACKS[attack.name]


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _signed_steps(trial: _Trial) -> Tensor:
    """FGSM and PGD: whatever they end with, unless a sample was fooled on the way."""
    observed, attack, eps = trial.observed, trial.attack, trial.eps
    if attack.name == "fgsm":
        kernel = FGSM(observed, eps=eps)
    else:
        size = attack.step_size(eps)
        kernel = PGD(observed, eps=eps, alpha=size, steps=attack.num_steps, random_start=True)
    everyone = torch.arange(len(trial.images))
    until = torch.inf if trial.leave else None
    aim = Aim(loss="cross-entropy", labels=trial.labels, targets=None)
    watch = Watch(trial.images, trial.labels, norm=trial.norm, until=until, aim=aim)
    draws = trial.draws(everyone)
    last = observed.run(watch, kernel.forward, trial.images, trial.labels, draws=draws)
    if last is None or not trial.leave:
        return watch.nearest if last is None else last
    return torch.where(watch.distance.isinf()[:, None, None, None], last, watch.nearest)


def _auto_pgd(trial: _Trial) -> Tensor:
    """APGD once, or towards each target; what is misclassified needs no attack."""
    observed, images, labels = trial.observed, trial.images, trial.labels
    with torch.no_grad():
        logits = observed.evaluate(images)
    kernel, targets = _auto_pgd_kernel(trial, logits)
    robust = logits.max(1)[1] == labels
    result, best = images.clone(), torch.full(labels.shape, -torch.inf, device=labels.device)
    for target in targets:
        rows = robust.nonzero().flatten()
        if len(rows) == 0:
            break
        aim = Aim(loss="cross-entropy", labels=labels[rows], targets=None)
        if isinstance(kernel, TargetedAPGD):
            kernel.target = ranked(logits[rows], target)
            aim = Aim(loss="targeted-dlr", labels=labels[rows], targets=kernel.target)
        until = torch.inf if trial.leave else None
        watch = Watch(images[rows], labels[rows], norm=trial.norm, until=until, aim=aim)
        draws = trial.draws(rows)
        outcome = observed.run(
            watch, kernel.attack_single_run, watch.images, watch.labels, draws=draws
        )
        fooled = watch.distance < torch.inf
        found = watch.nearest
        if outcome is not None:
            climbed, _, loss, kept = outcome
            if not trial.leave:  # an infinite gradient makes a step under l2 that is no number
                found = torch.where(
                    kept.isfinite().flatten(1).all(1)[:, None, None, None], kept, found
                )
            higher = loss > best[rows]
            result[rows[higher]] = climbed[higher]
            best[rows[higher]] = loss[higher]
        result[rows[fooled]] = found[fooled]
        robust[rows[fooled]] = False
    return result


def _auto_pgd_kernel(trial: _Trial, logits: Tensor) -> tuple[APGD, Sequence[int]]:
    """The kernel and the ranks of the classes it aims at, one run each; a 0 aims at none."""
    attack, num_classes = trial.attack, logits.shape[1]
    if attack.name == "apgd-t" and num_classes < _TARGETED_CLASSES:
        raise ValueError(
            f"attack 'apgd-t' needs a model of at least {_TARGETED_CLASSES} classes, "
            f"got {num_classes}"
        )
    kind, loss = (TargetedAPGD, "dlr") if attack.name == "apgd-t" else (APGD, "ce")
    kernel = kind(
        trial.observed, norm=trial.norm, eps=trial.eps, steps=attack.num_steps, loss=loss, rho=_RHO
    )
    return kernel, target_ranks(logits) if attack.name == "apgd-t" else [0]


_ATTACKS = {
    "fgsm": _signed_steps,
    "pgd": _signed_steps,
    "apgd-ce": _auto_pgd,
    "apgd-t": _auto_pgd,
}
