"""Run an evaluation: from models, images and a spec to shards, verdicts and a report."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchattacks

from data.sources import ImageSet, load_inputs
from export.artifact import Artifact
from robustness import shards
from robustness.attacks.gradient import perturb
from robustness.progress import Cancelled, Meter, Progress
from robustness.report.build import build_report
from robustness.report.environment import environment
from robustness.report.schema import Report, write_report
from robustness.shards import Shard
from robustness.spec import EvaluationSpec, cost
from robustness.target import (
    Target,
    device_of,
    input_gradient,
    open_target,
    predict_served,
    torch_threads,
)
from robustness.verdict import (
    CleanVerdict,
    Judgement,
    ModelVerdict,
    combine,
    join,
    judge,
    label_rank,
)

__all__ = ["Cancelled", "Progress", "evaluate", "evaluate_targets"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """One range of images, ready to be attacked and judged."""

    images: range
    inputs: np.ndarray  # (n, C, H, W) float32
    digest: str
    clean: CleanVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """One model's part of an evaluation, and what all of its steps need."""

    spec: EvaluationSpec
    target: Target
    images: ImageSet
    folder: Path
    meter: Meter
    threads: int

    def say(self, stage: str) -> None:
        """Name what is running."""
        self.meter.stage = f"{self.target.name}: {stage}"


def evaluate(
    spec: EvaluationSpec,
    artifacts: Sequence[Artifact],
    images: ImageSet,
    folder: Path,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    threads: int = 1,
) -> Report:
    """Put one artifact on trial, or two on the same images.

    The folder afterwards holds `report.json` and `shards/`. A folder left by a run that was stopped
    or killed is continued: finished shards are read, not computed again, and the result is the same
    to the byte, given the same arguments, library versions and kind of CPU.

    Args:
        spec: what to do; its `model` and `compare_with` are the caller's to resolve.
        artifacts: the model, then the one it is compared with if any.
        images: the images, with labels or without; without them the model's own predictions on
            clean inputs stand in, and the report speaks of stability.
        folder: where shards and report go; created if missing.
        on_progress: called after every batch.
        should_stop: called before every model evaluation, so within one attack step.
        threads: threads of torch and of the runtime; torch's own setting is restored.

    Raises:
        Cancelled: `should_stop` said so; finished shards stay.
        ValueError: the arguments do not fit together; the message names argument and rule.
    """
    with torch_threads(threads):
        targets = [open_target(artifact, threads=threads) for artifact in artifacts]
        return evaluate_targets(
            spec,
            targets,
            images,
            folder,
            on_progress=on_progress,
            should_stop=should_stop,
            threads=threads,
        )


def evaluate_targets(
    spec: EvaluationSpec,
    targets: Sequence[Target],
    images: ImageSet,
    folder: Path,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    threads: int = 1,
) -> Report:
    """`evaluate` for any classifier given as a callable and its differentiable twin."""
    _check(targets, images)
    if len({target.name for target in targets}) < len(targets):
        targets = [replace(target, name=f"{target.name}:{target.version}") for target in targets]
    total = cost(spec, len(images), [target.elliptical for target in targets])
    meter = Meter(total, on_progress=on_progress, should_stop=should_stop)
    with torch_threads(threads):
        verdicts = [
            _try_model(
                _Trial(
                    spec=spec,
                    target=target,
                    images=images,
                    folder=folder,
                    meter=meter,
                    threads=threads,
                )
            )
            for target in targets
        ]
    runtimes = {verdict.target.runtime.name for verdict in verdicts}
    report = build_report(spec, verdicts, images, environment(threads, runtimes))
    write_report(folder, report)
    shards.remove_leftovers(folder)
    return report


def _check(targets: Sequence[Target], images: ImageSet) -> None:
    if not 1 <= len(targets) <= 2:
        raise ValueError(f"artifacts must be one or two, got {len(targets)}")
    if len(images) == 0:
        raise ValueError("images must not be empty")
    if len({target.digest for target in targets}) < len(targets):
        raise ValueError("compare_with must be another artifact than model")
    if any(target.labels != targets[0].labels for target in targets):
        raise ValueError("compare_with must have the same labels as model, in the same order")
    for target in targets:
        target.require_twin()
    _check_labels(images.labels, num_classes=len(targets[0].labels))


def _check_labels(labels: np.ndarray | None, *, num_classes: int) -> None:
    if num_classes < 2:
        raise ValueError(f"a classifier must have at least 2 classes, got {num_classes}")
    if labels is None:
        return
    wrong = (labels < 0) | (labels >= num_classes)
    if wrong.any():
        raise ValueError(
            f"labels must be class indices in [0, {num_classes}), got {int(labels[wrong][0])}"
        )


def _try_model(trial: _Trial) -> ModelVerdict:
    blocks: list[_Block] = []
    judged: list[list[list[Judgement]]] = []  # [range][attack and radius][variant]
    for images in shards.ranges(len(trial.images)):
        block = _clean_block(trial, images)
        blocks.append(replace(block, inputs=block.inputs[:0]))  # the inputs may not fit together
        cells = shards.plan(trial.spec, trial.target.digest, trial.target.variants, images)
        judged.append([[_try_shard(trial, block, shard) for shard in cell] for cell in cells])
    whole = join([block.clean for block in blocks])
    attacks = [
        combine(whole, [join(parts) for parts in zip(*cell, strict=True)])
        for cell in zip(*judged, strict=True)
    ]
    digests = np.array([block.digest for block in blocks], dtype="S64")
    return ModelVerdict(
        target=trial.target,
        clean=whole,
        attacks=attacks,
        inputs_digest=shards.content_digest(digests),
    )


def _clean_block(trial: _Trial, images: range) -> _Block:
    """Judge one range of clean inputs, and store them for pictures and for a later replay."""
    trial.say(f"clean images {images.start + 1} to {images.stop}")
    target = trial.target
    inputs = load_inputs(trial.images.take(images), target.image_spec)
    served = predict_served(target, inputs, trial.meter)
    labels = trial.images.labels
    label = served.argmax(axis=1) if labels is None else labels[images.start : images.stop]
    label = label.astype(np.int64)
    twin, gradient = input_gradient(target, inputs, label, trial.meter)
    finite = np.asarray(np.isfinite(np.concatenate([served, twin], axis=1)).all(axis=1))
    # A second answer is asked once, not counted: it would cost every evaluation for a rare fault.
    again = predict_served(target, inputs) if images.start == 0 else served
    clean = CleanVerdict(
        label=label,
        rank=label_rank(served, label),
        index=served.argmax(axis=1),
        probability=_top_probability(served),
        twin_index=twin.argmax(axis=1),
        finite=finite,
        blind=((gradient == 0) | ~np.isfinite(gradient)).reshape(len(inputs), -1).all(axis=1),
        normalised=(served >= 0).all(axis=1) & (np.abs(served.sum(axis=1) - 1) < 1e-4),
        unsteady=np.any(again != served, axis=1) & finite,
    )
    digest = shards.content_digest(inputs)
    path = shards.clean_path(trial.folder, target.digest, images.start)
    identity = {"images": [images.start, images.stop], "inputs": digest}
    if shards.read(path, identity) is None:
        shards.write(path, {"clean": inputs}, identity)
    return _Block(images=images, inputs=inputs, digest=digest, clean=clean)


def _try_shard(trial: _Trial, block: _Block, shard: Shard) -> Judgement:
    """Attack one range of images, unless that was done before, and judge what is stored."""
    way = {"plain": "", "stopped": ", gradients stopped at m", "full": ", gradients through m"}
    trial.say(f"{shard.attack.name} {shard.eps}{way[shard.variant]}, image {shard.stop}")
    identity = shard.identity(**_circumstances(trial, block))
    path = shard.path(trial.folder)
    stored = shards.read(path, identity)
    if stored is None:
        shards.write(path, _attack(trial, block, shard), identity)
        stored = shards.read(path, identity)
        if stored is None:
            raise OSError("a shard that was just written cannot be read back")
    else:
        trial.meter.before()
        trial.meter.after(shard.attack.num_steps * len(block.inputs))
    return judge(
        trial.target,
        block.inputs,
        stored["adversarial"],
        block.clean.label,
        eps=shard.eps_value,
        meter=trial.meter,
    )


def _attack(trial: _Trial, block: _Block, shard: Shard) -> dict[str, np.ndarray]:
    twin = trial.target.require_twin()
    device = device_of(twin)
    adversarial = perturb(
        twin,
        torch.from_numpy(block.inputs).to(device),
        torch.from_numpy(block.clean.label).to(device),
        attack=shard.attack,
        eps=shard.eps_value,
        seed=shard.own_seed,
        variant=shard.variant,
        meter=trial.meter,
    )
    return {"adversarial": adversarial.cpu().numpy()}


def _circumstances(trial: _Trial, block: _Block) -> dict[str, Any]:
    return {
        "inputs": block.digest,
        "labels": block.clean.label.tolist(),
        "threads": trial.threads,
        "torch": torch.__version__,
        "torchattacks": torchattacks.__version__,
    }


def _top_probability(logits: np.ndarray) -> np.ndarray:
    """Softmax probability of the largest logit, (N,) float64; NaN if a logit is not finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
        return 1 / np.exp(shifted).sum(axis=1)
