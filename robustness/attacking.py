"""One attack, corruption, certificate or proof on one range of inputs: run, stored, and scored."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from core.environment import code_digest, versions
from robustness import store as shards
from robustness.attacks.base import Attack, Batch, Budget, Search
from robustness.attacks.minimal import within
from robustness.certificates.base import Certificate, Proof
from robustness.kinds import Variant
from robustness.progress import Meter
from robustness.results import (
    AttackResult,
    CertificateResult,
    CleanResult,
    CorruptionResult,
    ProofResult,
    Scoring,
    ShardResult,
    parts_of,
)
from robustness.scoring import ask, combine, score
from robustness.spec import Cell, EvaluationSpec
from robustness.store import Shard
from robustness.target import Target

_LIBRARIES = ("torch", "torchattacks", "numpy", "scipy", "onnxruntime")
_WAY = {"plain": "", "stopped": ", gradients stopped at m", "full": ", gradients through m"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationContext:
    """One model's part of an evaluation.

    Attributes:
        spec: what was asked for.
        target: the model.
        folder: where shards go.
        meter: told of every model evaluation.
        threads: of torch and of the runtime; results depend on them to the last bits.
    """

    spec: EvaluationSpec
    target: Target
    folder: Path
    meter: Meter
    threads: int

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.target.labels)

    @property
    def in_full(self) -> bool:
        """Whether fooled inputs are attacked to the end: at the border, rounding decides."""
        several = self.target.task.answer != "class"  # of pixels or tokens some are always right
        return self.target.rounds or several or self.spec.in_full(self.num_classes)

    def say(self, stage: str) -> None:
        """Name what is running."""
        self.meter.stage = f"{self.target.name}: {stage}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One range of inputs, scored as they are and ready to be attacked.

    Attributes:
        start: index of the first input.
        inputs: (n, C, H, W) float32, or n texts.
        digest: sha256 of the inputs.
        clean: the result on them.
    """

    start: int
    inputs: np.ndarray | list[str]
    digest: str
    clean: CleanResult

    @property
    def batch(self) -> Batch:
        """The inputs with their labels."""
        return Batch(inputs=self.inputs, labels=self.clean.label)


def inputs_digest(inputs: np.ndarray | Sequence[str]) -> str:
    """sha256 of a range of inputs."""
    if isinstance(inputs, np.ndarray):
        return shards.content_digest(inputs)
    whole = "\0".join(inputs).encode("utf-8", "surrogatepass")
    return hashlib.sha256(f"{len(inputs)}:".encode() + whole).hexdigest()


def identity(
    context: EvaluationContext, block: Block, attack: Attack, budget: Budget
) -> dict[str, Any]:
    """Everything that the bytes of a shard or a result depend on, as JSON values."""
    return surroundings(context) | {
        "attack": attack.model_dump(mode="json"),
        "in_full": context.in_full,
        "inputs": block.digest,
        "labels": shards.of_labels(block.clean.label),
        "point": budget.text,
        "seed": context.spec.seed,
        "start": block.start,
    }


def surroundings(context: EvaluationContext) -> dict[str, Any]:
    """What the bytes of everything depend on: the model, and what it and the attacks run on."""
    runtime = context.target.runtime
    return {
        "code": code_digest(),
        "model": context.target.digest,
        "runtime": [runtime.name, runtime.precision],
        "threads": context.threads,
        "versions": versions(_LIBRARIES),
    }


def score_shard(context: EvaluationContext, block: Block, cell: Cell) -> ShardResult:
    """Run what the spec asks for at one budget on one range of inputs, and score it."""
    if isinstance(cell.attack, Certificate):
        return _certify(context, block, cell, cell.attack)
    if isinstance(cell.attack, Proof):
        return _prove(context, block, cell, cell.attack)
    if cell.attack.info.role == "corruption":
        return _corrupt(context, block, cell)
    return _attack(context, block, cell)


def cell_shards(target: Target, start: int, cell: Cell) -> list[Shard]:
    """The shards that the result on an attack rests on, in the order of its parts.

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
        for part, variant in parts_of(target, cell.attack)
    ]


def stored_batch(stored: dict[str, np.ndarray], clean: Batch, budget: Budget) -> Batch:
    """The adversarial inputs that a shard holds, for one budget.

    A shard of the nearest adversarial inputs serves every radius: what lies outside is not used.

    Raises:
        KeyError: the shard lacks what it should hold.
    """
    if "texts" in stored:
        inputs = shards.as_inputs(stored["texts"])
        return Batch(inputs=inputs, labels=stored["labels"], found={"edits": stored["edits"]})
    inputs = stored["adversarial"]
    if "nearest" in stored:
        inputs = within(inputs, stored["nearest"], clean.images, budget.value)
    return Batch(inputs=inputs, labels=clean.labels)


def _attack(context: EvaluationContext, block: Block, cell: Cell) -> AttackResult:
    """Attack in every part and gradient variant.

    AutoAttack's parts run one after another on what still holds: an input leaves when PyTorch model
    and served model are fooled. Gradient variants do not share their successes, so that each
    has a figure of its own; parts without gradients work on what holds under any of them.
    """
    target, batch = context.target, block.batch
    held: dict[Variant, np.ndarray] = {v: block.clean.rank == 0 for v in target.variants}
    scorings: list[Scoring] = []
    nearest: list[np.ndarray] = []
    made_by = cell_shards(target, block.start, cell)
    for shard in made_by:
        part, variant = shard.part, shard.variant
        touched: list[Variant] = list(held) if variant == "plain" else [variant]
        active = np.logical_or.reduce([held[name] for name in touched]) | context.in_full
        _say(context, block, f"{part.label} {cell.budget.text}{_WAY[variant]}")
        stored = _made(context, block, shard, active)
        found = stored_batch(stored, batch, cell.budget)
        with context.meter.allot(part.scorings * len(block.inputs)):
            size = part.size(batch, found, cell.budget)
            answers = ask(target, found.inputs, context.meter, in_8bit=part.in_8bit)
            scored = score(target.task, answers, found.labels, size)
        fooled = (scored.torch_rank > 0) & (scored.served_rank > 0)
        for name in touched:
            held[name] = held[name] & ~fooled
        scorings.append(scored)
        if "nearest" in stored:
            nearest.append(stored["nearest"])
    variants: list[Variant] = [shard.variant for shard in made_by]
    near = np.minimum.reduce(nearest) if nearest else None
    return combine(block.clean, scorings, variants, near, keeps=target.task.keeps)


def _made(
    context: EvaluationContext, block: Block, shard: Shard, active: np.ndarray
) -> dict[str, np.ndarray]:
    """What a shard holds, made unless it was before; `active` (n,) bool says what is attacked."""
    rows = np.flatnonzero(active)
    known = identity(context, block, shard.part, shard.budget) | {
        "variant": shard.variant,
        "active": rows.tolist(),
    }
    path = shard.path(context.folder)
    with context.meter.allot(len(block.inputs) * shard.part.cost(context.num_classes)):
        stored = shards.read(path, known)
        if stored is None:
            context.meter.before()
            found = _run(context, block, shard.part, shard.budget, shard.variant, rows)
            shards.write(path, _tensors(found), known)
            stored = shards.read(path, known)
    if stored is None:
        raise OSError("a shard that was just written cannot be read back")
    return stored


def _run(
    context: EvaluationContext,
    block: Block,
    part: Attack,
    budget: Budget,
    variant: Variant,
    rows: np.ndarray,
) -> Batch:
    """Attack some rows of a block; the others come back unchanged."""
    everything = block.batch
    seeds = part.seeds(context.spec.seed, budget, block.inputs)
    search = Search(
        seeds=[seeds[row] for row in rows],
        variant=variant,
        leave=not context.in_full,
        meter=context.meter,
    )
    made = part.run(context.target, everything.take(rows), budget, search)
    inputs, labels = block.inputs.copy(), everything.labels.copy()
    for row, one in zip(rows, made.inputs, strict=True):
        inputs[row] = one
    labels[rows] = made.labels
    found = {name: _absent(name, block) for name in made.found}
    for name, values in made.found.items():
        found[name][rows] = values
    return Batch(inputs=inputs, labels=labels, found=found)


def _absent(name: str, block: Block) -> np.ndarray:
    """What is told of inputs that are not attacked: of the misclassified ones a distance of 0."""
    if name == "nearest":
        return np.where(block.clean.rank > 0, 0.0, np.inf)
    return np.zeros(len(block.inputs), np.int64)


def _tensors(found: Batch) -> dict[str, np.ndarray]:
    if isinstance(found.inputs, np.ndarray):
        return {"adversarial": found.inputs, **found.found}
    texts = {"texts": shards.as_array(found.inputs), "labels": found.labels}
    return texts | found.found


def _corrupt(context: EvaluationContext, block: Block, cell: Cell) -> CorruptionResult:
    """Corrupted images are not kept: they follow from seed and image alone."""
    _say(context, block, cell.budget.text)
    context.meter.before()
    rows = np.arange(len(block.inputs))
    corrupted = _run(context, block, cell.attack, cell.budget, "plain", rows)
    with context.meter.allot(len(block.inputs)):
        logits = context.target.predict(corrupted.inputs, context.meter)
    task = context.target.task
    return CorruptionResult(rank=task.rank(logits, block.clean.label), index=task.index(logits))


def _certify(
    context: EvaluationContext, block: Block, cell: Cell, certificate: Certificate
) -> CertificateResult:
    _say(context, block, f"{certificate.label} {cell.budget.text}")
    seeds = certificate.seeds(context.spec.seed, cell.budget, block.inputs)
    search = Search(seeds=seeds, meter=context.meter)
    with context.meter.allot(len(block.inputs) * certificate.cost(context.num_classes)):
        found = certificate.certify(context.target, block.batch, cell.budget, search)
    index, radius = found
    return CertificateResult(index=index, radius=radius)


def _prove(context: EvaluationContext, block: Block, cell: Cell, proof: Proof) -> ProofResult:
    _say(context, block, f"{proof.label} {cell.budget.text}")
    search = Search(seeds=[], meter=context.meter)
    with context.meter.allot(len(block.inputs) * proof.cost(context.num_classes)):
        return ProofResult(**proof.prove(context.target, block.batch, cell.budget, search))


def _say(context: EvaluationContext, block: Block, stage: str) -> None:
    context.say(f"{stage}, {context.target.reads} {block.start + len(block.inputs)}")
