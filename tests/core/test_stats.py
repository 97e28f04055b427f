import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from scipy import optimize, stats

from core.stats import (
    above_chance,
    confidence_sequence,
    lower_bound,
    mcnemar,
    mean_interval,
    paired_interval,
    wilson,
)

COUNTS = [(0, 10), (3, 10), (10, 10), (481, 1000)]


@pytest.mark.parametrize(("successes", "samples"), COUNTS)
def test_a_share_is_tested_and_bounded_as_by_scipy(successes: int, samples: int) -> None:
    test = stats.binomtest(successes, samples, 0.3, alternative="greater")
    assert above_chance(successes, samples, 0.3) == pytest.approx(test.pvalue, rel=1e-9)
    expected = stats.binomtest(successes, samples).proportion_ci(0.95, method="wilson")
    assert wilson(successes, samples) == pytest.approx(tuple(expected), abs=1e-9)
    assert (wilson(successes, samples)[1] == 1) == (successes == samples)


@pytest.mark.parametrize(("successes", "samples"), COUNTS)
def test_mean_of_hits_and_misses_has_the_interval_of_their_share(
    successes: int, samples: int
) -> None:
    shares = [1.0] * successes + [0.0] * (samples - successes)
    assert mean_interval(shares) == pytest.approx(wilson(successes, samples), abs=1e-9)


@pytest.mark.parametrize(("a", "b"), [(0.1, 0.1), (2.0, 1.0), (9.0, 1.0), (0.5, 8.0)])
def test_interval_of_a_mean_holds_it_at_least_as_often_as_promised(a: float, b: float) -> None:
    draws = np.random.default_rng(0).beta(a, b, (500, 12))
    held = [low <= a / (a + b) <= high for low, high in map(mean_interval, draws.tolist())]
    assert np.mean(held) > 0.94


@pytest.mark.parametrize("mean", [0.02, 0.6])
def test_a_confidence_sequence_may_be_looked_at_again_and_again(mean: float) -> None:
    draw, looks = np.random.default_rng(5), np.arange(20, 401, 20)
    successes = (draw.random((200, 400)) < mean).cumsum(axis=1)[:, looks - 1]

    def missed(interval: Callable[[int, int], tuple[float, float]]) -> float:
        """Share of the sequences whose mean lies outside at any look."""
        ends = np.array(
            [
                [interval(int(s), int(n)) for s, n in zip(row, looks, strict=True)]
                for row in successes
            ]
        )
        return float(((ends[..., 0] > mean) | (ends[..., 1] < mean)).any(axis=1).mean())

    assert missed(confidence_sequence) <= 0.05 < missed(wilson)


def test_a_confidence_sequence_narrows_and_is_symmetric() -> None:
    low, high = confidence_sequence(128, 256)
    assert high - low == pytest.approx(0.189, abs=5e-4) and high == pytest.approx(1 - low)
    assert confidence_sequence(0, 40)[0] == 0 and confidence_sequence(40, 40)[1] == 1
    assert confidence_sequence(10.5, 40) == pytest.approx(
        tuple(1 - end for end in reversed(confidence_sequence(29.5, 40)))
    )


def test_lower_bound_is_exceeded_as_rarely_as_promised() -> None:
    for successes, samples, alpha in [(1, 7, 0.1), (990, 1000, 0.001), (7, 7, 0.05)]:
        bound = lower_bound(successes, samples, alpha=alpha)
        assert stats.binom.sf(successes - 1, samples, bound) == pytest.approx(alpha)
    assert lower_bound(0, 9, alpha=0.5) == 0


@pytest.mark.parametrize(("only_first", "only_second"), [(0, 0), (5, 5), (1, 9), (12, 2)])
def test_mcnemar_equals_the_coin_that_it_is(only_first: int, only_second: int) -> None:
    n, least = only_first + only_second, min(only_first, only_second)
    tail = sum(math.comb(n, k) for k in range(least + 1)) / 2**n
    assert mcnemar(only_first, only_second) == pytest.approx(min(1.0, 2 * tail))


@pytest.mark.parametrize(
    ("only_first", "only_second", "samples"), [(12, 2, 50), (3, 9, 80), (0, 6, 40), (30, 25, 1000)]
)
def test_paired_interval_inverts_the_score_test(
    only_first: int, only_second: int, samples: int
) -> None:
    def likelihood(share: float, difference: float) -> float:
        both = 1 - 2 * share - difference
        counts = (only_first, only_second, samples - only_first - only_second)
        chances = (share + difference, share, both)
        return sum(k * math.log(max(p, 1e-300)) for k, p in zip(counts, chances, strict=True) if k)

    for end in paired_interval(only_first, only_second, samples):
        best = optimize.minimize_scalar(
            lambda share, end=end: -likelihood(share, end),
            bounds=(max(0.0, -end), (1 - end) / 2),
            options={"xatol": 1e-10},
        ).x
        deviation = math.sqrt((2 * best + end * (1 - end)) / samples)
        score = ((only_first - only_second) / samples - end) / deviation
        assert abs(score) == pytest.approx(1.959964, abs=1e-3)


def test_pairs_at_the_edges_have_the_intervals_of_the_closed_form() -> None:
    # Tango's interval for no discordant image: z^2 / (n + z^2) on either side.
    half = 1.959964**2 / (100 + 1.959964**2)
    assert paired_interval(0, 0, 100) == pytest.approx((-half, half))
    assert paired_interval(100, 0, 100) == pytest.approx((0.926013, 1), abs=1e-5)
    low, high = paired_interval(43, 20, 1000)
    assert paired_interval(20, 43, 1000) == pytest.approx((-high, -low))
    assert mcnemar(43, 20) < 0.05 and low > 0


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (partial(lower_bound, 0, 0, alpha=0.1), "samples must be at least 1, got 0"),
        (partial(lower_bound, 4, 3, alpha=0.1), "successes must lie in"),
        (partial(lower_bound, -1, 3, alpha=0.1), "successes must lie in"),
        (partial(lower_bound, 1, 3, alpha=0.0), "alpha must lie in"),
        (partial(paired_interval, -1, 0, 10), "samples must be positive"),
        (partial(paired_interval, 6, 5, 10), "samples must be positive"),
        (partial(paired_interval, 0, 0, 0), "samples must be positive"),
    ],
)
def test_impossible_counts_are_refused(call: Callable[[], object], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        call()
