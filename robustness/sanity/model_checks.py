"""Sanity checks on a model and its gradients: what no classifier that is attacked fairly does.

A check yields its message, in plain words, where it has a reason not to believe a figure.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import nn

from core.stats import above_chance
from models.attention.base import is_randomized
from robustness.attacks.base import Budget
from robustness.results import AttackResult, CleanResult, Diagnostics, ModelResult
from robustness.spec import Cell, EvaluationSpec
from runtimes.gate import MIN_ROUNDED

REPEATABLE = 1e-4  # change of logits, relative to their spread, that no drawing would leave
BATCH_CHANGE = 1e-3  # the same with the batch, that rounding explains
COARSE_BATCH_CHANGE = 0.05  # the same where the served model does not compute in fp32
GAP = 0.01  # share of samples on which PyTorch and served model may disagree: borderline logits
UNLIKELY = 0.05  # p-value up to which a share is above chance
FEW = 16  # samples below which equal predictions are no wonder
MISSED = 0.25  # share of samples of other classes that a constant answer must have missed
MOST = 0.5
SOME = 0.25  # share of probed images that must show a sign; of 864 on sound models none did
ASTRAY = 0.25  # a smooth function keeps its promise over so small a step: within 0.01 as measured
ASTRAY_AT_RANDOM = 0.5  # along random directions: sound models 0.1 at most, blurred gradients 0.96
DEAD = 0.5  # share of the pixels at the ends of their range
WEAKER = 0.8  # many steps got at least 0.81 times as far as one on sound models
FADED = 0.5  # rescaling the logits got at most 1.3 times as far on sound models

Pairs = list[tuple[Cell, AttackResult]]


@dataclass(frozen=True, kw_only=True)
class ModelOutcome:
    """What was found, and what follows from it."""

    result: ModelResult
    compared: bool = False  # whether the data name their classes, and these are the model's

    @property
    def spec(self) -> EvaluationSpec:
        """What was asked for."""
        return self.result.spec

    @property
    def clean(self) -> CleanResult:
        """The model on clean inputs."""
        return self.result.clean

    @property
    def diagnostics(self) -> Diagnostics:
        """What the model said of itself."""
        return self.result.diagnostics

    @cached_property
    def attacks(self) -> Pairs:
        """The cells that are attacks."""
        return self.result.of(AttackResult)

    @cached_property
    def by_budget(self) -> list[tuple[Budget, Pairs]]:
        """The same together that have one budget."""
        found: dict[tuple[str, float], tuple[Budget, Pairs]] = {}
        for cell, one in self.attacks:
            place = cell.budget
            found.setdefault((place.kind, place.value), (place, []))[1].append((cell, one))
        return list(found.values())

    @property
    def draws_at_random(self) -> bool:
        """Whether the PyTorch model is known to draw the metric of its attention at random."""
        torch_model = self.result.target.torch_model
        return isinstance(torch_model, nn.Module) and is_randomized(torch_model)

    @cached_property
    def repeatable(self) -> bool:
        """Whether the model answers the same input alike; else nothing finer can be asked."""
        repeats = not (np.nan_to_num(self.diagnostics.torch_change) > REPEATABLE).any()
        return repeats and not self.draws_at_random and not self.clean.unsteady.any()

    @cached_property
    def batch_dependent(self) -> np.ndarray:
        """(n,) bool of those probed, whose scores change with what else is in the batch."""
        seen = self.diagnostics
        if not self.repeatable:
            return np.zeros(0, bool)
        exact = self.result.target.runtime.precision == "fp32"
        served = seen.batch_dependence > (BATCH_CHANGE if exact else COARSE_BATCH_CHANGE)
        return served | (seen.torch_batch_dependence > BATCH_CHANGE)

    @property
    def gap(self) -> float:
        """Share of samples on which both models may disagree; a note tells it of rounding."""
        return 1 - MIN_ROUNDED if self.result.target.rounds else GAP

    @property
    def followed(self) -> Diagnostics | None:
        """The diagnostics, where gradients were followed and each image answers for itself."""
        sound = self.spec.uses_gradients and self.repeatable and not self.batch_dependent.any()
        return self.diagnostics if sound else None

    def held(self, pairs: Pairs) -> np.ndarray:
        """(N,) bool, right on the clean input and under these attacks."""
        return np.maximum.reduce([self.clean.rank, *(one.robust for _, one in pairs)]) == 0

    def held_by_loss_alone(self) -> np.ndarray:
        """(N,) bool, held at a budget where all that followed gradients climbed cross-entropy.

        What follows the margin or differences of logits (apgd-t, fab-t) does not mind their scale.
        """
        found = np.zeros(len(self.clean.rank), bool)
        for _, pairs in self.by_budget:
            used = [c.attack.info for c, _ in pairs if c.attack.info.access == "gradient"]
            if used and all(info.follows == "cross-entropy" for info in used):
                found |= self.held(pairs)
        return found

    def count(self, flags: np.ndarray) -> str:
        """How many of those scored, as in "3 of 40 images"."""
        noun = "texts" if self.spec.on_texts else "images"
        return f"{int(flags.sum())} of {len(flags)} {noun}"


def many(flags: np.ndarray, share: float) -> bool:
    """Whether more than one flag, and more than a share of them, are set."""
    return int(flags.sum()) > max(1.0, share * len(flags))


def not_finite(model: ModelOutcome) -> Iterator[str]:
    """Scores that are infinite or not a number."""
    finite = np.logical_and.reduce([model.clean.finite, *(one.finite for _, one in model.attacks)])
    if not finite.all():
        yield (
            f"{model.count(~finite)} got a score that is infinite or not a number. They count as "
            "wrong, but a model that overflows was not really attacked."
        )


def randomised(model: ModelOutcome) -> Iterator[str]:
    """Two answers to one question."""
    if model.repeatable:
        return
    if model.draws_at_random:
        cause = "It draws the metric of its attention at random in every forward pass"
    elif model.clean.unsteady.any():
        unsteady = model.count(model.clean.unsteady)
        cause = f"{unsteady} got other scores when the same batch was asked twice"
    else:
        cause = "Its PyTorch model gives other scores when the same batch is asked twice"
    yield (
        f"The model is randomised. {cause}. Attacks that do not average over the draws are too "
        "weak against it, and the next attempt gives other figures."
    )


def probabilities(model: ModelOutcome) -> Iterator[str]:
    """Outputs after softmax."""
    if model.clean.normalised.all() or model.diagnostics.torch_normalized.all():
        yield (
            "The model returns probabilities instead of logits. The attacks' loss applies a "
            "softmax of its own, and their gradients fade where the model is confident."
        )


def constant(model: ModelOutcome) -> Iterator[str]:
    """The same answer whatever is asked."""
    clean, every = model.clean, np.ones(len(model.clean.index), bool)
    noun = model.count(every).split()[-1]
    by_class = model.result.target.task.answer == "class"
    missed = by_class and (clean.label != clean.index).mean() >= MISSED
    alike = len(clean.index) >= FEW and len(np.unique(clean.index)) == 1
    if model.diagnostics.constant[0]:
        what = f"gives different {noun} the same scores"
    elif alike and missed:
        what = f"puts all {len(clean.index)} {noun} into one class, whatever they show"
    else:
        return
    yield (
        f"The model {what}. No attack can change an answer that does not depend on the input, so "
        "its accuracy under attack says nothing."
    )


def not_above_chance(model: ModelOutcome) -> Iterator[str]:
    """No more right than by guessing, where nothing else tells whether the data are the model's.

    Guessing is right on 1 of K inputs: so is any model on labels that have nothing to do with its
    answers, where these are spread evenly over the classes, as in test sets. (The share of the
    commonest class would be the chance of one constant answer, which has a warning of its own, and
    would put honest inputs of one class under suspicion.) An accuracy that is nearer to 1 than to
    chance is not remarked upon: a handful of inputs that are all right prove little, and nothing
    against the data.
    """
    right, samples = int((model.clean.rank == 0).sum()), len(model.clean.rank)
    num_classes = len(model.result.target.labels)
    chance = 1 / num_classes
    p_value = above_chance(right, samples, chance)
    if model.compared or p_value <= UNLIKELY or right / samples >= (1 + chance) / 2:
        return
    yield (
        f"Only {model.count(model.clean.rank == 0)} are classified correctly without any attack: "
        f"no more than guessing among {num_classes} classes gives (one-sided binomial test, "
        f"p = {p_value:.2g}). Names of classes were not compared, so these may be other data than "
        "the model is made for, or labels in another order."
    )


def depends_on_batch(model: ModelOutcome) -> Iterator[str]:
    """An answer that changes with what else is asked."""
    moved = model.batch_dependent
    if moved.any():
        yield (
            f"{model.count(moved)} that were tried got other scores in another batch. Then "
            "attacks find weaknesses of the batch and not of the input, and nobody can repeat the "
            "figures with inputs of their own."
        )


def copy_differs(model: ModelOutcome) -> Iterator[str]:
    """A PyTorch model that is another function."""
    differs = (model.clean.index != model.clean.torch_index) & model.clean.finite
    if model.repeatable and many(differs, model.gap):
        yield (
            f"The served model and its PyTorch model disagree on {model.count(differs)} without "
            "any attack. Then attacks on the PyTorch model say little about the served model."
        )


def takes_gradients(model: ModelOutcome) -> Iterator[str]:
    """A forward pass that optimises."""
    if model.diagnostics.inner_gradient[0]:
        yield (
            "The model takes gradients while it answers: it optimises inside its forward pass. "
            "Standard attacks do not see through that and are too weak; attack it with one made "
            "for it."
        )


def quantised(model: ModelOutcome) -> Iterator[str]:
    """Inputs that are rounded before they are read."""
    seen = model.diagnostics
    if seen.constant[0] or not model.repeatable:
        return
    if seen.input_insensitive.mean() > MOST:
        yield (
            f"Nothing at all changes in the scores of {model.count(seen.input_insensitive)} that "
            "were tried when some pixels move by a fortieth of a level: the model rounds its "
            "inputs. Such steps hide the way from gradient attacks, though larger steps get "
            "through."
        )


def no_gradient(model: ModelOutcome) -> Iterator[str]:
    """Images that count as robust where there was nothing to follow."""
    if not model.spec.uses_gradients:
        return
    blind = model.clean.blind & model.held_by_loss_alone()
    seen = model.diagnostics.zero_gradient
    blind[: len(seen)] |= seen & model.held(model.attacks)[: len(seen)]
    if blind.any():
        yield (
            f"{model.count(blind)} count as robust although the model gives no gradient there "
            "(zero, or not a number): the attack had nothing to follow. Scores may be saturated, "
            "or a step may block gradients."
        )


def shattered(model: ModelOutcome) -> Iterator[str]:
    """Gradients that do not say what the model does."""
    seen = model.followed
    if seen is None:
        return
    known = np.isfinite(seen.gradient_ratio)
    broken = np.abs(np.nan_to_num(seen.gradient_ratio) - 1) > ASTRAY
    astray = known & broken & ~seen.input_insensitive
    if known.mean() > SOME and astray.sum() > MOST * known.sum():
        yield (
            f"On {model.count(astray)} that were tried, a tiny step along the gradient does not "
            "change the scores as the gradient says. The function is jagged, or its gradient is "
            "another function's; attacks that follow it are led astray."
        )


def incomplete(model: ModelOutcome) -> Iterator[str]:
    """Gradients that leave out part of what the model does."""
    seen = model.followed
    if seen is None or any(shattered(model)):
        return
    known = np.isfinite(seen.promise_error)
    astray = known & (seen.promise_error > ASTRAY_AT_RANDOM)
    astray &= ~(seen.input_insensitive | seen.zero_gradient)
    if astray.sum() > MOST * len(astray):
        yield (
            f"On {model.count(astray)} that were tried, the scores change along random directions "
            "otherwise than the gradient says, though along the gradient itself they do as it "
            "says. It leaves out pixels or details that the model sees; attacks that follow it "
            "do not find the way."
        )


def dead_zones(model: ModelOutcome) -> Iterator[str]:
    """Pixels at the ends of their range that have no gradient until they have left them."""
    seen = model.followed
    if seen is None:
        return
    dead = np.nan_to_num(seen.dead_zone) > DEAD
    if dead.sum() > SOME * len(dead):
        yield (
            f"In {model.count(dead)} that were tried, most pixels that are black or white have a "
            "gradient of exactly zero, and not once they are moved inwards by 8/255: the model "
            "clips its inputs. Attacks move such pixels by chance only; more steps and restarts "
            "find more, and without the clipping the gradients are whole."
        )


def saturated(model: ModelOutcome) -> Iterator[str]:
    """Logits so large that the cross-entropy has nothing left to climb.

    Resolved where an attack that does not mind the scale had the same budget.
    """
    seen = model.followed
    if seen is None or not model.held_by_loss_alone().any():
        return
    right = np.isfinite(seen.rescaled_drop) & (seen.clean_margin > 0)
    faded = right & (seen.rescaled_drop > 0) & (seen.multi_step_drop < FADED * seen.rescaled_drop)
    if faded.sum() > SOME * right.sum():
        yield (
            f"The scores of {model.count(faded[right])} that were tried are so large that the "
            "cross-entropy is flat; divided by a constant, which changes no answer, the same "
            "attack gets at least twice as far. Add apgd-t or autoattack, which do not mind the "
            "scale."
        )


def fewer_steps_stronger(model: ModelOutcome) -> Iterator[str]:
    """An attack that gets less far the longer it runs."""
    seen = model.followed
    if seen is None:
        return
    one, many_steps = seen.single_step_drop, seen.multi_step_drop
    tried = np.isfinite(one) & np.isfinite(many_steps) & (one > 0)
    weaker = tried & (many_steps < WEAKER * one)
    if weaker.sum() > max(1.0, SOME * tried.sum()):
        yield (
            f"On {model.count(weaker[tried])} that were tried, eight steps of an attack get less "
            "far than one. Steps that start off well and end badly mean that gradients mislead "
            "away from the clean input, and iterated attacks with them."
        )
