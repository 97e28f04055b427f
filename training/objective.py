"""What training minimizes: the task's loss and what a recipe adds to it."""

import contextlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.distillation import distillation_loss
from training.recipe import Recipe


class Objective(nn.Module):
    """The loss of a batch, as one module, so that several processes can share its gradient.

    Args:
        model: the classifier.
        recipe: the weights of the loss's parts, and the precision.
    """

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        super().__init__()
        # `Any`: an encoder with a reconstruction loss has one method more than a module.
        self.model: Any = model
        self._train = recipe.train
        self._distillation = recipe.distillation
        self._adversarial = recipe.adversarial

    def forward(
        self,
        inputs: tuple[Tensor, ...],
        targets: Tensor,
        teacher: Tensor | None = None,
        natural: Tensor | None = None,
    ) -> Tensor:
        """Compute the mean loss.

        Args:
            inputs: what the model takes; under attack, the attacked images.
            targets: (B,) int64 labels, or (B, K) shares of the classes.
            teacher: (B, K) logits of a teacher.
            natural: the clean images of TRADES, (B, C, H, W).
        """
        with self._autocast(inputs[0].device.type):
            logits, extra = self._logits((natural,) if natural is not None else inputs)
            attacked = self.model(*inputs) if natural is not None else None
        logits = logits.float()
        loss = F.cross_entropy(logits, targets, label_smoothing=self._train.label_smoothing)
        if teacher is not None and (recipe := self._distillation):
            distilled = distillation_loss(logits, teacher, temperature=recipe.temperature)
            loss = (1 - recipe.weight) * loss + recipe.weight * distilled
        if attacked is not None and (recipe := self._adversarial):
            loss = loss + recipe.beta * kl_divergence(logits, attacked.float())
        return loss + extra

    def _logits(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor | float]:
        if not hasattr(self.model, "logits_and_reconstruction"):
            return self.model(*inputs), 0.0
        logits, loss = self.model.logits_and_reconstruction(*inputs)
        return logits, self._train.reconstruction * loss

    def _autocast(self, device: str) -> contextlib.AbstractContextManager[Any]:
        if self._train.precision == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(device, dtype=torch.bfloat16)


def kl_divergence(logits: Tensor, attacked: Tensor) -> Tensor:
    """KL divergence of the predictions on attacked images from those on clean ones, (B, K) logits.

    Source: Zhang et al., "Theoretically Principled Trade-off between Robustness and Accuracy"
        (TRADES), 2019, eq. 5.
    """
    return F.kl_div(
        F.log_softmax(attacked, 1), F.log_softmax(logits, 1), reduction="batchmean", log_target=True
    )
