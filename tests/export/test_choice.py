"""The choice of a runtime: measured in a child process, kept, and measured anew when in doubt."""

import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from export.runtime import Inputs, RuntimeUnavailable, open_runtime, settle
from export.select import choice as choices
from export.select import contest
from export.select.choice import Choice, Question, question, recall, remember
from export.select.contest import hold_contest
from runtimes.artifact import Artifact
from runtimes.base import Mode
from runtimes.registry import ENGINES, installed


@pytest.fixture
def asked(artifact: Artifact) -> Question:
    return question(artifact, name="auto", mode="exact", threads=1)


@pytest.fixture
def no_children(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a child process was started")

    monkeypatch.setattr(subprocess, "run", refuse)
    yield


def answer(asked: Question) -> Choice:
    return Choice(
        question=asked,
        runtime="openvino",
        precision="fp32",
        milliseconds={"openvino fp32": [1.0, 2.0]},
        refused=[],
    )


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_auto_takes_the_fastest_and_keeps_its_choice(
    artifact: Artifact, tmp_path: Path, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_runtime(artifact, name="auto", precision=mode, threads=1, cache=tmp_path)
    [kept] = [Choice.model_validate_json(path.read_bytes()) for path in tmp_path.glob("*.json")]
    assert (kept.runtime, kept.precision) == (first.name, first.precision)
    tried = {name.split()[0] for name in kept.milliseconds}
    assert tried == set(installed()), kept.refused
    if mode == "exact":
        assert {name.split()[1] for name in kept.milliseconds} == {"fp32"}
    monkeypatch.setattr(subprocess, "run", None)  # a second measurement would need it
    again = open_runtime(artifact, name="auto", precision=mode, threads=1, cache=tmp_path)
    assert (again.name, again.precision) == (first.name, first.precision)


def test_a_kept_choice_is_for_one_question_only(asked: Question, tmp_path: Path) -> None:
    remember(answer(asked), tmp_path)
    assert recall(asked, tmp_path) == answer(asked)
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
        assert recall(asked.model_copy(update=change), tmp_path) is None


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
def test_a_damaged_or_foreign_file_is_no_answer(asked: Question, tmp_path: Path, damage) -> None:  # pyright: ignore[reportMissingParameterType]  lambdas
    remember(answer(asked), tmp_path)
    [path] = tmp_path.iterdir()
    path.write_text(damage(path.read_text()))
    assert recall(asked, tmp_path) is None


def test_a_folder_that_cannot_be_written_is_no_error(asked: Question, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    remember(answer(asked), tmp_path / "file")
    assert recall(asked, tmp_path / "file") is None


def test_machine_names_processor_and_engines(asked: Question) -> None:
    assert asked.machine["cpu"] and asked.machine["onnxruntime"] and asked.machine["torch"]


@pytest.mark.usefixtures("no_children")
def test_what_needs_no_choice_is_not_measured(artifact: Artifact) -> None:
    assert open_runtime(artifact, threads=1).name == "onnx-cpu"
    assert open_runtime(artifact, name="openvino", threads=1).name == "openvino"


def test_the_ranking_prefers_the_first_of_two_near_ties() -> None:
    fast, near, slow = ("onnx-cpu", "fp32"), ("openvino", "fp32"), ("openvino", "bf16")
    ranked = contest._ranked({slow: [2.0, 8.0], fast: [1.02, 4.0], near: [1.0, 4.0]})
    assert ranked == [fast, near, slow]
    assert contest._ranked({fast: [2.0, 4.0], near: [1.0, 4.0]}) == [near, fast]


def test_the_fastest_that_passes_the_gate_is_taken(
    artifact: Artifact, asked: Question, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong:
        name, precision = "openvino", "fp32"

        def predict(self, inputs: Inputs) -> np.ndarray:
            images = inputs if isinstance(inputs, np.ndarray) else inputs["images"]
            return images[:, 0, 0, :5] * 0

    wrong = replace(ENGINES["openvino"], open=lambda *_: Wrong())

    def crash(*_: object) -> None:
        raise RuntimeError("no such device")

    broken = replace(ENGINES["torchscript"], open=crash)
    monkeypatch.setitem(ENGINES, "openvino", wrong)
    monkeypatch.setitem(ENGINES, "torchscript", broken)
    chosen = hold_contest(artifact, asked, None)
    assert (chosen.runtime, chosen.precision) == ("onnx-cpu", "fp32")
    assert any("openvino fp32 changes the class of" in reason for reason in chosen.refused)
    assert any("torchscript fp32: no such device" in reason for reason in chosen.refused)


def test_when_measuring_crashes_the_reference_engine_serves_and_nothing_is_kept(
    artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies = tmp_path / "dies"
    dies.write_text("#!/bin/sh\nkill -SEGV $$\n")
    dies.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(dies))
    cache = tmp_path / "cache"
    [chosen] = settle([artifact], name="auto", mode="exact", threads=1, cache=cache)
    assert (chosen.runtime, chosen.refused) == ("onnx-cpu", ["measuring ended with status -11"])
    assert not list(cache.glob("*.json"))
    with pytest.raises(RuntimeUnavailable, match="openvino cannot serve .* status -11"):
        settle([artifact], name="openvino", mode="exact", threads=1, cache=cache)


def test_the_child_ends_with_the_process_that_measures(
    artifact: Artifact, asked: Question, tmp_path: Path
) -> None:
    options = ["--name", "auto", "--mode", "exact", "--threads", "1", "--answers", str(tmp_path)]
    command = [sys.executable, "-m", "export.select", *options, str(artifact.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        child.stdin.close()  # pyright: ignore[reportOptionalMemberAccess]  it is a pipe
        assert child.wait(30) == 1
    assert recall(asked, tmp_path) is None


def test_file_names_do_not_collide(asked: Question, tmp_path: Path) -> None:
    other = asked.model_copy(update={"threads": 2})
    assert choices._file(asked, tmp_path) != choices._file(other, tmp_path)


def test_processes_that_choose_at_once_read_whole_answers(asked: Question, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=remember_often, args=(asked, tmp_path)) for _ in range(2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert recall(asked, tmp_path) in (None, answer(asked))
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert recall(asked, tmp_path) == answer(asked)
    assert len(list(tmp_path.iterdir())) == 1


def remember_often(asked: Question, folder: Path) -> None:
    for _ in range(200):
        remember(answer(asked), folder)
