"""One chunk of inputs of one model, through every attack: the unit of work of an evaluation.

What it finds is written as files, and files of an earlier attempt are used: a range may be begun by
one process, ended by another and done twice without harm.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from robustness import store as shards
from robustness.attacking import judge_cell, parts
from robustness.attacks.base import Role, input_seed
from robustness.context import (
    Block,
    Trial,
    inputs_digest,
    read_verdict,
    surroundings,
    write_verdict,
)
from robustness.sanity.diagnostics import Diagnostics, diagnostics_cost
from robustness.sanity.measure import measure_images, measure_texts
from robustness.scoring import (
    AttackVerdict,
    CellVerdict,
    CertificateVerdict,
    CleanVerdict,
    CorruptionVerdict,
    judge_clean,
)
from robustness.spec import CLEAN_EVALUATIONS, Cell, cell_cost
from robustness.store import Shard
from robustness.target import ImageTarget, Target

KINDS: dict[Role, type[CellVerdict]] = {
    "attack": AttackVerdict,
    "corruption": CorruptionVerdict,
    "certificate": CertificateVerdict,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One range of inputs of one model.

    Attributes:
        model: position of the model in the evaluation.
        start: index of the first input.
        inputs: (n, C, H, W) float32, or n texts.
        labels: (n,) int64, or None where the model's own predictions stand in.
    """

    model: int
    start: int
    inputs: np.ndarray | list[str]
    labels: np.ndarray | None


def chunk_steps(trial: Trial, chunk: Chunk) -> Iterator[None]:
    """Do everything that the spec asks for on one chunk; yields after each finished file.

    Raises:
        Cancelled: the caller wants to stop; finished files stay.
    """
    block = _judge_clean(trial, chunk)
    if chunk.start == 0:
        yield
        _diagnose(trial, block)
    yield
    for cell in trial.spec.cells:
        with trial.meter.allot(len(chunk.inputs) * _cost(trial, cell)):
            if read_cell(trial, block, cell) is None:
                write_verdict(trial, judge_cell(trial, block, cell), block, cell)
        yield


def is_done(trial: Trial, chunk: Chunk) -> bool:
    """Whether everything that `chunk_steps` would write is there already."""
    block = read_block(trial, chunk.start, inputs_digest(chunk.inputs), chunk.labels)
    if block is None or (chunk.start == 0 and read_diagnostics(trial, block) is None):
        return False
    return all(read_cell(trial, block, cell) is not None for cell in trial.spec.cells)


def chunk_cost(trial: Trial, chunk: Chunk) -> int:
    """Model evaluations of a range, at most."""
    each = CLEAN_EVALUATIONS + sum(_cost(trial, cell) for cell in trial.spec.cells)
    return len(chunk.inputs) * each + (
        0 if chunk.start else _diagnostics_cost(trial, len(chunk.inputs))
    )


def read_diagnostics(trial: Trial, block: Block) -> Diagnostics | None:
    """Its diagnostics, if they are stored.

    Args:
        trial: the model's part of the evaluation.
        block: the first range of inputs.
    """
    stored = shards.read(
        shards.diagnostics_path(trial.folder, trial.target.digest),
        _diagnostics_identity(trial, block),
    )
    if stored is None or set(stored) != {field.name for field in fields(Diagnostics)}:
        return None
    return Diagnostics(**stored)


def read_block(trial: Trial, start: int, digest: str, labels: np.ndarray | None) -> Block | None:
    """The stored verdict on a range of clean inputs, without the inputs; None if it must be made.

    Args:
        trial: the model's part of the evaluation.
        start: index of the first input.
        digest: sha256 of the inputs.
        labels: their labels, if there are any.
    """
    path = shards.clean_path(trial.folder, trial.target.digest, start)
    stored = shards.read(path, _clean_identity(trial, digest, labels))
    if stored is None:
        return None
    verdict = CleanVerdict(**{field.name: stored[field.name] for field in fields(CleanVerdict)})
    return Block(start=start, inputs=[], digest=digest, clean=verdict)


def read_cell(trial: Trial, block: Block, cell: Cell, *, check: bool = True) -> CellVerdict | None:
    """The stored verdict on a cell, if the shards it speaks of are there, too.

    Args:
        trial: the model's part of the evaluation.
        block: the range.
        cell: the attack and its point.
        check: read those shards, to see that they are whole.
    """
    verdict = read_verdict(trial, KINDS[cell.attack.info.role], block, cell)
    if verdict is None or not isinstance(verdict, AttackVerdict) or not check:
        return verdict
    paths = [shard.path(trial.folder) for shard in cell_shards(trial.target, block.start, cell)]
    return verdict if all(shards.read(path) is not None for path in paths) else None


def cell_shards(target: Target, start: int, cell: Cell) -> list[Shard]:
    """The shards that the verdict on an attack rests on, in the order of its parts.

    Args:
        target: the model.
        start: index of the first input of the range.
        cell: the attack and its point.
    """
    return [
        Shard(
            model=target.digest,
            attack=cell.attack.label,
            part=part,
            budget=part.searched(cell.budget),
            variant=variant,
            start=start,
        )
        for part, variant in parts(target, cell.attack)
    ]


def _cost(trial: Trial, cell: Cell) -> int:
    return cell_cost(cell.attack, trial.num_classes, trial.target.elliptical)


def _judge_clean(trial: Trial, chunk: Chunk) -> Block:
    """Judge a range of clean inputs, and store them for pictures and for a later replay."""
    digest = inputs_digest(chunk.inputs)
    last = chunk.start + len(chunk.inputs)
    trial.say(f"clean inputs {chunk.start + 1} to {last}")
    with trial.meter.allot(CLEAN_EVALUATIONS * len(chunk.inputs)):
        known = read_block(trial, chunk.start, digest, chunk.labels)
        verdict = known.clean if known is not None else _clean_verdict(trial, chunk)
    if known is None:
        tensors = {field.name: getattr(verdict, field.name) for field in fields(CleanVerdict)}
        tensors["clean"] = shards.as_array(chunk.inputs)
        path = shards.clean_path(trial.folder, trial.target.digest, chunk.start)
        shards.write(path, tensors, _clean_identity(trial, digest, chunk.labels))
    return Block(start=chunk.start, inputs=chunk.inputs, digest=digest, clean=verdict)


def _diagnose(trial: Trial, block: Block) -> None:
    """Measure diagnostics on the first chunk, and store them."""
    trial.say("running sanity checks")
    with trial.meter.allot(_diagnostics_cost(trial, len(block.inputs))):
        if read_diagnostics(trial, block) is None:
            path = shards.diagnostics_path(trial.folder, trial.target.digest)
            shards.write(path, asdict(_asked(trial, block)), _diagnostics_identity(trial, block))


def _asked(trial: Trial, block: Block) -> Diagnostics:
    target = trial.target
    if not isinstance(target, ImageTarget):
        return measure_texts(target, block.texts, meter=trial.meter)
    return measure_images(
        target,
        block.images,
        block.clean.label,
        seed=input_seed(trial.spec.seed, "probe", b""),
        meter=trial.meter,
        gradients=trial.spec.uses_gradients,
    )


def _diagnostics_cost(trial: Trial, samples: int) -> int:
    return diagnostics_cost(samples, on_texts=trial.spec.on_texts)


def _diagnostics_identity(trial: Trial, block: Block) -> dict[str, Any]:
    labels = block.clean.label
    return _clean_identity(trial, block.digest, labels) | {
        "gradients": trial.spec.uses_gradients,
        "seed": trial.spec.seed,
    }


def _clean_identity(trial: Trial, digest: str, labels: np.ndarray | None) -> dict[str, Any]:
    return surroundings(trial) | {
        "inputs": digest,
        "labels": None if labels is None else labels.tolist(),
    }


def _clean_verdict(trial: Trial, chunk: Chunk) -> CleanVerdict:
    target = trial.target
    served = target.predict(chunk.inputs, trial.meter)
    label = (served.argmax(axis=1) if chunk.labels is None else chunk.labels).astype(np.int64)
    twin, blind = target.ask_clean(chunk.inputs, label, served, trial.meter)
    # A second answer is asked once, not counted: it would cost every evaluation for a rare fault.
    again = target.predict(chunk.inputs) if chunk.start == 0 else served
    return judge_clean(served, again, twin, chunk.labels, blind)
