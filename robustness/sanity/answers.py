"""Doubts about the answers themselves: what no classifier that can be attacked fairly does."""

from collections.abc import Iterator

import numpy as np

from robustness.sanity.case import Case, Doubt, many

GAP = 0.01  # share of samples on which twin and served model may disagree: borderline logits
FEW = 16  # samples below which equal predictions are no wonder
MISSED = 0.25  # share of samples of other classes that a constant answer must have missed


def not_finite(case: Case) -> Iterator[Doubt]:
    """Scores that are infinite or not a number."""
    finite = np.logical_and.reduce([case.clean.finite, *(one.finite for _, one in case.attacks)])
    if not finite.all():
        yield Doubt(
            code="non_finite_logits",
            message=f"{case.count(~finite)} got a score that is infinite or not a number. They "
            "count as wrong, but a model that overflows was not really attacked.",
        )


def randomised(case: Case) -> Iterator[Doubt]:
    """Two answers to one question."""
    if case.steady:
        return
    if case.draws_at_random:
        cause = "It draws the metric of its attention at random in every forward pass"
    elif case.clean.unsteady.any():
        cause = f"{case.count(case.clean.unsteady)} got other scores when the same batch was asked "
        cause += "twice"
    else:
        cause = "Its differentiable twin gives other scores when the same batch is asked twice"
    yield Doubt(
        code="randomised",
        message=f"The model is randomised. {cause}. Attacks that do not average over the draws are "
        "too weak against it, and the next attempt gives other figures.",
    )


def probabilities(case: Case) -> Iterator[Doubt]:
    """Outputs after softmax."""
    probe = case.probe
    by_twin = probe is not None and probe.twin_normalised.all()
    if case.clean.normalised.all() or by_twin:
        yield Doubt(
            code="probabilities",
            message="The model returns probabilities instead of logits. The attacks' loss applies "
            "a softmax of its own, and their gradients fade where the model is confident.",
        )


def constant(case: Case) -> Iterator[Doubt]:
    """The same answer whatever is asked."""
    clean, probe = case.clean, case.probe
    missed = (clean.label != clean.index).mean() >= MISSED
    alike = len(clean.index) >= FEW and len(np.unique(clean.index)) == 1
    if probe is not None and probe.constant[0]:
        what = f"gives different {case.thing} the same scores"
    elif alike and missed:
        what = f"puts all {len(clean.index)} {case.thing} into one class, whatever they show"
    else:
        return
    yield Doubt(
        code="constant_output",
        message=f"The model {what}. No attack can change an answer that does not depend on the "
        "input, so its accuracy under attack says nothing.",
    )


def depends_on_batch(case: Case) -> Iterator[Doubt]:
    """An answer that changes with what else is asked."""
    moved = case.moved_by_company
    if moved.any():
        yield Doubt(
            code="depends_on_batch",
            message=f"{case.count(moved)} that were tried got other scores in another batch. Then "
            "attacks find weaknesses of the batch and not of the input, and nobody can repeat the "
            "figures with inputs of their own.",
        )


def twin_differs(case: Case) -> Iterator[Doubt]:
    """A twin that is another function."""
    differs = (case.clean.index != case.clean.twin_index) & case.clean.finite
    if case.steady and many(differs, GAP):
        yield Doubt(
            code="twin_differs",
            message=f"The served model and its twin disagree on {case.count(differs)} that nobody "
            "attacked. Then attacks on the twin say little about the served model.",
        )


def takes_gradients(case: Case) -> Iterator[Doubt]:
    """A forward pass that optimises."""
    if case.probe is not None and case.probe.inner_gradient[0]:
        yield Doubt(
            code="optimises_inside",
            message="The model takes gradients while it answers: it optimises inside its forward "
            "pass. Standard attacks do not see through that and are too weak; attack it with one "
            "made for it.",
        )
