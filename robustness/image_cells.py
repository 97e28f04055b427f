"""Attacks on pixels: from one range of images to shards of adversarial inputs and their verdict."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from robustness import store as shards
from robustness.attack_spec import AttackSpec
from robustness.attacks.gradient import minimal, perturb
from robustness.attacks.spsa import spsa
from robustness.attacks.square import square
from robustness.catalog import Variant
from robustness.context import Block, Trial, identity, variants_of
from robustness.scoring import AttackVerdict, Judgement, change_size, combine, judge
from robustness.spec import Cell
from robustness.store import Shard
from robustness.target import Target, device_of, predict_served

_WAY = {"plain": "", "stopped": ", gradients stopped at m", "full": ", gradients through m"}


def attack_cell(trial: Trial, target: Target, block: Block, cell: Cell) -> AttackVerdict:
    """Attack one range of images at one radius, in every part and gradient variant, and judge it.

    AutoAttack's parts run one after another on what still holds: an image leaves when both the twin
    and the served model are fooled. Gradient variants do not share their successes, so that each
    has a figure of its own; parts without gradients work on what holds under any of them.
    """
    held: dict[Variant, np.ndarray] = {v: block.clean.rank == 0 for v in target.variants}
    judgements: list[Judgement] = []
    variants: list[Variant] = []
    nearest: list[np.ndarray] = []
    for part, variant in parts(target, cell.attack):
        touched: list[Variant] = list(held) if variant == "plain" else [variant]
        active = np.logical_or.reduce([held[name] for name in touched])
        job = _Job(cell=cell, part=part, variant=variant)
        stored = _shard(trial, target, block, job, active | trial.in_full)
        judged = _judge(trial, target, block, job, stored)
        fooled = (judged.twin_rank > 0) & (judged.served_rank > 0)
        for name in touched:
            held[name] = held[name] & ~fooled
        judgements.append(judged)
        variants.append(variant)
        if "nearest" in stored:
            nearest.append(stored["nearest"])
    return combine(
        block.clean, judgements, variants, np.minimum.reduce(nearest) if nearest else None
    )


def parts(target: Target, attack: AttackSpec) -> Iterator[tuple[AttackSpec, Variant]]:
    """What an attack consists of, in the order in which it runs and in which shards are counted."""
    for part in attack.components(len(target.labels)):
        for variant in variants_of(target, part):
            yield part, variant


def adversarial_inputs(
    stored: dict[str, np.ndarray], clean: np.ndarray, part: AttackSpec, point: str
) -> np.ndarray:
    """The adversarial inputs (n, C, H, W) that a shard holds for one radius.

    A shard of the nearest adversarial inputs serves every radius: what lies outside is not used.
    """
    if "adversarial" in stored:
        return stored["adversarial"]
    near = stored["nearest"] <= part.radius(point)
    return np.where(near[:, None, None, None], stored["minimal"], clean)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    cell: Cell
    part: AttackSpec
    variant: Variant

    @property
    def serves_every_radius(self) -> bool:
        """A minimum-norm attack that was asked for; AutoAttack's works on what is left."""
        return self.cell.attack.name == "fab-t"


def _shard(
    trial: Trial, target: Target, block: Block, job: _Job, active: np.ndarray
) -> dict[str, np.ndarray]:
    """The adversarial inputs of a job, made unless they were before."""
    point = shards.shard_point(job.cell)
    shard = Shard(
        model=target.digest,
        attack=job.cell.attack.name,
        part=job.part,
        point=point,
        variant=job.variant,
        start=block.start,
    )
    stop = block.start + len(block.images)
    trial.say(f"{job.part.name} {job.cell.point}{_WAY[job.variant]}, image {stop}")
    known = identity(trial, block, job.part, point) | {
        "variant": job.variant,
        "active": np.flatnonzero(active).tolist(),
    }
    path = shard.path(trial.folder)
    with trial.meter.allot(len(block.images) * job.part.evaluations(trial.num_classes)):
        stored = shards.read(path, known)
        if stored is None:
            trial.meter.before()
            shards.write(path, _attack(trial, target, block, job, active), known)
            stored = shards.read(path, known)
    if stored is None:
        raise OSError("a shard that was just written cannot be read back")
    return stored


def _attack(
    trial: Trial, target: Target, block: Block, job: _Job, active: np.ndarray
) -> dict[str, np.ndarray]:
    rows = np.flatnonzero(active)
    adversarial = block.images.copy()
    nearest = np.where(block.clean.rank > 0, 0.0, np.inf)
    if len(rows):
        if job.serves_every_radius:
            adversarial[rows], nearest[rows] = _nearest(trial, target, block, job, rows)
        else:
            adversarial[rows] = _perturb(trial, target, block, job, rows)
    if job.serves_every_radius:
        return {"minimal": adversarial, "nearest": nearest}
    return {"adversarial": adversarial}


def _perturb(trial: Trial, target: Target, block: Block, job: _Job, rows: np.ndarray) -> np.ndarray:
    part, eps = job.part, job.part.radius(job.cell.point)
    inputs, labels = block.images[rows], block.clean.label[rows]
    all_seeds = block.seeds(trial.spec.seed, part)
    seeds = [all_seeds[row] for row in rows]
    leave = not trial.in_full
    if part.kind.family == "gradient":
        twin = target.require_twin()
        found = perturb(
            twin,
            torch.from_numpy(inputs).to(device_of(twin)),
            torch.from_numpy(labels).to(device_of(twin)),
            attack=part,
            eps=eps,
            seeds=seeds,
            variant=job.variant,
            leave=leave,
            meter=trial.meter,
        )
        return found.cpu().numpy()
    return _query(trial, target, job.part, inputs, labels, eps, seeds)


def _query(
    trial: Trial,
    target: Target,
    part: AttackSpec,
    inputs: np.ndarray,
    labels: np.ndarray,
    eps: float,
    seeds: list[int],
) -> np.ndarray:
    """Attack the served model by queries."""
    leave = not trial.in_full

    def ask(images: np.ndarray) -> np.ndarray:
        return predict_served(target, images)

    if part.name == "spsa":
        return spsa(
            ask,
            inputs,
            labels,
            eps=eps,
            steps=part.num_steps,
            samples=part.setting("samples"),
            seeds=seeds,
            leave=leave,
            meter=trial.meter,
        )
    return square(
        ask,
        inputs,
        labels,
        norm=part.ball,
        eps=eps,
        queries=part.setting("queries"),
        seeds=seeds,
        leave=leave,
        meter=trial.meter,
    )


def _nearest(
    trial: Trial, target: Target, block: Block, job: _Job, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The nearest adversarial inputs of some rows, and their distances as float32 stores them."""
    part, twin = job.part, target.require_twin()
    clean = block.images[rows]
    seeds = block.seeds(trial.spec.seed, part)
    found, distance = minimal(
        twin,
        torch.from_numpy(clean).to(device_of(twin)),
        torch.from_numpy(block.clean.label[rows]).to(device_of(twin)),
        norm=part.ball,
        steps=part.num_steps,
        until=0.0,  # a curve over all radii wants the nearest, not the first within some radius
        seeds=[seeds[row] for row in rows],
        variant=job.variant,
        leave=not trial.in_full,
        meter=trial.meter,
    )
    inputs = found.cpu().numpy()
    size = change_size(clean, inputs, part.ball)
    return inputs, np.where(np.isfinite(distance.cpu().numpy()), size, np.inf)


def _judge(
    trial: Trial, target: Target, block: Block, job: _Job, stored: dict[str, np.ndarray]
) -> Judgement:
    with trial.meter.allot(3 * len(block.images)):
        return judge(
            target,
            block.images,
            adversarial_inputs(stored, block.images, job.part, job.cell.point),
            block.clean.label,
            norm=job.part.ball,
            eps=job.part.radius(job.cell.point),
            meter=trial.meter,
        )
