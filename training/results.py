"""Take up finished runs and evaluations as records, small files that the repository keeps.

`docs/results.md` is written from these records alone, see `training.results_page`.
"""

import json
from pathlib import Path
from typing import Any

from robustness.report.schema import FILE as REPORT
from robustness.report.schema import read_report
from training import records

PAPERS = "papers.json"
"""The figures of the papers, beside the records; no record itself."""
_OF_RUN = ("test_accuracy", "test_samples", "train_samples", "parameters", "seconds", "environment")


def collect(folder: Path, target: Path) -> Path:
    """Take up the run or the evaluation that a folder holds.

    Args:
        folder: of a finished run, or of a finished evaluation.
        target: folder of the records.

    Returns:
        The record; one of the same name is replaced.

    Raises:
        ValueError: the folder holds neither, the run is not finished, or its record lacks a figure.
    """
    if (folder / records.METRICS).is_file():
        name, record = _run(folder)
    elif (folder / REPORT).is_file():
        name, record = _evaluation(folder)
    else:
        raise ValueError(f"{folder} holds neither a run with metrics nor an evaluation")
    target.mkdir(parents=True, exist_ok=True)
    path = target / f"{name}.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return path


def read_records(folder: Path) -> list[dict[str, Any]]:
    """All records of a folder, in the order of their names.

    Raises:
        ValueError: one is no JSON object with a known `kind`.
    """
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.json")):
        if path.name == PAPERS:
            continue
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            known = record["kind"] in ("run", "evaluation")
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path.name} is no record: {error}") from error
        if not known:
            raise ValueError(f"{path.name} is a record of no known kind: {record['kind']!r}")
        found.append(record)
    return found


def _run(folder: Path) -> tuple[str, dict[str, Any]]:
    recipe = records.recorded_recipe(folder)
    metrics = json.loads((folder / records.METRICS).read_text())
    missing = [key for key in _OF_RUN if key not in metrics]
    if missing:
        raise ValueError(f"{folder} is no finished run: its metrics lack {', '.join(missing)}")
    sittings = json.loads((folder / records.RUN).read_text())["sittings"]
    values = recipe.to_dict()
    # A path of the machine that trained says nothing to others.
    values["data"]["source"] = _public(recipe.data.source)
    values["init"] = recipe.init and _public(recipe.init)
    record = {"kind": "run", "recipe": values, "metrics": metrics, "sittings": sittings}
    return folder.resolve().name, record


def _evaluation(folder: Path) -> tuple[str, dict[str, Any]]:
    report = read_report(folder).to_json()
    del report["samples"], report["definitions"]
    names = "-".join(model["name"] for model in report["summary"]["models"])
    digest = report["data"]["digest"][:8]
    attacks = "-".join(attack["name"] for attack in report["spec"]["attacks"])
    return f"{names}-{attacks}-{digest}", {"kind": "evaluation"} | report


def _public(source: str) -> str:
    return source if source.startswith("hf:") else Path(source).name
