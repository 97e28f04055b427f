"""What attacks that follow gradients within a ball share."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from robustness.attacks.base import BallAttack, Batch, Budget, Search, check_images

if TYPE_CHECKING:
    from torch import Tensor

    from robustness.attacks.tensors import Model
    from robustness.target import Target


class GradientAttack(BallAttack, frozen=True):
    """An attack that follows the gradient of the differentiable model."""

    def run(self, target: "Target", batch: Batch, budget: Budget, search: Search) -> Batch:
        """See `Attack.run`."""
        if not len(batch.inputs):
            return batch
        with self.prepared(target, batch, search) as (ask, images, labels):
            made = self.perturb(ask, images, labels, budget.value, search)
        return Batch(inputs=made.cpu().numpy(), labels=batch.labels)

    @contextmanager
    def prepared(
        self, target: "Target", batch: Batch, search: Search
    ) -> "Iterator[tuple[Model, Tensor, Tensor]]":
        """The differentiable model, and images and labels where it computes."""
        import torch

        from robustness.attacks.tensors import attackable
        from robustness.target import device_of

        model = target.require_torch_model()
        check_images(batch, search.seeds, search.space)
        images, labels = torch.from_numpy(batch.images), torch.from_numpy(batch.labels)
        device = device_of(model)
        with attackable(model, variant=search.variant, meter=search.meter) as ask:
            yield ask, images.to(device), labels.to(device)

    def perturb(
        self, model: "Model", images: "Tensor", labels: "Tensor", eps: float, search: Search
    ) -> "Tensor":
        """Look for misclassified images within a ball.

        Args:
            model: differentiable logits (B, K) from pixels.
            images: (B, C, H, W) float32 in [0, 1].
            labels: (B,) int64.
            eps: radius.
            search: how to go about it.
        """
        raise NotImplementedError
