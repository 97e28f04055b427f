import pytest

from core.percent import hundredths


@pytest.mark.parametrize("samples", [8, 16, 24, 32, 40, 200, 400])
@pytest.mark.parametrize("digits", [0, 1])
def test_halves_are_rounded_away_from_zero_whatever_binary_fractions_say(
    samples: int, digits: int
) -> None:
    for hits in range(samples + 1):
        scaled = (2 * hits * 100 * 10**digits + samples) // (2 * samples)  # in whole numbers
        shown = f"{scaled // 10}.{scaled % 10}" if digits else str(scaled)
        assert hundredths(hits / samples, digits) == shown
        assert hundredths(-hits / samples, digits).lstrip("-") == shown


def test_nothing_has_no_sign() -> None:
    assert hundredths(-1e-12, 1) == hundredths(0, 1) == "0.0"
