"""σ-zero: as few pixels as possible, by descent on a smooth count of them."""

from typing import TYPE_CHECKING, ClassVar, Literal

from robustness.attacks.base import L0, Info
from robustness.attacks.minimal import MinimalWalk, Nearest, shares

if TYPE_CHECKING:
    from torch import Tensor

    from robustness.attacks.tensors import Model

_SMOOTH = 1e-3  # sigma: a pixel whose squared change is that much counts half
_LAST = 0.1  # of the first step
_THRESHOLD = 0.3  # smaller changes of a pixel are undone, at first
_SWING = 0.01  # by which the threshold moves, times the step


class SigmaZero(MinimalWalk, frozen=True):
    """σ-zero, where a pixel counts once, all of its channels together.

    Changes below a threshold are undone; it rises while the model is fooled, and falls while it is
    not. The paper counts every channel of a pixel; here smooth count and threshold are of pixels.

    Source: Cinà et al. 2025, "σ-zero: gradient-based optimization of l0-norm adversarial examples",
    algorithm 1, with Adam as in its reference implementation.
    """

    info: ClassVar[Info] = Info(
        title="σ-zero",
        paper="Cinà et al. 2025 (σ-zero)",
        references=("arXiv:2402.01879",),
        what="the fewest changed pixels that mislead the model",
        norms=("L0",),
        minimal=True,
    )
    name: Literal["sigma-zero"] = "sigma-zero"
    norm: L0 = "L0"

    def walk(
        self,
        model: "Model",
        found: Nearest,
        rows: "Tensor",
        targets: "Tensor | None",
        steps: int,
    ) -> None:
        """See `MinimalWalk.walk`."""
        import torch

        from robustness.attacks.minimal import Adam
        from robustness.attacks.tensors import TINY, lengths

        clean = found.images[rows]
        change, adam = torch.zeros_like(clean), Adam(clean)
        threshold = torch.full_like(clean[:, :1, :1, :1], _THRESHOLD)
        for pace in shares(steps, 1.0, _LAST):
            fooled, lead, gradient = found.ask(model, rows, clean + change, targets)
            fooled, lead = fooled[:, None, None, None], lead[:, None, None, None]
            slope = _slope(change) - torch.where(lead < 0, gradient, 0.0)
            way, _ = adam.step(slope / (lengths(slope, "Linf") + TINY))
            change = (clean + change - pace * way).clamp(0, 1) - clean
            threshold = threshold + torch.where(fooled, _SWING, -_SWING) * pace
            threshold = threshold.clamp(0, 1)
            change = change * (change.abs().amax(1, keepdim=True) >= threshold)


def _slope(change: "Tensor") -> "Tensor":
    """Gradient (B, C, H, W) of the smooth share of changed pixels, s / (s + sigma) of squares s."""
    squares = (change**2).sum(1, keepdim=True)
    pixels = change[0, 0].numel()
    return 2 * change * _SMOOTH / (squares + _SMOOTH) ** 2 / pixels
