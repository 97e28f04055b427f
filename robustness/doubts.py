"""Signs of a false figure: what would make an expert disbelieve an accuracy under attack.

A doubt makes the whole result unreliable. "Robust above clean" is not among them: by definition a
sample is robust only if it is right on the clean input.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from robustness.spec import EvaluationSpec
from robustness.verdict import ModelVerdict
from robustness.worst import Place, attacked, worst_cases

GAP = 0.01  # share of samples on which twin and served model may disagree: borderline logits
RISE = 0.02  # share by which the seed alone moves an accuracy: 1-3 flags of 100 were measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """A reason not to believe a figure.

    Attributes:
        code: a stable name.
        message: the reason in plain words.
    """

    code: str
    message: str


def find_doubts(spec: EvaluationSpec, verdict: ModelVerdict) -> list[Doubt]:
    """All doubts about one model's figures."""
    checks = (
        _not_finite,
        _unsteady,
        _probabilities,
        _twin_differs,
        _no_gradient,
        _rises_with_eps,
        _impossible_at_large_eps,
        _transfer_gap,
    )
    return [doubt for check in checks for doubt in check(spec, verdict)]


def _not_finite(spec: EvaluationSpec, verdict: ModelVerdict) -> Iterator[Doubt]:
    found = [one.finite for _, one in attacked(spec, verdict)]
    finite = np.logical_and.reduce([verdict.clean.finite, *found])
    if not finite.all():
        yield Doubt(
            code="non_finite_logits",
            message=f"{_images(~finite)} got a score that is infinite or not a number. They count "
            "as wrong, but a model that overflows was not really attacked.",
        )


def _unsteady(spec: EvaluationSpec, verdict: ModelVerdict) -> Iterator[Doubt]:
    if verdict.clean.unsteady.any():
        yield Doubt(
            code="randomised",
            message=f"{_images(verdict.clean.unsteady)} got different scores when the same batch "
            "was asked twice. Against a randomised model these attacks are too weak.",
        )


def _probabilities(spec: EvaluationSpec, verdict: ModelVerdict) -> Iterator[Doubt]:
    if verdict.clean.normalised.all():
        yield Doubt(
            code="probabilities",
            message="The model returns probabilities instead of logits. The attacks' loss applies "
            "a softmax of its own, and their gradients fade where the model is confident.",
        )


def _twin_differs(spec: EvaluationSpec, verdict: ModelVerdict) -> Iterator[Doubt]:
    differs = (verdict.clean.index != verdict.clean.twin_index) & verdict.clean.finite
    if _many(differs, GAP):
        yield Doubt(
            code="twin_differs",
            message=f"The served model and its twin disagree on {_images(differs)} that nobody "
            "attacked. Then attacks on the twin say little about the served model.",
        )


def _no_gradient(spec: EvaluationSpec, verdict: ModelVerdict) -> Iterator[Doubt]:
    ranks = [one.robust for _, one in attacked(spec, verdict)]
    blind = verdict.clean.blind & (np.maximum.reduce([verdict.clean.rank, *ranks]) == 0)
    if blind.any():
        yield Doubt(
            code="zero_gradients",
            message=f"{_images(blind)} count as robust although the model gives no gradient there "
            "(zero, or not a number): the attack had nothing to follow. Scores may be saturated, "
            "or a step may block gradients.",
        )


def _rises_with_eps(spec: EvaluationSpec, verdict: ModelVerdict) -> Iterator[Doubt]:
    lowest: tuple[Place, int] | None = None
    for place, rank in worst_cases(spec, verdict):
        if lowest is not None and lowest[0].kind != place.kind:
            lowest = None
        count = int((rank == 0).sum())
        if lowest is not None and count - lowest[1] > max(1, RISE * len(rank)):
            yield Doubt(
                code="accuracy_rises_with_eps",
                message=f"More samples hold at {place.point} ({count}) than at {lowest[0].point} "
                f"({lowest[1]}). The larger budget allows all that the smaller one does, so the "
                "attack failed at the larger one. Use more steps or a stronger attack.",
            )
        if lowest is None or count < lowest[1]:
            lowest = (place, count)


def _impossible_at_large_eps(spec: EvaluationSpec, verdict: ModelVerdict) -> Iterator[Doubt]:
    most_common = int(np.bincount(verdict.clean.label).max())
    for place, rank in worst_cases(spec, verdict):
        held = int((rank == 0).sum())
        if place.kind == "Linf" and place.value >= 0.5 and held > most_common:
            yield Doubt(
                code="impossible_accuracy",
                message=f"{held} images hold at eps {place.point}, where every image can be turned "
                f"into the same grey one; at most {most_common} (the commonest class) could. The "
                "attack failed.",
            )


def _transfer_gap(spec: EvaluationSpec, verdict: ModelVerdict) -> Iterator[Doubt]:
    for cell, figures in attacked(spec, verdict):
        differs = (figures.robust == 0) != (figures.confirmed == 0)
        if _many(differs, GAP):
            yield Doubt(
                code="transfer_gap",
                message=f"{cell.attack.name} at {cell.point}: the served model and its twin "
                f"disagree on {_images(differs)} under attack. They should be the same function; "
                "see 'confirmed' for what the served model does.",
            )


def _many(flags: np.ndarray, share: float) -> bool:
    return int(flags.sum()) > max(1.0, share * len(flags))


def _images(flags: np.ndarray) -> str:
    return f"{int(flags.sum())} of {len(flags)} images"


def notes(spec: EvaluationSpec, verdicts: Sequence[ModelVerdict]) -> list[str]:
    """What a reader must know to read the figures, though nothing is wrong with them."""
    found = [
        "Every robust accuracy is an upper bound: a stronger attack can only lower it. "
        "FGSM and PGD follow the cross-entropy; where scores saturate, attacks with another loss "
        "or without gradients find more."
    ]
    if all(attack.name == "fgsm" for attack in spec.attacks):
        found.append("Only FGSM was run. One step is a weak attack; add pgd before relying on it.")
    for cell in spec.cells:
        attack, eps = cell.attack, cell.point
        if attack.name == "pgd":
            value = attack.radius(eps)
            if attack.num_steps * attack.step_size(value) < 2 * value:
                found.append(f"pgd at eps {eps} cannot cross its ball: steps x alpha < 2 eps.")
    num_classes = len(verdicts[0].target.labels)
    dropped = [k for k in spec.top_k if k >= num_classes]
    if dropped:
        found.append(f"top-k for k in {dropped} is left out: with {num_classes} classes it is 1.")
    return found
