"""`samples.parquet`: one row for every sample, model and cell, for whoever wants to compute."""

from typing import Any

import pyarrow
from pyarrow import parquet

from robustness.parsing import L2_LIMIT, parse_eps
from robustness.report.flags import ModelFlags, Sample
from robustness.report.schema import Report

FILE = "samples.parquet"
_SCHEMA = pyarrow.schema(
    [
        ("sample", pyarrow.int64()),
        ("name", pyarrow.string()),
        ("label", pyarrow.int64()),
        ("model", pyarrow.string()),
        ("attack", pyarrow.string()),
        ("norm", pyarrow.string()),
        ("point", pyarrow.string()),
        ("value", pyarrow.float64()),
        ("part", pyarrow.string()),
        ("variant", pyarrow.string()),
        ("index", pyarrow.int64()),
        ("probability", pyarrow.float64()),
        ("margin", pyarrow.float64()),
        ("distance", pyarrow.float64()),
        ("robust", pyarrow.bool_()),
        ("robust_stopped", pyarrow.bool_()),
        ("robust_full", pyarrow.bool_()),
        ("confirmed", pyarrow.bool_()),
        ("confirmed_8bit", pyarrow.bool_()),
        ("correct", pyarrow.bool_()),
        ("radius", pyarrow.float64()),
    ]
)


def render(report: Report) -> bytes:
    """The table as the bytes of a file; what a row has no value for is null."""
    rows = [
        {"sample": sample.index, "name": sample.name, "label": sample.label, **row}
        for sample in report.samples
        for row in _rows(sample)
    ]
    table = pyarrow.Table.from_pylist(rows, schema=_SCHEMA)
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def _rows(sample: Sample) -> list[dict[str, Any]]:
    return [
        {"model": model.name, **row}
        for model in sample.models
        for row in (_clean(model), *_attacks(model), *_corruptions(model), *_certificates(model))
    ]


def _clean(model: ModelFlags) -> dict[str, Any]:
    return {"attack": "none", **model.clean.model_dump()}


def _attacks(model: ModelFlags) -> list[dict[str, Any]]:
    return [
        {
            "attack": flags.name,
            "point": flags.eps,
            "value": flags.eps_value,
            "index": flags.adversarial_index,
            "robust_stopped": (flags.gradients or {}).get("stopped"),
            "robust_full": (flags.gradients or {}).get("full"),
            **flags.model_dump(
                exclude={"name", "eps", "eps_value", "adversarial_index", "gradients"}
            ),
        }
        for flags in model.attacks
    ]


def _corruptions(model: ModelFlags) -> list[dict[str, Any]]:
    return [
        {
            "attack": "corruptions",
            "point": f"{flags.name}:{flags.severity}",
            "value": flags.severity,
            "index": flags.index,
            "correct": flags.correct,
        }
        for flags in model.corruptions
    ]


def _certificates(model: ModelFlags) -> list[dict[str, Any]]:
    return [
        {
            "attack": "smoothing",
            "point": flags.sigma,
            "value": parse_eps(flags.sigma, limit=L2_LIMIT),
            "index": flags.index,
            "radius": flags.radius,
            "correct": flags.correct,
        }
        for flags in model.certificates
    ]
