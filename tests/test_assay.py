"""The one entry, `./assay`: what it runs, in which environment, from any folder."""

import os
import subprocess
from pathlib import Path

import pytest

from service.settings import ROOT

SERVE = f"bentoml serve {ROOT} --host 127.0.0.1 --port 3000 --timeout-graceful-shutdown 10"


def assay(*words: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    given = {k: v for k, v in os.environ.items() if k not in ("VENV", "ASSAY_STATE")} | variables
    command = [ROOT / "assay", *words]
    return subprocess.run(command, cwd=cwd, env=given, capture_output=True, text=True)


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """One whose python has every package, and says what it is asked to run."""
    python = tmp_path / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\n[ "$1" = -c ] || echo "$@ in $PYTHONPATH"\n')
    python.chmod(0o755)
    return python.parents[1]


@pytest.mark.parametrize(
    ("words", "run"),
    [
        ("train r.yaml seed=1", "training fit r.yaml seed=1"),
        ("train fit --resume runs/a", "training fit --resume runs/a"),
        ("train list", "training list"),
        ("train plan r.yaml", "training plan r.yaml"),
        ("export runs/a --output b", "export runs/a --output b"),
        ("evaluate --limit 3", "robustness evaluate --limit 3"),
        ("verify a/report.json", "robustness verify a/report.json"),
        ("results collect runs/a", "results collect runs/a"),
        ("smoke http://host", "deploy.smoke http://host"),
        ("runtimes onnx-cuda", "runtimes onnx-cuda"),
        ("bench", "benchmarks --help"),
        ("bench kills --count 3", "benchmarks kills --count 3"),
        ("serve --port 4000", f"{SERVE} --port 4000"),
    ],
)
def test_a_command_runs_a_module_of_this_clone(
    words: str, run: str, environment: Path, tmp_path: Path
) -> None:
    state = str(tmp_path / "state")
    ended = assay(*words.split(), cwd=tmp_path, VENV=str(environment), ASSAY_STATE=state)
    path = os.environ.get("PYTHONPATH")
    found = f"{ROOT}:{path}" if path else ROOT
    assert (ended.stdout, ended.stderr) == (f"-m {run} in {found}\n", "")


def test_it_names_its_commands_and_what_is_missing(tmp_path: Path) -> None:
    for words in ((), ("--help",)):
        told = assay(*words, cwd=tmp_path)
        assert told.returncode == 0 and "  evaluate   attack a model" in told.stdout
    unknown = assay("evalaute", cwd=tmp_path)
    assert unknown.returncode == 2 and unknown.stderr.startswith("error: no command evalaute; kno")
    lost = assay("train", cwd=tmp_path, VENV="nowhere")
    assert lost.returncode == 2 and lost.stdout == ""
    command = f"make -C {ROOT} install VENV=nowhere"
    said = f"error: no environment has Assay's packages (VENV=nowhere): {command}\n"
    assert lost.stderr == said


def test_help_is_found_from_another_folder_whatever_lies_there(tmp_path: Path) -> None:
    (tmp_path / "robustness.py").write_text("raise SystemExit('the wrong module')")
    told = assay("evaluate", "--help", cwd=tmp_path)
    assert told.returncode == 0 and told.stdout.startswith("usage: ./assay evaluate ")
