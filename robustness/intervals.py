"""How far a measured accuracy can be trusted: intervals and the comparison of two models."""

from scipy import stats

CONFIDENCE = 0.95


def wilson(successes: int, samples: int) -> tuple[float, float]:
    """Two-sided 95 % score interval of a proportion.

    Args:
        successes: number of successes.
        samples: number of trials, > 0.

    Returns:
        Lower and upper bound, in [0, 1].

    Source: Wilson 1927; computed by scipy.
    """
    interval = stats.binomtest(successes, samples).proportion_ci(CONFIDENCE, method="wilson")
    return float(interval.low), float(interval.high)


def mcnemar(only_first: int, only_second: int) -> float:
    """Exact two-sided p-value for two models having the same accuracy on the same images.

    Args:
        only_first: images that the first model gets right and the second wrong.
        only_second: images that the second model gets right and the first wrong.

    Source: McNemar 1947, in its exact form: under equality the discordant pairs are a fair coin.
    """
    discordant = only_first + only_second
    return float(stats.binomtest(only_first, discordant).pvalue) if discordant else 1.0
