"""Requests made from the published document, as it says and not as it says, at a running server."""

from pathlib import Path

import pytest

from benchmarks.fuzz import fuzz
from benchmarks.support.server import serving


@pytest.mark.parametrize("cases", [40, pytest.param(10_000, marks=pytest.mark.slow)])
def test_every_answer_is_documented_and_none_is_a_server_error(
    cases: int, tiny_models: Path, samples: Path
) -> None:
    settings = {"ASSAY_MODELS": tiny_models, "ASSAY_SAMPLES": samples, "ASSAY_RUNTIME": "onnx-cpu"}
    with serving({name: str(value) for name, value in settings.items()}) as (_, address):
        found = fuzz(address, cases=cases)
    assert found.cases >= cases
    assert found.server_errors == 0, found.failures
    assert not found.failures
