"""What gradient attacks share on tensors: the model, its gradients, random draws and balls."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from robustness.attacks.base import MAX_TARGETS, Norm
from robustness.kinds import Variant
from robustness.progress import Meter
from robustness.target import gradient_path, undisturbed

Model = Callable[[Tensor], Tensor]
"""Logits (B, K) from pixels (B, C, H, W), differentiable."""
TINY = 1e-12  # keeps a length in a denominator above 0
_HUGE = 1e15  # stands for an infinite gradient: its square is still finite


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
        """The model's answer, counted."""
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


def loss_gradient(
    model: Model, images: Tensor, loss: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (B, K), losses (B,) and the gradient (B, C, H, W) of each image's own loss.

    Args:
        model: see `Model`.
        images: (B, C, H, W).
        loss: from logits (B, K) to a loss an image (B,).

    Raises:
        ValueError: the logits carry no gradient.
    """
    images = images.detach().requires_grad_(True)
    with torch.enable_grad():
        logits = model(images)
        if not logits.requires_grad:
            raise ValueError(
                "logits have no gradient; pass the PyTorch model, not the exported one"
            )
        losses = loss(logits)
        # A sum and not a mean: an image's gradient does not depend on the rest of the batch.
        (gradient,) = torch.autograd.grad(losses.sum(), images)
    finite = gradient.nan_to_num(nan=0.0, posinf=_HUGE, neginf=-_HUGE)
    return logits.detach(), losses.detach(), finite


def ranked(logits: Tensor, rank: int) -> Tensor:
    """The class of each row at a rank, counted from 1, the likeliest: (N,) int64."""
    return logits.sort(dim=1)[1][:, -rank]


def target_ranks(logits: Tensor, most: int = MAX_TARGETS) -> range:
    """Ranks of at most so many classes aimed at: the likeliest wrong ones have ranks 2, 3, ..."""
    return range(2, min(most, logits.shape[1] - 1) + 2)


def uniform(rng: Sequence[torch.Generator], images: Tensor, low: float, high: float) -> Tensor:
    """Uniform noise like the images (N, C, H, W), each row from its own generator.

    Draws are made on the CPU, so that they are the same on every device.
    """
    shape = images.shape[1:]
    rows = [torch.empty(shape).uniform_(low, high, generator=generator) for generator in rng]
    return torch.stack(rows).to(images.device)


def normal(rng: Sequence[torch.Generator], images: Tensor) -> Tensor:
    """Standard normal noise like the images (N, C, H, W), each row from its own generator."""
    rows = [torch.randn(images.shape[1:], generator=generator) for generator in rng]
    return torch.stack(rows).to(images.device)


def lengths(changes: Tensor, norm: Norm = "L2") -> Tensor:
    """Norms of changes (B, C, H, W), as (B, 1, 1, 1); see `robustness.attacks.base.change_size`."""
    match norm:
        case "Linf":
            return changes.abs().amax((1, 2, 3), keepdim=True)
        case "L2":
            return (changes**2).sum((1, 2, 3), keepdim=True).sqrt()
        case "L1":
            return changes.abs().sum((1, 2, 3), keepdim=True)
        case "L0":
            moved = (changes != 0).any(1, keepdim=True)
            return moved.sum((2, 3), keepdim=True).to(changes.dtype)


def shrunk(changes: Tensor, radius: Tensor) -> Tensor:
    """The points of l1 balls (B, C, H, W) next to changes: all entries shrink by one amount.

    Args:
        changes: (B, C, H, W).
        radius: (B, 1, 1, 1), of each ball.

    Source: Duchi et al. 2008, "Efficient projections onto the l1-ball", figure 1.
    """
    size = changes.abs()
    ordered = size.flatten(1).sort(dim=1, descending=True)[0]
    counts = torch.arange(1, ordered.shape[1] + 1, device=changes.device)
    amounts = (ordered.cumsum(1) - radius.flatten(1)) / counts
    last = (ordered > amounts).sum(1, keepdim=True).clamp(min=1) - 1
    amount = amounts.gather(1, last).clamp(min=0)[..., None, None]
    return changes.sign() * (size - amount).clamp(min=0)


def project(points: Tensor, clean: Tensor, *, norm: Norm, eps: float | Tensor) -> Tensor:
    """The points (B, C, H, W) of balls around clean images next to some points, inside [0, 1].

    A radius may be one of each image, (B, 1, 1, 1). For l2 ball and [0, 1] one after the other,
    for l1 the nearest point of both.
    """
    if norm == "Linf":
        return points.clamp(clean - eps, clean + eps).clamp(0, 1)
    if norm == "L1":
        return _project_l1(points, clean, eps.flatten(1) if isinstance(eps, Tensor) else eps)
    change = points - clean
    length = lengths(change)
    return (clean + change / (length + TINY) * length.clamp(max=eps)).clamp(0, 1)


def _project_l1(points: Tensor, clean: Tensor, eps: float | Tensor) -> Tensor:
    """See `project`; as stored in float32 no change is longer than eps.

    The nearest change is what is left of the given one after all entries shrink by one amount,
    each cut to the room it has in [0, 1]. Its length falls piecewise linearly with that amount,
    with a corner where an entry leaves its wall and where it comes to 0.

    Source: Croce & Hein 2021, "Mind the box", proposition 1.
    """
    origin = clean.double().flatten(1)
    change = points.double().flatten(1) - origin
    size, room = change.abs(), torch.where(change > 0, 1 - origin, origin)
    corners = torch.cat([size - room, size, torch.zeros_like(size[:, :1])], dim=1).clamp(min=0)
    ordered, order = corners.sort(dim=1, descending=True)
    entries = size.shape[1]
    slopes = torch.where(order < entries, -1.0, torch.where(order < 2 * entries, 1.0, 0.0))
    falling = slopes.double().cumsum(1)  # entries that shrink below each corner
    gaps = ordered[:, :-1] - ordered[:, 1:]
    length = torch.cat([torch.zeros_like(gaps[:, :1]), (gaps * falling[:, :-1]).cumsum(1)], dim=1)
    # The last corner at which the change is short enough, and from there on down.
    place = ((length <= eps).sum(1, keepdim=True) - 1).clamp(min=0)
    rest = (eps - length.gather(1, place)) / falling.gather(1, place).clamp(min=1)
    amount = (ordered.gather(1, place) - rest).clamp(min=0)
    left = (size - amount).clamp(min=0).minimum(room)
    made = (origin + change.sign() * left).to(clean.dtype)
    over = (made.double() - origin).abs() > left
    flat = clean.flatten(1)
    return made.where(~over, torch.nextafter(made, flat)).view_as(clean)


def surface(images: Tensor, *, norm: Norm, eps: float, rng: Sequence[torch.Generator]) -> Tensor:
    """Random points on the surface of balls around images (B, C, H, W), clamped to [0, 1]."""
    if norm == "Linf":
        noise = 2 * uniform(rng, images, 0, 1) - 1
        return (images + eps * noise / lengths(noise, "Linf")).clamp(0, 1)
    noise = normal(rng, images)
    if norm == "L1":
        return project(images + noise, images, norm=norm, eps=eps)
    return (images + eps * noise / (lengths(noise) + TINY)).clamp(0, 1)
