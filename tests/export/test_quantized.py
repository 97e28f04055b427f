"""The int8 form of an fp32 artifact, made where it is served."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from export.benchmark import benchmark, make_int8
from export.select import cache_key
from runtimes.artifact import Artifact
from runtimes.base import RuntimeUnavailable
from runtimes.onnx import OnnxRuntime
from runtimes.probe import read_probe
from runtimes.quantized import has_graph, read_graph
from runtimes.registry import RUNTIMES
from tests.exported import with_probe


@pytest.mark.parametrize("which", ["artifact", "text_artifact"])
def test_the_int8_form_is_made_of_stored_inputs_and_read_again(
    which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    artifact: Artifact = request.getfixturevalue(which)
    assert not has_graph(artifact, "int8", tmp_path)
    make_int8(artifact, tmp_path)
    assert has_graph(artifact, "int8+bf16", tmp_path)
    graph = onnx.load_from_string(read_graph(artifact, "int8", tmp_path)).graph
    assert "QuantizeLinear" in {node.op_type for node in graph.node}
    runtime = OnnxRuntime(artifact, name="onnx-cpu", precision="int8", threads=1, cache=tmp_path)
    feed, expected = next(read_probe(artifact).batches(8))
    assert runtime.precision == "int8"
    assert np.abs(runtime.predict(feed) - expected).max() < 0.2 * np.abs(expected).max()


def test_a_form_that_is_missing_is_refused_and_a_damaged_one_made_again(
    artifact: Artifact, tmp_path: Path
) -> None:
    assert has_graph(artifact, "fp32", None)
    for cache in (None, tmp_path):
        with pytest.raises(RuntimeUnavailable, match="no cached int8 graph"):
            RUNTIMES["openvino"].open(artifact, "int8", 1, cache)
    make_int8(artifact, tmp_path)
    [path] = tmp_path.rglob("int8-2-*.onnx")
    right = path.read_bytes()
    path.write_bytes(right[:-1])
    assert not has_graph(artifact, "int8", tmp_path)
    make_int8(artifact, tmp_path)
    assert read_graph(artifact, "int8", tmp_path) == right
    path.unlink()
    path.mkdir()
    assert not has_graph(artifact, "int8", tmp_path)


def test_fast_tries_int8_wherever_it_can_be_kept(artifact: Artifact, tmp_path: Path) -> None:
    asked = cache_key(artifact, name="onnx-cpu", mode="fast", threads=1)
    assert set(benchmark(artifact, asked, tmp_path).milliseconds) == {
        "onnx-cpu fp32",
        "onnx-cpu int8",
    }
    without = benchmark(artifact, asked, None)
    assert set(without.milliseconds) == {"onnx-cpu fp32"}
    assert without.refused == ["int8: its graph needs a folder to be stored in"]


@pytest.mark.parametrize(
    ("images", "reason"),
    [
        (lambda stored: stored[:8], "need 200 stored inputs .* has 8"),
        (lambda stored: stored.astype(np.float32) / 255, "must be 8-bit to calibrate"),
    ],
)
def test_an_artifact_that_cannot_be_calibrated_is_served_without_int8(
    artifact_folder: Path, tmp_path: Path, images: Callable[[np.ndarray], np.ndarray], reason: str
) -> None:
    old = with_probe(artifact_folder, lambda x, y: (images(x), y[: len(images(x))]))
    asked = cache_key(old, name="onnx-cpu", mode="fast", threads=1)
    chosen = benchmark(old, asked, tmp_path)
    assert chosen.precision == "fp32"
    assert any(re.search(reason, said) for said in chosen.refused)
