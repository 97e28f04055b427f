"""From results to a report: summary, comparison, gate, and the flags of every sample."""

import math
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from functools import partial

import numpy as np
import torch

from core.environment import code_digest, python_and_machine, versions
from core.stats import bootstrap_interval, mcnemar, paired_interval
from data.sets import Origin
from robustness.attacks.corruptions.attack import split
from robustness.brackets import brackets
from robustness.report import schema, sentences
from robustness.report.schema import plain
from robustness.report.summary import by_gradients, model_figures, nearest
from robustness.results import (
    AttackResult,
    CertificateResult,
    CorruptionResult,
    ModelResult,
    parts_of,
)
from robustness.sanity.checks import CONTRADICTED, find_warnings, not_tried, notes
from robustness.spec import (
    CLEAN_METRICS,
    UPPER_METRICS,
    Cell,
    EvaluationSpec,
    Gate,
    GateMetric,
    parse_gate,
)
from robustness.store import SHARD_SIZE, content_digest
from robustness.tasks import quotient

_LIBRARIES = ("numpy", "onnxruntime", "pillow", "scipy", "torch", "torchattacks")


def environment(threads: int, runtimes: Collection[str]) -> dict[str, str]:
    """Versions, kind of processor and number of threads.

    Args:
        threads: threads of torch and of the runtime.
        runtimes: names of those that scored.
    """
    runtime_libraries = {"openvino"}.intersection(runtimes)
    return {
        **python_and_machine(),
        **versions((*_LIBRARIES, *runtime_libraries)),
        "cpu_kernels": torch.backends.cpu.get_cpu_capability(),
        "threads": str(threads),
    }


def build_report(
    results: Sequence[ModelResult],
    names: Sequence[str],
    labels: np.ndarray | None,
    environment: dict[str, str],
    origin: Origin,
    *,
    given: int,
) -> schema.Report:
    """Put everything together.

    Args:
        results: the evaluated model, then the one it is compared with if any.
        names: of the inputs; what no text may hold is replaced.
        labels: (N,), or None where none were given and the models' own predictions stand in.
        environment: where it ran.
        origin: where the inputs come from; what no text may hold is replaced.
        given: how many inputs there were, of which an early stop used some.
    """
    first = results[0]
    classes = origin.classes
    data = schema.Data(
        kind=first.target.reads,
        digest=data_digest(first, labels),
        samples=len(first.clean.rank),
        given=given if first.spec.stop == "early" else None,
        labels=[plain(label) for label in first.target.labels],
        name=origin.name and plain(origin.name),
        split=origin.split and plain(origin.split),
        source=origin.source and plain(origin.source),
        classes=None if classes is None else [plain(label) for label in classes],
    )
    summary = _summary(results, data, labelled=labels is not None)
    return schema.Report(
        spec=first.spec,
        seed=first.spec.seed,
        summary=summary,
        samples=_samples(results, names, labels),
        data=data,
        code=code_digest(),
        shard_size=SHARD_SIZE,
        environment=environment,
        notes=notes(results),
        not_tried=[said for one in results if (said := not_tried(one.target)) is not None],
        definitions=_definitions(first, summary),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _definitions(result: ModelResult, summary: schema.Summary) -> dict[str, str]:
    """The definitions of what the report has."""
    model, spec, kind = summary.models[0], result.spec, result.target.reads
    has = dict.fromkeys(("robust", "confirmed", "transfer_gap", "worst"), bool(model.attacks))
    has |= {
        "confirmed_8bit": bool(model.attacks) and kind == "image",
        "top_k": summary.top_k != [1],
        "corrupted": bool(model.corruptions),
        "eps": any(attack.norm for attack in model.attacks),
        "minimal": bool(model.minimal),
        "mean_corruption_error": bool(model.corruptions),
        "certificate": bool(model.certificates),
        "bracket": bool(model.brackets),
        "stability": summary.metric == "stability",
    }
    others = {"pixels": schema.PIXEL_DEFINITIONS, "tokens": schema.TOKEN_DEFINITIONS}
    known = schema.DEFINITIONS | others.get(result.target.task.answer, {})
    found = {term: text for term, text in known.items() if has.get(term, True)}
    return found | ({"ci": schema.SEQUENCE} if spec.stop == "early" else {})


def data_digest(result: ModelResult, labels: np.ndarray | None) -> str:
    """sha256 over a model's inputs and the labels (N,), if any."""
    known = np.empty(0, np.int64) if labels is None else labels
    return content_digest(np.array([result.inputs_digest], dtype="S64"), known)


def _summary(
    results: Sequence[ModelResult], data: schema.Data, *, labelled: bool
) -> schema.Summary:
    spec, kind = results[0].spec, data.kind
    metric = results[0].target.task.metric if labelled else "stability"
    # Classes that the user says are alike are not known to be.
    compared = data.classes is not None and spec.class_map is None
    warnings = [
        schema.ReportWarning(code=warning.code, model=result.target.name, message=warning.message)
        for result in results
        for warning in find_warnings(result, compared=compared)
    ]
    reference = results[1] if len(results) > 1 else None
    models = [model_figures(results[0], reference, metric=metric)]
    models += [model_figures(result, metric=metric) for result in results[1:]]
    unresolved = [
        warning.code
        for warning in warnings
        if warning.model == models[0].name or warning.code == CONTRADICTED
    ]
    return schema.Summary(
        headline=sentences.headline(models[0], metric, kind, sentences.ends(spec)),
        findings=[
            sentences.data(data, metric, spec.class_map),
            *filter(None, [sentences.early_stop(data)]),
            *sentences.findings(models[0], metric, kind, sentences.ends(spec)),
        ],
        metric=metric,
        top_k=results[0].top_k,
        models=models,
        comparison=_comparison(results, models, metric),
        gate=None if spec.gate is None else _gate(spec, models[0], unresolved, labelled=labelled),
        warnings=warnings,
        reliable=not warnings,
    )


def _comparison(
    results: Sequence[ModelResult], models: list[schema.ModelFigures], metric: str
) -> schema.Comparison | None:
    if len(results) < 2:
        return None
    first, second = results
    others = second.worst_ranks
    mine, theirs = first.largest_rank, second.largest_rank

    def pair(own: np.ndarray, other: np.ndarray, *tables: np.ndarray | None) -> schema.Pair:
        """Both models' shares, from their ranks (N,); and perplexities, from their tables."""
        shares = first.shares(own), second.shares(other)
        if first.target.task.answer == "class":
            return _pair(*shares)
        found, (one, two) = _pair_of_shares(*shares), tables
        if one is None or first.target.task.answer != "tokens":
            return found
        return found.model_copy(update=quotient(one, two))

    tables = first.worst_tables, second.worst_tables
    unchanged = first.clean.tables, second.clean.tables
    found = schema.Comparison(
        first=first.target.name,
        second=second.target.name,
        clean=pair(first.clean.rank, second.clean.rank, *unchanged),
        worst={
            key: pair(rank, others[key], *(each.get(key) for each in tables))
            for key, rank in first.worst_ranks.items()
        },
        largest=None
        if mine is None or theirs is None
        else pair(mine, theirs, first.largest_tables, second.largest_tables),
        finding="",
    )
    return found.model_copy(update={"finding": sentences.comparison(models, found, metric)})


def _pair_of_shares(first: np.ndarray, second: np.ndarray) -> schema.Pair:
    """The shares (N,) of pixels or tokens on which two models are right, input by input."""
    change = first - second
    better, worse = int((change > 0).sum()), int((change < 0).sum())
    return schema.Pair(
        first=float(first.mean()),
        second=float(second.mean()),
        difference=float(change.mean()),
        ci=bootstrap_interval(lambda drawn: drawn @ change / len(change), len(change)),
        both=int((change == 0).sum()),
        only_first=better,
        only_second=worse,
        neither=0,
        p_value=mcnemar(better, worse),
    )


def _pair(first: np.ndarray, second: np.ndarray) -> schema.Pair:
    """Which inputs (N,) two classifiers are right on: 1, else 0."""
    a, b = first == 1, second == 1
    only_first, only_second = int((a & ~b).sum()), int((b & ~a).sum())
    return schema.Pair(
        first=float(a.mean()),
        second=float(b.mean()),
        difference=(only_first - only_second) / len(a),
        ci=paired_interval(only_first, only_second, len(a)),
        both=int((a & b).sum()),
        only_first=only_first,
        only_second=only_second,
        neither=int((~a & ~b).sum()),
        p_value=mcnemar(only_first, only_second),
    )


def _gate(
    spec: EvaluationSpec,
    model: schema.ModelFigures,
    unresolved: Sequence[str],
    *,
    labelled: bool,
) -> schema.GateResult:
    text = spec.gate or ""
    gate = parse_gate(text)
    # Without labels the model is compared with itself: clean accuracy is 1 whatever the model.
    meaningful = labelled or gate.metric not in CLEAN_METRICS
    figure = _gated(gate.metric, model)
    value = 0.0 if figure is None else gate.bound(_measured(gate.metric, figure)[1])
    reason = _gate_reason(gate, model, figure)
    if spec.stop == "early" and figure is not None and not gate.decided(*figure.ci):
        reason += f"; not decided by all {model.samples} inputs"
    if unresolved:
        codes = ", ".join(dict.fromkeys(unresolved)).replace("_", " ")
        reason += f"; a figure with unresolved warnings ({codes}) passes no gate"
    if not labelled:
        reason += "; no labels were given, so this is stability, not accuracy"
    passed = not unresolved and meaningful and figure is not None and gate.holds(value)
    return schema.GateResult(
        text=text,
        metric=gate.metric,
        op=gate.op,
        threshold=gate.threshold,
        value=value,
        passed=passed,
        reason=reason,
        finding=sentences.gate(text, reason, passed=passed),
    )


def _gated(metric: GateMetric, model: schema.ModelFigures) -> schema.Figure | None:
    """The figure that a gate is about."""
    if metric == "proved_accuracy":
        return model.proved
    return model.clean if metric in CLEAN_METRICS else model.largest


def _measured(metric: GateMetric, figure: schema.Figure) -> tuple[float, tuple[float, float]]:
    """What of a figure a gate compares, with its interval."""
    if metric == "perplexity_ratio" and figure.ratio is not None and figure.ratio_ci is not None:
        return figure.ratio, figure.ratio_ci
    return figure.top1, figure.ci


def _gate_reason(gate: Gate, model: schema.ModelFigures, figure: schema.Figure | None) -> str:
    metric = gate.metric
    if figure is None:
        missing = "proof" if metric == "proved_accuracy" else "attack"
        return f"no {missing} of the spec has a budget, so nothing was measured"
    where = "clean" if metric in CLEAN_METRICS else f"worst case {sentences.at_largest(model)}"
    if metric == "proved_accuracy":
        where = f"proved {sentences.at_proved(model)}"
    value, ends = _measured(metric, figure)
    bound = "upper" if metric in UPPER_METRICS else "lower"
    return f"{where}: {bound} bound {gate.bound(ends):.4f} of {value:.4f}"


def _samples(
    results: Sequence[ModelResult], names: Sequence[str], labels: np.ndarray | None
) -> list[schema.Sample]:
    """The flags of every sample, with one entry per model."""
    by_model = [_model_flags(result) for result in results]
    return [
        schema.Sample(
            index=i,
            name=plain(name),
            label=None if labels is None or labels.ndim > 1 else int(labels[i]),
            models=[found[i] for found in by_model],
        )
        for i, name in enumerate(names)
    ]


def _model_flags(result: ModelResult) -> list[schema.ModelFlags]:
    clean = result.clean
    attacks = [_attack_flags(result, *pair) for pair in result.of(AttackResult)]
    corruptions, certificates = _corruption_flags(result), _certificates(result)
    proofs = _proof_flags(result)
    minimal, pixels = nearest(result), _pixels(result, clean.rank)
    return [
        schema.ModelFlags(
            name=result.target.name,
            clean=schema.CleanFlags(
                index=int(clean.index[i]),
                probability=_shown(result, clean.probability[i]),
                correct=bool(clean.rank[i] == 0),
                pixel_accuracy=pixels[i],
            ),
            attacks=[found[i] for found in attacks],
            corruptions=[found[i] for found in corruptions],
            certificates=[found[i] for found in certificates],
            minimal={norm: _finite(distance[i]) for norm, distance in minimal.items()},
            proofs=[found[i] for found in proofs],
        )
        for i in range(len(clean.rank))
    ]


def _attack_flags(result: ModelResult, cell: Cell, found: AttackResult) -> list[schema.AttackFlags]:
    made_by = parts_of(result.target, cell.attack)  # what `AttackResult.worst` counts
    attack, ways = cell.attack, by_gradients(found)
    robust, confirmed, in_8bit = (
        _pixels(result, rank) for rank in (found.robust, found.confirmed, found.confirmed_8bit)
    )
    return [
        schema.AttackFlags(
            name=attack.label,
            norm=attack.norm_name,
            eps=cell.budget.text,
            eps_value=cell.budget.value,
            part=made_by[int(found.worst[i])][0].label,
            variant=made_by[int(found.worst[i])][1],
            adversarial_index=int(found.index[i]),
            adversarial_probability=_shown(result, found.probability[i]),
            margin=_shown(result, found.margin[i]),
            distance=float(found.distance[i]),
            robust=bool(found.robust[i] == 0),
            confirmed=bool(found.confirmed[i] == 0),
            confirmed_8bit=bool(found.confirmed_8bit[i] == 0) if attack.in_8bit else None,
            robust_pixel_accuracy=robust[i],
            confirmed_pixel_accuracy=confirmed[i],
            confirmed_8bit_pixel_accuracy=in_8bit[i] if attack.in_8bit else None,
            gradients={way: bool(row[i] == 0) for way, row in ways.items()} or None,
        )
        for i in range(len(found.robust))
    ]


def _pixels(result: ModelResult, rank: np.ndarray) -> list[float] | list[None]:
    """The pixel accuracy of every image; None of what has no pixels to count."""
    pixels = result.target.task.answer == "pixels"
    return result.shares(rank).tolist() if pixels else [None] * len(rank)


def _corruption_flags(result: ModelResult) -> list[list[schema.CorruptionFlags]]:
    found = []
    for cell, one in result.of(CorruptionResult):
        name, severity = split(cell.budget)
        made = partial(schema.CorruptionFlags, name=name, severity=severity)
        answers = zip(one.index.tolist(), (one.rank == 0).tolist(), strict=True)
        found.append([made(index=index, correct=correct) for index, correct in answers])
    return found


def _certificates(result: ModelResult) -> list[list[schema.CertificateFlags]]:
    found = []
    for cell, one in result.of(CertificateResult):
        made = partial(schema.CertificateFlags, sigma=cell.budget.text)
        index = [None if each < 0 else each for each in one.index.tolist()]
        correct = (one.index == result.clean.label).tolist()
        answers = zip(index, one.radius.tolist(), correct, strict=True)
        found.append([made(index=i, radius=radius, correct=c) for i, radius, c in answers])
    return found


def _proof_flags(result: ModelResult) -> list[list[schema.ProofFlags]]:
    found = []
    for one in brackets(result):
        attack, budget = one.cell.attack, one.cell.budget
        made = partial(schema.ProofFlags, name=attack.label, eps=budget.text, kind=budget.kind)
        methods = [one.methods[i] for i in one.proof.method]
        states = np.select([one.broken, one.proved], ["broken", "proved"], "open").tolist()
        sizes = map(_finite, one.proof.margin), one.proof.rounding.tolist()
        rows = zip(states, *sizes, methods, strict=True)
        found.append([made(state=s, margin=m, rounding=r, method=w) for s, m, r, w in rows])
    return found


def _shown(result: ModelResult, value: float) -> float | None:
    """What follows from scores; None where an endpoint shows the class alone."""
    endpoint = result.target.endpoint
    return None if endpoint is not None and endpoint.shows == "label" else _finite(value)


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
