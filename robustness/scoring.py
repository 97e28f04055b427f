"""From stored adversarial inputs to per-sample verdicts, recomputed in float32.

Everything rests on the rank of the true label: how many classes the model puts before it. A sample
is right at top-k when its rank is below k; the worst of several attacks is the largest rank. So the
worst case at every k is taken per sample over all attacks run in full, and does not depend on the
order of attacks. (The attacks themselves aim at top-1.)

- clean: the served model's rank on the clean input.
- robust: the larger of clean rank and the twin's rank on the adversarial input, over all gradient
  variants. Thus a sample is robust only if it is right on clean **and** on adversarial input.
- confirmed: the same with the served model's rank on the same stored adversarial inputs. A success
  of the attack counts only if it fools the served model too.
- confirmed in 8 bit: the same after the adversarial input was written as a PNG and read back
  through the public preprocessing. Rounding moves a pixel by up to 0.5/255, so where eps is no
  multiple of 1/255 the rounded input may lie outside the ball by that much.
- transfer gap: confirmed minus robust accuracy, the part of the attack's success that the served
  model does not show.

A sample with a logit that is not finite has the worst rank: it is never right.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np

from robustness.attacks.base import Variant
from robustness.logits import label_rank, margin, top_probability
from robustness.progress import Meter
from robustness.sanity.diagnostics import Diagnostics
from robustness.target import Target

GRADIENTS: tuple[Variant, ...] = ("stopped", "full")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanVerdict:
    """The model on clean inputs; every array has one entry per sample.

    Attributes:
        label: (N,) int64 true labels, or the model's own predictions in their place.
        rank: (N,) int64 rank of the label, by the served model.
        index: (N,) int64 class predicted by the served model.
        probability: (N,) float64 softmax probability of that class; NaN if a logit is not finite.
        twin_index: (N,) int64 class predicted by the twin.
        finite: (N,) bool, all logits of both are finite.
        blind: (N,) bool, the twin's input gradient is zero, or not a number, in every pixel.
        normalised: (N,) bool, the served model's outputs are probabilities: in [0, 1], sum 1.
        unsteady: (N,) bool, the served model answered the same batch differently a second time;
            asked for the first range of images only.
    """

    label: np.ndarray
    rank: np.ndarray
    index: np.ndarray
    probability: np.ndarray
    twin_index: np.ndarray
    finite: np.ndarray
    blind: np.ndarray
    normalised: np.ndarray
    unsteady: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What one attack made of every sample, with one gradient variant, at one radius.

    Attributes:
        twin_rank: (N,) rank of the label by the twin; by the served model where there is no twin.
        served_rank: (N,) by the served model.
        eight_bit_rank: (N,) by the served model after rounding to 8 bit; for texts as served_rank.
        index: (N,) class predicted by the served model.
        margin: (N,) logit of the label minus the largest other one, by the twin if there is one.
        distance: (N,) size of the change: the attack's norm of the pixels', or edits of a text.
        finite: (N,) bool, all logits are finite.
    """

    twin_rank: np.ndarray
    served_rank: np.ndarray
    eight_bit_rank: np.ndarray
    index: np.ndarray
    margin: np.ndarray
    distance: np.ndarray
    finite: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackVerdict:
    """One attack at one point, the per-sample worst over all that it did.

    Attributes:
        robust: (N,) rank over clean input and the twin on all adversarial inputs.
        confirmed: (N,) the same, by the served model.
        confirmed_8bit: (N,) the same, by the served model after rounding to 8 bit.
        by_part: (P, N) for each of `parts` its own robust rank; a sample that left before keeps its
            clean one.
        by_variant: (V, N) for each gradient variant its own robust rank; one row without any.
        worst: (N,) position in `parts` of what is shown for a sample: something that fools the
            served model if anything does, then the smallest margin.
        index: (N,) class that the served model predicts there.
        margin: (N,) logit of the label minus the largest other one, there.
        distance: (N,) size of the change, there.
        nearest: (N,) distance of the nearest adversarial input at any radius; infinite where none
            was found, or the attack does not look for it.
        finite: (N,) bool, all logits under all parts are finite.
    """

    robust: np.ndarray
    confirmed: np.ndarray
    confirmed_8bit: np.ndarray
    by_part: np.ndarray
    by_variant: np.ndarray
    worst: np.ndarray
    index: np.ndarray
    margin: np.ndarray
    distance: np.ndarray
    nearest: np.ndarray
    finite: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class CorruptionVerdict:
    """The served model on inputs with one corruption at one severity.

    Attributes:
        rank: (N,) rank of the label on the corrupted input.
        index: (N,) class predicted there.
    """

    rank: np.ndarray
    index: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateVerdict:
    """What randomized smoothing proves of the smoothed served model.

    Attributes:
        index: (N,) class of the smoothed classifier; -1 where it abstains.
        radius: (N,) l2 radius within which it cannot change; 0 where it abstains.
    """

    index: np.ndarray
    radius: np.ndarray


CellVerdict = AttackVerdict | CorruptionVerdict | CertificateVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelVerdict:
    """One model's part of an evaluation.

    Attributes:
        target: the model.
        clean: its verdict on clean inputs.
        cells: one verdict per attack and point, in the order of `EvaluationSpec.cells`.
        inputs_digest: sha256 over the digests of its clean inputs, range by range.
        diagnostics: measured on the first chunk; None where it was not asked.
    """

    target: Target
    clean: CleanVerdict
    cells: list[CellVerdict]
    inputs_digest: str
    diagnostics: Diagnostics | None = None


def judge_clean(
    served: np.ndarray,
    again: np.ndarray,
    twin: np.ndarray,
    labels: np.ndarray | None,
    blind: np.ndarray,
) -> CleanVerdict:
    """Judge clean inputs from what a model says to them.

    Args:
        served: (N, K) logits of the served model.
        again: (N, K) its second answer; the first one where it was not asked again.
        twin: (N, K) logits of the twin; of the served model where there is no twin.
        labels: (N,) int64, or None, where the model's own predictions stand in.
        blind: (N,) bool, see `CleanVerdict`.
    """
    label = (served.argmax(axis=1) if labels is None else labels).astype(np.int64)
    finite = np.asarray(np.isfinite(np.concatenate([served, twin], axis=1)).all(axis=1))
    return CleanVerdict(
        label=label,
        rank=label_rank(served, label),
        index=served.argmax(axis=1),
        probability=top_probability(served),
        twin_index=twin.argmax(axis=1),
        finite=finite,
        blind=blind,
        normalised=(served >= 0).all(axis=1) & (np.abs(served.sum(axis=1) - 1) < 1e-4),
        unsteady=np.any(again != served, axis=1) & finite,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Logits (N, K) of the twin, of the served model, and of that to inputs rounded to 8 bit."""

    twin: np.ndarray
    served: np.ndarray
    rounded: np.ndarray


def ask(target: Target, inputs: np.ndarray | list[str], meter: Meter) -> Answers:
    """What a model says to adversarial inputs; without a twin the served model stands in."""
    served = target.predict(inputs, meter)
    twin = served if target.twin is None else target.predict_twin(inputs, meter)
    return Answers(twin=twin, served=served, rounded=target.predict_8bit(inputs, served, meter))


def score(answers: Answers, labels: np.ndarray, distance: np.ndarray) -> Judgement:
    """Score adversarial inputs from what a model says to them.

    Args:
        answers: the model's logits.
        labels: (N,) int64 true classes.
        distance: (N,) size of each change.
    """
    each = (answers.twin, answers.served, answers.rounded)
    twin_rank, served_rank, rounded_rank = (label_rank(logits, labels) for logits in each)
    return Judgement(
        twin_rank=twin_rank,
        served_rank=served_rank,
        eight_bit_rank=rounded_rank,
        index=answers.served.argmax(axis=1),
        margin=margin(answers.twin, labels),
        distance=distance,
        finite=np.logical_and.reduce([np.isfinite(logits).all(axis=1) for logits in each]),
    )


def combine(
    clean: CleanVerdict,
    judgements: Sequence[Judgement],
    variants: Sequence[Variant],
    nearest: np.ndarray | None = None,
) -> AttackVerdict:
    """The per-sample worst over all that one attack did at one point.

    Args:
        clean: the model on clean inputs.
        judgements: one per part and gradient variant, of the same samples.
        variants: the variant of each; what has no variant counts for every one.
        nearest: (N,) distance of the nearest adversarial input, if the attack looks for it.
    """

    def worst_rank(name: str, chosen: Sequence[Judgement]) -> np.ndarray:
        return np.maximum.reduce([clean.rank, *(getattr(j, name) for j in chosen)])

    kinds = [v for v in GRADIENTS if v in variants] or ["plain"]
    pairs = list(zip(judgements, variants, strict=True))
    of_kind = [[j for j, variant in pairs if variant in (kind, "plain")] for kind in kinds]
    worst = _worst_part(judgements)
    rows = np.arange(len(worst))

    def shown(name: str) -> np.ndarray:
        return np.stack([getattr(j, name) for j in judgements])[worst, rows]

    return AttackVerdict(
        robust=worst_rank("twin_rank", judgements),
        confirmed=worst_rank("served_rank", judgements),
        confirmed_8bit=worst_rank("eight_bit_rank", judgements),
        by_part=np.stack([worst_rank("twin_rank", [j]) for j in judgements]),
        by_variant=np.stack([worst_rank("twin_rank", chosen) for chosen in of_kind]),
        worst=worst,
        index=shown("index"),
        margin=shown("margin"),
        distance=shown("distance"),
        nearest=np.full(len(worst), np.inf) if nearest is None else nearest,
        finite=np.logical_and.reduce([j.finite for j in judgements]),
    )


def _worst_part(judgements: Sequence[Judgement]) -> np.ndarray:
    held = np.stack([j.served_rank == 0 for j in judgements])  # (V, N)
    margins = np.stack([j.margin for j in judgements])  # (V, N)
    return np.lexsort((margins, held), axis=0)[0]  # (N,)


def join(parts: Sequence[T]) -> T:
    """Join the verdicts of consecutive ranges of inputs into one of all inputs."""
    first = parts[0]
    joined = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts], axis=-1)
        for field in fields(first)  # pyright: ignore[reportArgumentType]  T is one of the above
    }
    return type(first)(**joined)
