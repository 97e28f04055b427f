"""Collect finished runs and evaluations as records, small files that the repository keeps.

`docs/results.md` is written from these records alone, see `results.page`.
"""

import csv
import json
from pathlib import Path
from typing import Any

from core.files import sha256, write_whole
from results.page import page, pictures
from robustness.report.schema import FILE as REPORT
from robustness.report.schema import read_report
from training import run as records
from training.recipe import flat
from training.recipe_file import read_file, read_recipe

PAPERS = "papers.json"
"""The figures of the papers, beside the records; no record itself."""
KINDS = ("run", "evaluation", "analysis", "word-swap")
OF_RUN = ("test_accuracy", "test_samples", "train_samples", "parameters", "seconds", "environment")
_NO_CHANGE = ("seed", "data.source", "model.seq_len", "model.vocab_size")
"""Stated elsewhere, or following from another entry."""
_OF_HISTORY = ("step", "seconds", "waiting")


def collect(folder: Path, target: Path, recipes: Path) -> Path:
    """Collect the run or the evaluation that a folder holds, with what a run changed of `recipes`.

    Returns:
        The record in the folder `target`; one of the same name is replaced.

    Raises:
        ValueError: the folder holds neither, the run is not finished, or its record lacks a figure.
    """
    if (folder / records.METRICS).is_file():
        return _write(*_run(folder, recipes), target)
    if (folder / REPORT).is_file():
        return _write(*_evaluation(folder), target)
    raise ValueError(f"{folder} holds neither a run with metrics nor an evaluation")


def keep(kind: str, folder: Path, figures: dict[str, Any], target: Path) -> Path:
    """Keep what was found about the weights of a run in `folder` as a record; see `collect`."""
    name = folder.resolve().name
    weights = sha256(folder / records.BEST)
    about = {"kind": kind, "run": name, "recipe": _recipe(folder), "weights": weights}
    record = about | {"environment": records.environment()} | figures
    return _write(f"{name}-{kind}", record, target)


def write_page(output: Path) -> None:
    """Write the page and its pictures from the records in the folder `results` beside it."""
    folder = output.parent / "results"
    papers = folder / PAPERS
    known = json.loads(papers.read_text()) if papers.is_file() else {}
    found = read_records(folder)
    write_whole(output, page(found, known))
    for name, picture in pictures(found).items():
        write_whole(output.parent / "images" / name, picture)


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
            kind = record["kind"]
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path.name} is no record: {error}") from error
        if kind not in KINDS:
            raise ValueError(f"{path.name} is a record of no known kind: {kind!r}")
        found.append(record)
    return found


def _write(name: str, record: dict[str, Any], target: Path) -> Path:
    path = target / f"{name}.json"
    write_whole(path, json.dumps(record, indent=1) + "\n")
    return path


def _recipe(folder: Path) -> dict[str, Any]:
    """The resolved recipe of a run; a path of the machine that trained says nothing to others."""
    recipe = records.recorded_recipe(folder)
    values = recipe.to_dict()
    values["data"]["source"] = _public(recipe.data.source)
    values["init"] = recipe.init and _public(recipe.init)
    return values


def _run(folder: Path, recipes: Path) -> tuple[str, dict[str, Any]]:
    metrics = json.loads((folder / records.METRICS).read_text())
    missing = [key for key in OF_RUN if key not in metrics]
    if missing:
        raise ValueError(f"{folder} is no finished run: its metrics lack {', '.join(missing)}")
    sessions = json.loads((folder / records.RUN).read_text()).get("sessions")
    if sessions is None:
        raise ValueError(f"{folder} was trained before version 0.2.0 and cannot be collected")
    recipe = _recipe(folder)
    record = {"kind": "run", "recipe": recipe, "metrics": metrics, "sessions": sessions}
    record |= {"changes": _changes(recipe, recipes), "rate": _rate(folder)}
    return folder.resolve().name, record


def _changes(recipe: dict[str, Any], recipes: Path) -> list[str]:
    """What a run did otherwise than its recipe file says today, as overrides of `fit`."""
    choice = [f"{key}={recipe[key]}" for key in ("variant", "size") if recipe[key] is not None]
    for path in sorted(recipes.glob("*.yaml")):
        written = read_file(path)
        offered = recipe["variant"] in written.get("variants", [])
        if offered and recipe["name"] == f"{written['name']}-{recipe['variant']}":
            before, after = flat(read_recipe(path, choice).to_dict()), flat(recipe)
            changed = [key for key, value in after.items() if before.get(key) != value]
            return [f"{key}={after[key]}" for key in changed if key not in _NO_CHANGE]
    return []


def _rate(folder: Path) -> dict[str, float]:
    """Steps per second of training, and the share of that time spent waiting for data."""
    with (folder / records.HISTORY).open(newline="") as file:
        rows = [{key: float(row[key]) for key in _OF_HISTORY} for row in csv.DictReader(file)]
    seconds = sum(row["seconds"] for row in rows)
    waited = sum(row["seconds"] * row["waiting"] for row in rows)
    return {"steps_per_second": rows[-1]["step"] / seconds, "waiting": waited / seconds}


def _evaluation(folder: Path) -> tuple[str, dict[str, Any]]:
    report = read_report(folder).to_json()
    del report["samples"], report["definitions"]
    names = "-".join(model["name"] for model in report["summary"]["models"])
    attacks = "-".join(attack["name"] for attack in report["spec"]["attacks"])
    digests = [model["digest"] for model in report["summary"]["models"]]
    identity = json.dumps([digests, report["data"]["digest"], report["spec"]])
    digest = sha256(identity.encode())[:8]
    return f"{names}-{attacks}-{digest}", {"kind": "evaluation"} | report


def _public(source: str) -> str:
    return source if source.startswith("hf:") else Path(source).name
