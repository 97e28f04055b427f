"""Attacks on texts: from one range of texts to shards of changed texts and their verdict."""

import numpy as np
import torch

from robustness import store as shards
from robustness.attacks.hotflip import hotflip
from robustness.attacks.text_search import AttackedTexts
from robustness.attacks.typos import typos
from robustness.attacks.word_swap import word_swap
from robustness.catalog import Variant
from robustness.context import Block, Trial, identity
from robustness.logits import label_rank, margin
from robustness.parsing import parse_eps
from robustness.progress import Meter
from robustness.scoring import AttackVerdict, CleanVerdict, Judgement, combine, judge_clean
from robustness.spec import Cell
from robustness.store import Shard
from robustness.target import device_of, undisturbed
from robustness.text_target import TextTarget

_BATCH = 32


def text_clean_verdict(
    target: TextTarget, texts: list[str], labels: np.ndarray | None, meter: Meter
) -> CleanVerdict:
    """The model on texts as they are; without labels its own predictions stand in.

    Args:
        target: the model.
        texts: n texts.
        labels: (n,) int64, or None.
        meter: told of every model evaluation.
    """
    served = target.predict(texts, meter)
    twin = twin_logits(target, texts, served, meter)
    first = texts[:_BATCH]  # one batch is asked again, not counted
    again = np.concatenate([target.predict(first), served[len(first) :]])
    return judge_clean(served, again, twin, labels, np.zeros(len(texts), bool))


def text_cell(trial: Trial, target: TextTarget, block: Block, cell: Cell) -> AttackVerdict:
    """Attack one range of texts at one point, with every way of taking gradients, and judge it.

    An edit may change the true class (ListOps): then the changed text is judged by the new one.
    """
    judgements: list[Judgement] = []
    variants = text_variants(target, cell)
    for variant in variants:
        stored = _shard(trial, target, block, cell, variant)
        judgements.append(_judge(trial, target, stored))
    return combine(block.clean, judgements, variants)


def text_variants(target: TextTarget, cell: Cell) -> tuple[Variant, ...]:
    """The ways of taking gradients in which an attack on texts runs."""
    return target.variants if cell.attack.name == "hotflip" else ("plain",)


def _shard(
    trial: Trial, target: TextTarget, block: Block, cell: Cell, variant: Variant
) -> dict[str, np.ndarray]:
    """The changed texts of a cell, made unless they were before."""
    shard = Shard(
        model=target.digest,
        attack=cell.attack.name,
        part=cell.attack,
        point=shards.shard_point(cell),
        variant=variant,
        start=block.start,
    )
    trial.say(f"{cell.attack.name} {cell.point}, text {block.start + len(block.texts)}")
    known = identity(trial, block, cell.attack, cell.point) | {"variant": variant}
    path = shard.path(trial.folder)
    with trial.meter.allot(len(block.texts) * cell.attack.evaluations(trial.num_classes)):
        stored = shards.read(path, known)
        if stored is None:
            trial.meter.before()
            found = _attack(trial, target, block, cell, variant)
            shards.write(path, _tensors(found), known)
            stored = shards.read(path, known)
    if stored is None:
        raise OSError("a shard that was just written cannot be read back")
    return stored


def _attack(
    trial: Trial, target: TextTarget, block: Block, cell: Cell, variant: Variant
) -> AttackedTexts:
    """Attack the texts that the model gets right; all of them where ranks above 1 are asked for."""
    rows = np.flatnonzero((block.clean.rank == 0) | trial.in_full)
    texts = [block.texts[row] for row in rows]
    labels = block.clean.label[rows].tolist()
    seeds = block.seeds(trial.spec.seed, cell.attack)
    own = [seeds[row] for row in rows]
    attack, meter, leave = cell.attack, trial.meter, not trial.in_full
    if attack.name == "word-swap":
        rate = parse_eps(cell.point, name="rate")
        found = word_swap(target, texts, labels, rate=rate, seeds=own)
        meter.after(len(texts))
    elif attack.name == "hotflip":
        found = hotflip(
            target,
            texts,
            labels,
            edits=int(cell.point),
            queries=attack.setting("queries"),
            variant=variant,
            leave=leave,
            meter=meter,
        )
    else:
        found = typos(
            target,
            texts,
            labels,
            edits=int(cell.point),
            queries=attack.setting("queries"),
            seeds=own,
            leave=leave,
            meter=meter,
        )
    return _spread(found, rows, block)


def _spread(found: AttackedTexts, rows: np.ndarray, block: Block) -> AttackedTexts:
    """The results of some rows among all of a block; the others are unchanged."""
    texts, count = list(block.texts), len(block.texts)
    labels = block.clean.label.copy()
    edits, queries = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for position, row in enumerate(rows):
        texts[row] = found.texts[position]
    labels[rows], edits[rows], queries[rows] = found.labels, found.edits, found.queries
    return AttackedTexts(texts=texts, labels=labels, edits=edits, queries=queries)


def _tensors(found: AttackedTexts) -> dict[str, np.ndarray]:
    return {
        "texts": shards.as_array(found.texts),
        "labels": found.labels,
        "edits": found.edits,
        "queries": found.queries,
    }


def _judge(trial: Trial, target: TextTarget, stored: dict[str, np.ndarray]) -> Judgement:
    texts, labels = shards.as_texts(stored["texts"]), stored["labels"]
    with trial.meter.allot(2 * len(texts)):
        served = target.predict(texts, trial.meter)
        twin = twin_logits(target, texts, served, trial.meter)
    served_rank = label_rank(served, labels)
    return Judgement(
        twin_rank=label_rank(twin, labels),
        served_rank=served_rank,
        eight_bit_rank=served_rank,
        index=served.argmax(axis=1),
        margin=margin(twin, labels),
        distance=stored["edits"].astype(np.float64),
        finite=np.asarray(np.isfinite(np.concatenate([served, twin], axis=1)).all(axis=1)),
    )


def twin_logits(
    target: TextTarget, texts: list[str], served: np.ndarray, meter: Meter
) -> np.ndarray:
    """Logits (N, K) float32 of the twin; those of the served model where there is none."""
    if target.twin is None:
        return served
    device = device_of(target.twin)
    parts: list[np.ndarray] = []
    for start in range(0, len(texts), _BATCH):
        meter.before()
        tokens, mask = target.encode(texts[start : start + _BATCH])
        with undisturbed(target.twin), torch.no_grad():
            logits = target.twin(
                torch.from_numpy(tokens).to(device), torch.from_numpy(mask).to(device)
            )
        parts.append(logits.float().cpu().numpy())
        meter.after(len(parts[-1]))
    return np.concatenate(parts)
