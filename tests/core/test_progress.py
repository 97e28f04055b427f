import io
import sys
from collections.abc import Sequence

import pytest

from core.progress import Bar, roughly


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


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "a few seconds"),
        (59.9, "less than a minute"),
        (60, "about a minute"),
        (150, "about 3 minutes"),
        (569, "about 9 minutes"),
        (916, "about 15 minutes"),
        (3449, "about 55 minutes"),
        (3450, "about an hour"),
        (5000, "about 1½ hours"),
        (7000, "about 2 hours"),
        (36.4 * 3600, "about 36 hours"),
        (36.5 * 3600, "about 2 days"),
    ],
)
def test_estimates_are_no_finer_than_they_can_be(seconds: float, said: str) -> None:
    assert roughly(seconds) == said


def test_a_bar_may_tell_roughly_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = silent(monkeypatch, Terminal())
    with Bar(total=100, bar_format="{n_fmt}/{total_fmt} [{elapsed}{left}]", mininterval=0) as bar:
        bar.start_t -= 100
        bar.update(10)
    assert "0/100 [00:00]" in terminal.getvalue()
    assert "10/100 [01:40, about 15 minutes left]" in terminal.getvalue()


def test_a_terminal_gets_a_bar_and_disabled_work_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = silent(monkeypatch, Terminal())
    assert list(Bar(range(3), "fit", unit="step")) == [0, 1, 2]
    assert "100%|" in terminal.getvalue() and "3/3" in terminal.getvalue()
    log = silent(monkeypatch)
    assert list(Bar(range(3), "fit", disable=True)) == [0, 1, 2]
    assert log.getvalue() == ""
