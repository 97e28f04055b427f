import math

import pytest

from robustness.intervals import mcnemar, wilson


@pytest.mark.parametrize(("successes", "samples"), [(0, 10), (3, 10), (10, 10), (481, 1000)])
def test_wilson_interval_equals_its_closed_form(successes: int, samples: int) -> None:
    z, p = 1.959963984540054, successes / samples
    centre = (p + z * z / (2 * samples)) / (1 + z * z / samples)
    half = z / (1 + z * z / samples)
    half *= math.sqrt(p * (1 - p) / samples + z * z / (4 * samples * samples))
    assert wilson(successes, samples) == pytest.approx((centre - half, centre + half), abs=1e-9)


@pytest.mark.parametrize(("only_first", "only_second"), [(0, 0), (5, 5), (1, 9), (12, 2)])
def test_mcnemar_equals_the_coin_that_it_is(only_first: int, only_second: int) -> None:
    n, least = only_first + only_second, min(only_first, only_second)
    tail = sum(math.comb(n, k) for k in range(least + 1)) / 2**n
    assert mcnemar(only_first, only_second) == pytest.approx(min(1.0, 2 * tail))
