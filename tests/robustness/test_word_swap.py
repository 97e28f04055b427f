import numpy as np
import pytest

from robustness.attacks.word_swap import RATE, REPLACEMENT, swap_words

TEXT = "  It was\n a <br /> fine film,   so very fine\tindeed! "


def test_only_words_change_and_blanks_stay() -> None:
    assert swap_words(TEXT, rate=1) == "  AAA AAA\n AAA AAA AAA AAA AAA   AAA AAA AAA\tAAA "
    assert swap_words(TEXT, rate=0) == TEXT
    assert swap_words("", rate=1) == "" and swap_words(" \n ", rate=0.5) == " \n "


def test_share_of_the_words_is_the_rate() -> None:
    long = " ".join(f"w{i}" for i in range(1000))
    assert swap_words(long, rate=RATE).split().count(REPLACEMENT) in (25, 26)
    short = [f"one two three four {i}" for i in range(4000)]
    swapped = [swap_words(text).split().count(REPLACEMENT) for text in short]
    assert set(swapped) == {0, 1}
    assert np.mean(swapped) == pytest.approx(5 * RATE, abs=0.02)


def test_every_word_is_as_likely_as_any_other() -> None:
    places = np.zeros(5)
    for seed in range(2000):
        places += [
            word == REPLACEMENT for word in swap_words("a b c d e", rate=0.4, seed=seed).split()
        ]
    assert places.sum() == 4000 and np.abs(places / 2000 - 0.4).max() < 0.05


def test_seed_and_text_decide_alone() -> None:
    text = " ".join(f"word{i}" for i in range(200))
    assert swap_words(text, seed=3) == swap_words(text, seed=3)
    assert swap_words(text, seed=3) != swap_words(text, seed=4)
    assert swap_words("lone \ud800 surrogate", rate=0) == "lone \ud800 surrogate"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": 1.5}, r"rate must lie in \[0, 1\], got 1.5"),
        ({"rate": float("nan")}, "rate must lie in"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_wrong_options_are_named(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        swap_words("a text", **options)  # type: ignore[arg-type]
