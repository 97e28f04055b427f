"""What every runtime can do, and what can go wrong before it does."""

from collections.abc import Callable, Mapping
from typing import Literal, Protocol

import numpy as np

from runtimes.artifact import Artifact
from runtimes.manifest import InputSpec, Manifest

Mode = Literal["exact", "fast"]
"""The artifact's own precision, or any whose answers agree with it to 99.5 %."""

Inputs = np.ndarray | Mapping[str, np.ndarray]
"""What a graph reads, by name; an image model takes its one array without the name."""


class RuntimeUnavailable(ValueError):
    """A runtime that was asked for and cannot be had here; the message says why."""


class InvalidInputs(ValueError):
    """Inputs that the model does not take; the message names the argument, the rule, the value."""


class Runtime(Protocol):
    """An opened graph. `predict` may be called from any thread."""

    @property
    def name(self) -> str:
        """Which runtime on which device, e.g. "onnx-cpu"."""
        ...

    @property
    def precision(self) -> str:
        """Arithmetic of the matrix products, e.g. "fp32"."""
        ...

    def predict(self, inputs: Inputs) -> np.ndarray:
        """Compute the logits of some inputs.

        Args:
            inputs: images (B, C, H, W) float32, pixels in [0, 1]; or `tokens` (B, N) int64 and
                `mask` (B, N) bool, True for real tokens; B >= 1.

        Returns:
            (B, K) float32 logits, of other tasks of their shape, an array of the caller's own.

        Raises:
            InvalidInputs: wrong names, shapes, types, ids, or a text without a real token.
        """
        ...


def as_feed(inputs: Inputs, manifest: Manifest) -> dict[str, np.ndarray]:
    """Check inputs against a manifest: some runtimes answer nonsense where others refuse.

    Returns:
        Contiguous arrays by name, in the order of the graph's inputs.

    Raises:
        InvalidInputs: see `Runtime.predict`.
    """
    spec = manifest.input
    names = ["images"] if isinstance(spec, InputSpec) else ["tokens", "mask"]
    given = {"images": inputs} if isinstance(inputs, np.ndarray) else inputs
    if sorted(given) != sorted(names):
        got = ", ".join(given) or "nothing"
        raise InvalidInputs(f"inputs must be {', '.join(names)}, got {got}")
    if isinstance(spec, InputSpec):
        _check_images(given["images"], tuple(spec.shape[1:]))
    else:
        _check_tokens(given["tokens"], given["mask"], spec.range[1], manifest.seq_len)
    return {name: np.ascontiguousarray(given[name]) for name in names}


def logits_shape(manifest: Manifest, feed: Mapping[str, np.ndarray]) -> tuple[int, ...]:
    """The shape of a graph's answer to some inputs; what is free is their number of tokens."""
    first = next(iter(feed.values()))
    rest = (first.shape[1] if size == -1 else size for size in manifest.output.shape[1:])
    return len(first), *rest


def in_batches(
    run: Callable[[dict[str, np.ndarray]], np.ndarray],
    feed: dict[str, np.ndarray],
    size: int | None,
) -> np.ndarray:
    """Run a graph on any number of inputs, whatever number it takes at once.

    Args:
        run: from inputs by name to logits.
        feed: B inputs by name.
        size: how many it takes, the last ones repeated to fill a batch; None takes them all.

    Returns:
        (B, K) logits.
    """
    if size is None:
        return run(feed)
    count, parts = len(next(iter(feed.values()))), []
    for start in range(0, count, size):
        rows = np.minimum(np.arange(start, start + size), count - 1)
        parts.append(run({name: values[rows] for name, values in feed.items()}))
    return np.concatenate(parts)[:count]


def blank_inputs(artifact: Artifact, batch_size: int) -> dict[str, np.ndarray]:
    """Inputs of the right shapes that mean nothing: black images, or texts of the first token."""
    spec = artifact.manifest.input
    if isinstance(spec, InputSpec):
        return {"images": np.zeros((batch_size, *spec.shape[1:]), np.float32)}
    shape = (batch_size, artifact.text_spec.max_len)
    return {"tokens": np.zeros(shape, np.int64), "mask": np.ones(shape, np.bool_)}


def _check_images(images: np.ndarray, shape: tuple[int, ...]) -> None:
    if images.dtype != np.float32:
        raise InvalidInputs(f"images must be float32, got {images.dtype}")
    if images.ndim != 4 or images.shape[1:] != shape or not len(images):
        wanted = ", ".join(map(str, shape))
        raise InvalidInputs(f"images must be (B >= 1, {wanted}), got {images.shape}")


def _check_tokens(tokens: np.ndarray, mask: np.ndarray, last: int, longest: int) -> None:
    if tokens.dtype != np.int64:
        raise InvalidInputs(f"tokens must be int64, got {tokens.dtype}")
    if mask.dtype != np.bool_:
        raise InvalidInputs(f"mask must be bool, got {mask.dtype}")
    if tokens.ndim != 2 or not len(tokens):
        raise InvalidInputs(f"tokens must be (B >= 1, N), got {tokens.shape}")
    if mask.shape != tokens.shape:
        raise InvalidInputs(f"mask must be {tokens.shape} as tokens are, got {mask.shape}")
    if tokens.shape[1] > longest:
        raise InvalidInputs(f"tokens must be at most {longest} a row, got {tokens.shape[1]}")
    # Unchecked, a row without any gives no number, and an id below 0 wraps around.
    real = mask.any(axis=1)
    if not real.all():
        row = int(real.argmin())
        raise InvalidInputs(f"mask must be True somewhere in every row, got none in row {row}")
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high > last:
        wrong = low if low < 0 else high
        raise InvalidInputs(f"tokens must be from 0 to {last}, got {wrong}")
