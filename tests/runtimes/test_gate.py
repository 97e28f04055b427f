"""What the parity gate lets through."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from runtimes.artifact import Artifact, ArtifactError, open_artifact
from runtimes.base import Inputs
from runtimes.gate import ParityFailure, require_parity
from runtimes.manifest import PROBE
from runtimes.probe import Probe, read_probe, write_probe
from runtimes.registry import open_runtime


class Altered:
    """The right runtime, with some logits changed, at any precision that it claims."""

    name = "altered"

    def __init__(
        self, artifact: Artifact, precision: str, change: Callable[[np.ndarray, int], np.ndarray]
    ) -> None:
        self.precision = precision
        self._right = open_runtime(artifact, threads=1)
        self._change = change
        self._seen = 0

    def predict(self, inputs: Inputs) -> np.ndarray:
        logits = self._change(self._right.predict(inputs), self._seen)
        self._seen += len(logits)
        return logits


def wrong_until(count: int) -> Callable[[np.ndarray, int], np.ndarray]:
    """Give another class to the first `count` inputs."""

    def change(logits: np.ndarray, seen: int) -> np.ndarray:
        rows = range(max(0, min(len(logits), count - seen)))
        for row in rows:
            logits[row] = -logits[row]
        return logits

    return change


@pytest.mark.parametrize(
    ("precision", "allowed"), [("fp32", 0), ("bf16", 1), ("fp16", 1), ("int8", 1)]
)
@pytest.mark.parametrize("quick", [False, True])
def test_below_fp32_one_other_class_of_200_passes(
    artifact: Artifact, precision: str, allowed: int, quick: bool
) -> None:
    """A quick look takes 8 inputs in fp32, and below it all of them."""
    count = 8 if quick and precision == "fp32" else 200
    require_parity(Altered(artifact, precision, wrong_until(allowed)), artifact, quick=quick)
    message = f"{precision} changes the class of {allowed + 1} of {count} inputs"
    with pytest.raises(ParityFailure, match=message):
        require_parity(
            Altered(artifact, precision, wrong_until(allowed + 1)), artifact, quick=quick
        )


def test_fp32_must_repeat_the_logits_and_not_only_the_class(artifact: Artifact) -> None:
    shifted = Altered(artifact, "fp32", lambda logits, _: logits + np.float32(0.05))
    with pytest.raises(ParityFailure, match="altered fp32 differs by .* more than 1e-04"):
        require_parity(shifted, artifact, quick=True)
    require_parity(Altered(artifact, "bf16", lambda logits, _: logits + 0.05), artifact)


@pytest.mark.parametrize(
    "change",
    [
        lambda logits, _: np.full_like(logits, np.nan),
        lambda logits, _: np.full_like(logits, np.inf),
        lambda logits, _: logits[:, :2],
    ],
)
def test_logits_that_are_not_finite_or_of_another_shape_do_not_pass(
    artifact: Artifact, change: Callable[[np.ndarray, int], np.ndarray]
) -> None:
    with pytest.raises(ParityFailure, match=r"no finite \(8, 5\) logits"):
        require_parity(Altered(artifact, "bf16", change), artifact)


def test_few_stored_inputs_tell_about_fp32_and_nothing_else(
    artifact_folder: Path, edit_manifest: Callable[..., None]
) -> None:
    whole = read_probe(open_artifact(artifact_folder))
    few = Probe(inputs={"images": whole.inputs["images"][:8]}, logits=whole.logits[:8])
    (artifact_folder / PROBE).write_bytes(write_probe(few))
    edit_manifest(artifact_folder)
    old = open_artifact(artifact_folder)
    require_parity(open_runtime(old, threads=1), old)
    with pytest.raises(ParityFailure, match="bf16: .* need 200 stored inputs .* has 8: export it"):
        require_parity(Altered(old, "bf16", wrong_until(0)), old)


def test_a_runtime_that_fails_on_stored_inputs_does_not_pass(artifact: Artifact) -> None:
    def fail(logits: np.ndarray, seen: int) -> np.ndarray:
        raise RuntimeError("no such kernel")

    with pytest.raises(ParityFailure, match="altered cannot answer the stored inputs: RuntimeErr"):
        require_parity(Altered(artifact, "fp32", fail), artifact)


def test_stored_inputs_of_another_model_are_the_fault_of_the_artifact(
    artifact_folder: Path, edit_manifest: Callable[..., None]
) -> None:
    whole = read_probe(open_artifact(artifact_folder))
    cut = Probe(inputs={"images": whole.inputs["images"][..., :5]}, logits=whole.logits)
    (artifact_folder / PROBE).write_bytes(write_probe(cut))
    edit_manifest(artifact_folder)
    with pytest.raises(ArtifactError, match="probe.safetensors holds no inputs of this model: ima"):
        open_runtime(open_artifact(artifact_folder), threads=1)
