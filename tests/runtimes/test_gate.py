"""Stored inputs with their logits, and what the parity gate lets through."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save

from runtimes.artifact import Artifact, ArtifactError, open_artifact
from runtimes.base import Inputs
from runtimes.gate import ParityFailure, require_parity
from runtimes.manifest import PROBE
from runtimes.probe import Probe, read_probe, write_probe
from runtimes.registry import open_runtime
from tests.exported import with_file, with_probe

SHIPPED = Path(__file__).parents[2] / "artifacts"


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
        logits[: max(0, count - seen)] *= -1
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


def fail(logits: np.ndarray, seen: int) -> np.ndarray:
    raise RuntimeError("no such kernel")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda logits, _: np.full_like(logits, np.nan), r"no finite \(8, 5\) logits"),
        (lambda logits, _: np.full_like(logits, np.inf), r"no finite \(8, 5\) logits"),
        (lambda logits, _: logits[:, :2], r"no finite \(8, 5\) logits"),
        (fail, "altered cannot answer the stored inputs: RuntimeErr"),
    ],
)
def test_a_failure_and_logits_that_are_not_finite_or_of_another_shape_do_not_pass(
    artifact: Artifact, change: Callable[[np.ndarray, int], np.ndarray], message: str
) -> None:
    with pytest.raises(ParityFailure, match=message):
        require_parity(Altered(artifact, "bf16", change), artifact)


def test_few_stored_inputs_tell_about_fp32_and_nothing_else(artifact_folder: Path) -> None:
    old = with_probe(artifact_folder, lambda images, logits: (images[:8], logits[:8]))
    require_parity(open_runtime(old, threads=1), old)
    with pytest.raises(ParityFailure, match="bf16: .* need 200 stored inputs .* has 8: export it"):
        require_parity(Altered(old, "bf16", wrong_until(0)), old)


def test_stored_inputs_of_another_model_are_the_artifacts_fault(artifact_folder: Path) -> None:
    cut = with_probe(artifact_folder, lambda images, logits: (images[..., :5], logits))
    with pytest.raises(ArtifactError, match="probe.safetensors holds no inputs of this model: ima"):
        open_runtime(cut, threads=1)


@pytest.mark.parametrize(
    ("which", "dtypes"),
    [
        ("artifact", {"images": (np.uint8, np.float32)}),
        ("text_artifact", {"tokens": (np.uint16, np.int64), "mask": (np.bool_, np.bool_)}),
    ],
)
def test_probe_holds_few_bytes_of_inputs_with_the_logits_of_the_model(
    request: pytest.FixtureRequest, which: str, dtypes: dict[str, tuple[type, type]]
) -> None:
    artifact: Artifact = request.getfixturevalue(which)
    probe, head = read_probe(artifact), read_probe(artifact, 8)
    assert len(probe) == 200
    runtime = open_runtime(artifact, threads=1)
    sizes = []
    for feed, logits in probe.batches(64):
        np.testing.assert_allclose(runtime.predict(feed), logits, atol=1e-4)
        sizes.append(len(logits))
        for name, (stored, given) in dtypes.items():
            assert (probe.inputs[name].dtype, feed[name].dtype) == (stored, given)
    assert sizes == [64, 64, 64, 8]
    np.testing.assert_array_equal(head.logits, probe.logits[:8])
    for name, values in probe.inputs.items():
        np.testing.assert_array_equal(head.inputs[name], values[:8])


@pytest.mark.parametrize("name", ["fashion-dot", "fashion-elliptical", "fashion-elliptical-adv"])
def test_a_probe_of_floats_still_opens(name: str) -> None:
    artifact = open_artifact(SHIPPED / name)
    (feed, logits), *rest = read_probe(artifact).batches(64)
    assert feed["images"].dtype == np.float32 and not rest
    assert len(logits) == 8 and logits.shape[1] == len(artifact.labels)


IMAGES, LOGITS = np.zeros((2, 1, 28, 28), np.uint8), np.zeros((2, 5), np.float32)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": IMAGES}, "holds no inputs with logits"),
        ({"logits": LOGITS}, "must hold images and as many logits"),
        ({"images": IMAGES[:1], "logits": LOGITS}, "must hold images and as many logits"),
        ({"images": IMAGES, "logits": LOGITS[:, :4]}, "must have 5 logits an input"),
        ({"images": IMAGES[:0], "logits": LOGITS[:0]}, "as many logits, at least 1"),
        ({"images": np.array(1.0), "logits": np.array(1.0)}, "as many logits, at least 1"),
        ({"images": IMAGES, "logits": LOGITS * np.nan}, "must have finite float32 logits"),
    ],
)
def test_a_probe_that_does_not_fit_is_refused(
    artifact_folder: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    with pytest.raises(ArtifactError, match=message):
        read_probe(with_file(artifact_folder, PROBE, save(arrays)))


@pytest.mark.parametrize(("largest", "stored"), [(8000, np.uint16), (70_000, np.int32)])
def test_token_ids_are_stored_small_and_read_as_int64(largest: int, stored: type) -> None:
    inputs = {"tokens": np.array([[1, largest]]), "mask": np.ones((1, 2), bool)}
    probe = Probe(inputs=inputs, logits=np.zeros((1, 2), np.float32))
    arrays = load(write_probe(probe))
    assert arrays["tokens"].dtype == stored
    feed, _ = next(Probe(inputs={"tokens": arrays["tokens"]}, logits=probe.logits).batches(1))
    assert feed["tokens"].dtype == np.int64 and feed["tokens"].tolist() == [[1, largest]]
