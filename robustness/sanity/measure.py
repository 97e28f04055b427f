"""What a model is asked about itself, once per evaluation, so that false figures can be told.

Up to 32 clean images are repeated in other batches, moved by next to nothing, and pushed by a
few steps of an attack. The checks of `robustness.sanity` read the diagnostics.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from robustness.attacks.base import Batch, content_of
from robustness.logits import margin
from robustness.progress import Meter
from robustness.results import Diagnostics
from robustness.spec import ALONE, CLIMBERS, DIRECTIONS, SAMPLES, STEPS
from robustness.target import Target, input_gradient

EPS = 8 / 255
HALF = 0.5  # a radius at which every image can be turned into the same grey one
USUAL_SPREAD = 10.0  # of logits, at which the cross-entropy's gradient neither fades nor rounds

_STEP = 1e-3  # along them
_TINY = 1e-4  # a fortieth of a level of 8 bit: no rounding of pixels lets it through
_FEW = 64  # pixels moved at once: even coarse rounding hardly ever has one of them at a border
_ROUNDING = 2.0**-23 * 1000  # of the largest logit: changes below that say nothing in float32

Ask = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Margin:
    """Logit of the label minus that of one other class, (N,) each."""

    labels: np.ndarray
    rivals: np.ndarray

    def of(self, logits: np.ndarray) -> np.ndarray:
        """The margins (N,) in logits (N, K)."""
        rows = np.arange(len(logits))
        with np.errstate(invalid="ignore"):
            return logits[rows, self.labels].astype(np.float64) - logits[rows, self.rivals]

    def total(self, logits: Tensor, truth: Tensor) -> Tensor:
        """Their sum, as a loss whose gradient is wanted."""
        rivals = torch.from_numpy(self.rivals).to(truth.device)
        return (logits.gather(1, truth[:, None]) - logits.gather(1, rivals[:, None])).sum()


class _GradientsSeen(TorchFunctionMode):
    """Notices within its block who takes gradients, in this thread only."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.autograd.grad, torch.autograd.backward, Tensor.backward):
            self.seen = True
        return func(*args, **(kwargs or {}))


def measure(
    target: Target, batch: Batch, *, seed: int, meter: Meter, gradients: bool = True
) -> Diagnostics:
    """Measure the diagnostics of a model on the first 32 inputs of a batch.

    Args:
        target: the model.
        batch: clean inputs.
        seed: of the choice of pixels.
        meter: counts every model evaluation, `diagnostics_cost` of them at most.
        gradients: whether gradients of an image model are to be asked for.
    """
    if target.endpoint is not None and target.torch_model is None:
        return _measure_endpoint(target, batch, meter)
    if target.reads == "text":
        return _measure_texts(target, batch.texts[:SAMPLES], meter)
    if target.task.answer == "pixels":
        return _measure_masks(target, batch.images[:SAMPLES], meter)
    inputs, labels = batch.images[:SAMPLES], batch.labels[:SAMPLES]
    nudged = _nudged(inputs, seed)
    served: Ask = partial(target.predict, meter=meter)
    found = _of_served(target, served, inputs, nudged)
    if target.torch_model is not None:
        torch_model: Ask = partial(target.predict_torch, meter=meter)
        logits = _ask_torch_model(found, torch_model, inputs, nudged)
        if gradients:
            lead = _Margin(labels=labels, rivals=_rivals(logits, labels))
            asked: list[Ask] = [torch_model, served] if _in_float32(target) else [torch_model]
            gradient = _follow_gradients(found, target, asked, inputs, lead, meter)
            found["promise_error"] = _promise_error(asked[-1], inputs, gradient, lead, seed)
            found["dead_zone"] = _dead_zone(target, inputs, gradient, lead, meter)
            _climb_all(found, target, inputs[:CLIMBERS], labels[:CLIMBERS], meter)
    return Diagnostics(**found)


def _measure_endpoint(target: Target, batch: Batch, meter: Meter) -> Diagnostics:
    """Whether answers depend on inputs at all; nothing is asked that was not asked before."""
    chosen = batch.take(np.arange(min(SAMPLES, len(batch.labels))))
    found = unmeasured(len(chosen.labels))
    logits = target.predict(chosen.inputs, meter)
    found["constant"][:] = len({content_of(one) for one in chosen.inputs}) > 1 and _same_for_all(
        logits
    )
    return Diagnostics(**found)


def _measure_texts(target: Target, texts: Sequence[str], meter: Meter) -> Diagnostics:
    """Of texts other batches are also padded otherwise."""
    found = unmeasured(len(texts))
    logits = target.predict(texts, meter)
    longest = " ".join(texts)
    mixed = target.predict([longest, *reversed(texts)], meter)[:0:-1]
    alone = [target.predict([text], meter) for text in texts[:ALONE]]
    alone = np.concatenate([*alone, logits[ALONE:]])
    found["batch_dependence"] = np.maximum(_change(mixed, logits), _change(alone, logits))
    found["constant"][:] = len(set(texts)) > 1 and _same_for_all(logits)
    return Diagnostics(**found)


def _measure_masks(target: Target, inputs: np.ndarray, meter: Meter) -> Diagnostics:
    """Of segmenters what does not ask for one margin of an image."""

    def flat(ask: Ask) -> Ask:
        """The logits of all pixels side by side."""
        return lambda images: ask(images).reshape(len(images), -1)

    served = flat(partial(target.predict, meter=meter))
    found, logits = unmeasured(len(inputs)), served(inputs)
    found["batch_dependence"] = _batch_dependence(served, inputs, logits)
    found["constant"][:] = bool(np.ptp(inputs, axis=0).any()) and _same_for_all(logits)
    if target.torch_model is not None:
        torch_model = flat(partial(target.predict_torch, meter=meter))
        logits = torch_model(inputs)
        with _GradientsSeen() as watch:
            again = torch_model(inputs)
        found["inner_gradient"][:] = watch.seen
        found["torch_change"] = _change(again, logits)
        found["torch_batch_dependence"] = _batch_dependence(torch_model, inputs, logits)
    return Diagnostics(**found)


def unmeasured(samples: int) -> dict[str, Any]:
    """Nothing measured yet."""
    numbers = {field.name: np.full(samples, np.nan) for field in fields(Diagnostics)}
    by_input = ("torch_normalized", "input_insensitive", "zero_gradient", "holds_at_large_eps")
    flags = {name: np.zeros(samples, bool) for name in by_input}
    once = {name: np.zeros(1, bool) for name in ("constant", "inner_gradient")}
    return numbers | flags | once


def _of_served(target: Target, ask: Ask, inputs: np.ndarray, nudged: np.ndarray) -> dict[str, Any]:
    found = unmeasured(len(inputs))
    logits = ask(inputs)
    found["batch_dependence"] = _batch_dependence(ask, inputs, logits)
    found["constant"][:] = bool(np.ptp(inputs, axis=0).any()) and _same_for_all(logits)
    if _in_float32(target):
        found["input_insensitive"] = (ask(nudged) == logits).all(axis=1)
    return found


def _ask_torch_model(
    found: dict[str, Any], ask: Ask, inputs: np.ndarray, nudged: np.ndarray
) -> np.ndarray:
    """The PyTorch model's logits, and all that can be measured without gradients."""
    logits = ask(inputs)
    with _GradientsSeen() as watch:
        again = ask(inputs)
    found["inner_gradient"][:] = watch.seen
    found["torch_change"] = _change(again, logits)
    found["torch_batch_dependence"] = _batch_dependence(ask, inputs, logits)
    found["torch_normalized"] = (logits >= 0).all(axis=1) & (np.abs(logits.sum(axis=1) - 1) < 1e-4)
    found["input_insensitive"] = found["input_insensitive"] | (ask(nudged) == logits).all(axis=1)
    return logits


def _batch_dependence(ask: Ask, inputs: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Change of each sample's logits in another order and batch, and for a few of them alone."""
    mixed = ask(np.concatenate([inputs[::-1], 1 - inputs[:1]]))[: len(inputs)][::-1]
    alone = logits.copy()
    for row in range(min(ALONE, len(inputs))):
        alone[row] = ask(inputs[row : row + 1])[0]
    return np.maximum(_change(mixed, logits), _change(alone, logits))


def _change(found: np.ndarray, logits: np.ndarray) -> np.ndarray:
    spread = float(np.median(np.ptp(logits, axis=1)))
    with np.errstate(invalid="ignore", divide="ignore"):
        change = np.abs(found - logits).max(axis=1)
        return np.where(change == 0, 0.0, change / spread)


def _same_for_all(logits: np.ndarray) -> bool:
    if not np.isfinite(logits).all():
        return False
    return float(np.ptp(logits, axis=0).max()) <= 1e-6 * float(np.abs(logits).max())


def _nudged(inputs: np.ndarray, seed: int) -> np.ndarray:
    """Inputs of which a few pixels, the same in each, are moved by 1e-4 towards grey."""
    pixels = inputs.reshape(len(inputs), -1).copy()
    width = pixels.shape[1]
    chosen = np.random.default_rng(seed).choice(width, min(_FEW, width), replace=False)
    pixels[:, chosen] += np.where(pixels[:, chosen] > 0.5, -_TINY, _TINY).astype(np.float32)
    return pixels.reshape(inputs.shape)


def _in_float32(target: Target) -> bool:
    """Whether the served model rounds so little that tiny changes can be seen."""
    return target.runtime.precision == "fp32"


def _follow_gradients(
    found: dict[str, Any],
    target: Target,
    asked: list[Ask],
    inputs: np.ndarray,
    lead: _Margin,
    meter: Meter,
) -> np.ndarray:
    """Compare what the gradient of the margin promises with what the model does.

    Returns:
        The gradient (n, C, H, W).
    """
    logits, gradient = input_gradient(target, inputs, lead.labels, meter, loss=lead.total)
    flat = ((gradient == 0) | ~np.isfinite(gradient)).reshape(len(inputs), -1)
    found["zero_gradient"] = flat.all(axis=1)
    found["clean_margin"] = lead.of(logits)
    step = np.float32(_TINY) * np.sign(np.nan_to_num(gradient))
    up, down = np.clip(inputs + step, 0, 1), np.clip(inputs - step, 0, 1)
    with np.errstate(invalid="ignore"):
        moved = (up - down).astype(np.float64) * gradient
        promised = moved.reshape(len(inputs), -1).sum(axis=1)
        known = promised > _ROUNDING * float(np.abs(logits).max(initial=1e-30))
    ratios = []
    for ask in asked:
        change = lead.of(ask(up)) - lead.of(ask(down))
        ratios.append(np.where(known, change / np.where(known, promised, 1), np.nan))
    # Of PyTorch model and served model, the one that keeps the gradient's promise worse.
    worse = np.argmax([np.abs(np.nan_to_num(ratio, nan=1.0) - 1) for ratio in ratios], axis=0)
    found["gradient_ratio"] = np.array(ratios)[worse, np.arange(len(inputs))]
    return gradient


def _promise_error(
    ask: Ask, inputs: np.ndarray, gradient: np.ndarray, lead: _Margin, seed: int
) -> np.ndarray:
    """How far the gradient is off what the model does along random signs, (n,); NaN if unknown.

    A gradient that leaves pixels or frequencies out keeps its promise along itself, not there.
    """
    draw = np.random.default_rng(seed)
    off, size = np.zeros(len(inputs)), np.zeros(len(inputs))
    largest = 0.0
    for _ in range(DIRECTIONS):
        step = draw.choice(np.array([-_STEP, _STEP], np.float32), inputs.shape)
        up, down = np.clip(inputs + step, 0, 1), np.clip(inputs - step, 0, 1)
        with np.errstate(invalid="ignore"):
            moved = (up - down).astype(np.float64) * gradient
            promised = moved.reshape(len(inputs), -1).sum(axis=1)
            above, below = ask(up), ask(down)
            change = lead.of(above) - lead.of(below)
        largest = max(largest, float(np.abs(above).max(initial=0)))
        off, size = off + (change - promised) ** 2, size + change**2
    known = np.sqrt(size / DIRECTIONS) > _ROUNDING * largest
    return np.where(known, np.sqrt(off / np.where(known, size, 1)), np.nan)


def _dead_zone(
    target: Target, inputs: np.ndarray, gradient: np.ndarray, lead: _Margin, meter: Meter
) -> np.ndarray:
    """Share (n,) of the pixels at 0 or 1 without a gradient that have one a little further inside.

    NaN where few pixels are at either end.
    """
    ends = (inputs == 0) | (inputs == 1)
    inside = np.clip(inputs, np.float32(EPS), np.float32(1 - EPS))
    _, there = input_gradient(target, inside, lead.labels, meter, loss=lead.total)
    dead = (ends & (gradient == 0) & (there != 0)).reshape(len(inputs), -1).sum(axis=1)
    count = ends.reshape(len(inputs), -1).sum(axis=1)
    return np.where(count >= _FEW, dead / np.maximum(count, 1), np.nan)


def _climb_all(
    found: dict[str, Any], target: Target, inputs: np.ndarray, labels: np.ndarray, meter: Meter
) -> None:
    """Fall of the margin by one step, by many, and by many against rescaled logits."""
    clean = target.predict_torch(inputs, meter)
    start = margin(clean, labels)
    spread = float(np.median(np.ptp(clean, axis=1)))
    usual = USUAL_SPREAD / spread if np.isfinite(spread) and spread > 0 else 1.0
    for name, steps, scale in (
        ("single_step_drop", 1, 1.0),
        ("multi_step_drop", STEPS, 1.0),
        ("rescaled_drop", STEPS, usual),
    ):
        pushed = _climb(target, inputs, labels, EPS, steps=steps, scale=scale, meter=meter)
        with np.errstate(invalid="ignore"):
            found[name][: len(inputs)] = start - margin(target.predict_torch(pushed, meter), labels)
    far = _climb(target, inputs, labels, HALF, steps=STEPS, scale=usual, meter=meter)
    held = target.predict_torch(far, meter).argmax(axis=1) == labels
    found["holds_at_large_eps"][: len(inputs)] = held & (clean.argmax(axis=1) == labels)


def _climb(
    target: Target,
    inputs: np.ndarray,
    labels: np.ndarray,
    eps: float,
    *,
    steps: int,
    scale: float,
    meter: Meter,
) -> np.ndarray:
    """Follow the signs of the cross-entropy's gradient, from the clean input, within a radius."""
    size = np.float32(eps if steps == 1 else eps / 4)
    low, high = np.maximum(inputs - np.float32(eps), 0), np.minimum(inputs + np.float32(eps), 1)

    def loss(logits: Tensor, truth: Tensor) -> Tensor:
        """Cross-entropy of the rescaled logits."""
        return nn.functional.cross_entropy(logits * scale, truth, reduction="sum")

    moved = inputs
    for _ in range(steps):
        _, gradient = input_gradient(target, moved, labels, meter, loss=loss)
        moved = np.clip(moved + size * np.sign(np.nan_to_num(gradient)), low, high)
    return moved


def _rivals(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The likeliest class beside the label, (N,)."""
    others = logits.copy()
    np.put_along_axis(others, labels[:, None], -np.inf, axis=1)
    return others.argmax(axis=1)
