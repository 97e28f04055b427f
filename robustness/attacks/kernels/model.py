"""A module as gradient attacks ask it."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from robustness.attacks.base import Variant
from robustness.attacks.kernels.batch import Model
from robustness.progress import Meter
from robustness.target import gradient_path, undisturbed


@contextmanager
def attackable(
    model: nn.Module, *, variant: Variant = "plain", meter: Meter | None = None
) -> Iterator[Model]:
    """A module in evaluation mode, its parameters frozen, every call counted.

    No global generator, gradient, module's mode or `requires_grad` is changed, also after an error.

    Args:
        model: logits from pixels; all of it is as before when the block ends.
        variant: how gradients treat m of elliptical attention.
        meter: told of every model evaluation; its `Cancelled` ends an attack within one step.
    """

    def logits(images: Tensor) -> Tensor:
        if meter is not None:
            meter.before()
        answer = model(images)
        if meter is not None:
            meter.after(len(images))
        return answer

    with undisturbed(model), gradient_path(model, variant):
        yield logits


class Counted(nn.Module):
    """What `attackable` yields as a module, for a library that wants one.

    Args:
        ask: logits from pixels, counted.
        inner: the model, whose parameters say where it computes.
    """

    def __init__(self, ask: Model, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self._ask = inner, ask

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K) from pixels (B, C, H, W)."""
        return self._ask(images)
