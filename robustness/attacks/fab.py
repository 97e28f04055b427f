"""FAB-T: the nearest misclassified inputs; one run serves every radius."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from robustness.attacks.base import (
    MAX_TARGETS,
    Batch,
    Budget,
    Info,
    Search,
    Settings,
    change_size,
)
from robustness.attacks.gradient import GradientAttack
from robustness.parsing import Count

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from robustness.attacks.kernels.batch import Model
    from robustness.target import Target


class FABT(GradientAttack, frozen=True):
    """FAB towards each of the nine likeliest wrong classes."""

    info: ClassVar[Info] = Info(
        title="FAB-T",
        paper="Croce and Hein 2020 (FAB)",
        what="the nearest misclassified input, along the decision boundary",
        norms=("Linf", "L2"),
        minimal=True,
    )
    name: Literal["fab-t"] = "fab-t"
    norm: Literal["Linf", "L2"] = Field(default="Linf", description="norm of the radii")
    steps: Count = Field(default=100, description="gradient steps, towards each class aimed at")

    def searched(self, budget: Budget) -> Budget:
        """Any radius: a curve over all of them wants the nearest input, not one near enough."""
        return Budget(kind=budget.kind, value=math.inf, text="all")

    def cost(self, num_classes: int) -> int:
        """Two evaluations a step towards each class aimed at."""
        return 2 * min(MAX_TARGETS, num_classes - 1) * (self.steps + 1) + 1

    def settings(self, budget: Budget) -> Settings:
        """See `Attack.settings`."""
        del budget
        return Settings(self.steps)

    def run(
        self,
        target: "Target",
        batch: Batch,
        budgets: Sequence[Budget],
        search: Search,
    ) -> dict[Budget, Batch]:
        """See `Attack.run`; without a radius "nearest" holds distances, infinite where none is."""
        if not all(math.isinf(budget.value) for budget in budgets):
            return super().run(target, batch, budgets, search)
        with self.prepared(target, batch, search) as (ask, images, labels):
            inputs, distance = self.nearest(ask, images, labels, until=0.0, leave=search.leave)
        size = change_size(batch.images, inputs, self.norm)  # as float32 stores it
        size = np.where(np.isfinite(distance), size, np.inf)
        found = Batch(inputs=inputs, labels=batch.labels, found={"nearest": size})
        return dict.fromkeys(budgets, found)

    def nearest(
        self, model: "Model", images: "Tensor", labels: "Tensor", *, until: float, leave: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """The nearest inputs (B, C, H, W) and their distances (B,); see `kernels.fab.fab`."""
        from robustness.attacks.kernels.fab import fab

        if not len(images):
            return images.numpy(), np.zeros(0, np.float32)
        inputs, distance = fab(
            model, images, labels, norm=self.norm, steps=self.steps, until=until, leave=leave
        )
        return inputs.cpu().numpy(), distance.cpu().numpy()

    def perturb(
        self,
        model: "Model",
        images: "Tensor",
        labels: "Tensor",
        *,
        eps: float,
        rng: "Sequence[torch.Generator]",
        leave: bool = True,
    ) -> "Tensor":
        """See `GradientAttack.perturb`; nothing is drawn."""
        import torch

        del rng
        inputs, distance = self.nearest(model, images, labels, until=eps, leave=leave)
        return torch.from_numpy(within(inputs, distance, images.cpu().numpy(), eps))


def within(nearest: np.ndarray, distance: np.ndarray, clean: np.ndarray, eps: float) -> np.ndarray:
    """The nearest inputs (N, C, H, W) where they lie within eps, else the clean ones."""
    return np.where((distance <= eps)[:, None, None, None], nearest, clean)
