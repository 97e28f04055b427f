"""The files that a report rests on, read with suspicion."""

from pathlib import Path

import numpy as np

from robustness import store as shards
from robustness.attacking import stored_batch
from robustness.attacks.base import TOLERANCE, Batch, Budget
from robustness.context import inputs_digest
from robustness.report.schema import Report
from robustness.store import Shard
from robustness.target import ImageTarget, Target
from robustness.verify.outcome import Refuted

Inputs = np.ndarray | list[str]


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


def check_same(
    first: Inputs,
    first_target: Target,
    inputs: Inputs,
    target: Target,
) -> None:
    """Check that two models were judged on the same inputs, where both read them alike.

    Raises:
        Refuted: they were not.
    """
    if isinstance(first_target, ImageTarget) and isinstance(target, ImageTarget):
        alike = first_target.image_spec == target.image_spec
        same = not alike or np.array_equal(np.asarray(first), np.asarray(inputs))
    else:
        same = first == inputs
    if not same:
        raise Refuted(f"{target.name} was judged on other inputs than {first_target.name}")


def changed_inputs(
    folder: Path, shard: Shard, target: Target, clean: Batch, budget: Budget, seed: int
) -> Batch:
    """The adversarial inputs of a range.

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
    return found


def _check_form(path: Path, clean: Batch, found: Batch) -> None:
    if len(found.inputs) != len(clean.inputs):
        raise Refuted(f"{path.name} must hold {len(clean.inputs)}, and holds {len(found.inputs)}")
    if isinstance(clean.inputs, np.ndarray):
        images = found.images
        if images.shape != clean.images.shape or images.dtype != np.float32:
            raise Refuted(f"{path.name} must hold float32 {clean.images.shape}")


def nearest_distances(
    folder: Path, shard: Shard, clean: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """Distances (len(rows),) of the nearest adversarial images of a range; inf where there is none.

    Args:
        folder: of the evaluation.
        shard: of a minimum-norm attack.
        clean: (n, C, H, W) the whole range.
        rows: positions within it.

    Raises:
        Refuted: the file is missing or damaged, or its images lie at other distances.
    """
    path = shard.path(folder)
    distance, images = (_tensor(path, name) for name in ("nearest", "adversarial"))
    if distance.shape != clean.shape[:1] or images.shape != clean.shape:
        raise Refuted(f"{path.name} does not hold what it should")
    found = np.isfinite(distance)
    size = shard.part.size(
        Batch(inputs=clean, labels=rows), Batch(inputs=images, labels=rows), shard.budget
    )
    if not np.allclose(distance[found], size[found], rtol=1e-6, atol=TOLERANCE):
        raise Refuted(f"{path.name} tells other distances than those of its images")
    return distance[rows]


def _tensor(path: Path, name: str) -> np.ndarray:
    stored = shards.read(path)
    if stored is None or name not in stored:
        raise Refuted(f"{path.name} is missing or damaged")
    return stored[name]
