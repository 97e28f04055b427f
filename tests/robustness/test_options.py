"""The command line explains itself, and refuses what it cannot read."""

from pathlib import Path
from typing import Any

import pytest

from robustness.__main__ import main
from robustness.options import parser
from robustness.spec import ATTACKS


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["evaluate", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_help_names_every_attack_and_every_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parser().parse_args(["evaluate", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert stop.value.code == 0
    assert all(name in told for name in ATTACKS)
    assert "(square 5000, hotflip 1000, typos 1000)" in told


@pytest.mark.parametrize("command", ["evaluate", "verify"])
def test_help_tells_the_exit_codes(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args([command, "--help"])
    assert "exit codes: 0 " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "value", "rule"),
    [
        ("--threads", "2000", "--threads must be at most 1024, got 2000"),
        ("--workers", "0", "--workers must be at least 1, got 0"),
        ("--deadline", "nan", "--deadline must be above 0, got nan"),
    ],
)
def test_impossible_numbers_are_refused_before_anything_is_read(
    option: str, value: str, rule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--artifact", "none", "--data", "none", "--output", str(tmp_path / "out")]
    attack = ["--attack", "fgsm", "--eps", "1/255"]
    assert rule in refusal(capsys, *places, *attack, option, value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", ["attacks: pgd", "[" * 100_000])
def test_spec_that_is_no_json_is_refused(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spec.json").write_text(content)
    source = ["--artifact", "nowhere", "--data", "nowhere", "--spec", str(tmp_path / "spec.json")]
    told = refusal(capsys, *source)
    assert told == "error: --spec must name a file of JSON, and spec.json is none\n"


def test_attack_on_texts_is_refused_for_a_model_of_images(
    artifacts: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = artifacts.dot
    told = refusal(capsys, "--artifact", str(folder), "--data", "nowhere", "--attack", "typos")
    assert "attack 'typos' works on texts" in told and "reads images" in told
