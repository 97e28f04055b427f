"""How far a measured accuracy can be trusted: intervals and the comparison of two models.

Where two models judge the same images, all that tells them apart is the images on which exactly
one is right: `only_first` and `only_second` count those.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy import optimize, special, stats

CONFIDENCE = 0.95
LEVEL = 1 - CONFIDENCE
POWER = 0.8
"""How surely a test should find what it is said to find; the customary choice."""
_Z = float(special.ndtri(1 - LEVEL / 2))
_TAIL = 1e-12
"""Numbers of discordant images this improbable are left out of the power."""


def wilson(successes: int, samples: int) -> tuple[float, float]:
    """Two-sided 95 % score interval of a proportion: right in 95 % of cases on average over p.

    Args:
        successes: number of successes.
        samples: number of trials, > 0.

    Returns:
        Lower and upper bound, in [0, 1].

    Source: Wilson 1927; computed by scipy.
    """
    interval = stats.binomtest(successes, samples).proportion_ci(CONFIDENCE, method="wilson")
    return float(interval.low), float(interval.high)


def clopper_pearson(successes: int, samples: int) -> tuple[float, float]:
    """Two-sided 95 % exact interval of a proportion: right in at least 95 % of cases at every p.

    Args:
        successes: number of successes.
        samples: number of trials, > 0.

    Returns:
        Lower and upper bound, in [0, 1].

    Source: Clopper & Pearson 1934.
    """
    low = lower_bound(successes, samples, alpha=LEVEL / 2)
    return low, 1 - lower_bound(samples - successes, samples, alpha=LEVEL / 2)


def lower_bound(successes: int, samples: int, *, alpha: float) -> float:
    """One-sided exact lower bound of a proportion; too high with probability `alpha` at most.

    Args:
        successes: number of successes, in [0, samples].
        samples: number of trials, > 0.
        alpha: in (0, 1).

    Raises:
        ValueError: an argument is out of range.

    Source: Clopper & Pearson 1934, as a quantile of the beta distribution.
    """
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")
    if not 0 <= successes <= samples:
        raise ValueError(f"successes must lie in [0, {samples}], got {successes}")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie in (0, 1), got {alpha}")
    if successes == 0:
        return 0.0
    return float(special.betaincinv(successes, samples - successes + 1, alpha))


def mcnemar(only_first: int, only_second: int) -> float:
    """Exact two-sided p-value for two models having the same accuracy on the same images.

    Args:
        only_first: images that the first model gets right and the second wrong.
        only_second: images that the second model gets right and the first wrong.

    Source: McNemar 1947, in its exact form: under equality the discordant pairs are a fair coin.
    """
    discordant = only_first + only_second
    return float(stats.binomtest(only_first, discordant).pvalue) if discordant else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedEffect:
    """How much better the first of two models is, and what the test could have found.

    Attributes:
        difference: accuracy of the first minus accuracy of the second.
        interval: 95 % score interval of that difference.
        odds_ratio: `only_first` / `only_second`; None if the second is 0.
        odds_interval: its exact 95 % interval, given the number of discordant images; None for an
            end that is not bounded.
        power: probability that the test rejects equality, were the true difference the measured
            one. It says no more than the p-value does, only in other words.
        detectable: the smallest true difference that the test finds with a probability of 80 % if
            the models disagree on as many images; None if there is none.
    """

    difference: float
    interval: tuple[float, float]
    odds_ratio: float | None
    odds_interval: tuple[float, float | None]
    power: float
    detectable: float | None


def paired_effect(only_first: int, only_second: int, samples: int) -> PairedEffect:
    """Effect size behind `mcnemar`, and that test's power at this sample size.

    Args:
        only_first: images that the first model gets right and the second wrong.
        only_second: images that the second model gets right and the first wrong.
        samples: images in all, > 0.

    Raises:
        ValueError: a count is negative, or there are more discordant images than images.

    Source: Tango 1998 for the interval of the difference.
    """
    discordant = only_first + only_second
    if min(only_first, only_second) < 0 or samples < max(discordant, 1):
        raise ValueError(
            "samples must be positive and at least only_first + only_second, both at least 0, "
            f"got {samples} with {only_first} and {only_second}"
        )
    difference = (only_first - only_second) / samples
    low, high = clopper_pearson(only_first, discordant) if discordant else (0.0, 1.0)
    return PairedEffect(
        difference=difference,
        interval=paired_interval(only_first, only_second, samples),
        odds_ratio=only_first / only_second if only_second else None,
        odds_interval=(low / (1 - low), high / (1 - high) if high < 1 else None),
        power=mcnemar_power(difference, discordant / samples, samples),
        detectable=detectable_difference(discordant / samples, samples),
    )


def paired_interval(only_first: int, only_second: int, samples: int) -> tuple[float, float]:
    """Two-sided 95 % score interval of the difference of two accuracies on the same images.

    Args:
        only_first: images that the first model gets right and the second wrong.
        only_second: images that the second model gets right and the first wrong.
        samples: images in all, > 0.

    Returns:
        Lower and upper bound of first minus second, in [-1, 1].

    Source: Tango 1998.
    """
    low = _lowest_difference(only_first, only_second, samples)
    return low, -_lowest_difference(only_second, only_first, samples)


def mcnemar_power(difference: float, discordance: float, samples: int) -> float:
    """Probability that the exact test of McNemar rejects equality at 5 %.

    The number of discordant images is random, too: no normal approximation, nothing conditional.

    Args:
        difference: true difference of the accuracies, at most `discordance` in size.
        discordance: true share of images that exactly one model gets right, in [0, 1].
        samples: images in all, > 0.

    Raises:
        ValueError: `difference` or `discordance` is out of range.
    """
    if not abs(difference) <= discordance <= 1:
        raise ValueError(
            "discordance must lie in [0, 1] and be at least the size of difference, "
            f"got {discordance} and {difference}"
        )
    if discordance == 0:
        return 0.0
    return _power(0.5 + 0.5 * difference / discordance, *_rejections(discordance, samples))


def detectable_difference(discordance: float, samples: int) -> float | None:
    """Smallest true difference that the exact test of McNemar finds in 80 % of cases.

    Args:
        discordance: true share of images that exactly one model gets right, in [0, 1].
        samples: images in all, > 0.

    Returns:
        A difference of accuracies, > 0; None if even the largest possible one is found less often.
    """
    if mcnemar_power(discordance, discordance, samples) < POWER:
        return None
    weights, counts, limits = _rejections(discordance, samples)
    share = _root(lambda p: _power(p, weights, counts, limits) - POWER, 0.5, 1.0)
    return discordance * (2 * share - 1)


def _rejections(discordance: float, samples: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers of discordant images that may occur: probability, number, largest rejected tail.

    With n discordant images the test rejects if one model alone is right on at most the third
    value of them, -1 if it never does.
    """
    ends = stats.binom.ppf([_TAIL, 1 - _TAIL], samples, discordance)
    counts = np.arange(int(ends[0]), int(ends[1]) + 1)
    limits = stats.binom.ppf(LEVEL / 2, counts, 0.5)
    limits -= stats.binom.cdf(limits, counts, 0.5) > LEVEL / 2
    return stats.binom.pmf(counts, samples, discordance), counts, limits


def _power(share: float, weights: np.ndarray, counts: np.ndarray, limits: np.ndarray) -> float:
    """Probability of rejection if the first model is right on `share` of discordant images."""
    tails = stats.binom.cdf(limits, counts, share) + stats.binom.cdf(limits, counts, 1 - share)
    return float(tails @ weights)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    return float(optimize.root_scalar(function, bracket=(low, high), method="brentq").root)


def _lowest_difference(only_first: int, only_second: int, samples: int) -> float:
    score = partial(_score_excess, only_first, only_second, samples)
    # At the measured difference itself the excess is 0 if no image is discordant: a false root.
    inside = (only_first - only_second) / samples - 1e-9
    return -1.0 if inside <= -1 else _root(score, -1.0, inside)


def _score_excess(only_first: int, only_second: int, samples: int, difference: float) -> float:
    """Measured minus assumed difference, in images, less what chance explains at 95 %."""
    b, c, n = only_first, only_second, samples
    linear = (2 * n - b + c) * difference - b - c
    root = math.sqrt(max(linear**2 + 8 * n * c * difference * (1 - difference), 0.0))
    least = (root - linear) / (4 * n)  # the likeliest share of `only_second` under the assumption
    variance = n * (2 * least + difference * (1 - difference))
    return b - c - n * difference - _Z * math.sqrt(max(variance, 0.0))
