import pytest

from benchmarks.__main__ import main, names
from benchmarks.support.rows import Row


@pytest.mark.parametrize(
    ("better", "measured", "target", "met"),
    [
        ("lower", 1.0, 1.5, True),
        ("lower", 1.6, 1.5, False),
        ("higher", 1.6, 1.5, True),
        ("higher", 1.0, 1.5, False),
        ("lower", 1.0, None, None),
    ],
)
def test_a_row_judges_its_figure(
    better: str, measured: float, target: float | None, met: bool | None
) -> None:
    row = Row(
        name="n",
        case="c",
        measured=measured,
        unit="s",
        better=better,  # pyright: ignore[reportArgumentType]
        target=target,
        samples=1,
        spread=(measured, measured),
    )
    assert row.met is met
    assert row.machine and row.versions["python"]


def test_every_benchmark_can_be_run() -> None:
    assert "export_overhead" in names()


def test_an_unknown_benchmark_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export_overhed"]) == 2
    assert "did you mean 'export_overhead'?" in capsys.readouterr().err
