"""From verdicts to a report: figures, intervals, comparison, gate, per-sample flags."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from data.sources import ImageSet
from robustness.doubts import find_doubts, notes, worst_ranks
from robustness.intervals import mcnemar, wilson
from robustness.report import schema
from robustness.shards import SHARD_SIZE, content_digest
from robustness.spec import AttackSpec, EvaluationSpec, parse_eps, parse_gate
from robustness.verdict import AttackVerdict, ModelVerdict


def build_report(
    spec: EvaluationSpec,
    verdicts: Sequence[ModelVerdict],
    images: ImageSet,
    environment: dict[str, str],
) -> schema.Report:
    """Put everything together.

    Args:
        spec: what was asked for.
        verdicts: the model on trial, then the one it is compared with if any.
        images: what was judged, for names and labels.
        environment: where it ran.
    """
    first = verdicts[0].target
    labels = np.empty(0, np.int64) if images.labels is None else images.labels
    inputs = np.array([verdicts[0].inputs_digest], dtype="S64")
    return schema.Report(
        spec=spec,
        seed=spec.seed,
        summary=_summary(spec, verdicts, labelled=images.labels is not None),
        samples=[_sample(spec, verdicts, images, i) for i in range(len(images))],
        data=schema.Data(
            digest=content_digest(inputs, labels), samples=len(images), labels=first.labels
        ),
        shard_size=SHARD_SIZE,
        environment=environment,
        notes=notes(spec, verdicts),
        definitions=schema.DEFINITIONS,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _summary(
    spec: EvaluationSpec, verdicts: Sequence[ModelVerdict], *, labelled: bool
) -> schema.Summary:
    num_classes = len(verdicts[0].target.labels)
    top_k = [k for k in spec.top_k if k < num_classes] or [1]
    models = [_model_figures(spec, verdict, top_k) for verdict in verdicts]
    warnings = [
        schema.ReportWarning(code=doubt.code, model=verdict.target.name, message=doubt.message)
        for verdict in verdicts
        for doubt in find_doubts(spec, verdict)
    ]
    trusted = not any(warning.model == models[0].name for warning in warnings)
    return schema.Summary(
        metric="accuracy" if labelled else "stability",
        top_k=top_k,
        models=models,
        comparison=_comparison(spec, verdicts),
        gate=None
        if spec.gate is None
        else _gate(spec.gate, models[0], trusted=trusted, labelled=labelled),
        warnings=warnings,
        reliable=not warnings,
    )


def _model_figures(
    spec: EvaluationSpec, verdict: ModelVerdict, top_k: Sequence[int]
) -> schema.ModelFigures:
    target = verdict.target
    return schema.ModelFigures(
        name=target.name,
        version=target.version,
        digest=target.digest,
        runtime=target.runtime.name,
        precision=target.runtime.precision,
        samples=len(verdict.clean.rank),
        clean=_figure(verdict.clean.rank, top_k),
        attacks=[
            _attack_figures(attack, eps, figures, verdict, top_k)
            for (attack, eps), figures in zip(spec.cells, verdict.attacks, strict=True)
        ],
        worst={eps: _figure(rank, top_k) for eps, rank in worst_ranks(spec, verdict).items()},
    )


def _attack_figures(
    attack: AttackSpec,
    eps: str,
    figures: AttackVerdict,
    verdict: ModelVerdict,
    top_k: Sequence[int],
) -> schema.AttackFigures:
    robust = _figure(figures.robust, top_k)
    confirmed, in_8bit = _accuracy(figures.confirmed, 1), _accuracy(figures.confirmed_8bit, 1)
    variants = verdict.target.variants
    return schema.AttackFigures(
        name=attack.name,
        norm=attack.norm,
        eps=eps,
        eps_value=parse_eps(eps),
        steps=attack.num_steps,
        alpha=attack.step_size(parse_eps(eps)),
        robust=robust,
        confirmed=confirmed,
        confirmed_8bit=in_8bit,
        confirmed_top_k={str(k): _accuracy(figures.confirmed, k) for k in top_k},
        confirmed_8bit_top_k={str(k): _accuracy(figures.confirmed_8bit, k) for k in top_k},
        transfer_gap=confirmed - robust.top1,
        gradients={v: _accuracy(r, 1) for v, r in zip(variants, figures.by_variant, strict=True)}
        if len(variants) > 1
        else None,
    )


def _figure(rank: np.ndarray, top_k: Sequence[int]) -> schema.Figure:
    return schema.Figure(
        top1=_accuracy(rank, 1),
        ci=wilson(int((rank == 0).sum()), len(rank)),
        top_k={str(k): _accuracy(rank, k) for k in top_k},
    )


def _accuracy(rank: np.ndarray, k: int) -> float:
    return float((rank < k).mean())


def _comparison(spec: EvaluationSpec, verdicts: Sequence[ModelVerdict]) -> schema.Comparison | None:
    if len(verdicts) < 2:
        return None
    first, second = verdicts
    others = worst_ranks(spec, second)
    return schema.Comparison(
        first=first.target.name,
        second=second.target.name,
        clean=_pair(first.clean.rank, second.clean.rank),
        worst={eps: _pair(rank, others[eps]) for eps, rank in worst_ranks(spec, first).items()},
    )


def _pair(first: np.ndarray, second: np.ndarray) -> schema.Pair:
    a, b = first == 0, second == 0
    only_first, only_second = int((a & ~b).sum()), int((b & ~a).sum())
    return schema.Pair(
        first=float(a.mean()),
        second=float(b.mean()),
        difference=(only_first - only_second) / len(a),
        both=int((a & b).sum()),
        only_first=only_first,
        only_second=only_second,
        neither=int((~a & ~b).sum()),
        p_value=mcnemar(only_first, only_second),
    )


def _gate(
    text: str, figures: schema.ModelFigures, *, trusted: bool, labelled: bool
) -> schema.GateResult:
    gate = parse_gate(text)
    # Without labels the model is compared with itself: clean accuracy is 1 whatever the model.
    meaningful = labelled or gate.metric != "clean_accuracy"
    largest = list(figures.worst)[-1]
    judged = figures.clean if gate.metric == "clean_accuracy" else figures.worst[largest]
    where = "clean" if gate.metric == "clean_accuracy" else f"worst case at eps {largest}"
    lower = judged.ci[0]
    reason = f"{where}: lower bound {lower:.4f} of {judged.top1:.4f}"
    if not trusted:
        reason += "; a figure with unresolved warnings passes no gate"
    if not labelled:
        reason += "; no labels were given, so this is stability, not accuracy"
    return schema.GateResult(
        text=text,
        metric=gate.metric,
        op=gate.op,
        threshold=gate.threshold,
        value=lower,
        passed=trusted and meaningful and gate.holds(lower),
        reason=reason,
    )


def _sample(
    spec: EvaluationSpec, verdicts: Sequence[ModelVerdict], images: ImageSet, i: int
) -> schema.Sample:
    return schema.Sample(
        index=i,
        name=images.names[i],
        label=None if images.labels is None else int(images.labels[i]),
        models=[_model_flags(spec, verdict, i) for verdict in verdicts],
    )


def _model_flags(spec: EvaluationSpec, verdict: ModelVerdict, i: int) -> schema.ModelFlags:
    clean = verdict.clean
    return schema.ModelFlags(
        name=verdict.target.name,
        clean=schema.CleanFlags(
            index=int(clean.index[i]),
            probability=_finite(clean.probability[i]),
            correct=bool(clean.rank[i] == 0),
        ),
        attacks=[
            schema.AttackFlags(
                name=attack.name,
                eps=eps,
                eps_value=parse_eps(eps),
                adversarial_index=int(figures.shown.index[i]),
                variant=verdict.target.variants[int(figures.worst[i])],
                margin=_finite(figures.shown.margin[i]),
                linf=float(figures.shown.linf[i]),
                robust=bool(figures.robust[i] == 0),
                confirmed=bool(figures.confirmed[i] == 0),
                confirmed_8bit=bool(figures.confirmed_8bit[i] == 0),
            )
            for (attack, eps), figures in zip(spec.cells, verdict.attacks, strict=True)
        ],
    )


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
