import io
import sys
from collections.abc import Sequence

import pytest

from core.progress import Bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def silent(monkeypatch: pytest.MonkeyPatch, log: io.StringIO | None = None) -> io.StringIO:
    log = log or io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    return log


def watch(bar: Bar, moves: Sequence[tuple[float, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the bar reach, so many seconds after it began, so much."""
    began = bar.start_t
    for seconds, done in moves:
        monkeypatch.setattr("core.progress.time", lambda seconds=seconds: began + seconds)
        bar.update(done - bar.n)
        bar.refresh()


@pytest.mark.parametrize(
    ("moves", "lines"),
    [
        ([(1, 40), (4, 100)], []),  # short work
        (
            [(6, 9), (7, 20), (8, 40), (13, 45)],
            ["20 of 100 steps, 00:07", "45 of 100 steps, 00:13"],
        ),
        ([(29, 1), (31, 1), (62, 2)], ["1 of 100 steps, 00:31", "2 of 100 steps, 01:02"]),
    ],
)
def test_a_log_gets_a_line_each_30_s_or_tenth(
    moves: list[tuple[float, int]], lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = silent(monkeypatch)
    with Bar(total=100, desc="fit", unit="step", mininterval=0) as bar:
        watch(bar, moves, monkeypatch)
        bar.write("epoch 1", file=sys.stderr)
    written = log.getvalue().splitlines()
    assert written.pop() == "epoch 1"
    share = [f"{int(line.split()[0])}%" for line in lines]
    assert written == [f"fit: {s}, {line} so far" for s, line in zip(share, lines, strict=True)]


def test_work_of_unknown_length_that_starts_again_is_told_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = silent(monkeypatch)
    with Bar(unit="sample", desc="reading") as bar:
        watch(bar, [(31, 1200)], monkeypatch)
        bar.reset(total=2000)
        bar.set_postfix_str("loss 1.2", refresh=False)
        watch(bar, [(40, 500)], monkeypatch)
    assert log.getvalue() == (
        "reading: 1,200 samples, 00:31 so far\n"
        "reading: 25%, 500 of 2,000 samples, 00:40 so far, loss 1.2\n"
    )


def test_a_terminal_gets_a_bar_and_disabled_work_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = silent(monkeypatch, Terminal())
    assert list(Bar(range(3), "fit", unit="step")) == [0, 1, 2]
    assert "100%|" in terminal.getvalue() and "3/3" in terminal.getvalue()
    log = silent(monkeypatch)
    assert list(Bar(range(3), "fit", disable=True)) == [0, 1, 2]
    assert log.getvalue() == ""
