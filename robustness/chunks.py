"""One chunk of inputs of one model, through every attack: the unit of work of an evaluation.

What it finds is written as files, and files of an earlier attempt are used: a range may be begun by
one process, ended by another and done twice without harm.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from robustness import store as shards
from robustness.attacking import (
    Block,
    EvaluationContext,
    cell_shards,
    identity,
    inputs_digest,
    score_shard,
    surroundings,
)
from robustness.attacks.base import Role, input_seed
from robustness.results import (
    AttackResult,
    CertificateResult,
    CleanResult,
    CorruptionResult,
    Diagnostics,
    ModelResult,
    ProofResult,
    ShardResult,
)
from robustness.sanity.measure import measure
from robustness.scoring import join, score_clean
from robustness.spec import CLEAN_EVALUATIONS, Cell, EvaluationSpec, cell_cost
from robustness.target import Target

T = TypeVar("T", CleanResult, Diagnostics, ShardResult)
KINDS: dict[Role, type[ShardResult]] = {
    "attack": AttackResult,
    "corruption": CorruptionResult,
    "certificate": CertificateResult,
    "proof": ProofResult,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One range of inputs of one model.

    Attributes:
        model: position of the model in the evaluation.
        start: index of the first input.
        inputs: (n, C, H, W) float32, or n texts.
        labels: (n,) int64, of a segmenter (n, H, W), or None where the model's own predictions
            stand in.
    """

    model: int
    start: int
    inputs: np.ndarray | list[str]
    labels: np.ndarray | None


def chunk_steps(context: EvaluationContext, chunk: Chunk) -> Iterator[None]:
    """Do everything that the spec asks for on one chunk; yields after each finished file.

    Raises:
        Cancelled: the caller wants to stop; finished files stay.
    """
    block = _score_clean(context, chunk)
    if chunk.start == 0:
        yield
        _diagnose(context, block)
    yield
    for cell in context.spec.cells:
        with context.meter.allot(len(chunk.inputs) * _cost(context, cell)):
            if _read_cell(context, block, cell) is None:
                path = shards.result_path(context.folder, context.target.digest, cell, block.start)
                found = asdict(score_shard(context, block, cell))
                shards.write(path, found, identity(context, block, cell.attack, cell.budget))
        yield


def is_done(context: EvaluationContext, chunk: Chunk) -> bool:
    """Whether everything that `chunk_steps` would write is there already."""
    block = _read_block(context, chunk, inputs_digest(chunk.inputs))
    if block is None or (chunk.start == 0 and _read_diagnostics(context, block) is None):
        return False
    return all(_read_cell(context, block, cell) is not None for cell in context.spec.cells)


def chunk_cost(context: EvaluationContext, chunk: Chunk) -> int:
    """Model evaluations of a range, at most."""
    each = CLEAN_EVALUATIONS + sum(_cost(context, cell) for cell in context.spec.cells)
    return len(chunk.inputs) * each + (
        0 if chunk.start else context.spec.diagnostics_cost(len(chunk.inputs))
    )


def _read_diagnostics(context: EvaluationContext, block: Block) -> Diagnostics | None:
    path = shards.diagnostics_path(context.folder, context.target.digest)
    return shards.load(path, Diagnostics, _diagnostics_identity(context, block))


def _read_block(context: EvaluationContext, chunk: Chunk, digest: str) -> Block | None:
    path = shards.clean_path(context.folder, context.target.digest, chunk.start)
    result = shards.load(path, CleanResult, _clean_identity(context, digest, chunk.labels))
    if result is None:
        return None
    return Block(start=chunk.start, inputs=chunk.inputs, digest=digest, clean=result)


def _read_cell(context: EvaluationContext, block: Block, cell: Cell) -> ShardResult | None:
    """The stored result on a cell, if the shards it speaks of are there, too, and whole."""
    path = shards.result_path(context.folder, context.target.digest, cell, block.start)
    kind = KINDS[cell.attack.info.role]
    result = shards.load(path, kind, identity(context, block, cell.attack, cell.budget))
    if not isinstance(result, AttackResult):
        return result
    paths = [shard.path(context.folder) for shard in cell_shards(context.target, block.start, cell)]
    return result if all(shards.read(path) is not None for path in paths) else None


def model_result(
    spec: EvaluationSpec, target: Target, chosen: Sequence[range], folder: Path
) -> ModelResult:
    """One model's results, from the files of some ranges of inputs, the first among them.

    Raises:
        Lost: a file is missing or damaged.
        KeyError: a file lacks what it should hold.
    """
    starts = [part.start for part in chosen]

    def joined(cell: Cell) -> ShardResult:
        """The result on one cell from all its ranges."""
        kind = KINDS[cell.attack.info.role]
        paths = [shards.result_path(folder, target.digest, cell, start) for start in starts]
        return join([shards.result(shards.whole(path), kind) for path in paths])

    clean: list[CleanResult] = []
    digests: list[str] = []
    for start in starts:
        stored = shards.whole(shards.clean_path(folder, target.digest, start))
        clean.append(shards.result(stored, CleanResult))
        digests.append(inputs_digest(shards.as_inputs(stored["clean"])))
    diagnostics = shards.whole(shards.diagnostics_path(folder, target.digest))
    return ModelResult(
        spec=spec,
        target=target,
        clean=join(clean),
        cells=[joined(cell) for cell in spec.cells],
        inputs_digest=shards.content_digest(np.array(digests, dtype="S64")),
        diagnostics=shards.result(diagnostics, Diagnostics),
    )


def _cost(context: EvaluationContext, cell: Cell) -> int:
    return cell_cost(cell.attack, context.num_classes, context.target.elliptical)


def _score_clean(context: EvaluationContext, chunk: Chunk) -> Block:
    """Score a range of clean inputs, and store them for pictures and for a later replay."""
    digest = inputs_digest(chunk.inputs)
    context.say(f"clean inputs {chunk.start + 1} to {chunk.start + len(chunk.inputs)}")
    with context.meter.allot(CLEAN_EVALUATIONS * len(chunk.inputs)):
        block = _read_block(context, chunk, digest)
        if block is None:
            result = _clean_result(context, chunk)
            block = Block(start=chunk.start, inputs=chunk.inputs, digest=digest, clean=result)
            tensors = asdict(result) | {"clean": shards.as_array(chunk.inputs)}
            path = shards.clean_path(context.folder, context.target.digest, chunk.start)
            shards.write(path, tensors, _clean_identity(context, digest, chunk.labels))
    return block


def _diagnose(context: EvaluationContext, block: Block) -> None:
    """Measure diagnostics on the first chunk, and store them."""
    context.say("running sanity checks")
    with context.meter.allot(context.spec.diagnostics_cost(len(block.inputs))):
        if _read_diagnostics(context, block) is None:
            found = measure(
                context.target,
                block.batch,
                seed=input_seed(context.spec.seed, "probe", b""),
                meter=context.meter,
                gradients=context.spec.uses_gradients,
            )
            path = shards.diagnostics_path(context.folder, context.target.digest)
            shards.write(path, asdict(found), _diagnostics_identity(context, block))


def _diagnostics_identity(context: EvaluationContext, block: Block) -> dict[str, Any]:
    return _clean_identity(context, block.digest, block.clean.label) | {
        "gradients": context.spec.uses_gradients,
        "seed": context.spec.seed,
    }


def _clean_identity(
    context: EvaluationContext, digest: str, labels: np.ndarray | None
) -> dict[str, Any]:
    return surroundings(context) | {
        "inputs": digest,
        "labels": shards.of_labels(labels),
    }


def _clean_result(context: EvaluationContext, chunk: Chunk) -> CleanResult:
    target = context.target
    served = target.predict(chunk.inputs, context.meter)
    label = (served.argmax(axis=1) if chunk.labels is None else chunk.labels).astype(np.int64)
    torch_model, blind = target.ask_clean(chunk.inputs, label, served, context.meter)
    # A second answer is asked once, not counted: it would cost every evaluation for a rare fault.
    again = target.predict_again(chunk.inputs, served) if chunk.start == 0 else served
    return score_clean(target.task, served, again, torch_model, label, blind)
