"""What training minimizes: the task's loss and what a recipe adds to it; and the attacks on it."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.attention.base import metric_gradient
from models.layers.routing import auxiliary_loss
from models.layers.tokens import masked_mean
from training.recipe import AdversarialRecipe, Recipe
from training.tasks import task_of

_TRADES_START = 0.001
"""Spread of TRADES' start around the clean images, of the authors' public code."""


class Objective(nn.Module):
    """The loss of a batch, as one module, so that several processes can share its gradient.

    Args:
        model: of the recipe's task.
        recipe: the task, the weights of the loss's parts, and the precision.
    """

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        super().__init__()
        # `Any`: an encoder with a reconstruction loss has one method more than a module.
        self.model: Any = model
        self._train, self._task = recipe.train, task_of(recipe)
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
            targets: of the task: (B,) int64 labels, or (B, K) shares of the classes.
            teacher: (B, K) logits of a teacher.
            natural: the clean images of TRADES, (B, C, H, W).
        """
        bf16 = self._train.precision == "bf16"
        with torch.autocast(inputs[0].device.type, dtype=torch.bfloat16, enabled=bf16):
            clean = (natural,) if natural is not None else inputs
            logits, gains, extra = self._logits(clean, targets)
            attacked = self.model(*inputs) if natural is not None else None
        extra = extra + self._train.load_balance * auxiliary_loss(self.model)
        logits = logits.float()
        loss = self._task.loss(logits, targets)
        if gains is not None:
            loss = (loss + self._task.loss(logits + gains.float(), targets)) / 2
        if teacher is not None and (recipe := self._distillation):
            # Touvron et al. 2021, eq. 2; the square keeps the gradient's size.
            soft = recipe.temperature
            distilled = kl_divergence(teacher / soft, logits / soft) * soft**2
            loss = (1 - recipe.weight) * loss + recipe.weight * distilled
        if attacked is not None and (recipe := self._adversarial):
            loss = loss + recipe.beta * kl_divergence(logits, attacked.float())
        return loss + extra

    def _logits(
        self, inputs: tuple[Tensor, ...], targets: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor | float]:
        """The logits, what replaced tokens can add to them, and the reconstruction loss."""
        if self._train.replaced:
            given, mask = self.model.contributions(*inputs), (*inputs, None)[1]
            logits = masked_mean(given, mask) + self.model.head.bias
            # Patches may hold anything, so that only the bound limits them; pieces are of a table.
            bound = getattr(self.model.head, "bound", None) if mask is None else None
            gains = worst_replacements(given, mask, targets, self._train.replaced, bound)
            return logits, gains, 0.0
        if not hasattr(self.model, "logits_and_reconstruction"):
            return self.model(*inputs), None, 0.0
        logits, loss = self.model.logits_and_reconstruction(*inputs)
        return logits, None, self._train.reconstruction * loss


def worst_replacements(
    given: Tensor, mask: Tensor | None, labels: Tensor, count: int, bound: float | None = None
) -> Tensor:
    """How much each logit can gain on the label's by other tokens, (B, K), 0 for the label itself.

    In every sample the `count` tokens with the largest gains are replaced, for each other class
    by the token of the batch that favors it most: the exact worst case over tokens of the batch,
    where tokens do not see each other, but for their positions.

    Args:
        given: (B, N, K) what each token adds to the logits before the mean.
        mask: (B, N) bool, True for real tokens; None if all are.
        labels: (B,) int64.
        count: of replaced tokens.
        bound: of what any token adds to a logit; if given, others are as bad as it allows, whether
            the batch has such ones or not.
    """
    B, N, K = given.shape
    real = given.new_ones(B, N, dtype=torch.bool) if mask is None else mask
    # by pair (label, other class): the most that a token favors the other one
    if bound is None:
        padding = ~real[:, :, None]
        leads = (given - given[:, :, k, None] for k in range(K))
        most = torch.stack([x.masked_fill(padding, -torch.inf).amax((0, 1)) for x in leads])
    else:
        most = 2 * bound * (1 - torch.eye(K, dtype=given.dtype, device=given.device))
    lead = given - given.gather(2, labels[:, None, None].expand(-1, N, 1))
    gains = (most[labels][:, None] - lead).masked_fill(~real[:, :, None], 0.0)  # (B, N, K)
    largest = gains.topk(min(count, N), dim=1).values.sum(1)
    return largest / real.sum(1, keepdim=True)


def kl_divergence(logits: Tensor, attacked: Tensor) -> Tensor:
    """KL divergence of the predictions on attacked images from those on clean ones, (B, K) logits.

    Source: Zhang et al., "Theoretically Principled Trade-off between Robustness and Accuracy"
        (TRADES), 2019, eq. 5.
    """
    return F.kl_div(
        F.log_softmax(attacked, 1), F.log_softmax(logits, 1), reduction="batchmean", log_target=True
    )


def attack(
    model: nn.Module, images: Tensor, targets: Tensor, recipe: AdversarialRecipe, noise: Tensor
) -> Tensor:
    """Find the worst images within a recipe's ball by signed gradient steps up the loss.

    The model is in eval mode meanwhile, so that dropout and batch statistics do not blur the
    gradient, and the gradient takes the path through M, too: without it elliptical attention looks
    more robust than it is. The gradients of its parameters are not touched.

    Args:
        model: maps (B, C, H, W) in [0, 1] to logits.
        images: (B, C, H, W), pixels in [0, 1].
        targets: (B,) int64 labels, or (B, K) shares of the classes.
        recipe: method, radius, step and number of steps.
        noise: (B, C, H, W) in [0, 1), from which the start is made.

    Returns:
        (B, C, H, W) images within eps and within [0, 1].

    Source: Madry et al., "Towards Deep Learning Models Resistant to Adversarial Attacks", 2018;
        Zhang et al. 2019 (TRADES), algorithm 1, from a start as in the authors' public code,
        uniform instead of normal.
    """
    training = model.training
    model.eval()
    low, high = (images - recipe.eps).clamp(min=0), (images + recipe.eps).clamp(max=1)
    with metric_gradient(model, True):
        if recipe.method == "trades":
            with torch.no_grad():
                clean = model(images)
            found = (images + _TRADES_START * (2 * noise - 1)).clamp(low, high)
        else:
            clean, found = None, low + noise * (high - low)
        for _ in range(recipe.steps):
            logits = model(found.requires_grad_(True))
            loss = (
                F.cross_entropy(logits, targets) if clean is None else kl_divergence(clean, logits)
            )
            (gradient,) = torch.autograd.grad(loss, found)
            found = (found.detach() + recipe.alpha * gradient.sign()).clamp(low, high)
    model.train(training)
    return found
