"""What the benchmarks of runtimes and of attention measure."""

import pytest
import torch
from torch import nn

from benchmarks import cold_start, cpu_runtime
from benchmarks.elliptical_overhead import image_caller, peak_bytes
from runtimes.registry import installed


def test_peak_is_what_weights_and_living_tensors_hold() -> None:
    images, size = torch.rand(4, 3, 8, 8), 4 * 3 * 8 * 8 * 4
    chain = nn.Sequential(nn.GELU(), nn.GELU(), nn.GELU(), nn.Flatten())
    layer = nn.Linear(8, 8)
    assert peak_bytes(chain, image_caller(chain, "forward", images)) == 2 * size
    assert peak_bytes(layer, image_caller(layer, "forward", images)) == size + (8 * 8 + 8) * 4


@pytest.mark.slow
def test_every_runtime_has_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = list(cold_start.run(starts=1))
    for name in (*installed(), "auto exact", "auto fast"):
        units = [row.unit for row in starts if f"224, {name} " in row.case]
        assert units == ["s", "MiB"]
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    monkeypatch.setattr(cpu_runtime, "PAIRS", {1: 1, 8: 1})
    cases = {row.case: row for row in cpu_runtime.run()}
    for size in (1, 8):
        ratios = [c for c, r in cases.items() if f"batch-{size}," in c and r.unit == "ratio"]
        shares = [case for case in ratios if case.endswith("share of the ceiling")]
        assert len(shares) == 2 and all(cases[case].target for case in shares)
        for label in ("auto exact", "auto fast", "onnx-cpu int8"):
            [case] = [case for case in ratios if "stock" in case and f"/ {label}" in case]
            assert cases[case].target is not None
        for name in installed():
            assert [case for case in ratios if "stock" in case and f"/ {name} fp32" in case]
