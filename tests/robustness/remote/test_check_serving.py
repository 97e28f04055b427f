"""Faults of a server that answers, each found by the check that is made for it."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from robustness.__main__ import main
from tests.robustness.remote.endpoint import Endpoint, listening

SLOW = 0.02


def sound(inputs: np.ndarray) -> np.ndarray:
    flat = inputs.reshape(len(inputs), -1)
    return np.stack([flat[:, :32].sum(1), flat[:, 32:].sum(1), flat[:, ::2].sum(1)], axis=1)


def mixed_up() -> Callable[[np.ndarray], np.ndarray]:
    """Answers of concurrent requests go to one another: the last that arrived gets its turn."""
    last: list[np.ndarray] = []

    def answers(inputs: np.ndarray) -> np.ndarray:
        last.append(inputs)
        time.sleep(SLOW)
        return sound(last[-1][: len(inputs)])

    return answers


def drifting() -> Callable[[np.ndarray], np.ndarray]:
    draw = np.random.default_rng(0)
    return lambda inputs: sound(inputs) + draw.normal(0, 1, (len(inputs), 3))


def by_batch(inputs: np.ndarray) -> np.ndarray:
    scores = sound(inputs)
    return scores - scores.mean(axis=0) * (len(inputs) > 1)


@pytest.mark.parametrize(
    ("answers", "broken"),
    [
        pytest.param(mixed_up(), "among concurrent requests", id="mixed up"),
        pytest.param(drifting(), "the same question twice", id="drifting"),
        pytest.param(by_batch, "alone and in batches", id="by batch"),
    ],
)
def test_a_fault_is_found_by_its_check(
    answers: Callable[[np.ndarray], np.ndarray],
    broken: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    junit = tmp_path / "junit.xml"
    with listening(Endpoint(answers=answers, shape=[-1, 1, 8, 8])) as endpoint:
        line = ["check-serving", endpoint.url, "--model", "m", "--junit", str(junit)]
        assert main([*line, "--timeout", "1"]) == 1
    rows = [line for line in capsys.readouterr().out.splitlines() if " broken " in line]
    # The small server refuses nothing, and names nothing.
    assert any(row.startswith(f"m: {broken}") for row in rows)
    assert any(row.startswith("m: malformed tensors") for row in rows)
    assert f'name="{broken}"'.encode() in junit.read_bytes() and b"<failure" in junit.read_bytes()


def test_a_server_that_cannot_be_asked_is_no_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-serving", "http://127.0.0.1:1", "--model", "m", "--timeout", "0.3"]) == 2
    assert "cannot be reached" in capsys.readouterr().err
