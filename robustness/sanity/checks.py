"""Sanity checks on what attacks found, all checks in order, and notes for the reader."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from robustness.attacks.base import Budget
from robustness.brackets import brackets
from robustness.results import AttackResult, ModelResult, parts_of
from robustness.sanity import model_checks
from robustness.sanity.model_checks import ModelOutcome, Pairs, many
from robustness.spec import ATTACKS, CLIMBERS, STEPS, Cell, EvaluationSpec
from robustness.target import Target
from runtimes.tasks import Answer

RISE = 0.02  # share by which the seed alone moves an accuracy: 1-3 flags of 100 were measured
BLACK = 0.02  # share that only a black box may fool: none of 57 on sound models
CONTRADICTED = "proof_contradicted"
BORDER = 1e-3  # of logits: so near to the border, rounding decides
LARGE = 0.25  # l-infinity radius to which doubling the radius costs any model some accuracy
FEW_HELD = 50  # images that hold, below which it is no wonder that none falls


_SEEN = {
    "scores": "the scores of all classes",
    "top": "the scores of the best classes alone",
    "label": "the class alone",
}


class SanityWarning(NamedTuple):
    """A reason not to believe a figure: a stable name, and the reason in plain words."""

    code: str
    message: str


def contradicted(model: ModelOutcome) -> Iterator[str]:
    """A proof that does not hold."""
    for one in brackets(model.result):
        if one.contradicted.any():
            where = f"{one.cell.attack.label} {one.cell.budget.text}"
            yield (
                f"{where}: {model.count(one.contradicted)} are misled though it is proved that "
                "nothing in this set misleads the model. Proof, attack or served model is wrong; "
                "the report holds what both sides found."
            )


def above_clean(model: ModelOutcome) -> Iterator[str]:
    """More right under attack than without; by its definition no sound result says so."""
    for cell, one in model.attacks:
        above = (one.robust < model.clean.rank) | (one.confirmed < model.clean.rank)
        if above.any():
            yield (
                f"{_where(cell)}: {model.count(above)} do better under attack than unattacked. "
                "Robust means right in both cases, so results were mixed up."
            )


def rises(model: ModelOutcome) -> Iterator[str]:
    """More held at a larger budget."""
    by_chance = {cell.budget.kind for cell, _ in model.attacks if cell.attack.info.by_chance}
    lowest: tuple[Budget, int] | None = None
    for place, rank in model.result.worst_cases:
        if place.kind in by_chance:  # chance may spare more
            continue
        if lowest is not None and lowest[0].kind != place.kind:
            lowest = None
        held = rank == 0
        count = int(held.sum())
        if lowest is not None and count - lowest[1] > max(1, RISE * len(rank)):
            yield (
                f"More {model.count(held).split()[-1]} hold at {place.text} ({count}) than at "
                f"{lowest[0].text} ({lowest[1]}). The larger budget allows all that the smaller "
                "one does, so the attack failed at the larger one. Use more steps or a stronger "
                "attack."
            )
        if lowest is None or count < lowest[1]:
            lowest = (place, count)


def flat(model: ModelOutcome) -> Iterator[str]:
    """The same images held at twice a large radius."""
    worst = [pair for pair in model.result.worst_cases if pair[0].kind == "Linf"]
    for (small, before), (large, after) in pairwise(worst):
        held = int((after == 0).sum())
        wide = large.value >= LARGE and large.value >= 2 * small.value
        if wide and held >= FEW_HELD and held >= int((before == 0).sum()):
            yield (
                f"As many images hold at eps {large.text} as at {small.text}: {held}. Radii that "
                "large cost every model some accuracy; the attack may be stuck."
            )


def impossible(model: ModelOutcome) -> Iterator[str]:
    """Images held where each can be turned into any other, or into the same grey one."""
    most_common = int(np.bincount(model.clean.label).max())
    for place, rank in model.result.worst_cases:
        held, share = int((rank == 0).sum()), _share_of_range(model, place)
        if share >= 1 and len(np.unique(model.clean.index)) > 1 and held:
            why = "any other: none can hold"
        elif share >= 0.5 and held > most_common:
            why = f"the same grey one: at most {most_common} (the commonest class) can hold"
        else:
            continue
        yield (
            f"{held} images hold at eps {place.text}, where every image can be turned into {why}. "
            "The attack failed."
        )


def held_halfway(model: ModelOutcome) -> Iterator[str]:
    """Images held at eps 0.5 when the model was asked, whatever radii the spec has."""
    if model.followed is None:
        return
    pushed = model.clean.label[:CLIMBERS]
    held, most_common = int(model.followed.holds_at_large_eps.sum()), int(np.bincount(pushed).max())
    if held > most_common:
        yield (
            f"{held} of {len(pushed)} images hold against {STEPS} gradient steps within eps 0.5, "
            "where every image can be turned into the same grey one: at most "
            f"{most_common} (the commonest class) can hold. Gradients do not lead anywhere."
        )


def _share_of_range(model: ModelOutcome, place: Budget) -> float:
    """How far, as a share of the range of a pixel, all pixels can move at once."""
    diagonal = model.result.target.diagonal
    match place.kind:
        case "Linf":
            return place.value
        case "L2":
            return place.value / diagonal
        case "L1":
            return place.value / diagonal**2
        case "L0":  # of the pixels that may move, each moves as far as it likes
            return float(place.value >= diagonal**2)
    return 0.0


def steps_lose(model: ModelOutcome) -> Iterator[str]:
    """Fooled by one step, not by an iterated attack of the same radius."""
    for place, pairs in _in_balls(model):
        one = _fooled(model, [p for p in pairs if p[0].attack.info.single_step])
        iterated = [p for p in pairs if _iterates(p[0])]
        lost = one & ~_fooled(model, iterated)
        if iterated and many(lost, RISE):
            yield (
                f"At eps {place.text} one step (FGSM) fools {model.count(lost)} that attacks of "
                "many steps do not. Gradients mislead away from the clean input."
            )


def black_box_wins(model: ModelOutcome) -> Iterator[str]:
    """Fooled by queries, not by attacks that see inside."""
    for place, pairs in _in_balls(model):
        iterated = [p for p in pairs if _iterates(p[0])]
        white = _fooled(model, iterated, seeing=True)
        longer = [p for p in pairs if not p[0].attack.info.single_step]
        won = _fooled(model, longer, seeing=False) & ~white
        if iterated and many(won, BLACK):
            yield (
                f"At eps {place.text}, attacks that only ask the model fool {model.count(won)} "
                "that attacks with its gradients do not. Who sees inside cannot be weaker: the "
                "gradients are masked, and the figure may be too high still."
            )


def transfer_gap(model: ModelOutcome) -> Iterator[str]:
    """Another outcome on the served model than on its PyTorch model, and not by rounding."""
    for cell, one in model.attacks:
        differs = (one.robust == 0) != (one.confirmed == 0)
        known = differs & one.finite & ~(np.abs(one.margin) < BORDER)
        if model.repeatable and many(known, model.gap):
            yield (
                f"{_where(cell)}: the served model and its PyTorch model disagree on "
                f"{model.count(differs)} under attack. They should be the same function; see "
                "'confirmed' for what the served model does."
            )


def pixels_rise(model: ModelOutcome) -> Iterator[str]:
    """More pixels right at a larger budget."""
    for (small, before), (large, after) in pairwise(model.result.worst_cases):
        low, high = (float(model.result.shares(rank).mean()) for rank in (before, after))
        if small.kind == large.kind and high - low > RISE:
            yield (
                f"More pixels are right at {large.text} ({high:.1%}) than at {small.text} "
                f"({low:.1%}). The larger budget allows all that the smaller one does, so the "
                "attack failed at the larger one. Use more steps or a stronger attack."
            )


def pixels_differ(model: ModelOutcome) -> Iterator[str]:
    """Other pixels right on the served model than on its PyTorch model."""
    for cell, one in model.attacks:
        shares = model.result.shares(one.robust), model.result.shares(one.confirmed)
        apart = float(np.abs(shares[0] - shares[1]).mean())
        if model.repeatable and apart > model.gap:
            yield (
                f"{_where(cell)}: the served model and its PyTorch model disagree on {apart:.1%} "
                "of the pixels under attack. They should be the same function; see 'confirmed' for "
                "what the served model does."
            )


def _in_balls(model: ModelOutcome) -> list[tuple[Budget, Pairs]]:
    """Where gradients should find more than queries; in l0 a random search may find more."""
    return [pair for pair in model.by_budget if pair[0].kind in ("Linf", "L2", "L1")]


def _fooled(model: ModelOutcome, pairs: Pairs, *, seeing: bool | None = None) -> np.ndarray:
    """(N,) bool, right unattacked and fooled by parts that follow gradients, or only by others."""
    rank = model.clean.rank
    for cell, one in pairs:
        parts = parts_of(model.result.target, cell.attack)
        sees = [part.info.access == "gradient" for part, _ in parts]
        rows = one.by_part[[seeing is None or flag == seeing for flag in sees]]
        rank = np.maximum(rank, rows.max(axis=0, initial=0))
    return (model.clean.rank == 0) & (rank > 0)


def _iterates(cell: Cell) -> bool:
    """Whether an attack follows gradients over many steps, enough of them to cross its ball."""
    info = cell.attack.info
    return info.access == "gradient" and not info.single_step and cell.attack.crosses(cell.budget)


def _where(cell: Cell) -> str:
    return f"{cell.attack.label} at {cell.budget.where}"


CHECKS: tuple[tuple[str, Callable[[ModelOutcome], Iterator[str]]], ...] = (
    ("non_finite_logits", model_checks.not_finite),
    ("randomised", model_checks.randomised),
    ("probabilities", model_checks.probabilities),
    ("constant_output", model_checks.constant),
    ("not_above_chance", model_checks.not_above_chance),
    ("depends_on_batch", model_checks.depends_on_batch),
    ("copy_differs", model_checks.copy_differs),
    ("optimises_inside", model_checks.takes_gradients),
    ("quantised_inputs", model_checks.quantised),
    ("zero_gradients", model_checks.no_gradient),
    ("shattered_gradients", model_checks.shattered),
    ("incomplete_gradients", model_checks.incomplete),
    ("dead_zones", model_checks.dead_zones),
    ("saturated_logits", model_checks.saturated),
    ("more_steps_weaker", model_checks.fewer_steps_stronger),
    (CONTRADICTED, contradicted),
    ("robust_above_clean", above_clean),
    ("accuracy_rises_with_eps", rises),
    ("accuracy_does_not_fall", flat),
    ("impossible_accuracy", impossible),
    ("more_steps_weaker", steps_lose),
    ("black_box_beats_white_box", black_box_wins),
    ("transfer_gap", transfer_gap),
)
# Most faults raise another warning with it, which says more; so it speaks where all are silent.
LAST = ("impossible_accuracy", held_halfway)


PIXEL_CHECKS: tuple[tuple[str, Callable[[ModelOutcome], Iterator[str]]], ...] = (
    ("non_finite_logits", model_checks.not_finite),
    ("randomised", model_checks.randomised),
    ("constant_output", model_checks.constant),
    ("depends_on_batch", model_checks.depends_on_batch),
    ("optimises_inside", model_checks.takes_gradients),
    ("robust_above_clean", above_clean),
    ("accuracy_rises_with_eps", pixels_rise),
    ("transfer_gap", pixels_differ),
)
"""Those that apply to segmenters: the others count images that are right, or ask for one margin."""
_OF_TOKENS = ("non_finite_logits", "randomised", "constant_output", "depends_on_batch")
_CHECKS_OF: dict[Answer, Sequence[tuple[str, Callable[[ModelOutcome], Iterator[str]]]]] = {
    "class": CHECKS,
    "pixels": PIXEL_CHECKS,
    "tokens": [one for one in CHECKS if one[0] in _OF_TOKENS],
}


def find_warnings(result: ModelResult, *, compared: bool = False) -> list[SanityWarning]:
    """All warnings about one model's figures; any of them makes the result unreliable.

    Args:
        result: of the model.
        compared: whether the data name their classes, and these are the model's.
    """
    model = ModelOutcome(result=result, compared=compared)
    answer = result.target.task.answer
    found = [SanityWarning(code, why) for code, check in _CHECKS_OF[answer] for why in check(model)]
    if answer != "class":
        return found
    return found or [SanityWarning(LAST[0], why) for why in LAST[1](model)]


def notes(results: Sequence[ModelResult]) -> list[str]:
    """What a reader must know to read the figures of models, though nothing is wrong with them."""
    spec = results[0].spec
    num_classes = len(results[0].target.labels)
    answer = results[0].target.task.answer
    found = [*_of_attacks(spec, num_classes, answer)]
    for result in results:
        found += [*result.target.notes, *_of_endpoint(result), *_of_gradients_through_m(result)]
    dropped = [k for k in spec.top_k if k >= num_classes]
    if dropped and answer == "class":
        found.append(f"top-k for k in {dropped} is left out: with {num_classes} classes it is 1.")
    return found


def not_tried(target: Target) -> str | None:
    """What needs more than a model shows, and was not tried; None where it shows gradients."""
    if target.torch_model is not None or target.task.answer == "tokens":
        return None
    enough = {"label", "none"} if target.names_class else {"label", "none", "scores"}
    known = {
        name: kind.info.access in enough
        for name, kind in ATTACKS.items()
        if kind.info.input == target.reads and kind.info.role == "attack"
    }
    shown = "classes alone, neither scores nor gradients" if target.names_class else "no gradients"
    missing = target.left_out or [name for name, fits in known.items() if not fits]
    fit = ", ".join(name for name, fits in known.items() if fits)
    return (
        f"{target.name} shows {shown}. Not tried: {', '.join(missing)}. Attacks that see more may "
        f"find more. What can be tried without: {fit}."
    )


def _of_attacks(spec: EvaluationSpec, num_classes: int, answer: Answer) -> Iterator[str]:
    facts = [attack.info for attack in spec.attacks if attack.info.role == "attack"]
    if answer == "tokens":
        yield (
            "Swapped words count in the perplexity as all others do, and each is read by the "
            "model before it predicts the next. The first token of a text is not predicted."
        )
    elif facts:
        yield "Every robust accuracy is an upper bound: a stronger attack can only lower it."
    both = " Autoattack has both." if answer == "class" else ""
    if facts and all(info.follows == "cross-entropy" for info in facts):
        yield (
            "All attacks follow the cross-entropy; where scores saturate, attacks with another "
            f"loss or without gradients find more.{both}"
        )
    if facts and all(info.single_step for info in facts):
        yield "Only FGSM was run. One step is a weak attack; add pgd before relying on it."
    for attack in spec.attacks:
        yield from attack.notes(num_classes)


def _of_endpoint(result: ModelResult) -> Iterator[str]:
    """What a model behind an address does not promise."""
    if result.target.endpoint is None:
        return
    facts = result.target.endpoint.facts()
    told = ", ".join(f"{key} {value}" for key, value in facts["told"].items())
    yield (
        f"{result.target.name} was asked at {facts['url']} ({facts['protocol']}; {told}). What "
        "runs behind an address can change at any time: the figures hold for the answers kept."
    )
    yield f"What the attacks saw of an answer: {_SEEN[facts['shows'].partition('-')[0]]}."
    copy = facts["surrogate"]
    if copy is not None:
        yield (
            f"Gradients are those of {copy['name']} {copy['version']}, a local copy: robust is "
            "what holds on the copy, confirmed what holds at the address."
        )


def _of_gradients_through_m(result: ModelResult) -> Iterator[str]:
    """By how much a figure were too high, had gradients been stopped at m alone."""
    for cell, one in result.of(AttackResult):
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
