"""FGSM, PGD and SegPGD: one signed step up the cross-entropy, and many."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, field_validator

from robustness.attacks.base import Budget, Info, Linf, Search, Settings
from robustness.attacks.gradient import GradientAttack
from robustness.attacks.space import Spaced
from robustness.parsing import Count, Radius, parse_eps

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from robustness.attacks.tensors import Model

STEP = 0.15  # of eps: Nielsen et al. 2024; 20 steps can cross the whole ball


class _SignedSteps(GradientAttack, frozen=True):
    """Steps along the signs of the gradient, by default a single one as long as the radius."""

    norm: Linf = "Linf"
    random_start: ClassVar[bool] = False

    def step_size(self, eps: float) -> float:
        """Length of a step at a radius."""
        return eps

    def cost(self, num_classes: int) -> int:
        """One gradient a step."""
        return self._count

    @property
    def _count(self) -> int:
        return getattr(self, "steps", 1)

    def settings(self, budget: Budget) -> Settings:
        """See `Attack.settings`."""
        return Settings(self._count, self.step_size(budget.value))

    def perturb(
        self, model: "Model", images: "Tensor", labels: "Tensor", eps: float, search: Search
    ) -> "Tensor":
        """See `GradientAttack.perturb`."""
        start, alpha = search.generators() if self.random_start else None, self.step_size(eps)
        return pgd(
            model, images, labels, eps=eps, alpha=alpha, steps=self._count, rng=start,
            leave=search.leave, clip=search.space == "pixels", losses=self.losses,
        )  # fmt: skip

    def losses(self, logits: "Tensor", truth: "Tensor", step: int) -> "Tensor":
        """What a step goes up: losses (B, ...) of logits (B, K, ...); steps count from 0."""
        from robustness.target import cross_entropies

        return cross_entropies(logits, truth)


class FGSM(Spaced, _SignedSteps, frozen=True):
    """One step of length eps along the signs of the gradient."""

    info: ClassVar[Info] = Info(
        title="FGSM",
        paper="Goodfellow et al. 2015",
        references=("arXiv:1412.6572",),
        what="one step along the gradient's sign",
        norms=("Linf",),
        answers=("class", "pixels"),
        follows="cross-entropy",
        single_step=True,
    )
    name: Literal["fgsm"] = "fgsm"


class _ManySteps(_SignedSteps, frozen=True):
    """Steps from a random point of the ball."""

    steps: Count = Field(default=20, description="gradient steps")
    alpha: Radius | None = Field(
        default=None,
        description="length of a step, in the unit of eps; default 0.15 eps",
        json_schema_extra={"of": {"type": "number", "minimum": 0, "maximum": 1}},
    )
    random_start: ClassVar[bool] = True

    @field_validator("alpha")
    @classmethod
    def _known_alpha(cls, alpha: str | None) -> str | None:
        if alpha is not None:
            parse_eps(alpha, name="alpha")
        return alpha

    def step_size(self, eps: float) -> float:
        """Length of a step at a radius."""
        return parse_eps(self.alpha) if self.alpha else STEP * eps

    def crosses(self, budget: Budget) -> bool:
        """Whether its steps lead from one side of the ball to the other."""
        return self.steps * self.step_size(budget.value) >= 2 * budget.value

    def notes(self, num_classes: int) -> Iterator[str]:
        """Radii whose ball it cannot cross."""
        yield from super().notes(num_classes)
        for budget in self.budgets():
            if not self.crosses(budget):
                yield (
                    f"{self.info.title} {self.describe(budget)} cannot reach every change that it "
                    f"may make: {self.steps} steps of alpha are shorter than 2 eps. Use more steps."
                )


class PGD(Spaced, _ManySteps, frozen=True):
    """Many steps along the signs of the gradient, from a random point of the ball."""

    info: ClassVar[Info] = Info(
        title="PGD",
        paper="Madry et al. 2018",
        references=("arXiv:1706.06083",),
        what="many small steps, each pulled back within eps",
        norms=("Linf",),
        answers=("class", "pixels"),
        follows="cross-entropy",
    )
    name: Literal["pgd"] = "pgd"


class SegPGD(_ManySteps, frozen=True):
    """PGD on segmenters: pixels that are wrong already count less, and the more so the earlier."""

    info: ClassVar[Info] = Info(
        title="SegPGD",
        paper="Gu et al. 2022",
        references=("arXiv:2207.12391",),
        what="PGD that looks first at pixels which are still right",
        norms=("Linf",),
        answers=("pixels",),
        follows="cross-entropy",
    )
    name: Literal["segpgd"] = "segpgd"

    def losses(self, logits: "Tensor", truth: "Tensor", step: int) -> "Tensor":
        """Each pixel's cross-entropy by 1 - w, or by w where it is wrong: (B, H, W).

        w grows from 0 at the first step towards 1/2.

        Source: Gu et al., "SegPGD: an effective and efficient adversarial attack for evaluating and
            boosting segmentation robustness", ECCV 2022, eq. 4 and 5.
        """
        from robustness.target import cross_entropies

        share = step / (2 * self.steps)
        right = logits.argmax(1) == truth
        return cross_entropies(logits, truth) * right.to(logits.dtype).sub(share).abs()


def pgd(
    model: "Model",
    images: "Tensor",
    labels: "Tensor",
    *,
    eps: float,
    alpha: float,
    steps: int,
    rng: "Sequence[torch.Generator] | None",
    leave: bool = True,
    clip: bool = True,
    losses: "Callable[[Tensor, Tensor, int], Tensor] | None" = None,
) -> "Tensor":
    """Take signed gradient steps within an l-infinity ball.

    Args:
        model: differentiable logits (B, K), or (B, K, H, W), from pixels.
        images: (N, C, H, W) float32.
        labels: (N,) int64, or (N, H, W).
        eps: radius in pixel units, e.g. 8 / 255.
        alpha: length of a step, in the same unit.
        steps: how many; the last iterate is not evaluated.
        rng: one generator an image for a uniformly random start; None starts at the image.
        leave: stop for an image at its first fooling iterate, else go on to the last one.
        clip: keep the images inside [0, 1].
        losses: what is climbed, of logits, labels and the step; None takes the cross-entropy.

    Returns:
        The first fooling iterates, or the last ones (N, C, H, W).

    Source: Madry et al. 2018, eq. 2.2; Goodfellow et al. 2015 for one step without random start.
    """
    import torch

    from robustness.attacks.tensors import loss_gradient, uniform
    from robustness.target import cross_entropies

    climbed = losses or (lambda logits, truth, _: cross_entropies(logits, truth))
    low, high = (0.0, 1.0) if clip else (-torch.inf, torch.inf)
    adversarial = images.clone()
    if rng is not None:
        adversarial = (images + uniform(rng, images, -eps, eps)).clamp(low, high)
    rows = torch.arange(len(images), device=images.device)  # those still attacked
    for step in range(steps):
        truth = labels[rows]
        logits, _, gradient = loss_gradient(
            model, adversarial[rows], lambda x, y=truth, i=step: climbed(x, y, i)
        )
        if leave:
            right = logits.argmax(1) == truth
            rows, gradient = rows[right], gradient[right]
        if len(rows) == 0:
            break
        clean = images[rows]
        moved = adversarial[rows] + alpha * gradient.sign()
        adversarial[rows] = (clean + (moved - clean).clamp(-eps, eps)).clamp(low, high)
    return adversarial
