"""The choice of a runtime: measured in a child process, kept, and measured again after a change."""

import io
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from export import benchmark as benchmarks
from export.benchmark import benchmark, make_int8
from export.select import (
    CacheKey,
    Selection,
    cache_key,
    cached_selection,
    load_selection,
    open_selected,
    select_runtimes,
    store_selection,
)
from runtimes.artifact import Artifact
from runtimes.base import Inputs, Mode, RuntimeUnavailable
from runtimes.manifest import ONNX, TORCHSCRIPT, Precision
from runtimes.quantized import int8_path
from runtimes.registry import RUNTIMES, candidates
from tests.exported import change_tensor, changed_graph, with_file


@pytest.fixture
def asked(artifact: Artifact) -> CacheKey:
    return cache_key(artifact, name="auto", mode="exact", threads=1)


def answer(asked: CacheKey, precision: Precision = "fp32") -> Selection:
    times = {f"openvino {precision}": [1.0, 2.0]}
    return Selection(
        key=asked, runtime="openvino", precision=precision, milliseconds=times, refused=[]
    )


@pytest.mark.parametrize("mode", ["exact", pytest.param("fast", marks=pytest.mark.slow)])
def test_auto_takes_the_fastest_and_keeps_its_choice(
    artifact: Artifact, tmp_path: Path, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_selected(artifact, mode=mode, threads=1, cache=tmp_path)
    [kept] = [Selection.model_validate_json(path.read_bytes()) for path in tmp_path.glob("*.json")]
    assert (kept.runtime, kept.precision) == (first.name, first.precision)
    tried = {name.split()[0] for name in kept.milliseconds}
    assert tried == set(candidates("auto")), kept.refused
    if mode == "exact":
        assert {name.split()[1] for name in kept.milliseconds} == {"fp32"}
    monkeypatch.setattr(subprocess, "run", None)  # a second measurement would need it
    again = open_selected(artifact, mode=mode, threads=1, cache=tmp_path)
    assert (again.name, again.precision) == (first.name, first.precision)


def test_a_kept_choice_is_for_one_question_only(asked: CacheKey, tmp_path: Path) -> None:
    assert asked.machine["cpu"] and asked.machine["onnxruntime"] and asked.machine["torch"]
    store_selection(answer(asked), tmp_path)
    assert load_selection(asked, tmp_path) == answer(asked)
    others = [
        {"artifact": "0" * 64},
        {"name": "openvino"},
        {"mode": "fast"},
        {"threads": 2},
        {"machine": asked.machine | {"cpu": "another"}},
        {"machine": asked.machine | {"openvino": "1.0"}},
        {"rule": 1},
    ]
    for change in others:
        assert load_selection(asked.model_copy(update=change), tmp_path) is None
        store_selection(answer(asked.model_copy(update=change)), tmp_path)
    assert len(list(tmp_path.iterdir())) == 1 + len(others)


def test_choices_stored_at_the_same_time_are_all_kept_whole(
    asked: CacheKey, tmp_path: Path
) -> None:
    keys = [asked.model_copy(update={"threads": threads}) for threads in range(4)]

    def store(key: CacheKey) -> None:
        for _ in range(10):
            store_selection(answer(key), tmp_path)
            assert load_selection(key, tmp_path) == answer(key)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(store, keys * 2))  # each by two at once
    assert len(list(tmp_path.iterdir())) == len(keys)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-20],
        lambda text: "",
        lambda text: "[]",
        lambda text: text.replace('"openvino"', '"abacus"'),
        lambda text: text.replace('"runtime": "openvino"', '"runtime": "onnx-cuda"'),
        lambda text: text.replace('"precision": "fp32"', '"precision": "bf16"'),
        lambda text: text.replace('"threads": 1', '"threads": 4'),
        lambda text: text.replace('"refused"', '"rejected"'),
    ],
)
def test_a_damaged_or_foreign_file_is_no_answer(asked: CacheKey, tmp_path: Path, damage) -> None:  # pyright: ignore[reportMissingParameterType]  lambdas
    store_selection(answer(asked), tmp_path)
    [path] = tmp_path.iterdir()
    path.write_text(damage(path.read_text()))
    assert load_selection(asked, tmp_path) is None
    store_selection(answer(asked), path)  # no folder: that is no error
    assert load_selection(asked, path) is None


def test_a_cached_selection_that_answers_otherwise_is_selected_again(
    artifact: Artifact, tmp_path: Path
) -> None:
    other = change_tensor("head.bias", lambda _: np.arange(5))
    wrong = changed_graph(artifact.read(ONNX), other)
    key = cache_key(artifact, name="openvino", mode="fast", threads=1)
    graph = int8_path(artifact, wrong, tmp_path)
    graph.parent.mkdir(parents=True)
    graph.write_bytes(wrong)
    store_selection(answer(key, "int8"), tmp_path)
    runtime = open_selected(artifact, name="openvino", mode="fast", threads=1, cache=tmp_path)
    assert not runtime.precision.startswith("int8")
    again = load_selection(key, tmp_path)
    assert again is not None and again.precision == runtime.precision


def test_a_choice_whose_graph_is_gone_is_none(artifact: Artifact, tmp_path: Path) -> None:
    question: dict[str, Any] = {"name": "openvino", "mode": "fast", "threads": 1}
    lost = answer(cache_key(artifact, **question), "int8")
    store_selection(lost, tmp_path)
    assert load_selection(lost.key, tmp_path) == lost
    assert cached_selection(artifact, cache=tmp_path, **question) is None
    make_int8(artifact, tmp_path)
    assert cached_selection(artifact, cache=tmp_path, **question) == lost


def test_what_needs_no_choice_is_not_measured(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", None)  # a measurement would need it
    assert open_selected(artifact, name="onnx-cpu", threads=1).name == "onnx-cpu"
    assert open_selected(artifact, name="openvino", threads=1).name == "openvino"
    with pytest.raises(ValueError, match="mode must be exact or fast, got 'bf16'"):
        open_selected(artifact, mode="bf16")  # pyright: ignore[reportArgumentType]  the point


def test_the_ranking_prefers_the_first_of_two_near_ties() -> None:
    fast, near, slow = ("onnx-cpu", "fp32"), ("openvino", "fp32"), ("openvino", "bf16")
    ranked = benchmarks._ranked({slow: [2.0, 8.0], fast: [1.02, 4.0], near: [1.0, 4.0]})
    assert ranked == [fast, near, slow]
    assert benchmarks._ranked({fast: [2.0, 4.0], near: [1.0, 4.0]}) == [near, fast]


def test_the_fastest_that_passes_the_gate_is_taken(
    artifact: Artifact, asked: CacheKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong:
        name, precision = "openvino", "fp32"

        def predict(self, inputs: Inputs) -> np.ndarray:
            images = inputs if isinstance(inputs, np.ndarray) else inputs["images"]
            return images[:, 0, 0, :5] * 0

    wrong = replace(RUNTIMES["openvino"], open=lambda *_: Wrong())

    def crash(*_: object) -> None:
        raise RuntimeError("no such device")

    broken = replace(RUNTIMES["openvino"], open=crash)
    monkeypatch.setitem(RUNTIMES, "openvino", wrong)
    monkeypatch.setitem(RUNTIMES, "broken", broken)
    chosen = benchmark(artifact, asked, None)
    assert (chosen.runtime, chosen.precision) == ("onnx-cpu", "fp32")
    assert any("openvino fp32 changes the class of" in reason for reason in chosen.refused)
    assert any("broken fp32: no such device" in reason for reason in chosen.refused)


def test_when_measuring_crashes_the_reference_serves_and_nothing_is_kept(
    artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies = tmp_path / "dies"
    dies.write_text("#!/bin/sh\nkill -SEGV $$\n")
    dies.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(dies))
    cache = tmp_path / "cache"
    [chosen] = select_runtimes([artifact], name="auto", mode="exact", threads=1, cache=cache)
    assert chosen.runtime == "onnx-cpu"
    assert chosen.refused == ["the process that opened it ended with status -11"]
    assert not list(cache.glob("*.json"))
    with pytest.raises(RuntimeUnavailable, match="openvino cannot serve .* status -11"):
        select_runtimes([artifact], name="openvino", mode="exact", threads=1, cache=cache)


class Writer(nn.Module):
    """Writes to a file when it is loaded."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path, self.mapped = path, torch.zeros(4, dtype=torch.uint8)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images

    @torch.jit.export
    def __getstate__(self):  # pyright: ignore[reportIncompatibleMethodOverride]  as TorchScript has it
        return self.path, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[str, bool]) -> None:
        self.path, self.training = state
        self.mapped = torch.from_file(self.path, True, 4, dtype=torch.uint8).fill_(65)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_auto_runs_no_code_of_an_artifact(artifact_folder: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"untouched")
    stream = io.BytesIO()
    torch.jit.save(torch.jit.script(Writer(str(victim))), stream)
    torch.jit.load(io.BytesIO(stream.getvalue()))
    assert victim.read_bytes() == b"AAAAuched"  # what trusting it means
    victim.write_bytes(b"untouched")
    changed = with_file(artifact_folder, TORCHSCRIPT, stream.getvalue())
    [chosen] = select_runtimes([changed], name="auto", mode="exact", threads=1, cache=None)
    assert chosen.runtime in candidates("auto") and victim.read_bytes() == b"untouched"


def test_the_child_ends_with_the_process_that_measures(
    artifact: Artifact, asked: CacheKey, tmp_path: Path
) -> None:
    options = ["--name", "auto", "--mode", "exact", "--threads", "1", "--answers", str(tmp_path)]
    command = [sys.executable, "-m", "export.benchmark", *options, str(artifact.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        child.stdin.close()  # pyright: ignore[reportOptionalMemberAccess]  it is a pipe
        assert child.wait(30) == 1
    assert load_selection(asked, tmp_path) is None
