"""Run an evaluation: from models, inputs and a spec to shards, results and a report."""

import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np

from core.files import remove_leftovers
from core.stats import confidence_sequence
from data.sets import MaskSet, TextSet
from data.sources import ImageSet
from robustness import store as shards
from robustness.attacking import EvaluationContext
from robustness.attacks.base import input_seed, shown
from robustness.brackets import proved_rank
from robustness.certificates.base import Proof
from robustness.chunks import Chunk, is_done, model_result
from robustness.executors import run_inline
from robustness.kinds import Endpoint, NotPossible
from robustness.progress import Cancelled, Meter, Progress
from robustness.report.build import build_report, environment
from robustness.report.schema import Report, write_report
from robustness.report.write import write_companions
from robustness.results import ModelResult
from robustness.spec import (
    CLEAN_METRICS,
    EvaluationSpec,
    GateMetric,
    cost,
    parse_gate,
)
from robustness.target import Target, torch_threads
from robustness.text_target import LanguageTarget, open_model
from runtimes.artifact import Artifact

__all__ = ["Cancelled", "Inputs", "Progress", "Executor", "evaluate"]

Inputs = ImageSet | TextSet
Executor = Callable[[Sequence[EvaluationContext], Iterable[Chunk]], None]
"""Does all chunks; see `robustness.executors`."""


def evaluate(
    spec: EvaluationSpec,
    models: Sequence[Artifact | Target],
    inputs: Inputs,
    folder: Path,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    threads: int = 1,
    executor: Executor = run_inline,
) -> Report:
    """Evaluate one model, or two on the same inputs.

    The folder afterwards holds `report.json`, what was written from it, and `shards/`. A folder
    left by a run that was stopped or killed is continued: finished shards are read, not computed
    again, and the result is the same to the byte, given the same arguments, library versions and
    kind of CPU, whoever does the work.

    With `stop: early` the inputs come in a random order, and the evaluation ends when its gate is
    decided; the report is about those that were needed.

    Args:
        spec: what to do; its `model` and `compare_with` are the caller's to resolve.
        models: the model, then the one it is compared with if any: artifacts, or any classifier
            given as a callable and its PyTorch model.
        inputs: the images or texts, with labels or without (of a segmenter with masks); without
            labels the model's own
            predictions on clean inputs stand in, and the report speaks of stability.
        folder: where shards and report go; created if missing.
        on_progress: called after every batch.
        should_stop: called before every model evaluation, so within one attack step.
        threads: threads of torch and of the runtime; torch's own setting is restored.
        executor: does the work; in this process when not given.

    Raises:
        Cancelled: `should_stop` said so; finished shards stay.
        NotPossible: the arguments do not fit together; the message names argument and rule.
    """
    with torch_threads(threads):
        targets = _open(models, threads)
        _check(spec, targets, inputs)
        spec = _in_float32(spec)
        elliptical = [target.elliptical for target in targets]
        total = cost(spec, len(inputs), elliptical, num_classes=len(targets[0].labels))
        meter = Meter(total, on_progress=on_progress, should_stop=should_stop)
        contexts = [
            EvaluationContext(spec=spec, target=target, folder=folder, meter=meter, threads=threads)
            for target in targets
        ]
        used = _work(contexts, inputs, executor)
        parts = shards.ranges(len(used))
        results = [model_result(spec, target, parts, folder) for target in targets]
        where = environment(threads, {target.runtime.name for target in targets})
        labels = targets[0].truth(used)
        report = build_report(results, used.names, labels, where, used.origin, given=len(inputs))
        masks = labels if targets[0].task.answer == "pixels" else None
        write_companions(folder, report, targets[0].torch_model, masks)
    write_report(folder, report)  # last: whoever finds it finds the other files, too
    remove_leftovers(folder)
    return report


def _open(models: Sequence[Artifact | Target], threads: int) -> list[Target]:
    """The models, opened where they are artifacts; two of one name are told apart by version."""
    targets = [
        model if isinstance(model, Target) else open_model(model, threads=threads)
        for model in models
    ]
    if len({target.name for target in targets}) == len(targets):
        return targets
    return [replace(each, name=f"{each.name}:{each.version}") for each in targets]


def _chunks(contexts: Sequence[EvaluationContext], inputs: Inputs) -> Iterator[Chunk]:
    """Every chunk of every model, read when a worker is free for it."""
    for position, context in enumerate(contexts):
        for chosen in shards.ranges(len(inputs)):
            part = inputs.take(chosen)
            yield Chunk(
                model=position,
                start=chosen.start,
                inputs=context.target.load(part),
                labels=context.target.truth(part),
            )


def _work(contexts: Sequence[EvaluationContext], inputs: Inputs, executor: Executor) -> Inputs:
    """Do all that is asked for; the inputs that it took."""
    if contexts[0].spec.stop == "early":
        return _until_decided(contexts[0], inputs, executor)
    executor(contexts, _chunks(contexts, inputs))
    return inputs


def _until_decided(context: EvaluationContext, inputs: Inputs, executor: Executor) -> Inputs:
    """Do range after range of the inputs, in a random order, until the gate is decided.

    Only the ranges before the first that is not finished count, so that the outcome does not depend
    on how many are worked on at once.

    Returns:
        The inputs that count.
    """
    spec, meter = context.spec, context.meter
    order = np.random.default_rng(input_seed(spec.seed, "order", b"")).permutation(len(inputs))
    inputs = inputs.take(order)
    gate, pending = parse_gate(spec.gate or ""), deque[Chunk]()
    held, used = 0.0, 0
    decided = False

    def look() -> bool:
        """Whether the gate is decided by now."""
        nonlocal held, used, decided
        while not decided and pending and is_done(context, pending[0]):
            chunk = pending.popleft()
            chosen = range(chunk.start, chunk.start + len(chunk.inputs))
            found = model_result(spec, context.target, [chosen], context.folder)
            rank = _gated(gate.metric, found)
            used = chosen.stop
            if rank is not None:
                held += float(found.shares(rank).sum())
                decided = gate.decided(*confidence_sequence(held, used))
        return decided

    def chunks() -> Iterator[Chunk]:
        """Those that are needed, as long as it is not known that they are not."""
        for chunk in _chunks([context], inputs):
            if look():
                return
            pending.append(chunk)
            yield chunk

    executor([context], chunks())
    look()
    with meter.allot(meter.total - meter.done):
        return inputs.take(range(used))


def _gated(metric: GateMetric, found: ModelResult) -> np.ndarray | None:
    """The ranks (N,) that a gate is about."""
    if metric == "proved_accuracy":
        return proved_rank(found)
    return found.clean.rank if metric in CLEAN_METRICS else found.largest_rank


def _in_float32(spec: EvaluationSpec) -> EvaluationSpec:
    if spec.proposals == "bfloat16":
        warnings.warn("proposals: 'bfloat16' is ignored, attacks search in float32", stacklevel=2)
    return spec.model_copy(update={"proposals": "float32"})


def _check(spec: EvaluationSpec, targets: Sequence[Target], inputs: Inputs) -> None:
    if not 1 <= len(targets) <= 2:
        raise NotPossible(f"artifacts must be one or two, got {len(targets)}")
    if len(inputs) == 0:
        raise NotPossible("inputs must not be empty")
    if len({target.digest for target in targets}) < len(targets):
        raise NotPossible("compare_with must be another artifact than model")
    if any(target.labels != targets[0].labels for target in targets):
        raise NotPossible("compare_with must have the same labels as model, in the same order")
    kinds = {"text" if isinstance(inputs, TextSet) else "image", *(t.reads for t in targets)}
    wanted = spec.attacks[0].info.input
    if kinds != {wanted}:
        [got] = kinds - {wanted}
        raise NotPossible(f"attacks: {spec.attacks[0].label!r} works on {wanted}s, got {got}s")
    _check_task(spec, targets, inputs)
    if targets[0].task.answer != "tokens":
        _check_labels(inputs.labels, num_classes=len(targets[0].labels))
    _check_attacks(spec, targets)


def _check_task(spec: EvaluationSpec, targets: Sequence[Target], inputs: Inputs) -> None:
    """Refuse what says nothing about the answers of a model: a class, or one for every pixel."""
    target, task = targets[0], targets[0].task
    if any(other.task.answer != task.answer for other in targets):
        raise NotPossible(
            "compare_with must answer as model does: classes, those of pixels, or next tokens"
        )
    pixels = task.answer == "pixels"
    if isinstance(inputs, MaskSet) != pixels:
        got, needed = ("no masks", "masks") if pixels else ("masks", "classes of whole images")
        raise NotPossible(f"inputs must have {needed} for {target.name!r}, got {got}")
    if task.answer != "class" and (spec.top_k != [1] or spec.class_map is not None):
        what = "the classes of pixels" if pixels else "next tokens"
        raise NotPossible(f"top_k must be 1 and class_map be left out for {what}")
    if task.answer == "tokens":
        _check_tokens(spec, cast(Sequence[LanguageTarget], targets), cast(TextSet, inputs))
    if spec.gate is not None and parse_gate(spec.gate).metric not in task.gates:
        known = " or ".join(task.gates)
        raise NotPossible(f"gate must compare {known} for {target.name!r}, got {spec.gate[:60]!r}")


def _check_tokens(spec: EvaluationSpec, targets: Sequence[LanguageTarget], texts: TextSet) -> None:
    """Refuse perplexities that say nothing of each other, or of a text."""
    first, *others = (target.require_tokenizer() for target in targets)
    if any(other.to_bytes() != first.to_bytes() for other in others):
        raise NotPossible("compare_with must have the same tokens as model: perplexity is by token")
    if spec.stop == "early":
        raise NotPossible("stop must be 'end' for a language model: no sequence bounds perplexity")
    for name, text in zip(texts.names, texts, strict=True):
        if len(first.ids([text], 2)[0]) < 2:
            raise NotPossible(f"inputs must hold at least two tokens each, got fewer in {name}")


def _check_attacks(spec: EvaluationSpec, targets: Sequence[Target]) -> None:
    """Refuse what needs more classes than there are, or more than a target shows."""
    for target in targets:
        gradients, endpoint = target.torch_model is not None, target.endpoint
        access = shown(
            gradients=gradients or endpoint is None, weights=True, token_wise=True, graph=True
        )
        if endpoint is not None:
            access = shown(
                gradients=gradients,
                weights=gradients,
                token_wise=gradients,
                graph=False,
                shows=endpoint.shows,
            )
            _check_ranks(spec, target, endpoint)
        for attack in spec.attacks:
            if rule := attack.refusal(target.name, len(target.labels), access, target.task.answer):
                raise NotPossible(f"attacks: {rule}")
            if isinstance(attack, Proof):
                attack.check(target)
        if spec.uses_gradients:
            target.require_torch_model()


def _check_ranks(spec: EvaluationSpec, target: Target, endpoint: Endpoint) -> None:
    if endpoint.best is not None and max(spec.top_k) > endpoint.best:
        raise NotPossible(
            f"top_k must be at most {endpoint.best}, the classes that {target.name!r} shows, got "
            f"{max(spec.top_k)}"
        )


def _check_labels(labels: np.ndarray | None, *, num_classes: int) -> None:
    if num_classes < 2:
        raise NotPossible(f"a classifier must have at least 2 classes, got {num_classes}")
    if labels is None:
        return
    wrong = (labels < 0) | (labels >= num_classes)
    if wrong.any():
        raise NotPossible(
            f"labels must be class indices in [0, {num_classes}), got {int(labels[wrong][0])}"
        )
