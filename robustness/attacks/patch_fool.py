"""Patch-Fool: other contents for a few of the patches that the model cuts an image into."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from robustness.attacks.base import (
    Attack,
    Batch,
    Budget,
    Info,
    Search,
    change_size,
    check_images,
    distinct,
    in_range,
)
from robustness.kinds import NotPossible
from robustness.parsing import Count, Counts

if TYPE_CHECKING:
    from torch import Tensor

    from robustness.attacks.tensors import Model
    from robustness.target import Target

_LONGEST, _SHORTEST = 0.3, 0.02  # signed steps, in pixels from 0 to 1; in between geometrically


class PatchFool(Attack, frozen=True):
    """The patches whose contents promise most, replaced along the gradient.

    The gradient of the margin loss says of every patch how much any contents would gain if the
    model were linear. The first `patches` of them get signed steps, which become shorter, and may
    use all of [0, 1].

    Source: Fu et al. 2022; choosing by what the whole range of pixels promises, not by attention or
    the gradient's norm, and signed steps, not Adam, are our own.
    """

    info: ClassVar[Info] = Info(
        title="Patch-Fool",
        paper="Fu et al. 2022",
        references=("arXiv:2203.08392",),
        what="replaces some of the model's patches, led by the gradient",
        budget="patches",
    )
    name: Literal["patch-fool"] = "patch-fool"
    patches: Counts = Field(default=[1], description="patches of the model that are replaced")
    steps: Count = Field(default=40, description="gradient steps")

    @field_validator("patches")
    @classmethod
    def _distinct_patches(cls, patches: list[int]) -> list[int]:
        return distinct("patches", patches)

    def cost(self, num_classes: int) -> int:
        """One gradient a step, the first of which chooses the patches."""
        return self.steps

    def run(self, target: "Target", batch: Batch, budget: Budget, search: Search) -> Batch:
        """See `Attack.run`.

        Raises:
            NotPossible: the model has no patches.
        """
        import torch

        from robustness.attacks.tensors import attackable
        from robustness.target import device_of

        side, model = patch_size(target), target.require_torch_model()
        check_images(batch, search.seeds)
        if not len(batch.inputs):
            return batch
        images, labels = torch.from_numpy(batch.images), torch.from_numpy(batch.labels)
        device = device_of(model)
        with attackable(model, variant=search.variant, meter=search.meter) as ask:
            made = _replace(
                ask, images.to(device), labels.to(device), count=int(budget.value), side=side,
                steps=self.steps, leave=search.leave,
            )  # fmt: skip
        return Batch(inputs=made.cpu().numpy(), labels=batch.labels)

    def allowed(
        self, clean: Batch, made: Batch, budget: Budget, target: "Target", seeds: Sequence[int]
    ) -> np.ndarray:
        """Finite, inside [0, 1], and like the clean image but for so many patches."""
        side, shape = patch_size(target), clean.images.shape
        changed = (clean.images != made.images).any(axis=1)
        grid = changed.reshape(shape[0], shape[2] // side, side, shape[3] // side, side)
        count = grid.any(axis=(2, 4)).sum(axis=(1, 2))
        return in_range(made.images) & (count <= budget.value)

    def size(self, clean: Batch, adversarial: Batch, budget: Budget) -> np.ndarray:
        """The pixels that are changed, all channels together."""
        return change_size(clean.images, adversarial.images, "L0")


def patch_size(target: "Target") -> int:
    """Pixels along a side of the patches of a model.

    Raises:
        NotPossible: it has none, or nobody can see.
    """
    config = getattr(target.torch_model, "config", None)
    side = getattr(config, "patch_size", None)
    if not isinstance(side, int):
        raise NotPossible(f"attacks: {target.name!r} does not show patches of its own")
    return side


def _replace(
    model: "Model",
    images: "Tensor",
    labels: "Tensor",
    *,
    count: int,
    side: int,
    steps: int,
    leave: bool,
) -> "Tensor":
    """Images (B, C, H, W) with other contents of `count` patches; the first fooling ones."""
    import torch
    from torch.nn.functional import avg_pool2d, interpolate

    from robustness.attacks.tensors import loss_gradient

    made, free = images.clone(), torch.zeros_like(images[:, :1])
    rows = torch.arange(len(images), device=images.device)  # those still attacked
    for step in range(steps):
        truth = labels[rows]
        logits, _, gradient = loss_gradient(
            model, made[rows], lambda x, y=truth: _margin_loss(x, y)
        )
        if step == 0:
            promised = torch.maximum(gradient * (1 - images), -gradient * images).sum(1, True)
            gains = avg_pool2d(promised, side)
            chosen = gains.flatten(1).argsort(dim=1, descending=True, stable=True)[:, :count]
            cells = torch.zeros_like(gains).flatten(1).scatter(1, chosen, 1.0).view_as(gains)
            free = interpolate(cells, scale_factor=side, mode="nearest")
        if leave:
            right = logits.argmax(1) == truth
            rows, gradient = rows[right], gradient[right]
        if len(rows) == 0:
            break
        alpha = _LONGEST * (_SHORTEST / _LONGEST) ** (step / max(1, steps - 1))
        moved = (made[rows] + alpha * gradient.sign()).clamp(0, 1)
        made[rows] = torch.where(free[rows] > 0, moved, images[rows])
    return made


def _margin_loss(logits: "Tensor", labels: "Tensor") -> "Tensor":
    """The largest other logit minus the label's, (B,)."""
    import torch

    own = logits.gather(1, labels[:, None])[:, 0]
    others = logits.scatter(1, labels[:, None], -torch.inf)
    return others.amax(1) - own
