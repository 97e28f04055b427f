"""Check a report: its figures follow from the stored results, and these from the stored inputs."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from core.environment import code_digest
from core.files import find_by_digest
from data.sets import TextSet
from data.sources import ImageSet, load_inputs, open_images, open_texts
from robustness import store
from robustness.attacking import cell_shards, inputs_digest
from robustness.chunks import model_result
from robustness.progress import Meter, Progress
from robustness.report.build import sample_flags, summarise, warnings_of
from robustness.report.schema import DEFINITIONS, FILE, Report, parse_report, plain
from robustness.rescore import Outcome, Refuted, Rescorer, read
from robustness.sanity.checks import notes
from robustness.scoring import ModelResult
from robustness.target import ImageTarget, Target, torch_threads
from robustness.text_target import open_model
from runtimes.artifact import MANIFEST, Artifact, open_artifact

ARTIFACTS = Path("artifacts")
_MAY_DIFFER = {"version", "runtime", "precision"}  # of the model that scores again
_SHOWN = 20

Inputs = np.ndarray | list[str]


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
            targets = [
                replace(open_model(artifact, threads=threads), name=model.name)
                for model, artifact in zip(report.summary.models, artifacts, strict=True)
            ]
            results = _checked_figures(report, path.parent, targets, outcome)
            meter = Meter(_cost(report, targets, len(rows)), on_progress=on_progress)
            _rescore(report, path.parent, results, rows, data, meter, outcome)
    except Refuted as problem:
        outcome.refuted.append(str(problem))
    return outcome


def lines(outcome: Outcome) -> list[str]:
    """An outcome as text for a terminal."""
    head = f"{outcome.flags:,} flags of {outcome.inputs:,} inputs, scored again by "
    found = [head + "; ".join(outcome.models), *(f"note: {note}" for note in outcome.notes)]
    for what, items in (
        ("flipped by precision alone", outcome.flips),
        ("REFUTED", outcome.refuted),
    ):
        found += [f"{what}: {text}" for text in items[:_SHOWN]]
        if len(items) > _SHOWN:
            found.append(f"{what}: and {len(items) - _SHOWN:,} more")
    found.append("CONFIRMED" if outcome.confirmed else "REFUTED")
    # Nothing that a report names can move the cursor or hide a line.
    return ["".join(c if c.isprintable() else "\ufffd" for c in line) for line in found]


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


def _check_header(report: Report) -> None:
    """Check what a report says of itself."""
    if report.data.samples != len(report.samples):
        reported, found = report.data.samples, len(report.samples)
        raise Refuted(f"the report speaks of {reported} inputs, and has flags of {found}")
    if not report.samples:
        raise Refuted("the report has no samples")
    header = report.seed, report.shard_size, report.definitions
    if header != (report.spec.seed, store.SHARD_SIZE, DEFINITIONS):
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


def _cost(report: Report, targets: Sequence[Target], samples: int) -> int:
    """Model evaluations at most."""
    total = 0
    for target in targets:
        total += samples
        for cell in report.spec.cells:
            role = cell.attack.info.role
            total += samples * (role == "corruption")
            if role == "attack":
                shards = cell_shards(target, 0, cell)
                total += samples * sum(shard.part.scorings for shard in shards)
    return total


def _checked_figures(
    report: Report, folder: Path, targets: Sequence[Target], outcome: Outcome
) -> list[ModelResult]:
    """The stored results of every model, after the report was compared with them."""
    count = len(report.samples)
    try:
        results = [model_result(report.spec, target, count, folder) for target in targets]
        parts = [part for result in results for part in (result.clean, *result.cells)]
        sizes = {np.shape(getattr(part, one.name))[-1] for part in parts for one in fields(part)}
        if sizes != {count}:
            raise Refuted("the stored results speak of another number of inputs")
        outcome.refuted += _wrong_figures(report, results)
    except OSError as error:
        raise Refuted(str(error)) from None
    except (LookupError, OverflowError, TypeError, ValueError) as error:
        raise Refuted("the stored results do not hold what they should") from error
    return results


def _wrong_figures(report: Report, results: Sequence[ModelResult]) -> Iterator[str]:
    """Each place where a report is not what its stored results give, in words."""
    known = [sample.label for sample in report.samples if sample.label is not None]
    labels = np.array(known, np.int64) if known else None
    warnings = warnings_of(report.spec, results)
    names = [sample.name for sample in report.samples]
    summary = summarise(report.spec, results, warnings, labelled=labels is not None)
    samples = sample_flags(report.spec, list(results), names, labels)
    rebuilt = {
        "summary": summary.model_dump(),
        "samples": [sample.model_dump() for sample in samples],
        "notes": notes(report.spec, results),
    }
    reported = report.model_dump(include=set(rebuilt))
    for place, was, should in _differences(reported, rebuilt, ""):
        shown = [f"{v:.4f}" if isinstance(v, float) else str(v) for v in (was, should)]
        yield f"{place} is {shown[0]}, and the stored results give {shown[1]}"


def _differences(reported: Any, rebuilt: Any, place: str) -> Iterator[tuple[str, Any, Any]]:
    """Places where two trees differ, with what each has there; items by their own names."""
    if isinstance(reported, dict) and isinstance(rebuilt, dict):
        for key in dict.fromkeys([*rebuilt, *reported]):
            if key not in _MAY_DIFFER:
                at = f"{place}, {key}" if place else str(key)
                yield from _differences(reported.get(key), rebuilt.get(key), at)
    elif isinstance(reported, list | tuple) and isinstance(rebuilt, list | tuple):
        if len(reported) != len(rebuilt):
            yield f"the length of {place}", len(reported), len(rebuilt)
            return
        for index, (one, other) in enumerate(zip(reported, rebuilt, strict=True), start=1):
            named = other if isinstance(other, dict) else {}
            words = [str(named[key]) for key in ("name", "eps", "severity") if key in named]
            at = f"{place} {' '.join(words) or index}"
            yield from _differences(one, other, at)
    elif not _equal(reported, rebuilt):
        yield place, reported, rebuilt


def _equal(reported: Any, rebuilt: Any) -> bool:
    if isinstance(reported, float) and isinstance(rebuilt, float):
        return math.isclose(reported, rebuilt, rel_tol=1e-9, abs_tol=1e-12)
    return reported == rebuilt


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
    first = results[0].target
    for result in results:
        target = result.target
        clean = _clean_inputs(folder, report, target.digest)
        if getattr(target, "image_spec", None) == getattr(first, "image_spec", None):
            _check_digest(report, clean, target)
        _check_labels(report, result)
        if data is not None:
            _check_source(report, target, clean, data)
        runtime = f"{target.runtime.name}, {target.runtime.precision}"
        outcome.models.append(f"{target.name} {target.version} ({runtime})")
        for chosen in store.ranges(len(clean)):
            own = rows[(rows >= chosen.start) & (rows < chosen.stop)] - chosen.start
            if len(own):
                meter.stage = f"{target.name}: input {chosen.stop}"
                Rescorer(
                    report=report,
                    folder=folder,
                    stored=result,
                    start=chosen.start,
                    inputs=clean[chosen.start : chosen.stop],
                    rows=own,
                    meter=meter,
                    outcome=outcome,
                ).check()


def _check_labels(report: Report, result: ModelResult) -> None:
    """Check that stored results are about the labels of a report, or the model's predictions."""
    own = result.clean.index.tolist()
    labels = [o if s.label is None else s.label for s, o in zip(report.samples, own, strict=True)]
    if not np.array_equal(result.clean.label, labels):
        raise Refuted(f"the results of {result.target.name} are about other labels")
    if not np.isin(labels, range(len(result.target.labels))).all():
        raise Refuted(f"a label of {result.target.name} is not a class")


def _clean_inputs(folder: Path, report: Report, digest: str) -> Inputs:
    """All clean inputs of one model, from its files."""
    parts: list[Inputs] = []
    for chosen in store.ranges(len(report.samples)):
        path = store.clean_path(folder, digest, chosen.start)
        stored = read(path)["clean"]
        parts.append(store.as_texts(stored) if report.data.kind == "text" else stored)
        if len(parts[-1]) != len(chosen):
            raise Refuted(f"{path.name} must hold {len(chosen)} inputs, and holds {len(parts[-1])}")
    images = [part for part in parts if isinstance(part, np.ndarray)]
    if len({image.shape[1:] for image in images}) > 1:
        raise Refuted("the stored images are of different sizes")
    return np.concatenate(images) if images else [text for part in parts for text in part]


def _check_digest(report: Report, inputs: Inputs, target: Target) -> None:
    """Check that a model's inputs and the labels are those that the report names."""
    parts = [inputs_digest(inputs[c.start : c.stop]) for c in store.ranges(len(inputs))]
    whole = store.digest_of(parts)
    labels = [sample.label for sample in report.samples]
    known = [label for label in labels if label is not None]
    if known and len(known) < len(labels):
        raise Refuted("some samples have labels, and others have none")
    digest = store.content_digest(np.array([whole], dtype="S64"), np.array(known, np.int64))
    if digest != report.data.digest:
        raise Refuted(
            f"the stored inputs of {target.name} or the labels are not those that the report was "
            "made of"
        )


def _check_source(report: Report, target: Target, clean: Inputs, data: str) -> None:
    """Compare stored inputs and labels with a data set, sample by sample."""
    opened = open_images if isinstance(target, ImageTarget) else open_texts
    source = opened(data, label_names=list(target.labels))
    part = source.take(_places(report, source))
    labels = [None] * len(part) if part.labels is None else part.labels.tolist()
    for sample, label in zip(report.samples, labels, strict=True):
        if sample.label is not None and sample.label != label:
            raise Refuted(f"input {sample.index + 1} ({sample.name}) has another label in the data")
    for row, sample in enumerate(report.samples):
        if not _same(part.take([row]), target, clean[row]):
            raise Refuted(f"input {row + 1} ({sample.name}) is another one in the data")


def _places(report: Report, source: ImageSet | TextSet) -> list[int]:
    """Where each sample of the report is in the data set: found by name, or by place."""
    names = [plain(name) for name in source.names]
    if [sample.name for sample in report.samples] == names:
        return list(range(len(names)))
    known = {name: index for index, name in enumerate(names)}
    if len(known) < len(names):
        raise Refuted("several inputs of the data have one name, so that a part cannot be found")
    missing = next((s.name for s in report.samples if s.name not in known), None)
    if missing is not None:
        raise Refuted(f"the data have no input {missing}")
    return [known[sample.name] for sample in report.samples]


def _same(part: ImageSet | TextSet, target: Target, stored: np.ndarray | str) -> bool:
    if isinstance(part, TextSet):
        return part.read(0) == stored
    if not isinstance(target, ImageTarget):
        return False
    return bool(np.array_equal(load_inputs(part, target.image_spec)[0], stored))
