"""CUDA without a device: what is said to be missing, and what a device would be told."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch

from runtimes import cuda, machine
from runtimes.__main__ import main
from runtimes.artifact import Artifact
from runtimes.onnx import CUDA, OnnxRuntime, _tensorrt_options, missing, open_session
from runtimes.registry import RUNTIMES
from runtimes.torchscript import TorchScript, load_torchscript, place

CPU_PROVIDER = "CPUExecutionProvider"


@pytest.fixture(autouse=True)
def forget() -> None:
    """What was found once is not asked for again."""
    cuda.load_libraries.cache_clear()
    cuda._has_tensorrt.cache_clear()


@pytest.fixture
def cuda_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build of ONNX Runtime for CUDA and TensorRT."""
    names = [cuda.TENSORRT_PROVIDER, cuda.CUDA_PROVIDER, CPU_PROVIDER]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: names)


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that sees one device."""
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(machine, "_DEVICES", tmp_path)


def without_device(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(machine, "_NVIDIA", folder)
    monkeypatch.setattr(machine, "_DEVICES", folder)


@pytest.mark.usefixtures("cuda_build")
def test_build_without_device_says_that_the_driver_sees_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_device(monkeypatch, tmp_path)
    assert "the driver of NVIDIA sees no GPU; install it" in str(missing(CUDA))
    assert main([]) == 0
    said = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert said["driver"].startswith("missing: ") and said["onnx-cuda"].startswith("missing: ")
    assert said["onnx-cpu"] == "can be used" and "onnx-cuda" not in said["auto"]
    assert main(["onnx-cuda"]) == 2
    assert "runtime onnx-cuda is not available: the driver" in capsys.readouterr().err


@pytest.mark.usefixtures("cuda_build", "device")
def test_tensorrt_is_missed_by_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "find_library", lambda _: None)
    assert missing(CUDA) is None
    assert "install tensorrt" in str(missing("onnx-tensorrt"))
    cuda._has_tensorrt.cache_clear()
    monkeypatch.setattr(cuda, "find_library", lambda _: "libnvinfer.so.10")
    assert missing("onnx-tensorrt") is None


@pytest.mark.usefixtures("cuda_build", "device")
def test_tensorrt_is_imported_so_that_its_libraries_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tensorrt.py").write_text("raise OSError('no libnvinfer.so.10')")
    monkeypatch.syspath_prepend(tmp_path)
    assert "cannot be loaded: no libnvinfer.so.10; install" in str(missing("onnx-tensorrt"))
    (tmp_path / "tensorrt.py").write_text("")
    importlib.invalidate_caches()
    assert missing("onnx-tensorrt") is None and "tensorrt" in sys.modules
    monkeypatch.delitem(sys.modules, "tensorrt")


@pytest.mark.usefixtures("device")
def test_build_for_the_cpu_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CPU_PROVIDER])
    assert "has no CUDAExecutionProvider; install requirements/gpu.txt" in str(missing(CUDA))


@pytest.mark.usefixtures("cuda_build")
def test_libraries_that_are_not_found_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def preload() -> None:
        sys.stdout.write("Failed to load libcublas.so.13: no such file\n\x1b[33mWARNING\x1b[0m\n")

    monkeypatch.setattr(onnxruntime, "preload_dlls", preload)
    with pytest.raises(cuda.RuntimeUnavailable, match="libcublas.so.13.*; WARNING; install"):
        cuda.libraries()
    assert capsys.readouterr().out == ""
    cuda.load_libraries.cache_clear()
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
    assert "found" in cuda.libraries()


def test_torch_for_the_cpu_and_a_driver_that_is_too_old_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(cuda.RuntimeUnavailable, match="knows no CUDA; install torch"):
        cuda.torch_build()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(cuda.RuntimeUnavailable, match=r"no device for CUDA 13.0; install a newer"):
        cuda.torch_build()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "CUDA 13.0" in cuda.torch_build()


class Session:
    """What records how a session of ONNX Runtime is opened."""

    opened: list[Any] = []

    def __init__(self, _: Any, options: Any, *, providers: list[Any], enable_fallback: int) -> None:
        self.opened.append(providers)
        assert enable_fallback == 0

    def disable_fallback(self) -> None:
        """Nothing else runs it later."""

    def get_providers(self) -> list[str]:
        """The first that was asked for."""
        return [each if isinstance(each, str) else each[0] for each in self.opened[-1]]


@pytest.fixture
def providers(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """What a session of an artifact is opened with."""
    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.setattr("runtimes.onnx._check_origin", lambda *_: None)

    def opened(name: str, precision: str = "fp32", cache: Path | None = None) -> list[Any]:
        OnnxRuntime(artifact, name=name, precision=precision, threads=1, cache=cache)
        return Session.opened[-1]

    return opened


def test_products_are_rounded_where_that_was_asked_for_alone(
    providers: Callable[..., list[Any]],
) -> None:
    assert providers("onnx-cpu") == [CPU_PROVIDER]
    for precision, rounded in (("fp32", "0"), ("tf32", "1")):
        found = providers("onnx-cuda", precision)
        assert found == [(cuda.CUDA_PROVIDER, {"use_tf32": rounded}), CPU_PROVIDER]


def test_tensorrt_keeps_its_plans_beside_what_was_built_of_the_same_artifact(
    artifact: Artifact, providers: Callable[..., list[Any]], tmp_path: Path
) -> None:
    (name, options), (second, _), last = providers("onnx-tensorrt", "fp16", tmp_path)
    assert (name, second, last) == (cuda.TENSORRT_PROVIDER, cuda.CUDA_PROVIDER, CPU_PROVIDER)
    flags = [options[f"trt_{kind}_enable"] for kind in ("fp16", "bf16", "int8")]
    assert flags == ["True", "False", "False"]
    folder = Path(options["trt_engine_cache_path"])
    assert folder.is_dir() and artifact.digest[:16] in folder.parts and tmp_path in folder.parents
    [_, exact], *_ = providers("onnx-tensorrt", "fp32", tmp_path)
    assert exact["trt_engine_cache_path"] != options["trt_engine_cache_path"]
    shape = "x".join(map(str, artifact.manifest.input.shape[1:]))
    assert options["trt_profile_max_shapes"] == f"images:64x{shape}"
    assert "trt_engine_cache_path" not in providers("onnx-tensorrt")[0][1]


def test_plans_of_texts_take_every_length(text_artifact: Artifact) -> None:
    options = _tensorrt_options("fp32", text_artifact, None)
    longest = text_artifact.manifest.seq_len
    assert options["trt_profile_min_shapes"] == "tokens:1x1,mask:1x1"
    assert options["trt_profile_max_shapes"] == f"tokens:64x{longest},mask:64x{longest}"


def test_libraries_are_loaded_before_a_session_on_a_device(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[int] = []
    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: loaded.append(len(Session.opened)))
    before = len(Session.opened)
    open_session(artifact.read("model.onnx"), threads=1)
    assert not loaded
    on_device = [cuda.CUDA_PROVIDER, CPU_PROVIDER]
    for _ in range(2):
        open_session(artifact.read("model.onnx"), threads=1, providers=on_device)
    assert loaded == [before + 1]


class Numbers(torch.nn.Module):
    """As many numbers as there are rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, 1) to (B,)."""
        return torch.arange(x.shape[0], device=x.device)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_trace_makes_its_tensors_on_the_device_it_is_opened_for() -> None:
    trace = torch.jit.freeze(torch.jit.trace(Numbers().eval(), torch.zeros(3, 1)))
    place(trace, "meta")
    assert trace(torch.zeros(4, 1)).device.type == "meta"


def test_torchscript_opens_its_weights_on_the_device_and_sends_inputs_there(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def load(content: bytes, *, device: str) -> torch.nn.Module:
        asked.append(device)
        return load_torchscript(content)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("runtimes.torchscript.load_torchscript", load)
    runtime = TorchScript(artifact, precision="fp32", threads=1)
    assert (runtime.name, asked) == ("torchscript-cuda", ["cuda"])
    assert RUNTIMES["torchscript"].runs_code
