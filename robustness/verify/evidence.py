"""The files that a report rests on, read with suspicion."""

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from data.sources import ImageSet, load_inputs, open_images, open_texts
from data.text_set import TextSet
from robustness import store as shards
from robustness.attacking import stored_batch
from robustness.attacks.base import TOLERANCE, Batch, Budget
from robustness.chunks import KINDS
from robustness.context import inputs_digest
from robustness.report.schema import Report, plain
from robustness.sanity.diagnostics import Diagnostics
from robustness.scoring import CleanResult, ModelResult, ShardResult, join
from robustness.store import Shard
from robustness.target import ImageTarget, Target
from robustness.text_target import TextTarget
from robustness.verify.outcome import Refuted

Inputs = np.ndarray | list[str]
T = TypeVar("T", CleanResult, Diagnostics, ShardResult)


def stored_result(folder: Path, report: Report, target: Target) -> ModelResult:
    """One model's results, whoever made its files: they are compared with what the model gives.

    Raises:
        Refuted: a file is missing, damaged, or speaks of another number of samples.
    """
    starts = [chosen.start for chosen in shards.ranges(len(report.samples))]
    clean_paths = [shards.clean_path(folder, target.digest, start) for start in starts]
    cells: list[ShardResult] = []
    for cell in report.spec.cells:
        kind = KINDS[cell.attack.info.role]
        paths = [shards.result_path(folder, target.digest, cell, start) for start in starts]
        cells.append(join([_read(path, kind) for path in paths]))
    result = ModelResult(
        target=target,
        clean=join([_read(path, CleanResult) for path in clean_paths]),
        cells=cells,
        inputs_digest="",
        diagnostics=_read(shards.diagnostics_path(folder, target.digest), Diagnostics),
    )
    if any(size != len(report.samples) for size in _sizes(result)):
        raise Refuted(f"the results of {target.name} speak of another number of inputs")
    return result


def check_labels(report: Report, result: ModelResult) -> None:
    """Check that stored results are about the labels of a report, or the model's own predictions.

    Raises:
        Refuted: they are about others.
    """
    own = result.clean.index.tolist()
    labels = [o if s.label is None else s.label for s, o in zip(report.samples, own, strict=True)]
    if not np.array_equal(result.clean.label, labels):
        raise Refuted(f"the results of {result.target.name} are about other labels")
    if not np.isin(labels, range(len(result.target.labels))).all():
        raise Refuted(f"a label of {result.target.name} is not a class")


def clean_inputs(folder: Path, report: Report, digest: str) -> Inputs:
    """All clean inputs of one model, from its files.

    Args:
        folder: of the evaluation.
        report: what is checked.
        digest: of the model.

    Raises:
        Refuted: a file is missing, damaged or of another size.
    """
    texts: list[str] = []
    images: list[np.ndarray] = []
    for chosen in shards.ranges(len(report.samples)):
        path = shards.clean_path(folder, digest, chosen.start)
        stored = _tensor(path, "clean")
        found = shards.as_texts(stored) if report.data.kind == "text" else stored
        if len(found) != len(chosen):
            raise Refuted(f"{path.name} must hold {len(chosen)} inputs, and holds {len(found)}")
        if isinstance(found, np.ndarray):
            images.append(found)
        else:
            texts += found
    if len({image.shape[1:] for image in images}) > 1:
        raise Refuted("the stored images are of different sizes")
    return np.concatenate(images) if images else texts


def check_digest(report: Report, inputs: Inputs) -> None:
    """Check that the first model's inputs and the labels are those that the report names.

    Raises:
        Refuted: they are others.
    """
    parts = [inputs_digest(inputs[c.start : c.stop]) for c in shards.ranges(len(inputs))]
    whole = shards.content_digest(np.array(parts, dtype="S64"))
    labels = [sample.label for sample in report.samples]
    known = [label for label in labels if label is not None]
    if known and len(known) < len(labels):
        raise Refuted("some samples have labels, and others have none")
    digest = shards.content_digest(np.array([whole], dtype="S64"), np.array(known, np.int64))
    if digest != report.data.digest:
        raise Refuted("the stored inputs or the labels are not those that the report was made of")


def check_same(first: Inputs, first_target: Target, inputs: Inputs, target: Target) -> None:
    """Check that two models were evaluated on the same inputs, where both read them alike.

    Raises:
        Refuted: they were not.
    """
    if isinstance(first_target, ImageTarget) and isinstance(target, ImageTarget):
        alike = first_target.image_spec == target.image_spec
        same = not alike or np.array_equal(np.asarray(first), np.asarray(inputs))
    else:
        same = first == inputs
    if not same:
        raise Refuted(f"{target.name} was evaluated on other inputs than {first_target.name}")


def changed_inputs(
    folder: Path, shard: Shard, target: Target, clean: Batch, budget: Budget, seed: int
) -> Batch:
    """The adversarial inputs of a chunk; an edit of an expression changes its label.

    Args:
        folder: of the evaluation.
        shard: what made them.
        target: the model.
        clean: the whole range.
        budget: what could be spent.
        seed: of the evaluation.

    Raises:
        Refuted: their file is missing, damaged, or holds what the attack was not allowed to make.
    """
    path = shard.path(folder)
    stored = shards.read(path)
    if stored is None:
        raise Refuted(f"{path.name} is missing or damaged")
    try:
        found = stored_batch(stored, clean, budget)
        _check_form(path, clean, found)
        seeds = shard.part.seeds(seed, budget, clean.inputs)
        allowed = shard.part.allowed(clean, found, budget, target=target, seeds=seeds)
    except (KeyError, TypeError, ValueError) as error:
        raise Refuted(f"{path.name} does not hold what it should") from error
    if not allowed.all():
        row = int(np.flatnonzero(~allowed)[0])
        raise Refuted(
            f"{path.name}: {target.reads} {shard.start + row + 1} is changed by more than "
            f"{shard.attack} may at {budget.text}"
        )
    relabel = target.relabel if isinstance(target, TextTarget) else None
    if relabel is None:
        return replace(found, labels=clean.labels)
    own = [relabel(text) for text in found.texts]
    labels = [old if new is None else new for old, new in zip(clean.labels, own, strict=True)]
    return replace(found, labels=np.array(labels, np.int64))


def _check_form(path: Path, clean: Batch, found: Batch) -> None:
    if len(found.inputs) != len(clean.inputs):
        raise Refuted(f"{path.name} must hold {len(clean.inputs)}, and holds {len(found.inputs)}")
    if isinstance(clean.inputs, np.ndarray):
        images = found.images
        if images.shape != clean.images.shape or images.dtype != np.float32:
            raise Refuted(f"{path.name} must hold float32 {clean.images.shape}")


def nearest_distances(folder: Path, shard: Shard, clean: Batch, rows: np.ndarray) -> np.ndarray:
    """Distances (len(rows),) of the nearest adversarial images of a chunk; inf where there is none.

    Args:
        folder: of the evaluation.
        shard: of a minimum-norm attack.
        clean: the whole chunk.
        rows: positions within it.

    Raises:
        Refuted: the file is missing or damaged, or its images lie at other distances.
    """
    path = shard.path(folder)
    distance, images = (_tensor(path, name) for name in ("nearest", "adversarial"))
    if distance.shape != clean.labels.shape or images.shape != clean.images.shape:
        raise Refuted(f"{path.name} does not hold what it should")
    found = np.isfinite(distance)
    size = shard.part.size(clean, replace(clean, inputs=images), shard.budget)
    if not np.allclose(distance[found], size[found], rtol=1e-6, atol=TOLERANCE):
        raise Refuted(f"{path.name} tells other distances than those of its images")
    return distance[rows]


def check_source(report: Report, target: Target, clean: Inputs, data: str) -> None:
    """Compare stored inputs and labels with a data set, sample by sample.

    Args:
        report: names and labels of the samples.
        target: the model, which says how images become inputs.
        clean: the stored inputs.
        data: the data set, as `evaluate --data` takes it.

    Raises:
        Refuted: one differs, or is not there.
        ValueError: the data set cannot be opened.
    """
    opened = open_images if isinstance(target, ImageTarget) else open_texts
    source = opened(data, label_names=list(target.labels))
    places = _places(report, source)
    part = source.take(places)
    for sample, label in zip(report.samples, _labels(part), strict=True):
        if sample.label is not None and sample.label != label:
            raise Refuted(f"input {sample.index + 1} ({sample.name}) has another label in the data")
    for start in range(0, len(part), 64):
        rows = range(start, min(start + 64, len(part)))
        for row, same in zip(rows, _same(part.take(rows), target, clean, rows), strict=True):
            if not same:
                name = report.samples[row].name
                raise Refuted(f"input {row + 1} ({name}) is another one in the data")


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


def _labels(part: ImageSet | TextSet) -> list[int | None]:
    return [None] * len(part) if part.labels is None else part.labels.tolist()


def _same(part: ImageSet | TextSet, target: Target, clean: Inputs, rows: range) -> list[bool]:
    stored = clean[rows.start : rows.stop]
    if isinstance(part, TextSet):
        return [text == before for text, before in zip(part, stored, strict=True)]
    if not isinstance(target, ImageTarget):
        return [False] * len(part)
    loaded = load_inputs(part, target.image_spec)
    return [bool(np.array_equal(a, b)) for a, b in zip(loaded, stored, strict=True)]


def take(inputs: Inputs, rows: np.ndarray) -> Inputs:
    """Some of the inputs."""
    return inputs[rows] if isinstance(inputs, np.ndarray) else [inputs[row] for row in rows]


def _read(path: Path, kind: type[T]) -> T:
    stored = shards.read(path)
    names = [field.name for field in fields(kind)]
    if stored is None or not set(names) <= set(stored):
        raise Refuted(f"{path.name} is missing or damaged")
    return kind(**{name: stored[name] for name in names})


def _sizes(result: ModelResult) -> Iterator[int]:
    for part in (result.clean, *result.cells):
        for field in fields(part):
            yield np.shape(getattr(part, field.name))[-1]


def _tensor(path: Path, name: str) -> np.ndarray:
    stored = shards.read(path)
    if stored is None or name not in stored:
        raise Refuted(f"{path.name} is missing or damaged")
    return stored[name]
