"""Signs of a false figure: what would make an expert disbelieve an accuracy under attack.

A doubt makes the whole result unreliable. "Robust above clean" is not among them: by definition a
sample is robust only if it is right on the clean input.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from robustness.spec import EvaluationSpec, parse_eps
from robustness.verdict import ModelVerdict

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


def worst_ranks(spec: EvaluationSpec, verdict: ModelVerdict) -> dict[str, np.ndarray]:
    """For each radius, in ascending order, the per-sample worst rank (N,) over all attacks.

    The keys are the radii as the spec spells them first.
    """
    spelled: dict[float, str] = {}
    ranks: dict[float, np.ndarray] = {}
    for (_, eps), attack in zip(spec.cells, verdict.attacks, strict=True):
        value = parse_eps(eps)
        spelled.setdefault(value, eps)
        known = ranks.get(value, attack.robust)
        ranks[value] = np.maximum(known, attack.robust)
    return {spelled[value]: ranks[value] for value in sorted(ranks)}


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
    finite = np.logical_and.reduce([verdict.clean.finite, *(a.finite for a in verdict.attacks)])
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
    held = np.maximum.reduce([attack.robust for attack in verdict.attacks]) == 0
    blind = verdict.clean.blind & held
    if blind.any():
        yield Doubt(
            code="zero_gradients",
            message=f"{_images(blind)} count as robust although the model gives no gradient there "
            "(zero, or not a number): the attack had nothing to follow. Scores may be saturated, "
            "or a step may block gradients.",
        )


def _rises_with_eps(spec: EvaluationSpec, verdict: ModelVerdict) -> Iterator[Doubt]:
    held = {eps: rank == 0 for eps, rank in worst_ranks(spec, verdict).items()}
    lowest: tuple[str, int] | None = None
    for eps, flags in held.items():
        count = int(flags.sum())
        if lowest is not None and count - lowest[1] > max(1, RISE * len(flags)):
            yield Doubt(
                code="accuracy_rises_with_eps",
                message=f"More images hold at eps {eps} ({count}) than at eps {lowest[0]} "
                f"({lowest[1]}). The larger radius allows everything the smaller one does, so the "
                "attack failed at the larger one. Use more steps or a stronger attack.",
            )
        if lowest is None or count < lowest[1]:
            lowest = (eps, count)


def _impossible_at_large_eps(spec: EvaluationSpec, verdict: ModelVerdict) -> Iterator[Doubt]:
    most_common = int(np.bincount(verdict.clean.label).max())
    for eps, rank in worst_ranks(spec, verdict).items():
        held = int((rank == 0).sum())
        if parse_eps(eps) >= 0.5 and held > most_common:
            yield Doubt(
                code="impossible_accuracy",
                message=f"{held} images hold at eps {eps}, where every image can be turned into "
                f"the same grey one; at most {most_common} (the commonest class) could. The attack "
                "failed.",
            )


def _transfer_gap(spec: EvaluationSpec, verdict: ModelVerdict) -> Iterator[Doubt]:
    for (attack, eps), figures in zip(spec.cells, verdict.attacks, strict=True):
        differs = (figures.robust == 0) != (figures.confirmed == 0)
        if _many(differs, GAP):
            yield Doubt(
                code="transfer_gap",
                message=f"{attack.name} at eps {eps}: the served model and its twin disagree on "
                f"{_images(differs)} under attack. They should be the same function; see "
                "'confirmed' for what the served model does.",
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
    for attack in spec.attacks:
        for eps in attack.eps:
            value = parse_eps(eps)
            if attack.name == "pgd" and attack.num_steps * attack.step_size(value) < 2 * value:
                found.append(f"pgd at eps {eps} cannot cross its ball: steps x alpha < 2 eps.")
    num_classes = len(verdicts[0].target.labels)
    dropped = [k for k in spec.top_k if k >= num_classes]
    if dropped:
        found.append(f"top-k for k in {dropped} is left out: with {num_classes} classes it is 1.")
    return found
