"""Check a report: its figures follow from the stored results, and these from the stored inputs."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from core.environment import code_digest
from core.files import find_by_digest
from robustness.progress import Meter, Progress
from robustness.report.build import sample_flags, summarise, warnings_of
from robustness.report.schema import DEFINITIONS, FILE, Report, parse_report, plain
from robustness.sanity.checks import notes
from robustness.scoring import ModelResult
from robustness.spec import Cell
from robustness.store import SHARD_SIZE, ranges
from robustness.target import Target, open_target, torch_threads
from robustness.text_target import open_text_target
from robustness.verify.evidence import (
    Inputs,
    check_digest,
    check_labels,
    check_same,
    check_source,
    clean_inputs,
    stored_result,
)
from robustness.verify.outcome import Outcome, Refuted
from robustness.verify.rescore import Rescorer
from runtimes.artifact import MANIFEST, Artifact, open_artifact

ARTIFACTS = Path("artifacts")
_MAY_DIFFER = {"version", "runtime", "precision"}  # of the model that scores again


def verify(
    path: Path,
    *,
    folders: Sequence[Path] | None = None,
    data: str | None = None,
    limit: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Outcome:
    """Check a report against the files beside it and the models that it names.

    Its figures and flags must be what is built again from the stored results; its stored inputs
    must be those that its digests name; every stored adversarial input must be one that its attack
    was allowed to make; and every stored result must be what both models answer again.

    Args:
        path: `report.json`, or its folder.
        folders: artifacts, or folders of them; `artifacts` when not given.
        data: where the inputs came from, to be compared with the stored ones.
        limit: score so many inputs, drawn anew every time; all when not given.
        on_progress: called after every batch.

    Raises:
        OSError: there is no such report.
        ValueError: it is not a report, or a model is not among the folders.
    """
    path = path / FILE if path.is_dir() else path
    report = parse_report(path.read_bytes())
    artifacts = [_find(folders, model.digest, model.name) for model in report.summary.models]
    outcome = Outcome()
    try:
        _check_header(report)
        _check_models(report, artifacts)
        rows = _sample(len(report.samples), limit)
        outcome.inputs, outcome.notes = len(rows), _notes(report, len(rows))
        threads = int(report.environment.get("threads", "1"))
        with torch_threads(threads):
            targets = [_open(report, artifact, threads) for artifact in artifacts]
            results = _checked_figures(report, path.parent, targets, outcome)
            meter = Meter(_cost(report, len(rows)), on_progress=on_progress)
            _rescore(report, path.parent, results, rows, data, meter, outcome)
    except Refuted as problem:
        outcome.refuted.append(str(problem))
    return outcome


def _checked_figures(
    report: Report, folder: Path, targets: Sequence[Target], outcome: Outcome
) -> list[ModelResult]:
    """The stored results of every model, after the report was compared with them."""
    try:
        results = [stored_result(folder, report, target) for target in targets]
        outcome.refuted += _wrong_figures(report, results)
    except (LookupError, OverflowError, TypeError, ValueError) as error:
        raise Refuted("the stored results do not hold what they should") from error
    return results


def _rescore(
    report: Report,
    folder: Path,
    results: Sequence[ModelResult],
    rows: np.ndarray,
    data: str | None,
    meter: Meter,
    outcome: Outcome,
) -> None:
    """Score chosen inputs again with every model, after their files were checked."""
    first: tuple[Inputs, Target] | None = None
    for result in results:
        target = result.target
        clean = clean_inputs(folder, report, target.digest)
        if first is None:
            check_digest(report, clean)
        else:
            check_same(*first, clean, target)
        first = first or (clean, target)
        check_labels(report, result)
        if data is not None:
            check_source(report, target, clean, data)
        runtime = target.runtime
        name = f"{target.name} {target.version} ({runtime.name}, {runtime.precision})"
        outcome.models.append(name)
        rescorer = Rescorer(
            report=report,
            folder=folder,
            target=target,
            stored=result,
            meter=meter,
            outcome=outcome,
        )
        for chosen in ranges(len(clean)):
            own = rows[(rows >= chosen.start) & (rows < chosen.stop)] - chosen.start
            if len(own):
                meter.stage = f"{target.name}: input {chosen.stop}"
                rescorer.check(chosen.start, clean[chosen.start : chosen.stop], own)


def _check_header(report: Report) -> None:
    """Check what a report says of itself.

    Raises:
        Refuted: it is not so.
    """
    if report.data.samples != len(report.samples):
        reported, found = report.data.samples, len(report.samples)
        raise Refuted(f"the report speaks of {reported} inputs, and has flags of {found}")
    if not report.samples:
        raise Refuted("the report has no samples")
    header = report.seed, report.shard_size, report.definitions
    if header != (report.spec.seed, SHARD_SIZE, DEFINITIONS):
        raise Refuted("seed, shard size or definitions are not those of the spec and this format")
    # Torch ends the process when it shall start more threads than there can be.
    if not re.fullmatch("[1-9][0-9]{0,2}", report.environment.get("threads", "1"), re.ASCII):
        raise Refuted("the report speaks of an impossible number of threads")


def _check_models(report: Report, artifacts: Sequence[Artifact]) -> None:
    """Check that models and classes are called what the artifacts call them."""
    for model, artifact in zip(report.summary.models, artifacts, strict=True):
        if model.name not in (artifact.name, f"{artifact.name}:{artifact.version}"):
            raise Refuted(f"the artifact of {model.name} is called {artifact.name}")
        if model.version != artifact.version:
            raise Refuted(f"{model.name} has the version {artifact.version}")
        if report.data.labels != [plain(label) for label in artifact.labels]:
            raise Refuted(f"the classes of {model.name} are not those that the report names")


def _wrong_figures(report: Report, results: Sequence[ModelResult]) -> Iterator[str]:
    """Each place where a report is not what its stored results give, in words."""
    known = [sample.label for sample in report.samples if sample.label is not None]
    labels = np.array(known, np.int64) if known else None
    warnings = warnings_of(report.spec, results)
    names = [sample.name for sample in report.samples]
    samples = sample_flags(report.spec, list(results), names, labels)
    rebuilt = {
        "summary": summarise(
            report.spec, results, warnings, labelled=labels is not None
        ).model_dump(),
        "samples": [sample.model_dump() for sample in samples],
        "notes": notes(report.spec, results),
    }
    reported = report.model_dump(include=set(rebuilt))
    for place, was, should in _differences(reported, rebuilt, ""):
        yield (
            f"{_named(report, place)} is {_shown(was)}, and the stored results give "
            f"{_shown(should)}"
        )


def _named(report: Report, place: str) -> str:
    """A place of a report, with flags under the names of model, input and attack."""
    found = re.search(r"samples\[(\d+)\]\.models\[(\d+)\]\.(.*)", place)
    if found is None:
        return place
    sample = report.samples[int(found[1])]
    model = report.summary.models[int(found[2])].name
    flags = found[3]
    for role, kind in (("attack", "attacks"), ("corruption", "corruptions")):
        cells = [cell for cell in report.spec.cells if cell.attack.info.role == role]
        for position, cell in enumerate(cells):
            name = cell.budget.text.replace(":", " ")
            name = name if role == "corruption" else f"{cell.attack.label} {name}"
            flags = flags.replace(f"{kind}[{position}].", f"{name}, ")
    what = place[: found.start()]
    return f"{model}, input {sample.index + 1} ({sample.name}): {what}{flags}"


def _differences(reported: Any, rebuilt: Any, place: str) -> Iterator[tuple[str, Any, Any]]:
    """Places where two trees differ, with what each has there."""
    if isinstance(reported, dict) and isinstance(rebuilt, dict):
        for key in dict.fromkeys([*rebuilt, *reported]):
            if key not in _MAY_DIFFER:
                at = f"{place}.{key}" if place else str(key)
                yield from _differences(reported.get(key), rebuilt.get(key), at)
    elif isinstance(reported, list | tuple) and isinstance(rebuilt, list | tuple):
        if len(reported) != len(rebuilt):
            yield f"the length of {place}", len(reported), len(rebuilt)
            return
        for index, (one, other) in enumerate(zip(reported, rebuilt, strict=True)):
            yield from _differences(one, other, f"{place}[{index}]")
    elif not _equal(reported, rebuilt):
        yield place, reported, rebuilt


def _equal(reported: Any, rebuilt: Any) -> bool:
    if isinstance(reported, float) and isinstance(rebuilt, float):
        return math.isclose(reported, rebuilt, rel_tol=1e-9, abs_tol=1e-12)
    return reported == rebuilt


def _shown(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _open(report: Report, artifact: Artifact, threads: int) -> Target:
    opened = open_text_target if report.data.kind == "text" else open_target
    target = opened(artifact, threads=threads)
    name = next(m.name for m in report.summary.models if m.digest == target.digest)
    return replace(target, name=name)


def _find(folders: Sequence[Path] | None, digest: str, name: str) -> Artifact:
    """The artifact with a digest."""
    roots = list(folders) if folders else [ARTIFACTS]
    if manifest := find_by_digest(roots, MANIFEST, digest):
        return open_artifact(manifest.parent)
    places = ", ".join(str(root) for root in roots)
    raise ValueError(
        f"no artifact in {places} has the digest {digest[:16]} of {name!r}; name its folder with "
        "--artifact"
    )


def _sample(count: int, limit: int | None) -> np.ndarray:
    """Rows to score: nobody who makes a report can know which."""
    if limit is None or limit >= count:
        return np.arange(count)
    return np.sort(np.random.default_rng().choice(count, limit, replace=False))


def _notes(report: Report, scored: int) -> list[str]:
    """What was not checked, and what differs without harm."""
    found = []
    if report.summary.top_k != [1]:
        found.append("ranks below the first were read, and not scored again")
    if scored < len(report.samples):
        found.append(f"a sample of {scored} of {len(report.samples)} inputs")
    if report.code != code_digest():
        found.append("the report was made by another version of the code")
    if any(model.certificates for model in report.summary.models):
        found.append(
            "certificates were not computed again: nothing is stored of them; their draws follow "
            "from the seed, so that the same evaluation repeats them"
        )
    return found


def _cost(report: Report, samples: int) -> int:
    """Model evaluations at most: elliptical models have twice the parts."""

    def each(cell: Cell) -> int:
        if cell.attack.info.role == "certificate":
            return 0
        if not cell.attack.info.norms:
            return 2 if report.spec.on_texts else 1
        return 6 * len(cell.attack.parts(len(report.data.labels)))

    per_sample = 1 + sum(each(cell) for cell in report.spec.cells)
    return samples * per_sample * len(report.summary.models)
