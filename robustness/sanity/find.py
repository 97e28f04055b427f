"""All signs, looked for one after another."""

from collections.abc import Callable, Iterator

from robustness.sanity import answers, attacks, following
from robustness.sanity.case import Case, Doubt
from robustness.scoring import ModelVerdict
from robustness.spec import EvaluationSpec

Check = Callable[[Case], Iterator[Doubt]]

CHECKS: tuple[Check, ...] = (
    answers.not_finite,
    answers.randomised,
    answers.probabilities,
    answers.constant,
    answers.depends_on_batch,
    answers.twin_differs,
    answers.takes_gradients,
    following.quantised,
    following.no_gradient,
    following.shattered,
    following.saturated,
    following.more_steps_weaker,
    attacks.above_clean,
    attacks.rises,
    attacks.flat,
    attacks.impossible,
    attacks.steps_lose,
    attacks.black_box_wins,
    attacks.transfer_gap,
)


def find_doubts(spec: EvaluationSpec, verdict: ModelVerdict) -> list[Doubt]:
    """All doubts about one model's figures; any of them makes the result unreliable."""
    case = Case(spec=spec, verdict=verdict)
    return [doubt for check in CHECKS for doubt in check(case)] or list(attacks.held_halfway(case))
