"""One attack, corruption or certificate on one range of inputs: run, stored, and scored."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from robustness import store as shards
from robustness.attacks.base import Attack, Batch, Budget, Certificate, Search, Variant
from robustness.attacks.fab import within
from robustness.context import Block, EvaluationContext, identity, variants_of
from robustness.logits import label_rank
from robustness.scoring import (
    AttackResult,
    CertificateResult,
    CorruptionResult,
    Scoring,
    ShardResult,
    ask,
    combine,
    score,
)
from robustness.spec import Cell
from robustness.store import Shard
from robustness.target import Target

_WAY = {"plain": "", "stopped": ", gradients stopped at m", "full": ", gradients through m"}


def score_shard(context: EvaluationContext, block: Block, cell: Cell) -> ShardResult:
    """Run what the spec asks for at one budget on one range of inputs, and score it."""
    if isinstance(cell.attack, Certificate):
        return _certify(context, block, cell, cell.attack)
    if cell.attack.info.role == "corruption":
        return _corrupt(context, block, cell)
    return _attack(context, block, cell)


def parts(target: Target, attack: Attack) -> Iterator[tuple[Attack, Variant]]:
    """What an attack consists of, in the order in which it runs and in which shards are counted."""
    for part in attack.parts(len(target.labels)):
        for variant in variants_of(target, part):
            yield part, variant


def stored_batch(stored: dict[str, np.ndarray], clean: Batch, budget: Budget) -> Batch:
    """The adversarial inputs that a shard holds, for one budget.

    A shard of the nearest adversarial inputs serves every radius: what lies outside is not used.

    Raises:
        KeyError: the shard lacks what it should hold.
    """
    if "texts" in stored:
        inputs = shards.as_texts(stored["texts"])
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
    target = context.target
    held: dict[Variant, np.ndarray] = {v: block.clean.rank == 0 for v in target.variants}
    scorings: list[Scoring] = []
    variants: list[Variant] = []
    nearest: list[np.ndarray] = []
    for part, variant in parts(target, cell.attack):
        touched: list[Variant] = list(held) if variant == "plain" else [variant]
        active = np.logical_or.reduce([held[name] for name in touched]) | context.in_full
        stored = _shard(context, block, _Job(cell=cell, part=part, variant=variant), active)
        found = stored_batch(stored, block.batch, cell.budget)
        with context.meter.allot(part.scorings * len(block.inputs)):
            size = part.size(block.batch, found, cell.budget)
            scored = score(ask(target, found.inputs, context.meter), found.labels, size)
        fooled = (scored.torch_rank > 0) & (scored.served_rank > 0)
        for name in touched:
            held[name] = held[name] & ~fooled
        scorings.append(scored)
        variants.append(variant)
        if "nearest" in stored:
            nearest.append(stored["nearest"])
    return combine(block.clean, scorings, variants, np.minimum.reduce(nearest) if nearest else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    cell: Cell
    part: Attack
    variant: Variant


def _shard(
    context: EvaluationContext, block: Block, job: _Job, active: np.ndarray
) -> dict[str, np.ndarray]:
    """What a job found, made unless it was before; `active` (n,) bool says which are attacked."""
    budget = job.part.searched(job.cell.budget)
    shard = Shard(
        model=context.target.digest,
        attack=job.cell.attack.label,
        part=job.part,
        budget=budget,
        variant=job.variant,
        start=block.start,
    )
    _say(context, block, f"{job.part.label} {job.cell.budget.text}{_WAY[job.variant]}")
    known = identity(context, block, job.part, budget) | {
        "variant": job.variant,
        "active": np.flatnonzero(active).tolist(),
    }
    path = shard.path(context.folder)
    with context.meter.allot(len(block.inputs) * job.part.cost(context.num_classes)):
        stored = shards.read(path, known)
        if stored is None:
            context.meter.before()
            rows = np.flatnonzero(active)
            found = _run(context, block, job.part, budget, job.variant, rows)
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
    chosen = Batch(inputs=_take(block.inputs, rows), labels=everything.labels[rows])
    found = part.run(context.target, chosen, [budget], search)[budget]
    labels = everything.labels.copy()
    labels[rows] = found.labels
    return Batch(
        inputs=_put(block.inputs, rows, found.inputs),
        labels=labels,
        found={
            name: _spread(values, rows, _absent(name, block))
            for name, values in found.found.items()
        },
    )


def _absent(name: str, block: Block) -> np.ndarray:
    """What is told of inputs that are not attacked: of the misclassified ones a distance of 0."""
    if name == "nearest":
        return np.where(block.clean.rank > 0, 0.0, np.inf)
    return np.zeros(len(block.inputs), np.int64)


def _spread(values: np.ndarray, rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    others[rows] = values
    return others


def _take(inputs: np.ndarray | list[str], rows: np.ndarray) -> np.ndarray | list[str]:
    return inputs[rows] if isinstance(inputs, np.ndarray) else [inputs[row] for row in rows]


def _put(
    inputs: np.ndarray | list[str], rows: np.ndarray, found: np.ndarray | Sequence[str]
) -> np.ndarray | list[str]:
    changed = inputs.copy()
    for row, one in zip(rows, found, strict=True):
        changed[row] = one
    return changed


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
    return CorruptionResult(rank=label_rank(logits, block.clean.label), index=logits.argmax(axis=1))


def _certify(
    context: EvaluationContext, block: Block, cell: Cell, certificate: Certificate
) -> CertificateResult:
    _say(context, block, f"{certificate.label} {cell.budget.text}")
    seeds = certificate.seeds(context.spec.seed, cell.budget, block.inputs)
    search = Search(seeds=seeds, meter=context.meter)
    with context.meter.allot(len(block.inputs) * certificate.cost(context.num_classes)):
        found = certificate.certify(context.target, block.batch, [cell.budget], search)
    index, radius = found[cell.budget]
    return CertificateResult(index=index, radius=radius)


def _say(context: EvaluationContext, block: Block, stage: str) -> None:
    context.say(f"{stage}, {context.target.reads} {block.start + len(block.inputs)}")
