"""From results to figures: what one model's samples add up to."""

import math
from collections import Counter
from typing import Any

import numpy as np

from core.stats import bootstrap_interval, confidence_sequence, mean_interval
from robustness.attacks.base import Norm
from robustness.attacks.corruptions.attack import mean_corruption_error, split
from robustness.brackets import Bracket, brackets, misled, proved_rank
from robustness.certificates.smoothing import Smoothing
from robustness.kinds import Variant
from robustness.report import schema
from robustness.report.schema import plain
from robustness.report.sentences import ends, of_attack, of_bracket, of_contradiction, outcome
from robustness.results import (
    GRADIENTS,
    AttackResult,
    CertificateResult,
    CorruptionResult,
    ModelResult,
    parts_of,
)
from robustness.spec import Cell
from robustness.tasks import mean_iou

_CURVE = 41  # points of a curve that has one step per sample


def model_figures(
    result: ModelResult, reference: ModelResult | None = None, *, metric: str = "accuracy"
) -> schema.ModelFigures:
    """All figures of one model.

    Args:
        result: what was found.
        reference: the model whose errors under corruptions are the measure, if any.
        metric: "accuracy", or "stability" where no labels were given.
    """
    target, proved = result.target, proved_rank(result)
    largest, errors = result.largest_rank, _errors(result)
    endpoint = None if target.endpoint is None else target.endpoint.facts()
    found = schema.ModelFigures(
        name=target.name,
        version=target.version,
        digest=target.digest,
        runtime=target.runtime.name,
        precision=target.runtime.precision,
        samples=len(result.clean.rank),
        clean=_figure(result, result.clean.rank, result.clean.tables),
        attacks=[_attack(cell, result, one, metric) for cell, one in result.of(AttackResult)],
        worst={
            key: _figure(result, rank, result.worst_tables.get(key))
            for key, rank in result.worst_ranks.items()
        },
        largest=None if largest is None else _figure(result, largest, result.largest_tables),
        minimal=[_minimal(norm, found) for norm, found in nearest(result).items()],
        corruptions=_corruptions(result),
        corrupted=_corrupted(result),
        mean_corruption_error=float(np.mean([np.mean(own) for own in errors.values()]))
        if errors
        else None,
        mce=_relative_error(errors, _errors(reference) if reference else {}),
        certificates=_certificates(result),
        brackets=[_bracket(result, one) for one in brackets(result)],
        proved=None if proved is None else _top1(result, proved),
        classes=_classes(result),
        outcome="",
        endpoint=None if endpoint is None else schema.EndpointFigures(**endpoint),
    )
    return found.model_copy(update={"outcome": outcome(found)})


def _figure(
    result: ModelResult, rank: np.ndarray, tables: np.ndarray | None = None
) -> schema.Figure:
    """An accuracy with its interval, and the same at other ranks, from ranks (N,).

    Of a segmentation with the mean IoU, from tables (3, K, N), of a language model with perplexity.
    """
    shares = result.shares(rank)
    found = schema.Figure(
        top1=float(shares.mean()), ci=_interval(result, shares), top_k=_by_rank(result, rank)
    )
    if tables is None or result.clean.tables is None:
        return found
    together = result.target.task.together(tables, result.clean.tables)
    return found.model_copy(update=together)


def _mean_iou(tables: np.ndarray) -> float:
    """From tables (3, K, N)."""
    return float(mean_iou(tables.sum(axis=-1)))


def _top1(result: ModelResult, rank: np.ndarray) -> schema.Figure:
    """An accuracy that is known of the first class alone."""
    return _figure(result, rank).model_copy(update={"top_k": {}})


def _interval(result: ModelResult, shares: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of the mean of shares (N,), each in [0, 1]."""
    if result.spec.stop == "early":
        return confidence_sequence(math.fsum(shares), len(shares))
    if result.target.task.answer != "class":
        return bootstrap_interval(lambda drawn: drawn @ shares / len(shares), len(shares))
    return mean_interval(shares.tolist())


def accuracy(rank: np.ndarray, k: int = 1) -> float:
    """Share of samples whose label is among the k best classes."""
    return float((rank < k).mean())


def _by_rank(result: ModelResult, rank: np.ndarray) -> dict[str, float]:
    later = {str(k): accuracy(rank, k) for k in result.top_k if k > 1}
    first = {"1": float(result.shares(rank).mean())} if 1 in result.top_k else {}
    return first | later


def _attack(
    cell: Cell, result: ModelResult, found: AttackResult, metric: str
) -> schema.AttackFigures:
    attack, place = cell.attack, cell.budget
    steps, alpha = attack.settings(place)
    on_images = attack.in_8bit
    tables = [None] * 3 if found.tables is None else list(found.tables)
    robust = _figure(result, found.robust, tables[0])
    confirmed, in_8bit = (
        float(result.shares(rank).mean()) for rank in (found.confirmed, found.confirmed_8bit)
    )
    pixels = result.target.task.answer == "pixels"
    iou = [None if table is None or not pixels else _mean_iou(table) for table in tables]
    made = schema.AttackFigures(
        name=attack.label,
        title=attack.title,
        norm=attack.norm_name,
        eps=place.text,
        eps_value=place.value,
        kind=place.kind,
        description=attack.describe(place),
        budget=result.place_name(place),
        steps=steps,
        alpha=alpha,
        robust=robust,
        confirmed=confirmed,
        confirmed_8bit=in_8bit if on_images else None,
        confirmed_top_k=_by_rank(result, found.confirmed),
        confirmed_8bit_top_k=_by_rank(result, found.confirmed_8bit) if on_images else None,
        transfer_gap=confirmed - robust.top1,
        confirmed_mean_iou=iou[1],
        confirmed_8bit_mean_iou=iou[2] if on_images else None,
        **_successes(result, found, on_images=on_images),
        parts=_parts(result, cell, found),
        gradients={
            way: float(result.shares(rank).mean()) for way, rank in by_gradients(found).items()
        }
        or None,
        finding="",
    )
    return made.model_copy(
        update={"finding": of_attack(made, len(found.robust), metric, ends(result.spec))}
    )


def _parts(result: ModelResult, cell: Cell, found: AttackResult) -> list[schema.PartFigures]:
    """What each part of an attack misled, with either way of taking gradients, if it has parts."""
    ran = parts_of(result.target, cell.attack)
    own = {part.label: part for part, _ in ran}
    if len(own) < 2:
        return []
    correct = result.clean.rank == 0
    rows = {name: [i for i, (part, _) in enumerate(ran) if part.label == name] for name in own}
    return [
        schema.PartFigures(
            name=name,
            title=part.title,
            misled=int((correct & (found.by_part[rows[name]] > 0).any(axis=0)).sum()),
        )
        for name, part in own.items()
    ]


def _successes(result: ModelResult, found: AttackResult, *, on_images: bool) -> dict[str, Any]:
    """How many inputs an attack misled the model on; of pixels and tokens some are wrong always."""
    clean = result.clean.rank
    correct = (clean == 0) | (result.target.task.answer != "class")
    misled, served = found.robust > clean, found.confirmed > clean
    png = found.confirmed_8bit > clean
    return {
        "successes": int((correct & misled).sum()),
        "served_successes": int((correct & misled & served).sum()),
        "png_successes": int((correct & misled & png).sum()) if on_images else None,
        "served_only": int((correct & ~misled & served).sum()),
    }


def by_gradients(found: AttackResult) -> dict[Variant, np.ndarray]:
    """The ranks (N,) by each way of taking gradients, where there are two."""
    if len(found.by_variant) < 2:
        return {}
    return dict(zip(GRADIENTS, found.by_variant, strict=True))


def nearest(result: ModelResult) -> dict[Norm, np.ndarray]:
    """By norm the distance (N,) to the nearest adversarial input found, where one was looked for.

    A sample that is wrong unattacked has distance 0, one that was never misled an infinite one.
    """
    found: dict[Norm, np.ndarray] = {}
    for cell, one in result.of(AttackResult):
        norm = cell.attack.norm_name
        if cell.attack.info.minimal and norm is not None:
            found[norm] = np.minimum(found.get(norm, one.nearest), one.nearest)
    return found


def _minimal(norm: Norm, distance: np.ndarray) -> schema.MinimalFigures:
    known = np.sort(distance[np.isfinite(distance)])
    shares = np.linspace(0, 1, _CURVE)
    eps = np.unique(
        np.append(0.0, np.quantile(known, shares, method="higher")) if len(known) else [0]
    )
    middle = float(np.quantile(distance, 0.5, method="higher"))
    return schema.MinimalFigures(
        norm=norm,
        eps=[float(value) for value in eps],
        accuracy=[float((distance > value).mean()) for value in eps],
        median=middle if np.isfinite(middle) else None,
    )


def _corruptions(result: ModelResult) -> list[schema.CorruptionFigures]:
    found = []
    for cell, one in result.of(CorruptionResult):
        name, severity = split(cell.budget)
        measured = _figure(result, one.rank)
        found.append(schema.CorruptionFigures(name=name, severity=severity, accuracy=measured))
    return found


def _corrupted(result: ModelResult) -> schema.Figure | None:
    """Accuracy averaged over all corruptions; each image's own average counts for the interval."""
    found = result.of(CorruptionResult)
    if not found:
        return None
    ranks = np.stack([one.rank for _, one in found])  # (C, N)
    each = (ranks == 0).mean(axis=0)
    return schema.Figure(
        top1=float(each.mean()),
        ci=_interval(result, each),
        top_k={str(k): accuracy(ranks, k) for k in result.top_k},
    )


def _errors(result: ModelResult) -> dict[str, list[float]]:
    errors: dict[str, list[float]] = {}
    for cell, one in result.of(CorruptionResult):
        errors.setdefault(split(cell.budget)[0], []).append(1 - accuracy(one.rank))
    return errors


def _relative_error(
    errors: dict[str, list[float]], measure: dict[str, list[float]]
) -> float | None:
    # Without an error of the reference there is nothing to divide by.
    known = errors and measure and all(map(sum, measure.values()))
    return mean_corruption_error(errors, measure) if known else None


def _certificates(result: ModelResult) -> list[schema.CertificateFigures]:
    label = result.clean.label
    return [
        schema.CertificateFigures(
            sigma=cell.budget.text,
            samples=cell.attack.samples,
            alpha=cell.attack.alpha,
            abstained=float((found.index < 0).mean()),
            curve=_certified(result, np.where(found.index == label, found.radius, -1.0)),
        )
        for cell, found in result.of(CertificateResult)
        if isinstance(cell.attack, Smoothing)
    ]


def _certified(result: ModelResult, radius: np.ndarray) -> list[schema.Certified]:
    """The curve, from certified radii (N,) that are negative where the answer is wrong."""
    found, samples = [], len(radius)
    for place in np.unique(np.linspace(0, max(float(radius.max()), 0.0), _CURVE)):
        held = radius >= place
        share, ci = int(held.sum()) / samples, _interval(result, held)
        found.append(schema.Certified(radius=float(place), share=share, ci=ci))
    return found


def _bracket(result: ModelResult, one: Bracket) -> schema.BracketFigures:
    attack, place = one.cell.attack, one.cell.budget
    made = schema.BracketFigures(
        name=attack.label,
        title=attack.title,
        eps=place.text,
        eps_value=place.value,
        kind=place.kind,
        description=attack.describe(place),
        attacks=[_called(cell) for cell, _ in one.attacks],
        broken=int(one.broken.sum()),
        proved=int(one.proved.sum()),
        open=int(one.open.sum()),
        proved_accuracy=_top1(result, ~one.proved),
        robust_accuracy=_top1(result, one.broken),
        rounding=float(one.proof.rounding.max()),
        methods=dict(Counter(one.methods[i] for i in one.proof.method[one.proved])),
        contradictions=[
            _contradiction(result, one, i) for i in np.flatnonzero(one.contradicted).tolist()
        ],
        finding="",
    )
    return made.model_copy(update={"finding": of_bracket(made, len(one.clean), ends(result.spec))})


def _contradiction(result: ModelResult, one: Bracket, i: int) -> schema.Contradiction:
    """Both witnesses of input `i`: of the attacks the first that misled."""
    by = next(((c, found) for c, found in one.attacks if misled(found)[i]), None)
    if not one.clean[i]:
        by = None
    proof, replaced = one.proof, one.proof.places[:, i] >= 0
    index = int((result.clean if by is None else by[1]).index[i])
    made = schema.Contradiction(
        sample=i,
        attack="none" if by is None else by[0].attack.label,
        eps=None if by is None else by[0].budget.text,
        adversarial_index=index,
        margin=float(proof.margin[i]),
        rounding=float(proof.rounding[i]),
        places=proof.places[replaced, i].tolist(),
        pieces=[piece for piece in proof.pieces[replaced, i].tolist() if piece >= 0],
    )
    finding = of_contradiction(
        made,
        one.cell.attack.describe(one.cell.budget),
        one.methods[proof.method[i]],
        "" if by is None else _called(by[0]),
        plain(result.target.labels[index]),
    )
    return made.model_copy(update={"finding": finding})


def _called(cell: Cell) -> str:
    return f"{cell.attack.title} {cell.attack.describe(cell.budget)}"


def _classes(result: ModelResult) -> list[schema.ClassFigures]:
    label, worst = result.clean.label, result.worst_ranks
    if result.target.task.answer == "tokens":
        return []
    if result.clean.tables is not None:
        return _pixel_classes(result.clean.tables, result.worst_tables)
    found = []
    for index in np.unique(label):
        own = label == index
        found.append(
            schema.ClassFigures(
                index=int(index),
                samples=int(own.sum()),
                clean=accuracy(result.clean.rank[own]),
                worst={key: accuracy(rank[own]) for key, rank in worst.items()},
            )
        )
    return found


def _pixel_classes(clean: np.ndarray, worst: dict[str, np.ndarray]) -> list[schema.ClassFigures]:
    """Of each class that occurs the share of its pixels that are right, from tables (3, K, N)."""

    def shares(tables: np.ndarray) -> np.ndarray:
        """Of every class, (K,); NaN where it does not occur."""
        right, true, _ = tables.sum(axis=-1)
        return np.where(true > 0, right / np.maximum(true, 1), np.nan)

    images, unchanged = (clean[1] > 0).sum(axis=-1), shares(clean)
    attacked = {key: shares(tables) for key, tables in worst.items()}
    return [
        schema.ClassFigures(
            index=index,
            samples=int(images[index]),
            clean=float(unchanged[index]),
            worst={key: float(each[index]) for key, each in attacked.items()},
        )
        for index in np.flatnonzero(images).tolist()
    ]
