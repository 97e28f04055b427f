"""The kernels of torchattacks as they are run here: observed, and with draws of our own.

The kernels are bit-identical to the reference implementations under the settings of
`robustness.attacks.gradient`. What is around them is not used: their defaults, the base class,
which changes the modes of modules, and the loops over targets, which reseed the global generator.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torchattacks import APGD, FAB

from robustness.attacks.projections import nearest_l2, nearest_linf
from robustness.catalog import Norm
from robustness.progress import Meter
from robustness.proposals import Aim, Proposer, propose
from robustness.target import device_of


class AllFooled(Exception):
    """Nobody is left to attack: ends a kernel's run from inside its call of the model."""


class Watch:
    """Who still takes part in one run of a kernel, and what fooled the model about the others.

    Attributes:
        rows: indices of those who take part.
        nearest: (N, C, H, W) the nearest fooling input evaluated; the clean one where none was.
        distance: (N,) its distance; inf where none was.

    Args:
        images: (N, C, H, W) clean images.
        labels: (N,) their labels.
        norm: of the distance.
        until: a sample leaves once it is fooled within this distance; None lets nobody leave.
        logits: (N, K) of the clean images, for kernels that begin by asking for them.
        aim: what the kernel pulls at, for a search in bfloat16; None searches with the model.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        norm: Norm,
        until: float | None,
        logits: Tensor | None = None,
        aim: Aim | None = None,
    ) -> None:
        self.aim = aim
        self.images, self.labels, self.until = images, labels, until
        self.norm: Norm = norm
        self.clean_logits, self.logits = logits, logits
        self.rows = torch.arange(len(images), device=images.device)
        self.nearest = images.clone()
        self.distance = torch.full_like(labels, torch.inf, dtype=torch.float32)

    def select(self, images: Tensor) -> Tensor:
        """The inputs of those who take part."""
        return images if len(self.rows) == len(images) else images[self.rows]

    def spread(self, logits: Tensor) -> Tensor:
        """Logits of the whole batch: those who left keep their last ones, without a gradient."""
        if self.logits is not None and len(self.rows) < len(self.labels):
            logits = self.logits.index_copy(0, self.rows, logits)
        self.logits = logits.detach()
        return logits

    def note(
        self, inputs: Tensor, logits: Tensor, *, exact: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        """Keep what fools the model; those fooled near enough leave.

        Args:
            inputs: of those who take part.
            logits: theirs.
            exact: the model in float32, where the logits are not its own: what seems to fool it
                near enough counts only if it really does.

        Raises:
            AllFooled: the last one left.
        """
        fooled = logits.max(1)[1] != self.labels[self.rows]
        if not bool(fooled.any()):
            return
        rows, inputs = self.rows[fooled], inputs[fooled]
        distance = distances(inputs, self.images[rows], self.norm)
        nearer = distance < self.distance[rows]  # an input that is not a number never is
        if exact is not None and self.until is not None:
            nearer &= distance <= self.until
            asked = nearer.nonzero().flatten()
            if len(asked):
                nearer[asked] = exact(inputs[asked]).max(1)[1] != self.labels[rows[asked]]
        self.nearest[rows[nearer]] = inputs[nearer]
        self.distance[rows[nearer]] = distance[nearer]
        if self.until is not None:
            reached = self.distance[self.rows]
            self.rows = self.rows[reached.isinf() | (reached > self.until)]
            if len(self.rows) == 0:
                raise AllFooled


class Observed(nn.Module):
    """Shows a kernel the model: only for samples that still take part, and told to the meter.

    The model is held outside the list of submodules: the kernel's base class switches the modes of
    the module it is given, and never finds the model. The placeholder is how it finds the device.
    """

    def __init__(
        self, model: nn.Module, meter: Meter | None, proposer: Proposer | None = None
    ) -> None:
        super().__init__()
        self.proposer = proposer
        device = device_of(model)
        self.placeholder = nn.Parameter(torch.empty(0, device=device), requires_grad=False)
        self.outside = (model, meter)
        self.watch: Watch | None = None
        self.first: Callable[[], None] | None = None

    def run(
        self,
        watch: Watch,
        attack: Callable[..., Any],
        *inputs: Tensor,
        draws: AbstractContextManager[object] | None = None,
    ) -> Any:
        """Run a kernel until it ends or everybody has left; then there is no result, but None.

        Args:
            watch: told of every evaluation.
            attack: the kernel's function.
            inputs: its arguments.
            draws: entered until the first evaluation, before which the kernels make all draws:
                inside a mode of torch functions every operation of the model would be slower.
        """
        self.watch = watch
        with ExitStack() as block:
            if draws is not None:
                block.enter_context(draws)
            self.first = block.close
            try:
                return attack(*inputs)
            except AllFooled:
                return None

    def evaluate(self, inputs: Tensor) -> Tensor:
        """The model's logits (B, K), unobserved.

        Raises:
            ValueError: a gradient is wanted, but the logits have none.
        """
        model, meter = self.outside
        if meter is not None:
            meter.before()
        logits = model(inputs)
        if inputs.requires_grad and not logits.requires_grad:
            raise ValueError(
                "model must be differentiable, got logits that carry no gradient: attack its twin"
            )
        if meter is not None:
            meter.after(len(inputs))
        return logits

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, K) of the whole batch (N, C, H, W).

        Until a gradient is asked for, a kernel asks about the clean images and nothing else.
        """
        watch = self.watch
        if watch is None:
            raise RuntimeError("a kernel evaluates the model outside of a run")
        if self.first is not None:
            if not images.requires_grad and watch.clean_logits is not None:
                return watch.clean_logits
            self.first()
            self.first = None
        inputs = watch.select(images)
        if self.proposer is None or watch.aim is None:
            logits = self.evaluate(inputs)
            exact = None
        else:
            logits = self._propose(self.proposer, inputs, watch.aim, watch.rows)
            exact = self._exact
        whole = watch.spread(logits)
        watch.note(inputs.detach(), logits.detach(), exact=exact)
        return whole

    def _propose(self, proposer: Proposer, inputs: Tensor, aim: Aim, rows: Tensor) -> Tensor:
        _, meter = self.outside
        if meter is not None:
            meter.before()
        logits = propose(proposer, inputs, aim, rows)
        if meter is not None:
            meter.after(len(inputs))
        return logits

    def _exact(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return self.evaluate(inputs)


class TargetedAPGD(APGD):
    """APGD on the targeted loss, the DLR loss towards one wrong class an image.

    It stands for torchattacks' APGDT, the same algorithm but for a fault: under l2 that takes the
    first sample's step size for all.

    Source: Croce & Hein 2020, "Reliable evaluation of adversarial robustness", eq. 7.
    """

    target: Tensor  # (B,) int64, set before each run

    def dlr_loss(self, x: Tensor, y: Tensor) -> Tensor:
        """How far the target is above the label, over the spread of the largest four logits.

        Args:
            x: logits (B, K), K >= 4; named as in the kernel, which calls by position.
            y: labels (B,).
        """
        rows = torch.arange(len(x), device=x.device)
        ordered = x.sort(dim=1)[0]
        spread = ordered[:, -1] - 0.5 * ordered[:, -3] - 0.5 * ordered[:, -4] + 1e-12
        return -(x[rows, y] - x[rows, self.target]) / spread


def _with_globals(function: Callable[..., Any], **names: object) -> Callable[..., Any]:
    """The same code under other globals: nothing that others see is replaced."""
    if not isinstance(function, FunctionType):
        raise TypeError(f"function must be a plain function, got {type(function).__name__}")
    globals_ = {**function.__globals__, **names}
    return FunctionType(function.__code__, globals_, function.__name__, function.__defaults__)


class SortlessFAB(FAB):
    """FAB with projections that do not sort: the same points within rounding, in less time."""

    attack_single_run_targeted = _with_globals(
        FAB.attack_single_run_targeted, projection_linf=nearest_linf, projection_l2=nearest_l2
    )


class OwnDraws(TorchFunctionMode):
    """Inside the block each row of a kernel's random start comes from its own generator.

    It answers `torch.rand` and `torch.randn` (APGD) and `uniform_` (PGD). The numbers are drawn on
    the CPU, so that they are the same on every device.

    Args:
        generators: one for each row.
    """

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        super().__init__()
        self.generators = generators

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Draw, or call what is no draw."""
        if func in (torch.rand, torch.randn):
            return torch.stack([func(args[0][1:], generator=own) for own in self.generators])
        if func is Tensor.uniform_:
            start, low, high = args
            rows = [torch.empty(start.shape[1:]).uniform_(low, high, generator=own)
                    for own in self.generators]  # fmt: skip
            return start.copy_(torch.stack(rows))
        return func(*args, **(kwargs or {}))


@contextmanager
def kernel_draws(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global generators as the kernels do; they are restored when the block ends."""
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def distances(inputs: Tensor, images: Tensor, norm: Norm) -> Tensor:
    """Distance of each input (B, C, H, W) from its image, (B,)."""
    difference = (inputs - images).flatten(1)
    if norm == "Linf":
        return difference.abs().amax(1)
    return (difference**2).sum(1).sqrt()
