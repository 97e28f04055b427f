"""Find one sample of a finished evaluation, and what an attack made of it. Needs no torch."""

import json
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from robustness.catalog import Norm
from robustness.parsing import L2_LIMIT, parse_eps
from robustness.report.schema import FILE, SCHEMA_VERSION

_KEPT = 4
_parsed: OrderedDict[Path, tuple[int, dict[str, Any]]] = OrderedDict()  # time of change, report
_lock = threading.Lock()


class NoSuchSample(ValueError):
    """The report holds no such sample, attack, point or model."""


def find_sample(folder: Path, index: int, kind: Literal["image", "text"]) -> dict[str, Any]:
    """The report with one sample, as it stands in `report.json`, under the key `sample`.

    Args:
        folder: what `robustness.evaluation.evaluate` left behind.
        index: of the sample.
        kind: what the evaluation must have judged.

    Raises:
        NoSuchSample: there is no report, or no such sample in it.
    """
    path = folder / FILE
    try:
        report = _parse(path, path.stat().st_mtime_ns)
    except OSError:
        raise NoSuchSample("there is no report yet") from None
    if report["schema_version"] != SCHEMA_VERSION:
        raise NoSuchSample("the report was written by another version")
    samples, judged = report["samples"], report["data"]["kind"]
    if not 0 <= index < len(samples):
        raise NoSuchSample(f"index must lie in [0, {len(samples)}), got {index}")
    if judged != kind:
        raise NoSuchSample(f"this evaluation judged {judged}s, and no {kind}s")
    return report | {"sample": samples[index]}


def model_position(sample: dict[str, Any], name: str | None) -> int:
    """Where a model's flags stand in a sample; the one on trial when no name is given.

    Raises:
        NoSuchSample: the report speaks of no such model.
    """
    names = [model["name"] for model in sample["models"]]
    if name is None:
        return 0
    if name not in names:
        raise NoSuchSample(f"model must be one of {names}, got {name[:60]!r}")
    return names.index(name)


def choose_attack(
    attacks: list[dict[str, Any]], name: str | None, eps: str | None
) -> dict[str, Any]:
    """The flags of one attack at one point; what is not named is chosen as the worst case.

    Args:
        attacks: of one model and sample.
        name: of the attack.
        eps: the point, as the spec spells it or as an equal number, behind "Linf:" or "L2:" where
            the norm matters.

    Raises:
        NoSuchSample: the report has no such attack.
    """
    wanted = attacks
    if eps is not None:
        norm, radius = _point(eps)
        wanted = [flags for flags in wanted if flags["eps_value"] == radius]
        wanted = [flags for flags in wanted if norm in (None, flags["norm"])]
    if name is not None:
        wanted = [flags for flags in wanted if flags["name"] == name]
    if not wanted:
        raise NoSuchSample(f"attack and eps must be ones of this report, got {name!r}, {eps!r}")

    def strength(flags: dict[str, Any]) -> tuple[float, bool, float]:
        margin = flags["margin"]
        return flags["eps_value"], not flags["confirmed"], -margin if margin is not None else np.inf

    return max(wanted, key=strength)


def _point(eps: str) -> tuple[str | None, float]:
    norm, separator, number = eps.rpartition(":")
    try:
        radius = parse_eps(number, limit=L2_LIMIT)
    except ValueError as error:
        raise NoSuchSample(str(error)) from None
    if separator and norm not in get_args(Norm):
        raise NoSuchSample(f"eps must name the norm Linf or L2 before a colon, got {norm[:20]!r}")
    return norm or None, radius


def forget_deleted() -> None:
    """Drop the parsed reports whose file is gone, so that nothing of a deleted one is kept."""
    with _lock:
        for path in [path for path in _parsed if not path.exists()]:
            del _parsed[path]


def _parse(path: Path, changed: int) -> dict[str, Any]:
    """A page asks for many samples of one report: parse it once per version of the file."""
    with _lock:
        if path in _parsed and _parsed[path][0] == changed:
            _parsed.move_to_end(path)
            return _parsed[path][1]
    report = json.loads(path.read_bytes())
    forget_deleted()
    with _lock:
        _parsed[path] = (changed, report)
        while len(_parsed) > _KEPT:
            _parsed.popitem(last=False)
    return report
