"""Whether a report follows from the verdicts stored beside it: every figure, flag and warning."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from robustness.report.build import summarise, warnings_of
from robustness.report.samples import sample_flags
from robustness.report.schema import Report
from robustness.sanity.remarks import notes
from robustness.scoring import ModelVerdict

_OF_THE_JUDGE = {"version", "runtime", "precision"}  # need not be those of the report


def wrong_figures(report: Report, verdicts: Sequence[ModelVerdict]) -> Iterator[str]:
    """Each place where a report is not what its verdicts give, in words.

    Args:
        report: of the right shape, see `check_shape`.
        verdicts: of its models, as they are stored.
    """
    known = [sample.label for sample in report.samples if sample.label is not None]
    labels = np.array(known, np.int64) if known else None
    warnings = warnings_of(report.spec, verdicts)
    summary = summarise(report.spec, verdicts, warnings, labelled=labels is not None)
    names = [sample.name for sample in report.samples]
    samples = sample_flags(report.spec, list(verdicts), names, labels)
    found = {
        "summary": summary.model_dump(),
        "samples": [sample.model_dump() for sample in samples],
        "notes": notes(report.spec, verdicts),
    }
    told = report.model_dump(include=set(found))
    for place, was, should in _differences(told, found, ""):
        yield f"{place} is {_shown(was)}, and the stored verdicts give {_shown(should)}"


def _differences(told: Any, found: Any, place: str) -> Iterator[tuple[str, Any, Any]]:
    """Places where two trees differ, with what each has there."""
    if isinstance(told, dict) and isinstance(found, dict):
        for key in dict.fromkeys([*found, *told]):
            if key not in _OF_THE_JUDGE:
                at = f"{place}.{key}" if place else str(key)
                yield from _differences(told.get(key), found.get(key), at)
    elif isinstance(told, list | tuple) and isinstance(found, list | tuple):
        if len(told) != len(found):
            yield f"the length of {place}", len(told), len(found)
            return
        for index, (one, other) in enumerate(zip(told, found, strict=True)):
            yield from _differences(one, other, f"{place}[{index}]")
    elif not _equal(told, found):
        yield place, told, found


def _equal(told: Any, found: Any) -> bool:
    if isinstance(told, float) and isinstance(found, float):
        return math.isclose(told, found, rel_tol=1e-9, abs_tol=1e-12)
    return told == found


def _shown(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
