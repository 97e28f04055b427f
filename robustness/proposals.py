"""Proposals in bfloat16: the twin with its input gradient, compiled for this processor.

An attack evaluates a model thousands of times an image, and most of what it evaluates is not what
it returns. So the search may run in bfloat16, on OpenVINO: what seems to fool the model is a
proposal, and counts only when the twin says the same in float32. A verdict never rests on it: it is
recomputed from the stored inputs.

The gradient is traced together with the loss of the attack, with its batch size fixed: a second
pass through the model would cost as much as the first, and shapes known in advance are faster.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch._decomp import core_aten_decompositions
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from robustness.catalog import Variant
from robustness.target import gradient_path, undisturbed
from runtimes.openvino import able_to_run, compile_program, missing

Loss = Literal["cross-entropy", "targeted-dlr", "margin"]
_LOSSES: tuple[Loss, ...] = ("cross-entropy", "targeted-dlr", "margin")
_BATCHES = (16, 4)  # how many samples still take part changes all the time
_PRECISION = "bf16"


def available() -> bool:
    """Whether this processor multiplies bfloat16 and OpenVINO is installed."""
    return missing() is None and able_to_run(_PRECISION)


class Proposer:
    """A twin's logits and input gradients in bfloat16.

    Args:
        twin: the model, on the CPU; graphs are compiled from it when they are first needed.
        variant: how gradients treat m of elliptical attention.
        threads: of one evaluation.
    """

    def __init__(self, twin: nn.Module, *, variant: Variant, threads: int) -> None:
        self._twin, self._threads = twin, threads
        self._variant: Variant = variant
        self._graphs: dict[tuple[str, int], Callable[..., list[np.ndarray]]] = {}

    def prepare(self, images: np.ndarray) -> None:
        """Compile all graphs for images (N, C, H, W) of this shape; else they are when needed."""
        for batch in _BATCHES:
            some = _filled(images[:1], batch)
            labels = np.zeros(batch, np.int64)
            self.logits(some)
            self.gradients(some, labels, labels, "cross-entropy")

    def logits(self, images: np.ndarray) -> np.ndarray:
        """Logits (B, K) float32 for images (B, C, H, W)."""
        parts = [
            self._graph("logits", batch, images)(_filled(images[rows], batch))[0][: len(rows)]
            for rows, batch in _chunks(len(images))
        ]
        return np.concatenate(parts)

    def gradients(
        self, images: np.ndarray, labels: np.ndarray, targets: np.ndarray | None, loss: Loss
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Logits, the gradient of each sample's loss by them, and by the image.

        Args:
            images: (B, C, H, W) float32.
            labels: (B,) int64.
            targets: (B,) int64 wrong classes aimed at; None for the cross-entropy.
            loss: "cross-entropy"; "margin", target over label; or that over the spread of the four
                largest logits, "targeted-dlr" (Croce & Hein 2020, eq. 7).

        Returns:
            (B, K), (B, K) and (B, C, H, W), float32.
        """
        found: list[list[np.ndarray]] = []
        weights = np.array([loss == name for name in _LOSSES], np.float32)
        aims = labels if targets is None else targets
        for rows, batch in _chunks(len(images)):
            graph = self._graph("gradient", batch, images)
            own, aim = (_filled(x[rows], batch) for x in (labels, aims))
            answer = graph(_filled(images[rows], batch), own, aim, weights)
            found.append([part[: len(rows)] for part in answer])
        logits, pulls, gradients = (np.concatenate(part) for part in zip(*found, strict=True))
        return logits, pulls, gradients

    def _graph(self, what: str, batch: int, images: np.ndarray) -> Callable[..., list[np.ndarray]]:
        key = (what, batch)
        if key not in self._graphs:
            example = torch.zeros((batch, *images.shape[1:]))
            make = _compile_logits if what == "logits" else _compile_gradient
            self._graphs[key] = make(self._twin, self._variant, example, self._threads)
        return self._graphs[key]


class _Proposed(torch.autograd.Function):
    """Logits whose gradient by the image is known already, up to a factor for each sample."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, logits: Tensor, pull: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(pull, gradient)
        return logits.clone()

    @staticmethod
    def backward(ctx: Any, *asked: Tensor) -> tuple[Tensor, None, None, None]:
        pull, gradient = ctx.saved_tensors
        # A mean instead of a sum scales the loss; a sample that left is asked for with zeros.
        scale = (asked[0] * pull).sum(1) / (pull * pull).sum(1).clamp_min(1e-30)
        return gradient * scale[:, None, None, None], None, None, None


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What an attack pulls at, sample by sample.

    Attributes:
        loss: which loss it climbs.
        labels: (N,) int64.
        targets: (N,) int64 or None.
    """

    loss: Loss
    labels: Tensor
    targets: Tensor | None


def propose(proposer: Proposer, images: Tensor, aim: Aim, rows: Tensor) -> Tensor:
    """Logits (B, K) of images, differentiable if the images are.

    Args:
        proposer: evaluates them.
        images: (B, C, H, W) of the rows that still take part.
        aim: of all rows.
        rows: (B,) which they are.
    """
    pixels = images.detach().numpy()
    if not images.requires_grad:
        return torch.from_numpy(proposer.logits(pixels))
    targets = None if aim.targets is None else aim.targets[rows].numpy()
    found = proposer.gradients(pixels, aim.labels[rows].numpy(), targets, aim.loss)
    logits = _Proposed.apply(images, *(torch.from_numpy(part) for part in found))
    if not isinstance(logits, Tensor):
        raise TypeError("an autograd function must return a tensor")
    return logits


def _compile_logits(
    twin: nn.Module, variant: Variant, images: Tensor, threads: int
) -> Callable[..., list[np.ndarray]]:
    def logits(images: Tensor) -> tuple[Tensor]:
        return (twin(images),)

    return _compile(logits, (images,), twin, variant, threads)


def _compile_gradient(
    twin: nn.Module, variant: Variant, images: Tensor, threads: int
) -> Callable[..., list[np.ndarray]]:
    labels = torch.zeros(len(images), dtype=torch.int64)
    weights = torch.zeros(len(_LOSSES))

    def gradient(
        images: Tensor, labels: Tensor, targets: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        leaf = images.detach().requires_grad_(True)
        with torch.enable_grad():
            logits = twin(leaf)
        pull = _pull(logits.detach(), labels, targets, weights)
        (by_image,) = torch.autograd.grad(logits, leaf, pull)
        return logits.detach(), pull, by_image

    return _compile(gradient, (images, labels, labels + 1, weights), twin, variant, threads)


def _pull(logits: Tensor, labels: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Gradient (B, K) of each loss by the logits, weighted; exactly one weight is 1."""
    classes = torch.arange(logits.shape[1])
    own = (classes == labels[:, None]).to(logits.dtype)
    ahead = (classes == targets[:, None]).to(logits.dtype) - own  # of target - label
    pull = weights[0] * (torch.softmax(logits, 1) - own) + weights[2] * ahead
    if logits.shape[1] < 4:
        return pull
    top, places = torch.topk(logits, 4, dim=1)
    spread = (top[:, 0] - 0.5 * top[:, 2] - 0.5 * top[:, 3] + 1e-12)[:, None]
    first, third, fourth = ((classes == places[:, k : k + 1]).to(logits.dtype) for k in (0, 2, 3))
    lead = (logits * ahead).sum(1, keepdim=True)
    dlr = ahead / spread - lead / spread**2 * (first - 0.5 * third - 0.5 * fourth)
    return pull + weights[1] * dlr


def _compile(
    function: Callable[..., tuple[Tensor, ...]],
    example: tuple[Tensor, ...],
    twin: nn.Module,
    variant: Variant,
    threads: int,
) -> Callable[..., list[np.ndarray]]:
    with ExitStack() as block:
        block.enter_context(undisturbed(twin))
        block.enter_context(gradient_path(twin, variant))
        # The fused attention has no gradient that another engine knows.
        block.enter_context(sdpa_kernel(SDPBackend.MATH))
        traced = make_fx(function, decomposition_table=_decompositions())(*example)
    program = torch.export.export(traced, example)
    request = compile_program(program, _PRECISION, threads).create_infer_request()

    outputs = range(len(program.graph_signature.user_outputs))

    def run(*inputs: np.ndarray) -> list[np.ndarray]:
        request.infer(list(inputs), share_inputs=True, share_outputs=True)
        return [np.array(request.get_output_tensor(k).data) for k in outputs]

    return run


@cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    """How operations are written that OpenVINO does not read from a traced program."""
    table = dict(core_aten_decompositions())
    table[torch.ops.aten.convolution_backward.default] = _convolution_backward
    table[torch.ops.aten.native_layer_norm.default] = _layer_norm
    return table


def _convolution_backward(
    gradient: Tensor,
    images: Tensor,
    weight: Tensor,
    bias_sizes: Any,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    wanted: list[bool],
) -> tuple[Tensor, None, None]:
    """Gradient by the input of a convolution that covers it without a rest, for frozen weights."""
    rest = [
        size + 2 * pad - reach * (side - 1) - 1 - (out - 1) * step
        for size, pad, reach, side, out, step in zip(
            images.shape[2:], padding, dilation, weight.shape[2:], gradient.shape[2:], stride,
            strict=True,
        )
    ]  # fmt: skip
    by_input = torch.ops.aten.convolution(
        gradient, weight, None, stride, padding, dilation, not transposed, rest, groups
    )
    return by_input, None, None


def _layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    axes = list(range(-len(shape), 0))
    mean = x.mean(axes, keepdim=True)
    centred = x - mean
    inverse = torch.rsqrt((centred * centred).mean(axes, keepdim=True) + eps)
    y = centred * inverse
    y = y if weight is None else y * weight
    return y if bias is None else y + bias, mean, inverse


def _chunks(count: int) -> list[tuple[np.ndarray, int]]:
    """Rows and the batch size that evaluates them: large batches, then small ones for the rest."""
    large, small = _BATCHES
    chunks: list[tuple[np.ndarray, int]] = []
    start = 0
    while start < count:
        batch = large if count - start > large - small else small
        rows = np.arange(start, min(start + batch, count))
        chunks.append((rows, batch))
        start += len(rows)
    return chunks


def _filled(array: np.ndarray, batch: int) -> np.ndarray:
    """An array of `batch` rows, the last one repeated."""
    missing_rows = batch - len(array)
    if missing_rows == 0:
        return np.ascontiguousarray(array)
    return np.concatenate([array, np.repeat(array[-1:], missing_rows, axis=0)])
