"""Every runtime that is installed here, against the eager model."""

import importlib.util
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import load, save

from export.half import to_half
from export.torch_files import to_torchscript
from runtimes import openvino as openvino_runtime
from runtimes.artifact import Artifact, ArtifactError, open_artifact
from runtimes.base import InvalidInputs, Runtime, RuntimeUnavailable
from runtimes.gate import ParityFailure
from runtimes.manifest import ONNX, TORCHSCRIPT, WEIGHTS
from runtimes.onnx import OnnxRuntime
from runtimes.probe import read_probe
from runtimes.registry import RUNTIMES, installed, open_runtime
from runtimes.torch_model import load_torch_model
from tests.exported import change_tensor, edit_manifest, tiny_model, with_file, with_probe

HERE = installed()


def images(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((count, 1, 28, 28), np.float32)


def eager(artifact: Artifact, inputs: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        return load_torch_model(artifact)(torch.from_numpy(inputs)).numpy()


def test_every_runtime_of_the_locks_is_here() -> None:
    assert {"onnx-cpu", "openvino", "torchscript"} <= set(HERE)


@pytest.fixture(scope="module", params=HERE)
def runtime(request: pytest.FixtureRequest, artifact: Artifact) -> Runtime:
    return open_runtime(artifact, name=request.param, threads=1)


@pytest.fixture(scope="module", params=HERE)
def text_runtime(request: pytest.FixtureRequest, text_artifact: Artifact) -> Runtime:
    return open_runtime(text_artifact, name=request.param, threads=1)


def test_each_repeats_the_eager_model_at_every_batch_size_from_many_threads(
    artifact: Artifact, runtime: Runtime
) -> None:
    assert runtime.precision == "fp32"
    batches = [images(count, seed) for seed, count in enumerate((1, 3, 40, 2, *[2, 1, 3] * 6))]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(runtime.predict, batches))
    for batch, logits in zip(batches, answers, strict=True):
        assert (logits.dtype, logits.shape) == (np.float32, (len(batch), 5))
        np.testing.assert_allclose(logits, eager(artifact, batch), atol=1e-4)
        np.testing.assert_allclose(logits, runtime.predict(batch), atol=1e-5)


def test_each_reads_any_array_and_gives_logits_that_are_the_callers_own(runtime: Runtime) -> None:
    flipped = images(4)[..., ::-1]  # not contiguous
    fixed = flipped.copy()
    fixed.flags.writeable = False
    first = runtime.predict(flipped)
    kept = first.copy()
    second = runtime.predict(images(4, seed=1))
    np.testing.assert_array_equal(first, kept)
    second[:] = 7
    np.testing.assert_array_equal(runtime.predict({"images": fixed}), kept)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (np.zeros((1, 1, 28, 28)), "images must be float32, got float64"),
        (np.zeros((1, 1, 28, 27), np.float32), r"images must be \(B >= 1, 1, 28, 28\), got"),
        (np.zeros((1, 28, 28), np.float32), r"images must be .* got \(1, 28, 28\)"),
        (np.zeros((0, 1, 28, 28), np.float32), r"images must be .* got \(0, 1, 28, 28\)"),
        ({"pixels": np.zeros((1, 1, 28, 28), np.float32)}, "must be images, got pixels"),
        ({}, "must be images, got nothing"),
    ],
)
def test_each_refuses_wrong_inputs(runtime: Runtime, inputs: Any, message: str) -> None:
    with pytest.raises(InvalidInputs, match=message):
        runtime.predict(inputs)


@pytest.mark.parametrize("threads", [1, 3])
def test_each_uses_the_threads_that_it_was_given(artifact: Artifact, threads: int) -> None:
    onnx = open_runtime(artifact, threads=threads)
    assert isinstance(onnx, OnnxRuntime)
    assert onnx._session.get_session_options().intra_op_num_threads == threads
    compiled = openvino_runtime.compile_graph(artifact.read(ONNX), "fp32", threads)
    # OpenVINO takes no more than the processor has.
    assert compiled.get_property("INFERENCE_NUM_THREADS") == min(threads, os.cpu_count() or 1)
    before = torch.get_num_threads()
    try:
        open_runtime(artifact, name="torchscript", threads=threads)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_none_opens_a_graph_of_slightly_other_weights_than_its_own(artifact_folder: Path) -> None:
    model = tiny_model()
    bias = model.get_parameter("head.bias").add_(torch.linspace(-0.3, 0.3, 5)).numpy()
    trace = to_torchscript(model, torch.zeros(2, 1, 28, 28))
    (artifact_folder / TORCHSCRIPT).write_bytes(trace)
    other = with_file(artifact_folder, ONNX, change_tensor("head.bias", lambda _: bias))
    for name in HERE:
        with pytest.raises(ParityFailure, match=f"{name} fp32"):
            open_runtime(other, name=name, threads=1)


def test_a_runtime_that_is_not_here_is_named_with_its_package_and_those_that_are(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in RUNTIMES if name not in HERE]:
        message = f"runtime {name} is not available: .*; install .*; installed: {', '.join(HERE)}"
        with pytest.raises(RuntimeUnavailable, match=message):
            open_runtime(artifact, name=name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    for name, package in (("openvino", "openvino"), ("torchscript", "torch")):
        message = f"{name} is not available: .*; install {package}"
        with pytest.raises(RuntimeUnavailable, match=message):
            open_runtime(artifact, name=name)


def test_a_session_that_fell_back_to_the_cpu_is_refused(artifact: Artifact) -> None:
    if "onnx-cuda" in HERE:
        pytest.skip("CUDA is here")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # ONNX Runtime's own, before it falls back
        with pytest.raises(RuntimeUnavailable, match="runs on CPUExecutionProvider instead"):
            RUNTIMES["onnx-cuda"].open(artifact, "fp32", 1, None)


def opened(artifact: Artifact, name: str, after: str, **options: Any) -> None:
    """Open the artifact in a process of its own, and run some code after it."""
    code = (
        "import sys; from pathlib import Path; import export.select, runtimes.threads;"
        "from runtimes.artifact import open_artifact; from runtimes.registry import open_runtime;"
        f"open_runtime(open_artifact(Path({str(artifact.folder)!r})), name={name!r}, threads=1);"
    )
    subprocess.run([sys.executable, "-c", code + after], check=True, **options)


def test_openvino_brings_neither_torch_nor_telemetry(artifact: Artifact) -> None:
    opened(artifact, "openvino", "sys.exit(bool({'torch', 'openvino_telemetry'} & {*sys.modules}))")


def test_onnx_runtime_reports_nothing(artifact: Artifact, tmp_path: Path) -> None:
    own = ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME", "XDG_DATA_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    opened(artifact, "onnx-cpu", "", env=environment | {"HOME": str(tmp_path)})
    # Where it reports, it keeps an identifier of the device and what it has yet to send.
    assert not list(tmp_path.rglob("*onnxruntime*"))


def test_each_reads_texts_of_any_length(text_artifact: Artifact, text_runtime: Runtime) -> None:
    tokens, mask = text_artifact.tokenizer().encode(["a very good film", "bad", "it was"], 12)
    together = text_runtime.predict({"mask": mask, "tokens": tokens})
    with torch.inference_mode():
        expected = load_torch_model(text_artifact)(torch.from_numpy(tokens), torch.from_numpy(mask))
    np.testing.assert_allclose(together, expected.numpy(), atol=1e-4)
    length = int(mask[1].sum())
    alone = text_runtime.predict({"tokens": tokens[1:2, :length], "mask": mask[1:2, :length]})
    np.testing.assert_allclose(together[1:2], alone, atol=1e-5)


@pytest.mark.parametrize(
    ("tokens", "mask", "message"),
    [
        ([[1, 2]], [[1.0, 1.0]], "mask must be bool, got float64"),
        ([[1, 2]], [[True]], r"mask must be \(1, 2\) as tokens are, got \(1, 1\)"),
        ([1, 2], [True, True], r"tokens must be \(B >= 1, N\), got \(2,\)"),
        ([[1, 2]] * 2, [[True, True], [False, False]], "mask must be True .* none in row 1"),
        ([[1] * 13], [[True] * 13], "at most 12 a row, got 13"),
        ([[1, 60]], [[True, True]], "from 0 to 59, got 60"),
        ([[1, -1]], [[True, True]], "from 0 to 59, got -1"),
        ([[1, -1]], [[True, False]], "from 0 to 59, got -1"),
    ],
)
def test_each_refuses_wrong_tokens(
    text_runtime: Runtime, tokens: list[Any], mask: list[Any], message: str
) -> None:
    with pytest.raises(InvalidInputs, match=message):
        text_runtime.predict({"tokens": np.array(tokens, np.int64), "mask": np.array(mask)})
    with pytest.raises(InvalidInputs, match="tokens must be int64, got int32"):
        text_runtime.predict({"tokens": np.array(tokens, np.int32), "mask": np.array(mask)})


def far_from_any_border(images: np.ndarray, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The inputs whose class is the clearest."""
    ordered = np.sort(logits)
    clear = np.argsort(ordered[:, -2] - ordered[:, -1])[:40]
    return images[clear], logits[clear]


def test_bf16_runs_where_it_is_had_and_is_refused_by_the_others(artifact_folder: Path) -> None:
    graph = to_half(with_probe(artifact_folder, far_from_any_border).read(ONNX), "bf16")
    bf16_artifact = with_file(artifact_folder, ONNX, graph, precision="bf16")
    for name in ("onnx-cpu", "torchscript"):
        with pytest.raises(RuntimeUnavailable, match=f"runtime {name} does not run bf16 here"):
            open_runtime(bf16_artifact, name=name, threads=1)
    if "bf16" not in RUNTIMES["openvino"].precisions(bf16_artifact.manifest, "exact"):
        pytest.skip("this processor has no bf16")
    runtime = open_runtime(bf16_artifact, name="openvino", threads=1)
    assert (runtime.name, runtime.precision) == ("openvino", "bf16")
    expected = eager(bf16_artifact, images(40))
    difference = np.abs(runtime.predict(images(40)) - expected).max() / np.abs(expected).max()
    assert 1e-5 < difference < 0.05


def test_an_unknown_runtime_and_no_threads_are_refused(artifact: Artifact) -> None:
    with pytest.raises(ValueError, match="name must be one of auto, onnx-cpu, .* got 'abacus'"):
        open_runtime(artifact, name="abacus")
    with pytest.raises(ValueError, match="name must be one of"):
        open_runtime(artifact, name="auto")
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        open_runtime(artifact, threads=0)


def rename(key: str) -> Callable[[onnx.ModelProto], None]:
    def change(graph: onnx.ModelProto) -> None:
        next(entry for entry in graph.metadata_props if entry.key == key).value = "0" * 64

    return change


def break_operator(graph: onnx.ModelProto) -> None:
    graph.graph.node[5].op_type = "Nonsense"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (rename("weights_sha256"), "exported from another model: its weights_sha256 differs"),
        (rename("config_sha256"), "exported from another model: its config_sha256 differs"),
        (break_operator, "model.onnx cannot be opened"),
    ],
)
def test_a_graph_of_another_model_or_that_no_runtime_accepts_is_refused(
    artifact_folder: Path, change: Callable[[onnx.ModelProto], None], message: str
) -> None:
    with pytest.raises(ArtifactError, match=message):
        open_runtime(with_file(artifact_folder, ONNX, change), threads=1)


def test_torch_model_repeats_the_probe_and_passes_gradients_on(
    artifact: Artifact,
) -> None:
    feed, logits = next(read_probe(artifact).batches(50))
    images = torch.from_numpy(feed["images"]).requires_grad_()
    torch_model = load_torch_model(artifact)
    found = torch_model(images)
    torch.testing.assert_close(found.detach(), torch.from_numpy(logits))
    found.sum().backward()
    assert not torch_model.training
    assert not any(parameter.requires_grad for parameter in torch_model.parameters())
    assert images.grad is not None and images.grad.abs().sum() > 0


def test_weights_that_do_not_fit_are_refused(artifact_folder: Path) -> None:
    state = load((artifact_folder / WEIGHTS).read_bytes())
    del state["head.bias"]
    spoiled = with_file(artifact_folder, WEIGHTS, save(state))
    with pytest.raises(ArtifactError, match="weights.safetensors does not fit"):
        load_torch_model(spoiled)


@pytest.mark.parametrize(("architecture", "config"), [("nobody", {}), ("deit_tiny", {"a": 1})])
def test_an_unknown_architecture_is_refused(
    artifact_folder: Path, architecture: str, config: dict
) -> None:
    edit_manifest(artifact_folder, architecture=architecture, config=config)
    with pytest.raises(ArtifactError, match="builds no model"):
        load_torch_model(open_artifact(artifact_folder))
