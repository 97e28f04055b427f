"""What an evaluation holds of every sample; `robustness.scoring` tells how it comes about."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from robustness.attacks.base import Attack, Budget
from robustness.kinds import Variant
from robustness.spec import Cell, EvaluationSpec
from robustness.target import Target

GRADIENTS: tuple[Variant, ...] = ("stopped", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanResult:
    """The model on clean inputs; every array has one entry per sample.

    What ranks, classes, probabilities and margins are of a segmentation says `robustness.tasks`.

    Attributes:
        label: (N,) int64 true labels, of a segmenter (N, H, W), or the model's own predictions in
            their place.
        rank: (N,) int64 rank of the label, by the served model.
        index: (N,) int64 class predicted by the served model.
        probability: (N,) float64 softmax probability of that class; NaN if a logit is not finite.
        torch_index: (N,) int64 class predicted by the PyTorch model.
        finite: (N,) bool, all logits of both are finite.
        blind: (N,) bool, the PyTorch model's input gradient is zero or NaN in every pixel.
        normalised: (N,) bool, the served model's outputs are probabilities: in [0, 1], sum 1.
        unsteady: (N,) bool, the served model answered the same batch differently a second time;
            asked for the first range of images only.
        tables: (3, K, N) what a mean IoU over all samples adds up; None of a classification.
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
    tables: np.ndarray | None = None


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
        tables: (3, 3, K, N), one for each of the three ranks, see `CleanResult`.
    """

    torch_rank: np.ndarray
    served_rank: np.ndarray
    eight_bit_rank: np.ndarray
    index: np.ndarray
    probability: np.ndarray
    margin: np.ndarray
    distance: np.ndarray
    finite: np.ndarray
    tables: np.ndarray | None = None


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
        tables: (3, 3, K, N) for `robust`, `confirmed` and `confirmed_8bit` those of the answer that
            the rank is of, see `CleanResult`.
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
    tables: np.ndarray | None = None


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

    def shares(self, rank: np.ndarray) -> np.ndarray:
        """How right each sample is, (N,) in [0, 1], from its rank."""
        return self.target.task.share(rank, self.clean.label)

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
        return [
            (
                place,
                np.maximum.reduce([rank for one in found for rank in (one.robust, one.confirmed)]),
            )
            for place, found in self._by_budget
        ]

    @cached_property
    def _by_budget(self) -> list[tuple[Budget, list[AttackResult]]]:
        """Each budget of `worst_cases` with the results on the attacks that had it."""
        found: dict[tuple[str, float], tuple[Budget, list[AttackResult]]] = {}
        for cell, one in self.of(AttackResult):
            if not cell.attack.replication:
                place = cell.budget
                found.setdefault((place.kind, place.value), (place, []))[1].append(one)
        kinds = list(dict.fromkeys(kind for kind, _ in found))
        return [found[key] for key in sorted(found, key=lambda key: (kinds.index(key[0]), key[1]))]

    @cached_property
    def worst_tables(self) -> dict[str, np.ndarray]:
        """The tables (3, K, N) of the answers that `worst_ranks` are of; none of classifiers."""
        return {
            self.place_name(place): worst_tables(
                [rank for one in found for rank in (one.robust, one.confirmed)],
                [table for one in found if one.tables is not None for table in one.tables[:2]],
            )
            for place, found in self._by_budget
            if self.clean.tables is not None
        }

    @property
    def largest_tables(self) -> np.ndarray | None:
        """The tables (3, K, N) of the answers that `largest_rank` is of."""
        largest = {place.kind: (self.place_name(place), rank) for place, rank in self.worst_cases}
        tables = self.worst_tables
        if not largest or not tables:
            return None
        names, ranks = zip(*largest.values(), strict=True)
        return worst_tables(ranks, [tables[name] for name in names])

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


def worst_tables(ranks: Sequence[np.ndarray], tables: Sequence[np.ndarray]) -> np.ndarray:
    """Of several answers to N samples the tables (3, K, N) of that with the largest rank (N,)."""
    worst = np.stack(ranks).argmax(axis=0)
    return np.take_along_axis(np.stack(tables), worst[None, None, None], axis=0)[0]


def parts_of(target: Target, attack: Attack) -> list[tuple[Attack, Variant]]:
    """What an attack consists of, in the order in which it runs and in which shards are counted."""
    return [
        (part, variant)
        for part in attack.parts(len(target.labels))
        for variant in (target.variants if part.info.access == "gradient" else ("plain",))
    ]
