"""Attacks on the normalized tensor, as the papers' public code runs them, for replication alone."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np
from pydantic import Field, model_validator

from robustness.attacks.base import (
    TOLERANCE,
    Attack,
    Batch,
    BoundsError,
    Budget,
    Norm,
    Search,
    Space,
    change_size,
)
from robustness.parsing import parse_eps

if TYPE_CHECKING:
    from robustness.target import Target

REPLICATION = "replication: not a claim about pixels"
_MARK = ":normalised"
_ROUNDING = 10 * TOLERANCE  # a standard deviation below 1 makes rounding of pixels larger


def is_replication(label: str) -> bool:
    """Whether an attack of a report, by its `Attack.label`, makes no claim about pixels."""
    return label.endswith(_MARK)


class Spaced(Attack, frozen=True):
    """What lets an attack work on the normalized tensor, with eps in its units.

    There FGSM and PGD clip nothing, so that images leave [0, 1], and AutoAttack clips the
    *normalized* tensor to [0, 1], which alone changes most pixels. Its figures replicate a
    protocol and say nothing about pixels: they enter no worst case, no gate and no bracket.

    Source: the public code of Elliptical Attention and of what it builds on.
    """

    space: Space = Field(
        default="pixels",
        description="normalised: eps is one of the normalized tensor, as in the papers' code; a "
        "replication, not a claim about pixels",
    )

    @model_validator(mode="after")
    def _known_norm(self) -> Self:
        if self.replication and super().norm_name != "Linf":
            raise ValueError(f"space of {self.name!r} must be pixels where norm is not Linf")
        return self

    @property
    def replication(self) -> bool:
        """See `Attack.replication`."""
        return self.space == "normalised"

    @property
    def label(self) -> str:
        """See `Attack.label`."""
        return self.name + _MARK if self.replication else self.name

    @property
    def title(self) -> str:
        """See `Attack.title`."""
        return f"{self.info.title} ({REPLICATION})" if self.replication else self.info.title

    @property
    def norm_name(self) -> Norm | None:
        """See `Attack.norm_name`."""
        return None if self.replication else super().norm_name

    def budgets(self) -> list[Budget]:
        """See `Attack.budgets`."""
        if not self.replication:
            return super().budgets()
        texts: list[str] = getattr(self, "eps")  # noqa: B009  of the attack that this is mixed into
        return [Budget(kind="normalised", value=parse_eps(text), text=text) for text in texts]

    def describe(self, budget: Budget) -> str:
        """See `Attack.describe`."""
        if budget.kind != "normalised":
            return super().describe(budget)
        return f"within {budget.text} of the normalized tensor"

    def notes(self, num_classes: int) -> Iterator[str]:
        """See `Attack.notes`."""
        yield from super().notes(num_classes)
        if self.replication:
            yield (
                f"{self.title}: eps is one of the normalized tensor, pixels may leave [0, 1], and "
                "the figure enters no worst case and no gate."
            )

    def run(self, target: "Target", batch: Batch, budget: Budget, search: Search) -> Batch:
        """See `Attack.run`; what comes out is in pixels, also beyond [0, 1]."""
        if not self.replication:
            return super().run(target, batch, budget, search)
        from robustness.target import normalized

        inner = normalized(target)
        given = Batch(inputs=inner.from_pixels(batch.images), labels=batch.labels)
        made = super().run(inner, given, budget, dataclasses.replace(search, space=self.space))
        usable = np.isfinite(made.images).all(axis=(1, 2, 3), keepdims=True)
        inputs = np.where(usable, inner.to_pixels(made.images), batch.images)
        # What was not touched is exactly as it was.
        same = made.images == given.images
        found = Batch(inputs=np.where(same, batch.images, inputs), labels=batch.labels)
        if not self.allowed(batch, found, budget, target, search.seeds).all():
            raise BoundsError("adversarial inputs must stay within eps of the normalized tensor")
        return found

    def allowed(
        self, clean: Batch, made: Batch, budget: Budget, target: "Target", seeds: Sequence[int]
    ) -> np.ndarray:
        """See `Attack.allowed`; every entry within eps of the normalized one, clipped or not."""
        if not self.replication:
            return super().allowed(clean, made, budget, target, seeds)
        from robustness.target import normalized

        inner = normalized(target)
        before, after = (inner.from_pixels(one.images) for one in (clean, made))
        near = np.abs(after - before) <= budget.value + _ROUNDING
        inside = (after >= -_ROUNDING) & (after <= 1 + _ROUNDING)
        clipped = inside & (np.abs(after - before.clip(0, 1)) <= budget.value + _ROUNDING)
        return np.all(near | clipped, axis=(1, 2, 3))

    def size(self, clean: Batch, adversarial: Batch, budget: Budget) -> np.ndarray:
        """See `Attack.size`; the largest change of a pixel, for which there is no bound."""
        if not self.replication:
            return super().size(clean, adversarial, budget)
        if not np.isfinite(adversarial.images).all():
            raise BoundsError("adversarial inputs must be finite")
        return change_size(clean.images, adversarial.images, "Linf")
