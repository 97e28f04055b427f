"""Gradient attacks: FGSM, PGD, APGD-CE, APGD-T and FAB-T, without their kernels' side effects.

No global generator, gradient, module's mode or `requires_grad` is changed, also after an error.
A sample leaves when its first fooling input is found, and costs no more evaluations.
"""

from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torchattacks import APGD, FGSM, PGD

from robustness.attacks.kernels import (
    Observed,
    OwnDraws,
    SortlessFAB,
    TargetedAPGD,
    Watch,
    distances,
    kernel_draws,
)
from robustness.catalog import MAX_TARGETS, Norm, Variant
from robustness.progress import Meter
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
    meter: Meter | None = None,
) -> Tensor:
    """Look for misclassified images within a ball, from the model's gradients.

    FGSM takes one step of length eps; PGD starts at a random point and takes signed steps of a
    fixed length, both up the cross-entropy. APGD steps with momentum and halves its step where it
    stalls; apgd-ce climbs the cross-entropy, apgd-t the targeted DLR loss towards each of the
    likeliest nine wrong classes in turn. fab-t is `minimal`, cut off at eps.

    Args:
        model: logits from pixels; attacked in evaluation mode.
        images: (N, C, H, W) float32 in [0, 1].
        labels: (N,) int64 class indices.
        attack: which one, with its norm, steps and step size.
        eps: radius in pixel units, e.g. 8 / 255.
        seeds: one an image; all its draws come from it, so that its result does not depend on the
            batch, but for the last bits of the model.
        variant: how gradients treat m of elliptical attention.
        leave: stop for a sample at its first fooling input; else run in full, which returns the
            kernel's own choice among fooling inputs (of PGD its last iterate, fooling or not).
        draws: "kernel" repeats the draws of the kernel run plainly on this batch with the first
            of the seeds: only good for comparing.
        meter: told of every model evaluation; its `Cancelled` ends the attack within one step.

    Returns:
        The adversarial images (N, C, H, W), within eps of the clean ones. Where nothing fooling was
        found: of FGSM and PGD the last iterate, of APGD the one of largest loss, of FAB the clean
        image. Where a gradient is zero or not a number, the step is zero: `robustness.doubts`
        looks for that.

    Raises:
        ValueError: an argument breaks a rule; apgd-t needs 4 classes, FGSM and PGD know Linf only.

    Source: Goodfellow et al. 2015; Madry et al. 2018; Croce & Hein 2020, both papers.
    """
    _check(images, labels, seeds)
    own = attack.norm or "Linf"
    if attack.name == "fab-t":
        nearest, distance = minimal(
            model, images, labels, norm=own, steps=attack.num_steps, until=eps, seeds=seeds,
            variant=variant, leave=leave, meter=meter,
        )  # fmt: skip
        return torch.where((distance <= eps)[:, None, None, None], nearest, images)
    if attack.name not in _ATTACKS or (own == "L2" and attack.name in ("fgsm", "pgd")):
        raise ValueError(f"attack must be one of {', '.join(_ATTACKS)}, FGSM and PGD under Linf, "
                         f"got {attack.name!r} under {own}")  # fmt: skip
    if len(images) == 0:
        return images.clone()
    device = device_of(model)
    trial = _Trial(
        observed=Observed(model, meter),
        images=images.detach().to(device),
        labels=labels.to(device),
        attack=attack,
        eps=eps,
        leave=leave,
        generators=[torch.Generator().manual_seed(seed) for seed in seeds]
        if draws == "own"
        else None,
    )
    with ExitStack() as block:
        block.enter_context(undisturbed(model))
        block.enter_context(gradient_path(model, variant))
        block.enter_context(kernel_draws(seeds[0], device) if draws == "kernel" else nullcontext())
        return _ATTACKS[attack.name](trial).detach().to(images.device)


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
    """Look for the nearest misclassified images, with FAB towards each of the likeliest classes.

    One run serves every radius: an image is robust at eps where its distance is larger.

    Args:
        model: logits from pixels; attacked in evaluation mode.
        images: (N, C, H, W) float32 in [0, 1].
        labels: (N,) int64 class indices.
        norm: of the distance.
        steps: of each of up to nine targets.
        until: an image needs no nearer input than that, and leaves: at once where `leave`, else
            when the run towards the current target ends.
        seeds: one an image, as for every attack; FAB without restarts draws nothing from them.
        variant: how gradients treat m of elliptical attention.
        leave: see `until`.
        meter: told of every model evaluation; its `Cancelled` ends the attack within one step.

    Returns:
        The nearest misclassified images (N, C, H, W), the clean one where none was found, and their
        distances (N,): 0 where the clean image is misclassified, inf where nothing was found.

    Raises:
        ValueError: images are not float32 in [0, 1], or labels not int64.

    Source: Croce & Hein 2020, "Minimally distorted adversarial examples with a fast adaptive
    boundary attack".
    """
    _check(images, labels, seeds)
    device = device_of(model)
    nearest, truth = images.detach().to(device).clone(), labels.to(device)
    distance = torch.full(truth.shape, torch.inf, device=device)
    if len(images) == 0:
        return nearest, distance
    observed = Observed(model, meter)
    with undisturbed(model), gradient_path(model, variant), torch.no_grad():
        logits = observed.evaluate(nearest)
        distance[logits.max(1)[1] != truth] = 0.0
        kernel = SortlessFAB(observed, norm=norm, steps=steps, alpha_max=0.1, eta=1.05, beta=0.9,
                             multi_targeted=True)  # fmt: skip
        for target in _targets(logits):
            rows = (distance > until).nonzero().flatten()
            if len(rows) == 0:
                break
            kernel.target_class = target
            watch = Watch(
                images.to(device)[rows], truth[rows], norm=norm,
                until=until if leave else None, logits=logits[rows],
            )  # fmt: skip
            observed.run(watch, kernel.attack_single_run_targeted, watch.images, watch.labels)
            nearer = watch.distance < distance[rows]
            nearest[rows[nearer]] = watch.nearest[nearer]
            distance[rows[nearer]] = watch.distance[nearer]
    return nearest.to(images.device), distance.to(images.device)


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
    watch = Watch(trial.images, trial.labels, norm=trial.norm, until=until)
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
    kernel, targets = _auto_pgd_kernel(trial, num_classes=logits.shape[1], logits=logits)
    robust = logits.max(1)[1] == labels
    result, best = images.clone(), torch.full(labels.shape, -torch.inf, device=labels.device)
    for target in targets:
        rows = robust.nonzero().flatten()
        if len(rows) == 0:
            break
        if isinstance(kernel, TargetedAPGD):
            kernel.target = logits[rows].sort(dim=1)[1][:, -target]
        until = torch.inf if trial.leave else None
        watch = Watch(images[rows], labels[rows], norm=trial.norm, until=until)
        draws = trial.draws(rows)
        outcome = observed.run(
            watch, kernel.attack_single_run, watch.images, watch.labels, draws=draws
        )
        fooled = watch.distance < torch.inf
        found = watch.nearest
        if outcome is not None:
            climbed, _, loss, kept = outcome
            found = found if trial.leave else kept
            better = rows[loss > best[rows]]
            result[better] = climbed[loss > best[rows]]
            best[rows] = torch.maximum(best[rows], loss)
        result[rows[fooled]] = found[fooled]
        robust[rows[fooled]] = False
    return result


def _auto_pgd_kernel(
    trial: _Trial, *, num_classes: int, logits: Tensor
) -> tuple[APGD, Sequence[int]]:
    attack = trial.attack
    if attack.name == "apgd-t" and num_classes < _TARGETED_CLASSES:
        raise ValueError(
            f"attack 'apgd-t' needs a model of at least {_TARGETED_CLASSES} classes, "
            f"got {num_classes}"
        )
    kind, loss = (TargetedAPGD, "dlr") if attack.name == "apgd-t" else (APGD, "ce")
    kernel = kind(
        trial.observed, norm=trial.norm, eps=trial.eps, steps=attack.num_steps, loss=loss, rho=_RHO
    )
    return kernel, _targets(logits) if attack.name == "apgd-t" else [0]


def _targets(logits: Tensor) -> range:
    """Ranks of the classes aimed at: the likeliest wrong ones have ranks 2, 3, ..."""
    return range(2, min(MAX_TARGETS, logits.shape[1] - 1) + 2)


_ATTACKS = {
    "fgsm": _signed_steps,
    "pgd": _signed_steps,
    "apgd-ce": _auto_pgd,
    "apgd-t": _auto_pgd,
}


def _check(images: Tensor, labels: Tensor, seeds: Sequence[int]) -> None:
    # The kernels clamp silently, which moves a pixel outside [0, 1] by more than eps.
    if images.dtype != torch.float32 or images.ndim != 4:
        raise ValueError(
            f"images must be (N, C, H, W) float32, got {tuple(images.shape)} {images.dtype}"
        )
    if not bool(((images >= 0) & (images <= 1)).all()):
        raise ValueError("images must lie in [0, 1]")
    if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
        raise ValueError(
            f"labels must be ({len(images)},) int64, got {tuple(labels.shape)} {labels.dtype}"
        )
    if len(seeds) != len(images):
        raise ValueError(f"seeds must be one an image, {len(images)}, got {len(seeds)}")
