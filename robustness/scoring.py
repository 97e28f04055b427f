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
from dataclasses import fields
from typing import NamedTuple, TypeVar

import numpy as np

from robustness.kinds import Variant
from robustness.logits import all_finite
from robustness.progress import Meter
from robustness.results import GRADIENTS, AttackResult, CleanResult, Scoring, worst_tables
from robustness.target import Target
from robustness.tasks import Task

T = TypeVar("T")


def score_clean(
    task: Task,
    served: np.ndarray,
    again: np.ndarray,
    torch_model: np.ndarray,
    label: np.ndarray,
    blind: np.ndarray,
) -> CleanResult:
    """Score clean inputs from what a model says to them.

    Args:
        task: what is measured.
        served: (N, K) logits of the served model, of a segmenter (N, K, H, W).
        again: (N, K) its second answer; the first one where it was not asked again.
        torch_model: (N, K) logits of the PyTorch model, or else of the served model.
        label: (N,) int64 true labels, or the model's own predictions in their place.
        blind: (N,) bool, see `CleanResult`.
    """
    finite = all_finite(served) & all_finite(torch_model)
    likely = (served >= 0).all(axis=1) & (np.abs(served.sum(axis=1) - 1) < 1e-4)
    rest = tuple(range(1, served.ndim))
    return CleanResult(
        label=label,
        rank=task.rank(served, label),
        index=task.index(served),
        probability=task.probability(served),
        torch_index=task.index(torch_model),
        finite=finite,
        blind=blind,
        normalised=likely.all(axis=rest[:-1]),
        unsteady=np.any(again != served, axis=rest) & finite,
        tables=task.tables(served, label),
    )


class Answers(NamedTuple):
    """Logits (N, K, ...) of PyTorch model and served model, and of the latter in 8 bit."""

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


def score(task: Task, answers: Answers, labels: np.ndarray, distance: np.ndarray) -> Scoring:
    """Score adversarial inputs from what a model says to them.

    Args:
        task: what is measured.
        answers: the model's logits.
        labels: (N,) int64 true classes.
        distance: (N,) size of each change.
    """
    torch_rank, served_rank, rounded_rank = (task.rank(logits, labels) for logits in answers)
    tables = [found for each in answers if (found := task.tables(each, labels)) is not None]
    return Scoring(
        torch_rank=torch_rank,
        served_rank=served_rank,
        eight_bit_rank=rounded_rank,
        index=task.index(answers.served),
        probability=task.probability(answers.served),
        margin=task.margin(answers.torch_model, labels),
        distance=distance,
        finite=np.logical_and.reduce([all_finite(logits) for logits in answers]),
        tables=np.stack(tables) if tables else None,
    )


def combine(
    clean: CleanResult,
    scorings: Sequence[Scoring],
    variants: Sequence[Variant],
    nearest: np.ndarray | None = None,
    *,
    keeps: bool = True,
) -> AttackResult:
    """The per-sample worst over all that one attack did at one point.

    Args:
        clean: the model on clean inputs.
        scorings: one per part and gradient variant, of the same samples.
        variants: the variant of each; what has no variant counts for every one.
        nearest: (N,) distance of the nearest adversarial input, if the attack looks for it.
        keeps: whether clean inputs count, see `robustness.tasks.Task`.
    """

    def worst_rank(name: str, chosen: Sequence[Scoring]) -> np.ndarray:
        """The largest of one kind of rank, clean inputs included where these count."""
        floor = [clean.rank] if keeps else []
        return np.maximum.reduce([*floor, *(getattr(j, name) for j in chosen)])

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
        tables=_worst_tables(clean, scorings, keeps=keeps),
    )


def _worst_tables(
    clean: CleanResult, scorings: Sequence[Scoring], *, keeps: bool
) -> np.ndarray | None:
    """For each of the three ranks the tables of the answer that it is of, (3, ..., K, N)."""
    if clean.tables is None:
        return None
    found = []
    for place, name in enumerate(("torch_rank", "served_rank", "eight_bit_rank")):
        ranks = [getattr(j, name) for j in scorings]
        own = [j.tables[place] for j in scorings if j.tables is not None]
        if keeps:
            ranks, own = [clean.rank, *ranks], [clean.tables, *own]
        found.append(worst_tables(ranks, own))
    return np.stack(found)


def _worst_part(scorings: Sequence[Scoring]) -> np.ndarray:
    held = np.stack([j.served_rank == 0 for j in scorings])  # (V, N)
    margins = np.stack([j.margin for j in scorings])  # (V, N)
    return np.lexsort((margins, held), axis=0)[0]  # (N,)


def join(parts: Sequence[T]) -> T:
    """Join the results of consecutive ranges of inputs into one of all inputs."""
    first = parts[0]
    joined: dict[str, np.ndarray | None] = {}
    for field in fields(first):  # pyright: ignore[reportArgumentType]  T is one of the above
        own = [getattr(part, field.name) for part in parts]
        axis = 0 if field.name == "label" else -1  # masks begin with their sample
        joined[field.name] = None if own[0] is None else np.concatenate(own, axis=axis)
    return type(first)(**joined)
