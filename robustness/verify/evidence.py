"""The files that a report rests on, read with suspicion."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from robustness import store as shards
from robustness.attack_spec import AttackSpec
from robustness.attacks.word_swap import swap_words
from robustness.context import inputs_digest
from robustness.image_cells import adversarial_inputs
from robustness.parsing import parse_eps
from robustness.report.schema import Report
from robustness.scoring import TOLERANCE, BoundsError, change_size, check_bounds
from robustness.store import Shard
from robustness.target import Target
from robustness.text_target import TextTarget
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
    first_target: Target | TextTarget,
    inputs: Inputs,
    target: Target | TextTarget,
) -> None:
    """Check that two models were judged on the same inputs, where both read them alike.

    Raises:
        Refuted: they were not.
    """
    if isinstance(first_target, Target) and isinstance(target, Target):
        alike = first_target.image_spec == target.image_spec
        same = not alike or np.array_equal(np.asarray(first), np.asarray(inputs))
    else:
        same = first == inputs
    if not same:
        raise Refuted(f"{target.name} was judged on other inputs than {first_target.name}")


def changed_images(
    folder: Path, shard: Shard, point: str, clean: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """The adversarial images of some rows of a range.

    Args:
        folder: of the evaluation.
        shard: what made them.
        point: the radius, as the spec spells it.
        clean: (n, C, H, W) the whole range.
        rows: positions within it.

    Raises:
        Refuted: their file is missing, damaged, or holds what the attack was not allowed to make.
    """
    path = shard.path(folder)
    stored = shards.read(path)
    try:
        if stored is None:
            raise Refuted(f"{path.name} is missing or damaged")
        found = adversarial_inputs(stored, clean, shard.part, point)
        if found.shape != clean.shape or found.dtype != np.float32:
            raise Refuted(f"{path.name} must hold float32 {clean.shape}, got {found.shape}")
        check_bounds(clean, found, norm=shard.part.ball, eps=shard.part.radius(point))
    except BoundsError as error:
        raise Refuted(f"{path.name}: {error}") from error
    except (KeyError, ValueError) as error:
        raise Refuted(f"{path.name} does not hold what it should") from error
    return found[rows]


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
    distance, images = (_tensor(path, name) for name in ("nearest", "minimal"))
    if distance.shape != clean.shape[:1] or images.shape != clean.shape:
        raise Refuted(f"{path.name} does not hold what it should")
    found = np.isfinite(distance)
    size = change_size(clean, images, shard.part.ball)
    if not np.allclose(distance[found], size[found], rtol=1e-6, atol=TOLERANCE):
        raise Refuted(f"{path.name} tells other distances than those of its images")
    return distance[rows]


def changed_texts(
    folder: Path, shard: Shard, target: TextTarget, clean: Sequence[str], seeds: Sequence[int]
) -> list[str]:
    """The changed texts of a range.

    Args:
        folder: of the evaluation.
        shard: what made them.
        target: the model.
        clean: the texts of the range.
        seeds: of the attack's draws, one for each.

    Raises:
        Refuted: their file is missing, damaged, or holds what the attack was not allowed to make.
    """
    path = shard.path(folder)
    try:
        found = shards.as_texts(_tensor(path, "texts"))
    except ValueError as error:
        raise Refuted(f"{path.name} does not hold texts") from error
    if len(found) != len(clean):
        raise Refuted(f"{path.name} must hold {len(clean)} texts, and holds {len(found)}")
    for row, (before, after, seed) in enumerate(zip(clean, found, seeds, strict=True)):
        if before != after and not _allowed(target, shard.part, shard.point, before, after, seed):
            raise Refuted(
                f"{path.name}: text {shard.start + row + 1} is changed by more than "
                f"{shard.attack} may at {shard.point}"
            )
    return found


def _allowed(
    target: TextTarget, attack: AttackSpec, point: str, before: str, after: str, seed: int
) -> bool:
    if attack.name == "word-swap":
        return after == swap_words(before, rate=parse_eps(point, name="rate"), seed=seed)
    if target.relabel is not None:
        # An expression has a digit more or less after some edits, and its label is recomputed.
        return abs(len(before.split()) - len(after.split())) <= int(point)
    if attack.name == "typos":
        return _differences(before.split(), after.split()) <= int(point)
    old, new = (target.encode([text])[0][0].tolist() for text in (before, after))
    return _differences(old, new) <= int(point)


def _differences(old: Sequence[object], new: Sequence[object]) -> int:
    """Places at which two sequences differ; all of them where their lengths do."""
    if len(old) != len(new):
        return max(len(old), len(new))
    return sum(a != b for a, b in zip(old, new, strict=True))


def _tensor(path: Path, name: str) -> np.ndarray:
    stored = shards.read(path)
    if stored is None or name not in stored:
        raise Refuted(f"{path.name} is missing or damaged")
    return stored[name]
