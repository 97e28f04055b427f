"""From stored adversarial inputs to per-sample results, recomputed in float32.

Everything rests on the rank of the true label: how many classes the model puts before it. A sample
is right at top-k when its rank is below k; the worst of several attacks is the largest rank. So the
worst case at every k is taken per sample over all attacks run in full, and does not depend on the
order of attacks. (The attacks themselves aim at top-1.)

- clean: the served model's rank on the clean input.
- robust: the larger of clean rank and the PyTorch model's rank on the adversarial input, over all
  gradient variants. A sample is robust only if it is right on clean **and** adversarial input.
- confirmed: the same with the served model's rank on the same stored adversarial inputs. A success
  of the attack counts only if it fools the served model too.
- confirmed in 8 bit: the same after the adversarial input was written as a PNG and read back
  through the public preprocessing. Rounding moves a pixel by up to 0.5/255, so where eps is no
  multiple of 1/255 the rounded input may lie outside the ball by that much.
- worst case: for every sample the largest rank that any attack with one budget reached, on the
  PyTorch model or the served one: they are one function, and where rounding parts them, the worse
  counts.
- transfer gap: confirmed minus robust accuracy, the part of the attack's success that the served
  model does not show.

A sample with a logit that is not finite has the worst rank: it is never right.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np

from robustness.attacks.base import Attack, Budget
from robustness.kinds import Variant
from robustness.logits import label_rank, margin, top_probability
from robustness.progress import Meter
from robustness.spec import Cell, EvaluationSpec
from robustness.target import Target

GRADIENTS: tuple[Variant, ...] = ("stopped", "full")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanResult:
    """The model on clean inputs; every array has one entry per sample.

    Attributes:
        label: (N,) int64 true labels, or the model's own predictions in their place.
        rank: (N,) int64 rank of the label, by the served model.
        index: (N,) int64 class predicted by the served model.
        probability: (N,) float64 softmax probability of that class; NaN if a logit is not finite.
        torch_index: (N,) int64 class predicted by the PyTorch model.
        finite: (N,) bool, all logits of both are finite.
        blind: (N,) bool, the PyTorch model's input gradient is zero or NaN in every pixel.
        normalised: (N,) bool, the served model's outputs are probabilities: in [0, 1], sum 1.
        unsteady: (N,) bool, the served model answered the same batch differently a second time;
            asked for the first range of images only.
    """

    label: np.ndarray
    rank: np.ndarray
    index: np.ndarray
    probability: np.ndarray
    torch_index: np.ndarray
    finite: np.ndarray
    blind: np.ndarray
    normalised: np.ndarray
    unsteady: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """What one attack made of every sample, with one gradient variant, at one radius.

    Attributes:
        torch_rank: (N,) rank of the label by the PyTorch model, or else by the served model.
        served_rank: (N,) by the served model.
        eight_bit_rank: (N,) by the served model after rounding to 8 bit; for texts as served_rank.
        index: (N,) class predicted by the served model.
        probability: (N,) softmax probability of that class; NaN if a logit is not finite.
        margin: (N,) logit of the label minus the largest other one, by the PyTorch model if any.
        distance: (N,) size of the change: the attack's norm of the pixels', or edits of a text.
        finite: (N,) bool, all logits are finite.
    """

    torch_rank: np.ndarray
    served_rank: np.ndarray
    eight_bit_rank: np.ndarray
    index: np.ndarray
    probability: np.ndarray
    margin: np.ndarray
    distance: np.ndarray
    finite: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackResult:
    """One attack at one point, the per-sample worst over all that it did.

    Attributes:
        robust: (N,) rank over clean input and the PyTorch model on all adversarial inputs.
        confirmed: (N,) the same, by the served model.
        confirmed_8bit: (N,) the same, by the served model after rounding to 8 bit.
        by_part: (P, N) for each of `parts` its own robust rank; a sample that left before keeps its
            clean one.
        by_variant: (V, N) for each gradient variant its own robust rank; one row without any.
        worst: (N,) position in `parts` of what is shown for a sample: something that fools the
            served model if anything does, then the smallest margin.
        index: (N,) class that the served model predicts there.
        probability: (N,) what it gives that class; NaN if a logit is not finite.
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
    probability: np.ndarray
    margin: np.ndarray
    distance: np.ndarray
    nearest: np.ndarray
    finite: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class CorruptionResult:
    """The served model on inputs with one corruption at one severity.

    Attributes:
        rank: (N,) rank of the label on the corrupted input.
        index: (N,) class predicted there.
    """

    rank: np.ndarray
    index: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateResult:
    """What randomized smoothing proves of the smoothed served model.

    Attributes:
        index: (N,) class of the smoothed classifier; -1 where it abstains.
        radius: (N,) l2 radius within which it cannot change; 0 where it abstains.
    """

    index: np.ndarray
    radius: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofResult:
    """The worst that changes of one kind can do, with one budget.

    Attributes:
        margin: (N,) float64 logit of the label minus the largest other one in the worst case, or a
            lower bound of it, in exact arithmetic.
        rounding: (N,) float64, how much less it can be in float32.
        places: (k, N) int64, which tokens or patches the worst case replaces; -1 for no more.
        pieces: (k, N) int64, by which; -1 where the proof tells of none.
        method: (N,) int64, position in the proof's `methods`.
    """

    margin: np.ndarray
    rounding: np.ndarray
    places: np.ndarray
    pieces: np.ndarray
    method: np.ndarray

    @property
    def holds(self) -> np.ndarray:
        """Which inputs keep their label, (N,) bool."""
        return self.margin > self.rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostics:
    """How a model behaves around its first inputs, see `robustness.sanity.measure`.

    Measured on the first n <= 32 inputs; NaN, or False, where something was not measured.

    Changes of logits are given relative to the spread of a sample's logits (median over samples).

    Attributes:
        constant: (1,) bool, different inputs got the same logits, to rounding.
        inner_gradient: (1,) bool, the PyTorch model takes gradients while it answers.
        batch_dependence: (n,) change of the served model's logits by what else is in the batch.
        torch_batch_dependence: (n,) the same of the PyTorch model.
        torch_change: (n,) change of the PyTorch model's logits when the same batch is repeated.
        torch_normalized: (n,) bool, the PyTorch model's outputs are probabilities.
        input_insensitive: (n,) bool, no logit of the PyTorch model (or of the served one, in fp32)
            changes at all when a few pixels move by 1e-4.
        zero_gradient: (n,) bool, the margin's gradient is zero, or not a number, in every pixel.
        gradient_ratio: (n,) change of the margin over a step of 1e-4 along the gradient's signs,
            divided by what the gradient promises: 1 for a smooth function.
        promise_error: (n,) difference between the change of the margin over steps of 1e-3 along
            16 random directions of signs and what the gradient promises, relative to the change
            (root mean squares): 0 for a smooth function.
        dead_zone: (n,) share of the pixels at 0 or 1 whose gradient is zero, and is not where they
            are moved inwards by 8/255; NaN where fewer than 64 pixels are there.
        clean_margin: (n,) the PyTorch model's logit of the label minus the largest other one.
        single_step_drop: (n,) fall of that margin by one step of FGSM at eps 8/255.
        multi_step_drop: (n,) by eight steps, each a quarter of it.
        rescaled_drop: (n,) by eight steps against logits divided so that their spread is 10.
        holds_at_large_eps: (n,) bool, correct on the clean input and after such steps within
            eps 0.5.
    """

    constant: np.ndarray
    inner_gradient: np.ndarray
    batch_dependence: np.ndarray
    torch_batch_dependence: np.ndarray
    torch_change: np.ndarray
    torch_normalized: np.ndarray
    input_insensitive: np.ndarray
    zero_gradient: np.ndarray
    gradient_ratio: np.ndarray
    promise_error: np.ndarray
    dead_zone: np.ndarray
    clean_margin: np.ndarray
    single_step_drop: np.ndarray
    multi_step_drop: np.ndarray
    rescaled_drop: np.ndarray
    holds_at_large_eps: np.ndarray


ShardResult = AttackResult | CorruptionResult | CertificateResult | ProofResult
Kind = TypeVar("Kind", AttackResult, CorruptionResult, CertificateResult, ProofResult)


@dataclass(frozen=True, kw_only=True)
class ModelResult:
    """One model's part of an evaluation.

    Attributes:
        spec: what was asked for.
        target: the model.
        clean: its result on clean inputs.
        cells: one result per attack and point, in the order of `EvaluationSpec.cells`.
        inputs_digest: sha256 over the digests of its clean inputs, range by range.
        diagnostics: measured on the first chunk.
    """

    spec: EvaluationSpec
    target: Target
    clean: CleanResult
    cells: list[ShardResult]
    inputs_digest: str
    diagnostics: Diagnostics

    @property
    def top_k(self) -> list[int]:
        """Ranks at which accuracy is reported."""
        return self.spec.ranks(len(self.target.labels))

    def of(self, kind: type[Kind]) -> list[tuple[Cell, Kind]]:
        """The cells with results of one kind, in the order of the spec."""
        pairs = zip(self.spec.cells, self.cells, strict=True)
        return [(cell, found) for cell, found in pairs if isinstance(found, kind)]

    @cached_property
    def worst_cases(self) -> list[tuple[Budget, np.ndarray]]:
        """Each budget with the per-sample worst rank (N,) over all attacks that had it.

        Replications do not count.

        Budgets ascend within their kind, kinds come in the order of the spec; `text` is as the spec
        spells it first.
        """
        places: dict[tuple[str, float], Budget] = {}
        ranks: dict[tuple[str, float], np.ndarray] = {}
        for cell, found in self.of(AttackResult):
            if cell.attack.replication:
                continue
            place = cell.budget
            key = place.kind, place.value
            places.setdefault(key, place)
            known = ranks.get(key, found.robust)
            ranks[key] = np.maximum.reduce([known, found.robust, found.confirmed])
        kinds = list(dict.fromkeys(kind for kind, _ in places))
        ordered = sorted(places, key=lambda key: (kinds.index(key[0]), key[1]))
        return [(places[key], ranks[key]) for key in ordered]

    @property
    def worst_ranks(self) -> dict[str, np.ndarray]:
        """`worst_cases` by name: the point, or "L2:0.5", "edits:5" for kinds after the first."""
        return {self.place_name(place): rank for place, rank in self.worst_cases}

    @property
    def largest_rank(self) -> np.ndarray | None:
        """The worst rank (N,) over all attacks at the largest budget of each kind, if any."""
        largest = {place.kind: rank for place, rank in self.worst_cases}  # they ascend
        return np.maximum.reduce(list(largest.values())) if largest else None

    def place_name(self, place: Budget) -> str:
        """The key of a budget in `worst_ranks`."""
        known = {(each.kind, each.value): each.text for each, _ in self.worst_cases}
        first = known.get((place.kind, place.value), place.text)
        leading = known and place.kind == self.worst_cases[0][0].kind
        return first if leading else f"{place.kind}:{first}"


def parts_of(target: Target, attack: Attack) -> list[tuple[Attack, Variant]]:
    """What an attack consists of, in the order in which it runs and in which shards are counted."""
    return [
        (part, variant)
        for part in attack.parts(len(target.labels))
        for variant in (target.variants if part.info.access == "gradient" else ("plain",))
    ]


def score_clean(
    served: np.ndarray,
    again: np.ndarray,
    torch_model: np.ndarray,
    label: np.ndarray,
    blind: np.ndarray,
) -> CleanResult:
    """Score clean inputs from what a model says to them.

    Args:
        served: (N, K) logits of the served model.
        again: (N, K) its second answer; the first one where it was not asked again.
        torch_model: (N, K) logits of the PyTorch model, or else of the served model.
        label: (N,) int64 true labels, or the model's own predictions in their place.
        blind: (N,) bool, see `CleanResult`.
    """
    finite = np.asarray(np.isfinite(np.concatenate([served, torch_model], axis=1)).all(axis=1))
    return CleanResult(
        label=label,
        rank=label_rank(served, label),
        index=served.argmax(axis=1),
        probability=top_probability(served),
        torch_index=torch_model.argmax(axis=1),
        finite=finite,
        blind=blind,
        normalised=(served >= 0).all(axis=1) & (np.abs(served.sum(axis=1) - 1) < 1e-4),
        unsteady=np.any(again != served, axis=1) & finite,
    )


class Answers(NamedTuple):
    """Logits (N, K) of PyTorch model and served model, and of the latter in 8 bit."""

    torch_model: np.ndarray
    served: np.ndarray
    rounded: np.ndarray


def ask(
    target: Target, inputs: np.ndarray | list[str], meter: Meter, *, in_8bit: bool = True
) -> Answers:
    """Logits for adversarial inputs; without a PyTorch model the served model is used.

    Where nothing is asked in 8 bit, the served model's logits stand for it.
    """
    served = target.predict(inputs, meter)
    torch_model = served if target.torch_model is None else target.predict_torch(inputs, meter)
    rounded = target.predict_8bit(inputs, served, meter) if in_8bit else served
    return Answers(torch_model, served, rounded)


def score(answers: Answers, labels: np.ndarray, distance: np.ndarray) -> Scoring:
    """Score adversarial inputs from what a model says to them.

    Args:
        answers: the model's logits.
        labels: (N,) int64 true classes.
        distance: (N,) size of each change.
    """
    torch_rank, served_rank, rounded_rank = (label_rank(logits, labels) for logits in answers)
    return Scoring(
        torch_rank=torch_rank,
        served_rank=served_rank,
        eight_bit_rank=rounded_rank,
        index=answers.served.argmax(axis=1),
        probability=top_probability(answers.served),
        margin=margin(answers.torch_model, labels),
        distance=distance,
        finite=np.logical_and.reduce([np.isfinite(logits).all(axis=1) for logits in answers]),
    )


def combine(
    clean: CleanResult,
    scorings: Sequence[Scoring],
    variants: Sequence[Variant],
    nearest: np.ndarray | None = None,
) -> AttackResult:
    """The per-sample worst over all that one attack did at one point.

    Args:
        clean: the model on clean inputs.
        scorings: one per part and gradient variant, of the same samples.
        variants: the variant of each; what has no variant counts for every one.
        nearest: (N,) distance of the nearest adversarial input, if the attack looks for it.
    """

    def worst_rank(name: str, chosen: Sequence[Scoring]) -> np.ndarray:
        """The largest of one kind of rank, clean inputs included."""
        return np.maximum.reduce([clean.rank, *(getattr(j, name) for j in chosen)])

    kinds = [v for v in GRADIENTS if v in variants] or ["plain"]
    pairs = list(zip(scorings, variants, strict=True))
    of_kind = [[j for j, variant in pairs if variant in (kind, "plain")] for kind in kinds]
    worst = _worst_part(scorings)
    rows = np.arange(len(worst))

    def shown(name: str) -> np.ndarray:
        """What the worst part of each sample has there."""
        return np.stack([getattr(j, name) for j in scorings])[worst, rows]

    return AttackResult(
        robust=worst_rank("torch_rank", scorings),
        confirmed=worst_rank("served_rank", scorings),
        confirmed_8bit=worst_rank("eight_bit_rank", scorings),
        by_part=np.stack([worst_rank("torch_rank", [j]) for j in scorings]),
        by_variant=np.stack([worst_rank("torch_rank", chosen) for chosen in of_kind]),
        worst=worst,
        index=shown("index"),
        probability=shown("probability"),
        margin=shown("margin"),
        distance=shown("distance"),
        nearest=np.full(len(worst), np.inf) if nearest is None else nearest,
        finite=np.logical_and.reduce([j.finite for j in scorings]),
    )


def _worst_part(scorings: Sequence[Scoring]) -> np.ndarray:
    held = np.stack([j.served_rank == 0 for j in scorings])  # (V, N)
    margins = np.stack([j.margin for j in scorings])  # (V, N)
    return np.lexsort((margins, held), axis=0)[0]  # (N,)


def join(parts: Sequence[T]) -> T:
    """Join the results of consecutive ranges of inputs into one of all inputs."""
    first = parts[0]
    joined = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts], axis=-1)
        for field in fields(first)  # pyright: ignore[reportArgumentType]  T is one of the above
    }
    return type(first)(**joined)
