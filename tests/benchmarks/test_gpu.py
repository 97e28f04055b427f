import itertools
import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
import torch

from benchmarks import gpu
from benchmarks.device import exported
from benchmarks.device.exported import bound
from benchmarks.device.setting import Cell, Setting
from benchmarks.device.timing import measure_for, rounding
from benchmarks.support.rows import Row, figure

QUICK = ("training", "logits")


def measured(*parts: str) -> list[Row]:
    """Rows of the tiny form; all of them were measured."""
    rows = list(gpu.run(seconds=600, form="tiny", parts=parts))
    assert rows and not [row.case for row in rows if "skipped" in row.case]
    assert all(math.isfinite(row.measured) for row in rows)
    return rows


def test_tiny_forms_of_training_and_answers_are_measured_here() -> None:
    rows = measured(*QUICK)
    assert any("steps, elliptical / dot-product" in row.case for row in rows)
    exact = [row.measured for row in rows if ", fp32, " in row.case]
    assert exact == [0, 0]  # on the same processor


def test_time_that_is_over_is_said() -> None:
    rows = list(gpu.run(seconds=0, form="tiny", parts=("training", "logits")))
    assert len(rows) == 2 and all("the time was over" in row.case for row in rows)
    assert "logits, 4 figures from 'fashion-elliptical" in rows[1].case


def test_every_part_begins_once_however_long_the_one_before_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = itertools.count()  # a second passes whenever somebody looks
    monkeypatch.setattr(gpu.time, "perf_counter", lambda: float(next(times)))

    def cells(_: Setting) -> list[Cell]:
        """Three figures."""
        return [(f"figure {n}", partial(list, [figure(str(n), n, "s")])) for n in range(3)]

    for name in ("one", "other"):
        monkeypatch.setitem(gpu.PARTS, name, (1.0, cells))
    rows = [row.case for row in gpu.run(seconds=4, parts=("one", "other"))]
    over = "skipped: the time was over"
    assert rows[:2] == ["0", "1"] and rows[2].startswith("one, 1 figures from")
    assert rows[3] == "0" and rows[4].startswith("other, 2 figures from") and over in rows[4]


def test_engine_that_is_missing_is_named_once() -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("CUDA is here")
    found = [case for case, _ in exported.cells(Setting(device="cuda"))]
    assert len(found) == 2 and all("has no" in case and "install" in case for case in found)


def test_figure_that_fails_says_why_and_the_next_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cells(_: Setting) -> list[Cell]:
        """One that fails, one that gives nothing."""
        return [("first", lambda: [1 / 0]), ("second", lambda: [])]  # pyright: ignore

    monkeypatch.setitem(gpu.PARTS, "wrong", (1.0, cells))
    [row] = gpu.run(parts=("wrong",))
    assert row.case == "first, skipped: ZeroDivisionError: division by zero"


@pytest.mark.parametrize(("name", "value"), [("form", "huge"), ("parts", ("eager", "all"))])
def test_unknown_names_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{name} must be of "):
        list(gpu.run(**{name: value}))  # pyright: ignore[reportArgumentType] - on purpose


def test_what_matters_most_comes_first_and_nothing_is_left_out() -> None:
    setting = Setting()
    cells = setting.cells()
    assert cells[0] == ("tiny", 64, "bf16") and cells[-1] == ("base", 8, "fp32")
    everything = itertools.product(setting.sizes, setting.batches, setting.precisions)
    assert sorted(cells) == sorted(everything)


def test_rounding_is_allowed_inside_alone() -> None:
    parts = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [part.allow_tf32 for part in parts]
    for precision, dtype in (("tf32", torch.float32), ("fp32", torch.float32)):
        with rounding(precision) as given:
            assert given == dtype
            assert [part.allow_tf32 for part in parts] == [precision == "tf32"] * 2
    assert [part.allow_tf32 for part in parts] == before


def test_short_calls_are_measured_several_at_once() -> None:
    seen: list[tuple[str, int]] = []

    def seconds(call: object, repeats: int) -> float:
        seen.append((str(call), repeats))
        return {"a": 0.001, "b": 0.002}[str(call)]

    pairs = measure_for("a", "b", 0.1, seconds)  # pyright: ignore[reportArgumentType] - labels
    assert set(pairs) == {(0.001, 0.002)} and len(pairs) == 8
    assert {repeats for _, repeats in seen[4:]} == {4}


class Session:
    """What records which memory a session of ONNX Runtime reads and writes."""

    def __init__(self) -> None:
        self.bound: list[tuple[object, ...]] = []
        self.runs = 0
        self.bind_input = self.bind_output = lambda *place: self.bound.append(place)

    def get_outputs(self) -> list[SimpleNamespace]:
        """One, of five classes."""
        return [SimpleNamespace(shape=["batch", 5])]

    def io_binding(self) -> "Session":
        """What is bound is recorded here."""
        return self

    def run_with_iobinding(self, binding: object) -> None:
        """Count the runs."""
        assert binding is self
        self.runs += 1


def test_session_reads_and_writes_tensors_where_they_are() -> None:
    session, images = Session(), torch.rand(3, 1, 4, 4)
    call = bound(session, images)  # pyright: ignore[reportArgumentType] - a double
    logits = call()
    assert isinstance(logits, torch.Tensor) and session.runs == 1
    assert session.bound == [
        ("images", "cpu", 0, np.float32, [3, 1, 4, 4], images.data_ptr()),
        ("logits", "cpu", 0, np.float32, [3, 5], logits.data_ptr()),
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of its compiler
@pytest.mark.parametrize("part", [part for part in gpu.PARTS if part not in QUICK])
def test_tiny_form_of_every_other_part_is_measured_here(part: str) -> None:
    assert measured(part)
