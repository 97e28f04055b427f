"""The parity gate: an opened runtime must answer the artifact's stored inputs as the model did."""

import numpy as np

from runtimes.artifact import Artifact, ArtifactError
from runtimes.base import InvalidInputs, Runtime
from runtimes.manifest import PROBE
from runtimes.probe import PROBE_SAMPLES, read_probe

MIN_AGREEMENT = 0.995
"""Share of equal answers that a precision below fp32 must reach."""

_QUICK = 8  # stored inputs that tell a wrong graph or a broken kernel from the right one in fp32
_BATCH, _SMALL_BATCH = 8, 2  # a quick look takes little memory


class ParityFailure(ValueError):
    """A runtime that does not compute what the artifact's model computes."""


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
    changed, largest = 0, 0.0
    for feed, expected in probe.batches(_SMALL_BATCH if few else _BATCH):
        logits = _answers(runtime, feed)
        if logits.shape != expected.shape or not np.isfinite(logits).all():
            raise ParityFailure(f"{name} answers with no finite {expected.shape} logits")
        changed += int((logits.argmax(1) != expected.argmax(1)).sum())
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
