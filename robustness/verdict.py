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

from data.images import ImageSpec, decode_image, to_input, to_png
from robustness.progress import Meter
from robustness.target import Target, predict_served, predict_twin

TOLERANCE = 1e-6  # float32 rounding of images + delta

T = TypeVar("T")


class BoundsError(ValueError):
    """Adversarial inputs that the attack was not allowed to make."""


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
    """One attack at one radius with one gradient variant; arrays have one entry per sample.

    Attributes:
        twin_rank: (N,) rank of the label by the twin.
        served_rank: (N,) by the served model.
        eight_bit_rank: (N,) by the served model after rounding to 8 bit.
        index: (N,) class predicted by the served model.
        margin: (N,) the twin's logit of the label minus the largest other one.
        linf: (N,) largest absolute change of a pixel.
        finite: (N,) bool, all logits are finite.
    """

    twin_rank: np.ndarray
    served_rank: np.ndarray
    eight_bit_rank: np.ndarray
    index: np.ndarray
    margin: np.ndarray
    linf: np.ndarray
    finite: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackVerdict:
    """One attack at one radius, the per-sample worst over its gradient variants.

    Attributes:
        robust: (N,) rank over clean input and the twin on all variants' adversarial inputs.
        confirmed: (N,) the same, by the served model.
        confirmed_8bit: (N,) the same, by the served model after rounding to 8 bit.
        by_variant: for each variant (N,) its own robust rank.
        worst: (N,) position of the variant shown for a sample: one that fools the served model if
            any does, then the one with the smallest margin.
        shown: the judgement of that variant, sample by sample.
        finite: (N,) bool, all logits under all variants are finite.
    """

    robust: np.ndarray
    confirmed: np.ndarray
    confirmed_8bit: np.ndarray
    by_variant: list[np.ndarray]
    worst: np.ndarray
    shown: Judgement
    finite: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelVerdict:
    """One model's part of an evaluation.

    Attributes:
        target: the model.
        clean: its verdict on clean inputs.
        attacks: one verdict per attack and radius, in the order of `EvaluationSpec.cells`.
        inputs_digest: sha256 over the digests of its clean inputs, range by range.
    """

    target: Target
    clean: CleanVerdict
    attacks: list[AttackVerdict]
    inputs_digest: str


def label_rank(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Number of classes that come before the label.

    Equal logits are ordered by index, as argmax does. A row with a value that is not finite gets
    rank K.

    Args:
        logits: (N, K).
        labels: (N,) in [0, K).

    Returns:
        (N,) int64; 0 means top-1.
    """
    own = np.take_along_axis(logits, labels[:, None], axis=1)  # (N, 1)
    earlier = np.arange(logits.shape[1])[None, :] < labels[:, None]
    rank = ((logits > own) | ((logits == own) & earlier)).sum(axis=1)
    return np.where(np.isfinite(logits).all(axis=1), rank, logits.shape[1]).astype(np.int64)


def margin(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Logit of the label minus the largest other one, (N,); minus infinity if not finite."""
    others = logits.astype(np.float64)
    own = np.take_along_axis(others, labels[:, None], axis=1)[:, 0]
    np.put_along_axis(others, labels[:, None], -np.inf, axis=1)
    with np.errstate(invalid="ignore"):
        difference = own - others.max(axis=1)
    return np.where(np.isfinite(logits).all(axis=1), difference, -np.inf)


def check_bounds(clean: np.ndarray, adversarial: np.ndarray, eps: float) -> np.ndarray:
    """Check that adversarial inputs are ones the attack was allowed to make.

    Args:
        clean: (N, C, H, W) in [0, 1].
        adversarial: (N, C, H, W).
        eps: l-infinity radius.

    Returns:
        (N,) largest absolute change of a pixel, float64.

    Raises:
        BoundsError: a value is not finite, lies outside [0, 1] or further than eps + 1e-6 away.
    """
    if adversarial.shape != clean.shape:
        raise BoundsError(f"adversarial must have shape {clean.shape}, got {adversarial.shape}")
    if not np.isfinite(adversarial).all():
        raise BoundsError("adversarial inputs must be finite")
    if adversarial.min() < 0 or adversarial.max() > 1:
        raise BoundsError("adversarial inputs must lie in [0, 1]")
    change = np.abs(adversarial.astype(np.float64) - clean.astype(np.float64))
    distance = change.reshape(len(clean), -1).max(axis=1)
    if distance.max() > eps + TOLERANCE:
        raise BoundsError(
            f"adversarial inputs must stay within {eps:.6g}, got {distance.max():.6g}"
        )
    return distance


def in_8bit(inputs: np.ndarray, spec: ImageSpec) -> np.ndarray:
    """Inputs as the public path sees them: written as PNG, decoded and preprocessed again."""
    return np.stack([to_input(decode_image(to_png(pixels)), spec) for pixels in inputs])


def judge(
    target: Target,
    clean: np.ndarray,
    adversarial: np.ndarray,
    labels: np.ndarray,
    *,
    eps: float,
    meter: Meter,
) -> Judgement:
    """Judge stored adversarial inputs by twin, served model, and served model in 8 bit.

    Args:
        target: the model on trial.
        clean: (N, C, H, W) clean inputs.
        adversarial: (N, C, H, W) float32.
        labels: (N,) int64.
        eps: l-infinity radius.
        meter: told of each model evaluation.

    Raises:
        BoundsError: see `check_bounds`.
    """
    distance = check_bounds(clean, adversarial, eps)
    twin = predict_twin(target, adversarial, meter)
    served = predict_served(target, adversarial, meter)
    rounded = predict_served(target, in_8bit(adversarial, target.image_spec), meter)
    finite = [np.isfinite(logits).all(axis=1) for logits in (twin, served, rounded)]
    return Judgement(
        twin_rank=label_rank(twin, labels),
        served_rank=label_rank(served, labels),
        eight_bit_rank=label_rank(rounded, labels),
        index=served.argmax(axis=1),
        margin=margin(twin, labels),
        linf=distance,
        finite=np.logical_and.reduce(finite),
    )


def combine(clean: CleanVerdict, judgements: Sequence[Judgement]) -> AttackVerdict:
    """The per-sample worst over the gradient variants of one attack at one radius.

    Args:
        clean: the model on clean inputs.
        judgements: one per variant, of the same samples.
    """

    def worst_rank(name: str) -> np.ndarray:
        return np.maximum.reduce([clean.rank, *(getattr(j, name) for j in judgements)])

    held = np.stack([j.served_rank == 0 for j in judgements])  # (V, N)
    margins = np.stack([j.margin for j in judgements])  # (V, N)
    worst = np.lexsort((margins, held), axis=0)[0]  # (N,)
    columns = np.arange(len(worst))
    shown = {
        field.name: np.stack([getattr(j, field.name) for j in judgements])[worst, columns]
        for field in fields(Judgement)
    }
    return AttackVerdict(
        robust=worst_rank("twin_rank"),
        confirmed=worst_rank("served_rank"),
        confirmed_8bit=worst_rank("eight_bit_rank"),
        by_variant=[np.maximum(clean.rank, j.twin_rank) for j in judgements],
        worst=worst,
        shown=Judgement(**shown),
        finite=np.logical_and.reduce([j.finite for j in judgements]),
    )


def join(parts: Sequence[T]) -> T:
    """Join the verdicts of consecutive ranges of images into one of all images."""
    first = parts[0]
    joined = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts])
        for field in fields(first)  # pyright: ignore[reportArgumentType]  T is one of the above
    }
    return type(first)(**joined)
