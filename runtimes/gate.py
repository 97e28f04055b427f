"""The parity gate: an opened runtime must answer the artifact's stored inputs as the model did.

And a differentiable copy must be the function that is served, its gradients included.
"""

from collections.abc import Callable, Iterable

import numpy as np

from runtimes.artifact import Artifact, ArtifactError
from runtimes.base import InvalidInputs, Runtime
from runtimes.gradient import Feed, OnnxGradient
from runtimes.manifest import PROBE, Gradients
from runtimes.probe import PROBE_SAMPLES, read_probe
from runtimes.tasks import MIN_AGREEMENT, TASKS

_QUICK = 8  # stored inputs that tell a wrong graph or a broken kernel from the right one in fp32
_BATCH, _SMALL_BATCH = 8, 2  # a quick look takes little memory


COPY_TOLERANCE = 1e-3
"""Difference of a copy's logits from the served ones, relative to the largest of them."""

MIN_ROUNDED = 0.97
"""Share of equal answers that a copy must reach where the served graph rounds to 8 bit."""

MAX_PROMISE_ERROR = 0.25
"""Of a gradient: 0.001 on smooth functions, 0.1 on kinked ones, 1 where nothing is related."""

_DIRECTIONS = 16
_UNEVEN = 8  # levels: on white paper every maximum of a pool is one of many, all of them kinks
_STEPS = (1e-5, 1e-4, 1e-3, 1 / 255)  # graphs that read bytes change by whole levels only
_SHIFTS = (1e-3, 1e-2, 1e-1)  # of the usual number in a table of embeddings

Ask = Callable[[Feed], np.ndarray]


class ParityFailure(ValueError):
    """A runtime that does not compute what the artifact's model computes."""


class CopyFailure(ValueError):
    """A differentiable copy that is not the function that is served."""


def require_copy(
    copy: OnnxGradient,
    served: Ask,
    batches: Iterable[Feed],
    near: Feed,
    *,
    data: str,
    rounds: bool = False,
    moved: Ask | None = None,
) -> Gradients:
    """Compare a differentiable copy with the graph that is served, answers and gradients.

    Args:
        copy: what attacks will follow.
        served: from `images`, or `tokens` and `mask`, to logits (B, K).
        batches: inputs to compare the answers on.
        near: inputs around which gradients are compared.
        data: what the inputs are.
        rounds: whether the served graph computes in 8 bit, and the copy does not.
        moved: the served graph of a text model with a `shift` of its embeddings.

    Raises:
        CopyFailure: a class changes, a logit differs by more than 1e-3 of the largest, or the
            gradient does not say what the served graph does. Where that rounds, up to 3 % of the
            classes may change, and the gradient must say what the copy does.
    """
    samples, same, largest, scale = 0, 0, 0.0, 1.0
    for feed in batches:
        expected, found = served(feed), copy.logits(feed)
        if found.shape != expected.shape or not np.isfinite(found).all():
            raise CopyFailure(f"the copy answers with no finite {expected.shape} logits")
        samples += len(expected)
        same += int((found.argmax(1) == expected.argmax(1)).sum())
        largest = max(largest, float(np.abs(found - expected).max()))
        scale = max(scale, float(np.abs(expected).max()))
    least, allowed = (MIN_ROUNDED, np.inf) if rounds else (1.0, COPY_TOLERANCE * scale)
    if same < least * samples or largest > allowed:
        changed = f"{samples - same} of {samples} inputs change their class"
        raise CopyFailure(f"in the copy {changed}, and logits differ by up to {largest:.1e}")
    error = promise_error(copy, copy.logits if rounds else moved or served, near)
    if not error <= MAX_PROMISE_ERROR:
        whose = "copy" if rounds else "served graph"
        raise CopyFailure(f"the gradient is off what the {whose} does by {error:.0%}")
    return Gradients(
        samples=samples,
        data=data,
        agreement=same / samples,
        max_abs_diff=largest,
        promise_error=error,
    )


def promise_error(copy: OnnxGradient, served: Ask, near: Feed) -> float:
    """How far gradients are off the changes of a served graph along 16 random directions.

    Each is the gradient of the two largest logits' difference. Steps of several lengths are tried
    and the best counts: networks with kinks need short ones, rounding needs long ones.

    Args:
        copy: gives the gradients.
        served: from inputs by name to logits (B, K).
        near: `images` (B, C, H, W) float32 in [0, 1], or `tokens` and their `mask`, around whose
            embeddings directions lie; images are made a little uneven.

    Returns:
        The norm of the differences relative to that of the changes promised; infinite where none
        are.
    """
    start, steps = _start(copy, near)

    def ask(moved: np.ndarray) -> np.ndarray:
        """Logits where the gradient's start lies elsewhere."""
        return served({**near, copy.start: moved})

    logits = ask(start)
    first, second = np.argsort(-logits, axis=1)[:, :2].T
    seed, rows = np.zeros_like(logits), np.arange(len(logits))
    seed[rows, first], seed[rows, second] = 1, -1
    gradient = copy.pull({**near, copy.start: start}, seed)
    random, errors, sizes = np.random.default_rng(0), np.zeros(len(steps)), 0.0
    for _ in range(_DIRECTIONS):
        direction = random.choice(np.array([-1, 1], np.float32), start.shape)
        promised = (gradient.astype(np.float64) * direction).reshape(len(start), -1).sum(1)
        sizes += (promised**2).sum()
        for index, step in enumerate(map(np.float32, steps)):
            ends = (ask(start + sign * step * direction) for sign in (1, -1))
            up, down = ((end.astype(np.float64) * seed).sum(1) for end in ends)
            errors[index] += (((up - down) / (2 * step) - promised) ** 2).sum()
    return float(np.sqrt(errors.min() / sizes)) if sizes > 0 else float("inf")


def _start(copy: OnnxGradient, near: Feed) -> tuple[np.ndarray, tuple[float, ...]]:
    """Around what directions lie, and how far it goes along them."""
    if copy.table is None:
        levels = np.rint(255 * near["images"]).clip(1 + _UNEVEN, 254 - _UNEVEN)
        levels += np.random.default_rng(1).integers(-_UNEVEN, _UNEVEN + 1, levels.shape)
        return (levels / 255).astype(np.float32), _STEPS
    usual = float(np.sqrt(np.square(copy.table, dtype=np.float64).mean()))
    shape = (*near["tokens"].shape, copy.table.shape[1])
    return np.zeros(shape, np.float32), tuple(usual * share for share in _SHIFTS)


def is_unmeasured(artifact: Artifact, precision: str) -> bool:
    """Whether no export has measured a precision: it is neither fp32 nor the artifact's own."""
    return precision not in ("fp32", artifact.manifest.precision)


def unmeasured_refusal(artifact: Artifact) -> str | None:
    """Why a precision that no export has measured cannot be compared, or None.

    Raises:
        ArtifactError: the stored inputs cannot be read.
    """
    count = len(read_probe(artifact))
    if count >= PROBE_SAMPLES:
        return None
    return (
        f"other precisions need {PROBE_SAMPLES} stored inputs to compare, and the artifact has "
        f"{count}: export it again"
    )


def require_parity(runtime: Runtime, artifact: Artifact, *, quick: bool = False) -> None:
    """Compare a runtime with the eager model on the artifact's stored inputs.

    fp32 must give the same class and, within the artifact's tolerance, the same logits. Every
    other precision must give the same class in 99.5 % of the inputs, and one that is not the
    artifact's own, so that no export has ever measured it, needs enough inputs to tell.

    Args:
        runtime: an opened runtime.
        artifact: what it opened.
        quick: compare fp32 on a few inputs only. A lower precision is compared on all of them
            whatever is asked for: few inputs cannot tell 99.5 %, and processors differ in how they
            multiply small integers.

    Raises:
        ParityFailure: there are no answers, they differ by more, are not finite, or there are too
            few inputs.
        ArtifactError: the stored inputs cannot be read, or are not of this model.
    """
    name, precision, tolerance = runtime.name, runtime.precision, artifact.manifest.parity.tolerance
    exact = precision == "fp32"
    few = quick and exact
    probe = read_probe(artifact, _QUICK if few else None)
    if is_unmeasured(artifact, precision) and (reason := unmeasured_refusal(artifact)):
        raise ParityFailure(f"{precision}: {reason}")
    changed, largest, task = 0, 0.0, TASKS[artifact.manifest.task]
    for feed, expected in probe.batches(_SMALL_BATCH if few else _BATCH):
        logits = _answers(runtime, feed)
        if logits.shape != expected.shape or not np.isfinite(logits).all():
            raise ParityFailure(f"{name} answers with no finite {expected.shape} logits")
        changed += int(task.changed(logits, expected, feed).sum())
        logits, expected = task.counted(logits, feed), task.counted(expected, feed)
        # Rounding grows with what is rounded.
        scale = max(1.0, float(np.abs(expected).max()))
        largest = max(largest, float(np.abs(logits - expected).max()) / scale)
    if changed > (0 if exact else int((1 - MIN_AGREEMENT) * len(probe) + 1e-9)):
        inputs = f"{changed} of {len(probe)} inputs"
        raise ParityFailure(f"{name} {precision} changes the class of {inputs}")
    if exact and largest > tolerance:
        difference = f"{largest:.1e} of the largest logit, more than {tolerance:.0e}"
        raise ParityFailure(f"{name} fp32 differs by {difference}")


def _answers(runtime: Runtime, feed: dict[str, np.ndarray]) -> np.ndarray:
    try:
        return runtime.predict(feed)
    except InvalidInputs as error:
        raise ArtifactError(f"{PROBE} holds no inputs of this model: {error}") from error
    except Exception as error:  # runtimes share no base class of their errors
        reason = f"{runtime.name} cannot answer the stored inputs: {type(error).__name__}"
        raise ParityFailure(reason) from error
