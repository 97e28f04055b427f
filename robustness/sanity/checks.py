"""Sanity checks on what attacks found, all checks in order, and notes for the reader."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from robustness.attacks.base import Attack, Budget
from robustness.context import variants_of
from robustness.sanity import model_checks
from robustness.sanity.diagnostics import CLIMBERS, STEPS
from robustness.sanity.model_checks import GAP, ModelOutcome, SanityWarning, many
from robustness.scoring import AttackResult, ModelResult
from robustness.spec import Cell, EvaluationSpec
from robustness.target import ImageTarget
from robustness.worst import attacked, worst_cases

RISE = 0.02  # share by which the seed alone moves an accuracy: 1-3 flags of 100 were measured
BLACK = 0.02  # share that only a black box may fool: none of 57 on sound models
BORDER = 1e-3  # of logits: so near to the border, rounding decides
LARGE = 0.25  # l-infinity radius to which doubling the radius costs any model some accuracy
FEW_HELD = 50  # images that hold, below which it is no wonder that none falls


def above_clean(model: ModelOutcome) -> Iterator[SanityWarning]:
    """More right under attack than without; by its definition no sound result says so."""
    for cell, one in model.attacks:
        above = (one.robust < model.clean.rank) | (one.confirmed < model.clean.rank)
        if above.any():
            yield SanityWarning(
                code="robust_above_clean",
                message=f"{_where(cell)}: {model.count(above)} do better under attack than "
                "unattacked. Robust means right in both cases, so results were mixed up.",
            )


def rises(model: ModelOutcome) -> Iterator[SanityWarning]:
    """More held at a larger budget."""
    by_chance = {cell.budget.kind for cell, _ in model.attacks if cell.attack.info.by_chance}
    lowest: tuple[Budget, int] | None = None
    for place, rank in worst_cases(model.spec, model.result):
        if place.kind in by_chance:  # chance may spare more
            continue
        if lowest is not None and lowest[0].kind != place.kind:
            lowest = None
        count = int((rank == 0).sum())
        if lowest is not None and count - lowest[1] > max(1, RISE * len(rank)):
            yield SanityWarning(
                code="accuracy_rises_with_eps",
                message=f"More {model.noun} hold at {place.text} ({count}) than at "
                f"{lowest[0].text} ({lowest[1]}). The larger budget allows all that the smaller "
                "one does, so the attack failed at the larger one. Use more steps or a stronger "
                "attack.",
            )
        if lowest is None or count < lowest[1]:
            lowest = (place, count)


def flat(model: ModelOutcome) -> Iterator[SanityWarning]:
    """The same images held at twice a large radius."""
    worst = [pair for pair in worst_cases(model.spec, model.result) if pair[0].kind == "Linf"]
    for (small, before), (large, after) in pairwise(worst):
        held = int((after == 0).sum())
        wide = large.value >= LARGE and large.value >= 2 * small.value
        if wide and held >= FEW_HELD and held >= int((before == 0).sum()):
            yield SanityWarning(
                code="accuracy_does_not_fall",
                message=f"As many images hold at eps {large.text} as at {small.text}: {held}. "
                "Radii that large cost every model some accuracy; the attack may be stuck.",
            )


def impossible(model: ModelOutcome) -> Iterator[SanityWarning]:
    """Images held where each can be turned into any other, or into the same grey one."""
    most_common = int(np.bincount(model.clean.label).max())
    for place, rank in worst_cases(model.spec, model.result):
        held, share = int((rank == 0).sum()), _share_of_range(model, place)
        if share >= 1 and len(np.unique(model.clean.index)) > 1 and held:
            yield _beyond(place, held, "every image can be turned into any other: none can hold")
        elif share >= 0.5 and held > most_common:
            yield _beyond(
                place,
                held,
                "every image can be turned into the same grey one: at most "
                f"{most_common} (the commonest class) can hold",
            )


def held_halfway(model: ModelOutcome) -> Iterator[SanityWarning]:
    """Images held at eps 0.5 when the model was asked, whatever radii the spec has.

    Most signs go with it and say more; so it speaks where they are silent.
    """
    if model.followed is None:
        return
    pushed = model.clean.label[:CLIMBERS]
    held, most_common = int(model.followed.holds_at_large_eps.sum()), int(np.bincount(pushed).max())
    if held > most_common:
        yield SanityWarning(
            code="impossible_accuracy",
            message=f"{held} of {len(pushed)} images hold against {STEPS} gradient steps within "
            "eps 0.5, where every image can be turned into the same grey one: at most "
            f"{most_common} (the commonest class) can hold. Gradients do not lead anywhere.",
        )


def _share_of_range(model: ModelOutcome, place: Budget) -> float:
    """How far, as a share of the range of a pixel, all pixels can move at once."""
    if place.kind == "Linf":
        return place.value
    target = model.result.target
    if place.kind != "L2" or not isinstance(target, ImageTarget):
        return 0.0
    spec = target.image_spec
    return place.value / (spec.channels * spec.height * spec.width) ** 0.5


def _beyond(place: Budget, held: int, why: str) -> SanityWarning:
    return SanityWarning(
        code="impossible_accuracy",
        message=f"{held} images hold at eps {place.text}, where {why}. The attack failed.",
    )


def steps_lose(model: ModelOutcome) -> Iterator[SanityWarning]:
    """Fooled by one step, not by an iterated attack of the same radius."""
    for place, pairs in _by_radius(model):
        one = _fooled(model, [p for p in pairs if _single_step(p[0].attack)])
        iterated = [p for p in pairs if _iterates(p[0])]
        lost = one & ~_fooled(model, iterated)
        if iterated and many(lost, RISE):
            yield SanityWarning(
                code="more_steps_weaker",
                message=f"At eps {place.text} one step (FGSM) fools {model.count(lost)} that "
                "attacks of many steps do not. Gradients mislead away from the clean input.",
            )


def black_box_wins(model: ModelOutcome) -> Iterator[SanityWarning]:
    """Fooled by queries, not by attacks that see inside."""
    for place, pairs in _by_radius(model):
        white = _fooled(model, [p for p in pairs if _iterates(p[0])], seeing=True)
        black = _fooled(model, [p for p in pairs if not _single_step(p[0].attack)], seeing=False)
        won = black & ~white
        if any(_iterates(cell) for cell, _ in pairs) and many(won, BLACK):
            yield SanityWarning(
                code="black_box_beats_white_box",
                message=f"At eps {place.text}, attacks that only ask the model fool "
                f"{model.count(won)} that attacks with its gradients do not. Who sees inside "
                "cannot be weaker: the gradients are masked, and the figure may be too high still.",
            )


def transfer_gap(model: ModelOutcome) -> Iterator[SanityWarning]:
    """Another outcome on the served model than on its PyTorch model, and not by rounding."""
    for cell, one in model.attacks:
        differs = (one.robust == 0) != (one.confirmed == 0)
        known = differs & one.finite & ~(np.abs(one.margin) < BORDER)
        if model.repeatable and many(known, GAP):
            yield SanityWarning(
                code="transfer_gap",
                message=f"{_where(cell)}: the served model and its PyTorch model disagree on "
                f"{model.count(differs)} under attack. They should be the same function; see "
                "'confirmed' for what the served model does.",
            )


def _by_radius(model: ModelOutcome) -> list[tuple[Budget, list[tuple[Cell, AttackResult]]]]:
    found: dict[tuple[str, float], tuple[Budget, list[tuple[Cell, AttackResult]]]] = {}
    for cell, one in model.attacks:
        place = cell.budget
        found.setdefault((place.kind, place.value), (place, []))[1].append((cell, one))
    return [pair for pair in found.values() if pair[0].kind in ("Linf", "L2")]


def _fooled(
    model: ModelOutcome, pairs: list[tuple[Cell, AttackResult]], *, seeing: bool | None = None
) -> np.ndarray:
    """(N,) bool, right unattacked and fooled by parts that follow gradients, or only by others."""
    rank = model.clean.rank
    for cell, one in pairs:
        parts = cell.attack.parts(len(model.result.target.labels))
        sees = [
            p.info.access == "gradient" for p in parts for _ in variants_of(model.result.target, p)
        ]
        rows = one.by_part[[seeing is None or flag == seeing for flag in sees]]
        rank = np.maximum(rank, rows.max(axis=0, initial=0))
    return (model.clean.rank == 0) & (rank > 0)


def _iterates(cell: Cell) -> bool:
    """Whether an attack follows gradients over many steps, enough of them to cross its ball."""
    attack = cell.attack
    follows = attack.info.access == "gradient" and not _single_step(attack)
    return follows and attack.crosses(cell.budget)


def _single_step(attack: Attack) -> bool:
    return attack.info.single_step


def _where(cell: Cell) -> str:
    return f"{cell.attack.label} at {cell.budget.where}"


Check = Callable[[ModelOutcome], Iterator[SanityWarning]]

CHECKS: tuple[Check, ...] = (
    model_checks.not_finite,
    model_checks.randomised,
    model_checks.probabilities,
    model_checks.constant,
    model_checks.depends_on_batch,
    model_checks.twin_differs,
    model_checks.takes_gradients,
    model_checks.quantised,
    model_checks.no_gradient,
    model_checks.shattered,
    model_checks.saturated,
    model_checks.fewer_steps_stronger,
    above_clean,
    rises,
    flat,
    impossible,
    steps_lose,
    black_box_wins,
    transfer_gap,
)


def find_warnings(spec: EvaluationSpec, result: ModelResult) -> list[SanityWarning]:
    """All warnings about one model's figures; any of them makes the result unreliable."""
    model = ModelOutcome(spec=spec, result=result)
    return [warning for check in CHECKS for warning in check(model)] or list(held_halfway(model))


def notes(spec: EvaluationSpec, results: Sequence[ModelResult]) -> list[str]:
    """What a reader must know to read the figures, though nothing is wrong with them."""
    num_classes = len(results[0].target.labels)
    found = [*_of_attacks(spec, num_classes)]
    for result in results:
        found += _of_gradients_through_m(spec, result)
    dropped = [k for k in spec.top_k if k >= num_classes]
    if dropped:
        found.append(f"top-k for k in {dropped} is left out: with {num_classes} classes it is 1.")
    return found


def _of_attacks(spec: EvaluationSpec, num_classes: int) -> Iterator[str]:
    facts = [attack.info for attack in spec.attacks if attack.info.role == "attack"]
    if facts:
        yield "Every robust accuracy is an upper bound: a stronger attack can only lower it."
    if facts and all(info.follows == "cross-entropy" for info in facts):
        yield (
            "All attacks follow the cross-entropy; where scores saturate, attacks with another "
            "loss or without gradients find more. Autoattack has both."
        )
    if facts and all(info.single_step for info in facts):
        yield "Only FGSM was run. One step is a weak attack; add pgd before relying on it."
    for attack in spec.attacks:
        yield from attack.notes(num_classes)


def _of_gradients_through_m(spec: EvaluationSpec, result: ModelResult) -> Iterator[str]:
    """By how much a figure were too high, had gradients been stopped at m alone."""
    for cell, one in attacked(spec, result):
        if len(one.by_variant) < 2:
            continue
        stopped, full = (one.by_variant == 0).sum(axis=1)
        worst = int((one.robust == 0).sum())
        if full < stopped:
            name = f"{result.target.name}, {cell.attack.label} at {cell.budget.text}"
            yield (
                f"{name}: with gradients stopped at m, the metric of elliptical attention, "
                f"{stopped} of {len(one.robust)} hold; with gradients through m {full}; under the "
                f"worse of both, which is what counts here, {worst}. Stopped alone, the figure "
                "would have been too high."
            )
