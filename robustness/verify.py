"""Check a report: its figures follow from the stored results, and these from the stored inputs."""

import math
import re
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from core.environment import code_digest
from core.files import find_by_digest
from data.masks import open_masks
from data.sets import IGNORED, Origin, TextSet
from data.sources import ImageSet, open_images, open_texts
from robustness import store
from robustness.chunks import model_result
from robustness.progress import Meter, Progress
from robustness.remote.target import Reported, runtime_of
from robustness.report.build import build_report, data_digest
from robustness.report.schema import FILE, ModelFigures, Report, parse_report, plain
from robustness.rescore import Outcome, Refuted, rescore
from robustness.results import ModelResult, parts_of
from robustness.target import Target, torch_threads
from robustness.text_target import open_model
from runtimes.artifact import MANIFEST, Artifact, open_artifact

ARTIFACTS = Path("artifacts")
_UNCHECKED = {"code", "created", "environment"}
_MAY_DIFFER = {"version", "runtime", "precision"}  # of the model that scores again
# What another version of the code may word otherwise; figures are the same in all of one schema.
_SENTENCES = set(
    (
        "definitions description finding findings headline message not_tried notes outcome reason "
        "title"
    ).split()
)
_SHOWN = 20

Inputs = np.ndarray | list[str]
Reach = Callable[[str, Artifact | None], Target]


def verify(
    path: Path,
    *,
    folders: Sequence[Path] | None = None,
    reach: Reach | None = None,
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
        reach: opens the endpoint that the user named, from what it shows and the local copy of its
            model, if there was one; for reports of endpoints.
        data: where the inputs came from, to be compared with the stored ones.
        limit: score so many inputs, drawn anew every time; all when not given.
        on_progress: called after every batch.

    Raises:
        OSError: there is no such report.
        ValueError: it is not a report, a model is not among the folders, or the user did not name
            the endpoint that a report is about: no report decides who is asked.
    """
    path = path / FILE if path.is_dir() else path
    report = parse_report(path.read_bytes())
    models = [_found(model, folders, reach) for model in report.summary.models]
    rows = _sample(len(report.samples), limit)
    outcome = Outcome(inputs=len(rows), notes=_notes(report, len(rows)))
    try:
        _check_models(report, models)
        threads = int(report.environment.get("threads", "1"))
        with torch_threads(threads):
            targets = [
                _opened(model, found, threads, outcome)
                for model, found in zip(report.summary.models, models, strict=True)
            ]
            labels = _labels(report)
            results = _stored_results(report, path.parent, targets, labels, outcome)
            meter = Meter(_cost(report, targets, len(rows)), on_progress=on_progress)
            for result in results:
                clean = _clean_inputs(path.parent, result, len(report.samples))
                _check_inputs(report, result, results[0], _truth(report, results, labels))
                if data is not None:
                    _check_source(report, result.target, clean, data)
                rescore(report, path.parent, result, clean, rows, meter, outcome)
    except (Refuted, store.Lost) as problem:
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


def _found(
    model: ModelFigures,
    folders: Sequence[Path] | None,
    reach: Reach | None,
) -> Artifact | Target:
    """What a report is about: an artifact, or the endpoint that the user named."""
    endpoint = model.endpoint
    if endpoint is None:
        return find_artifact(folders, model.digest, model.name)
    if reach is None:
        raise ValueError(
            f"{plain(model.name)!r} was asked at {plain(endpoint.url)}; name it with --target and "
            "--model to have it asked again"
        )
    copy = endpoint.surrogate
    found = None if copy is None else find_artifact(folders, copy["digest"], copy["name"])
    target = reach(endpoint.shows, found)
    now = runtime_of(target).facts()
    if (now["url"], now["model"]) != (endpoint.url, endpoint.model):
        raise ValueError(
            f"the report is about {plain(endpoint.model)} at {plain(endpoint.url)}, and --target "
            f"names {now['model']} at {now['url']}"
        )
    return target


def _opened(
    model: ModelFigures, found: Artifact | Target, threads: int, outcome: Outcome
) -> Target:
    """The target of a report's model; what an endpoint tells otherwise now becomes a note."""
    if isinstance(found, Artifact):
        return replace(open_model(found, threads=threads), name=model.name)
    then = model.endpoint
    told = runtime_of(found).facts()["told"]
    if then is not None and told != then.told:
        outcome.notes.append(f"the endpoint told {then.told} then, and {told} now")
    reported = Reported(runtime_of(found), {} if then is None else then.model_dump())
    # Its stored inputs lie under the digest of what it told then.
    return replace(found, name=model.name, digest=model.digest, endpoint=reported)


def find_artifact(folders: Sequence[Path] | None, digest: str, name: str) -> Artifact:
    """The artifact with a digest, in some folders or below; `artifacts` when none are given.

    Raises:
        ValueError: it is not there; `name` is what the message calls it.
    """
    roots = list(folders) if folders else [ARTIFACTS]
    if manifest := find_by_digest(roots, MANIFEST, digest):
        return open_artifact(manifest.parent)
    places = ", ".join(str(root) for root in roots)
    raise ValueError(
        f"no artifact in {places} has the digest {digest[:16]} of {name!r}; name its folder with "
        "--artifact"
    )


def _check_models(report: Report, models: Sequence[Artifact | Target]) -> None:
    """Check that models are called what they are called here, and can be asked."""
    # Torch ends the process when it shall start more threads than there can be.
    if not re.fullmatch("[1-9][0-9]{0,2}", report.environment.get("threads", "1"), re.ASCII):
        raise Refuted("the report speaks of an impossible number of threads")
    for model, found in zip(report.summary.models, models, strict=True):
        if isinstance(found, Target):  # which a service lists under a name of its own
            continue
        if model.name not in (found.name, f"{found.name}:{found.version}"):
            raise Refuted(f"the artifact of {model.name} is called {found.name}")
        if model.version != found.version and isinstance(found, Artifact):
            raise Refuted(f"{model.name} has the version {found.version}")
        if report.data.labels != [plain(label) for label in found.labels]:
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
        found.append(
            "the report was made by another version of the code, which may use other words: its "
            "sentences were not checked, its figures were"
        )
    if any(model.certificates for model in report.summary.models):
        found.append(
            "certificates were not computed again: nothing is stored of them; their draws follow "
            "from the seed, so that the same evaluation repeats them"
        )
    return found


def _cost(report: Report, targets: Sequence[Target], samples: int) -> int:
    """Model evaluations at most."""
    attacks = [cell.attack for cell in report.spec.cells if cell.attack.info.role == "attack"]
    again = sum(cell.attack.info.role in ("corruption", "proof") for cell in report.spec.cells)
    parts = (part for own in targets for each in attacks for part, _ in parts_of(own, each))
    return samples * (len(targets) * (1 + again) + sum(part.scorings for part in parts))


def _labels(report: Report) -> np.ndarray | None:
    """The labels (N,) of the samples; None where none were given."""
    known = [sample.label for sample in report.samples if sample.label is not None]
    if known and len(known) < len(report.samples):
        raise Refuted("some samples have labels, and others have none")
    return np.array(known, np.int64) if known else None


def _stored_results(
    report: Report,
    folder: Path,
    targets: Sequence[Target],
    labels: np.ndarray | None,
    outcome: Outcome,
) -> list[ModelResult]:
    """The stored results of every model, after the report was compared with them."""
    count = len(report.samples)
    try:
        results = [
            model_result(report.spec, target, store.ranges(count), folder) for target in targets
        ]
        parts = [part for result in results for part in (result.clean, *result.cells)]
        sizes = {size for part in parts for size in _counts(part)}
        if sizes != {count}:
            raise Refuted("the stored results speak of another number of inputs")
        outcome.refuted += _wrong_figures(report, results, _truth(report, results, labels))
    except (LookupError, OverflowError, TypeError, ValueError) as error:
        raise Refuted("the stored results do not hold what they should") from error
    return results


def _counts(part: Any) -> Iterator[int]:
    """Of how many inputs each array of a result speaks; masks begin with their sample."""
    for one in fields(part):
        if (found := getattr(part, one.name)) is not None:
            yield np.shape(found)[0 if one.name == "label" else -1]


def _truth(
    report: Report, results: Sequence[ModelResult], labels: np.ndarray | None
) -> np.ndarray | None:
    """The labels of a report; of models of no classes those that its results hold."""
    task = results[0].target.task
    own = task.answer != "class" and report.summary.metric == task.metric
    return results[0].clean.label if own else labels


def _wrong_figures(
    report: Report, results: Sequence[ModelResult], labels: np.ndarray | None
) -> Iterator[str]:
    """Each place where a report is not what its stored results give, in words."""
    names = [sample.name for sample in report.samples]
    data = report.data
    origin = Origin(name=data.name, split=data.split, source=data.source, classes=data.classes)
    rebuilt = build_report(
        results, names, labels, report.environment, origin, given=data.given or len(names)
    )
    own, again = (each.model_dump(exclude=_UNCHECKED) for each in (report, rebuilt))
    skip = _MAY_DIFFER if report.code == code_digest() else _MAY_DIFFER | _SENTENCES
    for place, was, should in _differences(own, again, "", skip):
        shown = [f"{v:.4f}" if isinstance(v, float) else str(v) for v in (was, should)]
        yield f"{place} is {shown[0]}, and the stored results give {shown[1]}"


def _differences(
    reported: Any, rebuilt: Any, place: str, skip: Set[str]
) -> Iterator[tuple[str, Any, Any]]:
    """Places where two trees differ, with what each has there; items by their own names."""
    if isinstance(reported, dict) and isinstance(rebuilt, dict):
        for key in dict.fromkeys([*rebuilt, *reported]):
            if key not in skip:
                at = f"{place}, {key}" if place else str(key)
                yield from _differences(reported.get(key), rebuilt.get(key), at, skip)
    elif isinstance(reported, list | tuple) and isinstance(rebuilt, list | tuple):
        if len(reported) != len(rebuilt):
            yield f"the length of {place}", len(reported), len(rebuilt)
            return
        for index, (one, other) in enumerate(zip(reported, rebuilt, strict=True), start=1):
            named = other if isinstance(other, dict) else {}
            words = [str(named[key]) for key in ("name", "eps", "severity") if key in named]
            at = f"{place} {' '.join(words) or index}"
            yield from _differences(one, other, at, skip)
    elif not _equal(reported, rebuilt):
        yield place, reported, rebuilt


def _equal(reported: Any, rebuilt: Any) -> bool:
    if isinstance(reported, float) and isinstance(rebuilt, float):
        return math.isclose(reported, rebuilt, rel_tol=1e-9, abs_tol=1e-12)
    return reported == rebuilt


def _check_inputs(
    report: Report, result: ModelResult, first: ModelResult, labels: np.ndarray | None
) -> None:
    """Check that a model's inputs and labels are those that the report names."""
    target = result.target
    alike = getattr(target, "image_spec", None) == getattr(first.target, "image_spec", None)
    if alike and data_digest(result, labels) != report.data.digest:
        raise Refuted(
            f"the stored inputs of {target.name} or the labels are not those that the report was "
            "made of"
        )
    own = result.clean.index if result.clean.label.ndim == 1 else result.clean.label
    if not np.array_equal(result.clean.label, own if labels is None else labels):
        raise Refuted(f"the results of {target.name} are about other labels")
    known = [*range(len(target.labels)), *([IGNORED] if result.clean.label.ndim > 1 else [])]
    if not np.isin(result.clean.label, known).all():
        raise Refuted(f"a label of {target.name} is not a class")


def _clean_inputs(folder: Path, result: ModelResult, count: int) -> Inputs:
    """All clean inputs of one model, from its files."""
    parts: list[Inputs] = []
    for chosen in store.ranges(count):
        path = store.clean_path(folder, result.target.digest, chosen.start)
        parts.append(store.as_inputs(store.whole(path)["clean"]))
        on_images = isinstance(parts[-1], np.ndarray)
        if on_images != (result.target.reads == "image") or len(parts[-1]) != len(chosen):
            raise Refuted(f"{path.name} must hold {len(chosen)} {result.target.reads}s")
    images = [part for part in parts if isinstance(part, np.ndarray)]
    if len({image.shape[1:] for image in images}) > 1:
        raise Refuted("the stored images are of different sizes")
    return np.concatenate(images) if images else [text for part in parts for text in part]


def _check_source(report: Report, target: Target, clean: Inputs, data: str) -> None:
    """Compare stored inputs and labels with a data set, sample by sample."""
    source = _opened_source(report, target, data)
    part = source.take(_places(report, source))
    labels = [None] * len(part) if part.labels is None else part.labels.tolist()
    for sample, label in zip(report.samples, labels, strict=True):
        if sample.label is not None and sample.label != label:
            raise Refuted(f"input {sample.index + 1} ({sample.name}) has another label in the data")
    for row, sample in enumerate(report.samples):
        [found] = target.load(part.take([row]))
        if not np.array_equal(found, clean[row]):
            raise Refuted(f"input {row + 1} ({sample.name}) is another one in the data")


def _opened_source(report: Report, target: Target, data: str) -> ImageSet | TextSet:
    labels = list(target.labels)
    if target.task.answer == "pixels":
        return open_masks(data, label_names=labels)
    opened = open_texts if target.reads == "text" else open_images
    return opened(data, label_names=labels or None, class_map=report.spec.class_map)


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
