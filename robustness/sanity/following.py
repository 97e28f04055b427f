"""Doubts about gradients: whether attacks that followed them were led anywhere."""

from collections.abc import Iterator

import numpy as np

from robustness.sanity.case import Case, Doubt

MOST = 0.5
SOME = 0.25  # share of probed images that must show a sign; of 864 on sound models none did
ASTRAY = 0.25  # a smooth function keeps its promise over so small a step: within 0.01 as measured
WEAKER = 0.8  # many steps got at least 0.81 times as far as one on sound models
FADED = 0.5  # rescaling the logits got at most 1.3 times as far on sound models


def quantised(case: Case) -> Iterator[Doubt]:
    """Inputs that are rounded before they are read."""
    probe = case.probe
    if probe is None or probe.constant[0] or not case.steady:
        return
    if probe.still.mean() > MOST:
        yield Doubt(
            code="quantised_inputs",
            message=f"Nothing at all changes in the scores of {case.count(probe.still)} that were "
            "tried when some pixels move by a fortieth of a level: the model rounds its inputs. "
            "Such steps hide the way from gradient attacks, though larger steps get through.",
        )


def no_gradient(case: Case) -> Iterator[Doubt]:
    """Images that count as robust where there was nothing to follow."""
    if not case.uses_gradients:
        return
    blind = case.clean.blind & case.held_by_loss_alone()
    if case.probe is not None:
        flat = np.zeros(len(blind), bool)
        flat[: len(case.probe.flat)] = case.probe.flat
        blind |= flat & case.held()
    if blind.any():
        yield Doubt(
            code="zero_gradients",
            message=f"{case.count(blind)} count as robust although the model gives no gradient "
            "there (zero, or not a number): the attack had nothing to follow. Scores may be "
            "saturated, or a step may block gradients.",
        )


def shattered(case: Case) -> Iterator[Doubt]:
    """Gradients that do not say what the model does."""
    probe = case.followed
    if probe is None:
        return
    told = np.isfinite(probe.slope)
    astray = told & (np.abs(np.nan_to_num(probe.slope) - 1) > ASTRAY) & ~probe.still
    if told.mean() > SOME and astray.sum() > MOST * told.sum():
        yield Doubt(
            code="shattered_gradients",
            message=f"On {case.count(astray)} that were tried, a tiny step along the gradient does "
            "not change the scores as the gradient says. The function is jagged, or its gradient "
            "is another function's; attacks that follow it are led astray.",
        )


def saturated(case: Case) -> Iterator[Doubt]:
    """Logits so large that the cross-entropy has nothing left to climb.

    Resolved where an attack that does not mind the scale had the same budget.
    """
    probe = case.followed
    if probe is None or not case.held_by_loss_alone().any():
        return
    right = np.isfinite(probe.rescaled) & (probe.clean_margin > 0)
    faded = right & (probe.rescaled > 0) & (probe.many_steps < FADED * probe.rescaled)
    if faded.sum() > SOME * right.sum():
        yield Doubt(
            code="saturated_logits",
            message=f"The scores of {case.count(faded[right])} that were tried are so large that "
            "the cross-entropy is flat; divided by a constant, which changes no answer, the same "
            "attack gets at least twice as far. Add apgd-t or autoattack, which do not mind the "
            "scale.",
        )


def more_steps_weaker(case: Case) -> Iterator[Doubt]:
    """An attack that gets less far the longer it runs."""
    probe = case.followed
    if probe is None:
        return
    tried = np.isfinite(probe.one_step) & np.isfinite(probe.many_steps) & (probe.one_step > 0)
    weaker = tried & (probe.many_steps < WEAKER * probe.one_step)
    if weaker.sum() > max(1.0, SOME * tried.sum()):
        yield Doubt(
            code="more_steps_weaker",
            message=f"On {case.count(weaker[tried])} that were tried, eight steps of an attack get "
            "less far than one. Steps that start off well and end badly mean that gradients "
            "mislead away from the clean input, and iterated attacks with them.",
        )
