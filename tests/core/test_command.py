import subprocess
import sys
from collections.abc import Callable

import pytest

from core.command import Parser, run_command


def raising(error: BaseException) -> Callable[[], int]:
    def command() -> int:
        raise error

    return command


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (lambda: 1, 1, ""),
        (raising(ValueError("eps must lie in (0, 1]")), 2, "error: eps must lie in (0, 1]\n"),
        (
            raising(FileNotFoundError(2, "No such file", "a")),
            2,
            "error: a: No such file\n",
        ),
        (raising(KeyboardInterrupt()), 130, "interrupted\n"),
        (raising(KeyboardInterrupt("continue with X")), 130, "continue with X\n"),
    ],
)
def test_a_command_ends_with_a_code_and_at_most_one_sentence(
    command: Callable[[], int], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(command) == code
    assert capsys.readouterr().err == said


def test_a_reader_that_left_is_no_error() -> None:
    code = "import sys; from core.command import run_command as run; sys.exit(run({}))"
    for command in ("lambda: print('x' * 10**6) or 0", "lambda: print('x') or 0"):
        process = subprocess.Popen(
            [sys.executable, "-c", code.format(command)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == (b"", 141)
        process.stderr.close()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fit", "--limt", "3"], "unexpected '--limt'; did you mean '--limit'?"),
        (["fit", "more"], "unexpected 'more'"),
        (["fit", "--limit", "x"], "argument --limit: invalid int value: 'x'"),
        (["fti"], "invalid choice: 'fti'"),
    ],
)
def test_a_mistake_is_one_line_with_the_nearest_option(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = Parser(prog="tool")
    parser.add_subparsers(required=True).add_parser("fit").add_argument("--limit", type=int)
    with pytest.raises(SystemExit) as stop:
        parser.parse_args(words)
    line = capsys.readouterr().err
    assert stop.value.code == 2 and line.count("\n") == 1 and said in line
