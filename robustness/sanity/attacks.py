"""Doubts about what attacks found: figures that contradict each other, or what is possible."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from robustness.attacks.base import Attack, Budget
from robustness.context import variants_of
from robustness.sanity.answers import GAP
from robustness.sanity.case import Case, Doubt, many
from robustness.sanity.findings import CLIMBERS, STEPS
from robustness.scoring import AttackVerdict
from robustness.spec import Cell
from robustness.target import ImageTarget
from robustness.worst import worst_cases

RISE = 0.02  # share by which the seed alone moves an accuracy: 1-3 flags of 100 were measured
BLACK = 0.02  # share that only a black box may fool: none of 57 on sound models
BORDER = 1e-3  # of logits: so near to the border, rounding decides
LARGE = 0.25  # l-infinity radius to which doubling the radius costs any model some accuracy
FEW_HELD = 50  # images that hold, below which it is no wonder that none falls


def above_clean(case: Case) -> Iterator[Doubt]:
    """More right under attack than without; by its definition no sound verdict says so."""
    for cell, one in case.attacks:
        above = (one.robust < case.clean.rank) | (one.confirmed < case.clean.rank)
        if above.any():
            yield Doubt(
                code="robust_above_clean",
                message=f"{_where(cell)}: {case.count(above)} do better under attack than "
                "unattacked. Robust means right in both cases, so verdicts were mixed up.",
            )


def rises(case: Case) -> Iterator[Doubt]:
    """More held at a larger budget."""
    by_chance = {cell.budget.kind for cell, _ in case.attacks if cell.attack.info.by_chance}
    lowest: tuple[Budget, int] | None = None
    for place, rank in worst_cases(case.spec, case.verdict):
        if place.kind in by_chance:  # chance may spare more
            continue
        if lowest is not None and lowest[0].kind != place.kind:
            lowest = None
        count = int((rank == 0).sum())
        if lowest is not None and count - lowest[1] > max(1, RISE * len(rank)):
            yield Doubt(
                code="accuracy_rises_with_eps",
                message=f"More {case.thing} hold at {place.text} ({count}) than at "
                f"{lowest[0].text} ({lowest[1]}). The larger budget allows all that the smaller "
                "one does, so the attack failed at the larger one. Use more steps or a stronger "
                "attack.",
            )
        if lowest is None or count < lowest[1]:
            lowest = (place, count)


def flat(case: Case) -> Iterator[Doubt]:
    """The same images held at twice a large radius."""
    worst = [pair for pair in worst_cases(case.spec, case.verdict) if pair[0].kind == "Linf"]
    for (small, before), (large, after) in pairwise(worst):
        held = int((after == 0).sum())
        wide = large.value >= LARGE and large.value >= 2 * small.value
        if wide and held >= FEW_HELD and held >= int((before == 0).sum()):
            yield Doubt(
                code="accuracy_does_not_fall",
                message=f"As many images hold at eps {large.text} as at {small.text}: {held}. "
                "Radii that large cost every model some accuracy; the attack may be stuck.",
            )


def impossible(case: Case) -> Iterator[Doubt]:
    """Images held where each can be turned into any other, or into the same grey one."""
    most_common = int(np.bincount(case.clean.label).max())
    for place, rank in worst_cases(case.spec, case.verdict):
        held, share = int((rank == 0).sum()), _share_of_range(case, place)
        if share >= 1 and len(np.unique(case.clean.index)) > 1 and held:
            yield _beyond(place, held, "every image can be turned into any other: none can hold")
        elif share >= 0.5 and held > most_common:
            yield _beyond(
                place,
                held,
                "every image can be turned into the same grey one: at most "
                f"{most_common} (the commonest class) can hold",
            )


def held_halfway(case: Case) -> Iterator[Doubt]:
    """Images held at eps 0.5 when the model was asked, whatever radii the spec has.

    Most signs go with it and say more; so it speaks where they are silent.
    """
    if case.followed is None:
        return
    pushed = case.clean.label[:CLIMBERS]
    held, most_common = int(case.followed.wide.sum()), int(np.bincount(pushed).max())
    if held > most_common:
        yield Doubt(
            code="impossible_accuracy",
            message=f"{held} of {len(pushed)} images hold against {STEPS} gradient steps within "
            "eps 0.5, where every image can be turned into the same grey one: at most "
            f"{most_common} (the commonest class) can hold. Gradients do not lead anywhere.",
        )


def _share_of_range(case: Case, place: Budget) -> float:
    """How far, as a share of the range of a pixel, all pixels can move at once."""
    if place.kind == "Linf":
        return place.value
    target = case.verdict.target
    if place.kind != "L2" or not isinstance(target, ImageTarget):
        return 0.0
    spec = target.image_spec
    return place.value / (spec.channels * spec.height * spec.width) ** 0.5


def _beyond(place: Budget, held: int, why: str) -> Doubt:
    return Doubt(
        code="impossible_accuracy",
        message=f"{held} images hold at eps {place.text}, where {why}. The attack failed.",
    )


def steps_lose(case: Case) -> Iterator[Doubt]:
    """Fooled by one step, not by an iterated attack of the same radius."""
    for place, pairs in _by_radius(case):
        one = _fooled(case, [p for p in pairs if _single_step(p[0].attack)])
        iterated = [p for p in pairs if _iterates(p[0])]
        lost = one & ~_fooled(case, iterated)
        if iterated and many(lost, RISE):
            yield Doubt(
                code="more_steps_weaker",
                message=f"At eps {place.text} one step (FGSM) fools {case.count(lost)} that "
                "attacks of many steps do not. Gradients mislead away from the clean input.",
            )


def black_box_wins(case: Case) -> Iterator[Doubt]:
    """Fooled by queries, not by attacks that see inside."""
    for place, pairs in _by_radius(case):
        white = _fooled(case, [p for p in pairs if _iterates(p[0])], seeing=True)
        black = _fooled(case, [p for p in pairs if not _single_step(p[0].attack)], seeing=False)
        won = black & ~white
        if any(_iterates(cell) for cell, _ in pairs) and many(won, BLACK):
            yield Doubt(
                code="black_box_beats_white_box",
                message=f"At eps {place.text}, attacks that only ask the model fool "
                f"{case.count(won)} that attacks with its gradients do not. Who sees inside cannot "
                "be weaker: the gradients are masked, and the figure may be too high still.",
            )


def transfer_gap(case: Case) -> Iterator[Doubt]:
    """Another outcome on the served model than on its twin, and not by rounding."""
    for cell, one in case.attacks:
        differs = (one.robust == 0) != (one.confirmed == 0)
        told = differs & one.finite & ~(np.abs(one.margin) < BORDER)
        if case.steady and many(told, GAP):
            yield Doubt(
                code="transfer_gap",
                message=f"{_where(cell)}: the served model and its twin disagree on "
                f"{case.count(differs)} under attack. They should be the same function; see "
                "'confirmed' for what the served model does.",
            )


def _by_radius(case: Case) -> list[tuple[Budget, list[tuple[Cell, AttackVerdict]]]]:
    found: dict[tuple[str, float], tuple[Budget, list[tuple[Cell, AttackVerdict]]]] = {}
    for cell, one in case.attacks:
        place = cell.budget
        found.setdefault((place.kind, place.value), (place, []))[1].append((cell, one))
    return [pair for pair in found.values() if pair[0].kind in ("Linf", "L2")]


def _fooled(
    case: Case, pairs: list[tuple[Cell, AttackVerdict]], *, seeing: bool | None = None
) -> np.ndarray:
    """(N,) bool, right unattacked and fooled by parts that follow gradients, or only by others."""
    rank = case.clean.rank
    for cell, one in pairs:
        parts = cell.attack.parts(len(case.verdict.target.labels))
        sees = [
            p.info.access == "gradient" for p in parts for _ in variants_of(case.verdict.target, p)
        ]
        rows = one.by_part[[seeing is None or flag == seeing for flag in sees]]
        rank = np.maximum(rank, rows.max(axis=0, initial=0))
    return (case.clean.rank == 0) & (rank > 0)


def _iterates(cell: Cell) -> bool:
    """Whether an attack follows gradients over many steps, enough of them to cross its ball."""
    attack = cell.attack
    follows = attack.info.access == "gradient" and not _single_step(attack)
    return follows and attack.crosses(cell.budget)


def _single_step(attack: Attack) -> bool:
    return attack.info.single_step


def _where(cell: Cell) -> str:
    return f"{cell.attack.label} at {cell.budget.where}"
