"""How far a measured accuracy can be trusted: intervals and the comparison of two models.

Where two models classify the same images, all that tells them apart is the images on which exactly
one is right: `only_first` and `only_second` count those.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from scipy import special

CONFIDENCE = 0.95
_MIXTURE = 20.0  # of 10 to 40, nearly the narrowest at 200 to 300 samples
_RESAMPLES = 2000
_Z = float(special.ndtri(0.5 + CONFIDENCE / 2))


def wilson(successes: int, samples: int) -> tuple[float, float]:
    """Two-sided 95 % score interval of a proportion: right in 95 % of cases on average over p.

    Args:
        successes: number of successes.
        samples: number of samples, > 0.

    Returns:
        Lower and upper bound, in [0, 1].

    Source: Wilson 1927, eq. 4.
    """
    return _score_interval(successes / samples, samples)


def mean_interval(shares: Sequence[float]) -> tuple[float, float]:
    """Two-sided 95 % score interval of the mean of shares, one of each sample.

    It is Wilson's with the mean as the proportion. Shares with that mean vary at most as much as
    hits and misses do, so the interval is never too short, and it is exact where each is 0 or 1.

    Args:
        shares: at least one, each in [0, 1].

    Returns:
        Lower and upper bound, in [0, 1].

    Source: Wilson 1927, eq. 4; the bound of the variance is that of Bhatia & Davis 2000.
    """
    return _score_interval(math.fsum(shares) / len(shares), len(shares))


def _score_interval(mean: float, samples: int) -> tuple[float, float]:
    return _lowest_mean(mean, samples), 1 - _lowest_mean(1 - mean, samples)


def _lowest_mean(mean: float, samples: int) -> float:
    part = _Z**2 / samples
    half = math.sqrt(part * (mean * (1 - mean) + part / 4))
    return max(0.0, (mean + part / 2 - half) / (1 + part))


def confidence_sequence(successes: float, samples: int) -> tuple[float, float]:
    """95 % interval of a mean that holds at every number of samples at once.

    Whoever looks after each sample and stops when it pleases is misled in 5 % of cases at most; an
    interval for a fixed number of samples would mislead more and more.

    Args:
        successes: number of successes, or sum of shares in [0, 1].
        samples: number of samples, > 0, in random order.

    Returns:
        Lower and upper bound, in [0, 1].

    Source: Howard et al. 2021, the two-sided beta-binomial mixture around each mean, its weight
    chosen for a few hundred samples.
    """
    return _lowest_always(successes, samples), 1 - _lowest_always(samples - successes, samples)


def _lowest_always(successes: float, samples: int) -> float:
    from scipy import optimize

    if _surprise(0.0, successes, samples) <= 0:
        return 0.0
    bracket = (0.0, successes / samples)
    root = optimize.root_scalar(
        _surprise, args=(successes, samples), bracket=bracket, method="brentq"
    )
    return float(root.root)


def _surprise(mean: float, successes: float, samples: int) -> float:
    """Logarithm of how much better a mixture bets than a mean, above what 5 % of cases reach."""
    mean = min(max(mean, 1e-12), 1 - 1e-12)
    hits, misses = _MIXTURE * mean, _MIXTURE * (1 - mean)
    failures = samples - successes
    mixed = special.betaln(hits + successes, misses + failures) - special.betaln(hits, misses)
    fixed = special.xlogy(successes, mean) + special.xlogy(failures, 1 - mean)
    return float(mixed - fixed + math.log(1 - CONFIDENCE))


def lower_bound(successes: int, samples: int, *, alpha: float) -> float:
    """One-sided exact lower bound of a proportion; too high with probability `alpha` at most.

    Args:
        successes: number of successes, in [0, samples].
        samples: number of samples, > 0.
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


def above_chance(successes: int, samples: int, chance: float) -> float:
    """Exact one-sided p-value of so many successes or more, each with the same chance.

    Args:
        successes: number of successes.
        samples: number of samples, > 0.
        chance: probability of one success, in [0, 1].
    """
    return float(special.bdtrc(successes - 1, samples, chance))


def bootstrap_interval(
    statistic: Callable[[np.ndarray], np.ndarray], samples: int
) -> tuple[float, float]:
    """95 % percentile interval of a figure, over samples that are drawn again with a fixed seed.

    Args:
        statistic: from how often each sample was drawn, (R, N), to R figures.
        samples: number of samples N, > 0.

    Source: Efron 1979; Efron & Tibshirani 1993, chapter 13.
    """
    equal = np.full(samples, 1 / samples)
    drawn = np.random.default_rng(0).multinomial(samples, equal, size=_RESAMPLES)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.nanquantile(statistic(drawn), [tail, 1 - tail])
    return float(low), float(high)


def mcnemar(only_first: int, only_second: int) -> float:
    """Exact two-sided p-value for two models having the same accuracy on the same images.

    Args:
        only_first: images that the first model gets right and the second wrong.
        only_second: images that the second model gets right and the first wrong.

    Source: McNemar 1947, in its exact form: under equality the discordant pairs are a fair coin.
    """
    discordant = only_first + only_second
    tail = special.bdtr(min(only_first, only_second), discordant, 0.5)
    return min(1.0, 2 * float(tail))


def paired_interval(only_first: int, only_second: int, samples: int) -> tuple[float, float]:
    """Two-sided 95 % score interval of the difference of two accuracies on the same images.

    Args:
        only_first: images that the first model gets right and the second wrong.
        only_second: images that the second model gets right and the first wrong.
        samples: images in all, > 0.

    Returns:
        Lower and upper bound of first minus second, in [-1, 1].

    Raises:
        ValueError: a count is negative, or there are more discordant images than images.

    Source: Tango 1998.
    """
    if min(only_first, only_second) < 0 or samples < max(only_first + only_second, 1):
        raise ValueError(
            "samples must be positive and at least only_first + only_second, both at least 0, "
            f"got {samples} with {only_first} and {only_second}"
        )
    low = _lowest_difference(only_first, only_second, samples)
    return low, -_lowest_difference(only_second, only_first, samples)


def _lowest_difference(only_first: int, only_second: int, samples: int) -> float:
    from scipy import optimize  # a third of a second that only comparisons need

    score = partial(_score_excess, only_first, only_second, samples)
    # At the measured difference itself the excess is 0 if no image is discordant: a false root.
    inside = (only_first - only_second) / samples - 1e-9
    if inside <= -1:
        return -1.0
    return float(optimize.root_scalar(score, bracket=(-1.0, inside), method="brentq").root)


def _score_excess(only_first: int, only_second: int, samples: int, difference: float) -> float:
    """Measured minus assumed difference, in images, less what chance explains at 95 %."""
    b, c, n = only_first, only_second, samples
    linear = (2 * n - b + c) * difference - b - c
    root = math.sqrt(max(linear**2 + 8 * n * c * difference * (1 - difference), 0.0))
    least = (root - linear) / (4 * n)  # the likeliest share of `only_second` under the assumption
    variance = n * (2 * least + difference * (1 - difference))
    return b - c - n * difference - _Z * math.sqrt(max(variance, 0.0))
