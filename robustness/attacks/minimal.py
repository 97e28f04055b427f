"""What attacks share that look for the nearest misclassified input; one run serves all radii."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from robustness.attacks.base import Batch, Budget, Norm, Search, change_size
from robustness.attacks.gradient import GradientAttack
from robustness.parsing import Count

if TYPE_CHECKING:
    from torch import Tensor

    from robustness.attacks.tensors import Model
    from robustness.target import Target


DUALS: dict[Norm, Norm] = {"Linf": "L1", "L2": "L2", "L1": "Linf"}
"""By norm the one of gradients: a lead over it is how far the boundary of a linear model is."""


class MinimalAttack(GradientAttack, frozen=True):
    """An attack that looks for the nearest misclassified input, and draws nothing."""

    def searched(self, budget: Budget) -> Budget:
        """Any radius: a curve over all of them wants the nearest input, not one near enough."""
        return Budget(kind=budget.kind, value=math.inf, text="all")

    def run(self, target: "Target", batch: Batch, budget: Budget, search: Search) -> Batch:
        """See `Attack.run`; without a radius "nearest" holds distances, infinite where none is."""
        if not math.isinf(budget.value):
            return super().run(target, batch, budget, search)
        inputs, size = batch.images, np.zeros(0)
        if len(inputs):
            with self.prepared(target, batch, search) as (ask, images, labels):
                found, distance = self.nearest(ask, images, labels, until=0.0, leave=search.leave)
            inputs = found.cpu().numpy()
            size = change_size(batch.images, inputs, self.norm)  # as float32 stores it
            size = np.where(np.isfinite(distance.cpu().numpy()), size, np.inf)
        return Batch(inputs=inputs, labels=batch.labels, found={"nearest": size})

    def perturb(
        self, model: "Model", images: "Tensor", labels: "Tensor", eps: float, search: Search
    ) -> "Tensor":
        """See `GradientAttack.perturb`."""
        inputs, distance = self.nearest(model, images, labels, until=eps, leave=search.leave)
        return inputs.where((distance <= eps)[:, None, None, None], images)

    def nearest(
        self, model: "Model", images: "Tensor", labels: "Tensor", *, until: float, leave: bool
    ) -> "tuple[Tensor, Tensor]":
        """Look for the nearest misclassified inputs.

        Args:
            model: differentiable logits (B, K) from pixels.
            images: (N, C, H, W) float32 in [0, 1].
            labels: (N,) int64.
            until: an image needs no nearer input than that, and leaves.
            leave: whether at once; else when the run towards the current class ends.

        Returns:
            The nearest misclassified inputs (N, C, H, W), the clean one where none was found, and
            their distances (N,): 0 where the clean image is misclassified, inf where none was
            found.
        """
        import torch

        with torch.no_grad():
            logits = model(images)
        found = Nearest(images, labels, self.norm)
        found.distance[logits.argmax(1) != labels] = 0.0
        self.approach(model, found, logits, until, leave=leave)
        return found.inputs, found.distance

    def approach(
        self, model: "Model", found: "Nearest", logits: "Tensor", until: float, *, leave: bool
    ) -> None:
        """Improve on what was found.

        Args:
            model: differentiable logits (B, K) from pixels.
            found: so far; of misclassified images the distance is 0.
            logits: (N, K) of the clean images.
            until: see `nearest`.
            leave: see `nearest`.
        """
        raise NotImplementedError


class MinimalWalk(MinimalAttack, frozen=True):
    """Walks of one gradient a step: towards likely wrong classes, then towards whichever leads.

    Half of the steps are divided among the likeliest wrong classes, each from the clean image. One
    walk of all steps, as papers take it, ends at the boundary of the class that it met first.

    Attributes:
        aims: so many classes; without any, one walk takes all steps.
    """

    aims: ClassVar[int] = 0
    steps: Count = Field(default=100, description="gradient steps, all walks together")

    def cost(self, num_classes: int) -> int:
        """One gradient a step, and the clean image."""
        return self.steps + 1

    def approach(
        self, model: "Model", found: "Nearest", logits: "Tensor", until: float, *, leave: bool
    ) -> None:
        """See `MinimalAttack.approach`."""
        from robustness.attacks.tensors import ranked, target_ranks

        ranks = target_ranks(logits)[: self.aims]
        short = self.steps // (2 * len(ranks)) if ranks else 0
        walks = [(ranked(logits, rank), short) for rank in ranks if short]
        for targets, steps in [*walks, (None, self.steps - short * len(ranks))]:
            rows = found.farther(until)
            if len(rows) == 0:
                return
            self.walk(model, found, rows, None if targets is None else targets[rows], steps)

    def walk(
        self,
        model: "Model",
        found: "Nearest",
        rows: "Tensor",
        targets: "Tensor | None",
        steps: int,
    ) -> None:
        """Take some steps with some rows.

        Args:
            model: see `MinimalAttack.approach`.
            found: so far.
            rows: (B,) of the images.
            targets: (B,) classes to go to from the clean images; None: to whichever leads.
            steps: one gradient each.
        """
        raise NotImplementedError


def within(nearest: np.ndarray, distance: np.ndarray, clean: np.ndarray, eps: float) -> np.ndarray:
    """The nearest inputs (N, C, H, W) where they lie within eps, else the clean ones."""
    return np.where((distance <= eps)[:, None, None, None], nearest, clean)


class Nearest:
    """The nearest fooling inputs met so far, and how far from their images they are.

    Attributes:
        images: (N, C, H, W), the clean ones.
        labels: (N,).
        norm: of the distances.
        inputs: (N, C, H, W), the clean ones where nothing fooled.
        distance: (N,), infinite where nothing fooled.
    """

    def __init__(self, images: "Tensor", labels: "Tensor", norm: Norm) -> None:
        self.images, self.labels = images, labels
        self.norm: Norm = norm
        self.inputs = images.clone()
        self.distance = images.new_full((len(images),), math.inf)

    def farther(self, until: float) -> "Tensor":
        """Rows of the images for which nothing is that near."""
        return (self.distance > until).nonzero().flatten()

    def note(self, rows: "Tensor", inputs: "Tensor", logits: "Tensor") -> "Tensor":
        """Keep what fools the model and is nearer than before; says who was fooled, (B,) bool."""
        from robustness.attacks.tensors import lengths

        fooled = logits.argmax(1) != self.labels[rows]
        rows, inputs = rows[fooled], inputs[fooled]
        distance = lengths(inputs - self.images[rows], self.norm).flatten()
        nearer = distance < self.distance[rows]
        self.inputs[rows[nearer]], self.distance[rows[nearer]] = inputs[nearer], distance[nearer]
        return fooled

    def ask(
        self, model: "Model", rows: "Tensor", points: "Tensor", targets: "Tensor | None"
    ) -> "tuple[Tensor, Tensor, Tensor]":
        """What a step needs to know of some points, which are noted.

        Args:
            model: differentiable logits (B, K) from pixels.
            rows: (B,) of their images.
            points: (B, C, H, W).
            targets: (B,) classes aimed at; None for the best class but the label.

        Returns:
            Who was fooled, (B,) bool; by how much the logit of the class aimed at leads over the
            label's, (B,); and the gradient of that, (B, C, H, W).
        """
        import torch

        from robustness.attacks.tensors import loss_gradient

        own = self.labels[rows, None]

        def lead(logits: "Tensor") -> "Tensor":
            """The lead (B,)."""
            others = logits.scatter(1, own, -torch.inf)
            other = others.amax(1) if targets is None else logits.gather(1, targets[:, None])[:, 0]
            return other - logits.gather(1, own)[:, 0]

        logits, leads, gradient = loss_gradient(model, points, lead)
        return self.note(rows, points, logits), leads, gradient


def shares(steps: int, first: float, last: float) -> Iterator[float]:
    """From `first` almost to `last` along half a cosine."""
    for step in range(steps):
        yield last + (first - last) * (1 + math.cos(math.pi * step / steps)) / 2


class Adam:
    """Adam's moments of one change an image.

    Source: Kingma & Ba 2015, "Adam: a method for stochastic optimization", algorithm 1.
    """

    _FIRST, _SECOND, _LEAST = 0.9, 0.999, 1e-8

    def __init__(self, like: "Tensor") -> None:
        self._mean, self._square = like.new_zeros(like.shape), like.new_zeros(like.shape)
        self._steps = 0

    def step(self, gradient: "Tensor") -> "tuple[Tensor, Tensor]":
        """The way up (B, C, H, W), and by what it was divided: the metric of the step."""
        self._steps += 1
        self._mean = self._FIRST * self._mean + (1 - self._FIRST) * gradient
        self._square = self._SECOND * self._square + (1 - self._SECOND) * gradient**2
        metric = (self._square / (1 - self._SECOND**self._steps)).sqrt() + self._LEAST
        return self._mean / (1 - self._FIRST**self._steps) / metric, metric
