from pathlib import Path

import numpy as np
import pytest

from benchmarks import attention_comparison
from benchmarks.attention_comparison import accuracy, difference, run
from benchmarks.support.rows import Row
from core.stats import mcnemar, wilson
from training.trainer import Trainer

VARIANTS = """
variants:
  deit: {model: {name: deit_tiny}}
  deit-elliptical: {}
sizes: {small: {train: {epochs: 1}}}
"""


def test_a_difference_is_one_on_the_same_samples() -> None:
    first, second = np.array([True] * 9 + [False]), np.array([True] * 4 + [False] * 6)
    shown, tested = difference("a minus b", first, second)
    assert shown.measured == 0.5 and shown.spread[0] <= 0.5 <= shown.spread[1]
    assert shown.samples == 10 and tested.measured == round(mcnemar(5, 0), 4) and tested.unit == "p"
    row = accuracy("a", first)
    assert (row.measured, row.spread) == (0.9, tuple(round(end, 4) for end in wilson(9, 10)))
    (mean,) = difference("a minus b", np.array([0.5, 1.0]), np.array([0.25, 0.25]))
    assert mean.measured == 0.5 and -1 <= mean.spread[0] < 0.5 < mean.spread[1] <= 1


@pytest.mark.slow
def test_variants_are_trained_once_attacked_and_paired(
    recipe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe_file.write_text(recipe_file.read_text() + VARIANTS)
    monkeypatch.setattr(
        attention_comparison,
        "ATTACKS",
        [
            (6, [{"name": "fgsm", "eps": ["8/255"]}]),
            (4, [{"name": "corruptions", "names": ["fog", "contrast"], "severities": [1]}]),
        ],
    )
    runs = recipe_file.parent / "runs"

    def rows_now() -> list[Row]:
        return list(run(str(recipe_file), ("deit", "deit-elliptical"), runs=str(runs)))

    rows = rows_now()
    cases = [row.case for row in rows]
    assert [row.unit for row in rows[:2]] == ["h", "h"] and all(
        row.measured > 0 for row in rows[:2]
    )
    for name in ("tiny-deit-small", "tiny-deit-elliptical-small"):
        for what in ("test accuracy", "FGSM 8/255, 6 images", "fog, severity 1, 4 images"):
            assert f"{name}: {what}" in cases
            paired = f"{name} minus tiny-deit-small: {what}"
            assert (paired in cases) is (name != "tiny-deit-small")
        assert f"{name}: common corruptions, mean, 4 images" in cases
    monkeypatch.delattr(Trainer, "run")
    monkeypatch.delattr(attention_comparison, "evaluate")
    again = rows_now()
    assert [(row.case, row.measured) for row in again[2:]] == [
        (row.case, row.measured) for row in rows[2:]
    ]
    assert [row.measured for row in again[:2]] == [0, 0]
    changed = recipe_file.read_text().replace("epochs: 1}", "epochs: 2}")
    recipe_file.write_text(changed)
    with pytest.raises(ValueError, match="move runs of other recipes away first"):
        rows_now()


@pytest.mark.slow
def test_sequences_are_compared_on_the_test_split(token_recipe: Path) -> None:
    variants = (
        "variants: {dot: {}, performer: {model: {attention: performer}}}\nsizes: {small: {}}\n"
    )
    token_recipe.write_text(token_recipe.read_text() + variants)
    rows = list(
        run(str(token_recipe), ("dot", "performer"), runs=str(token_recipe.parent / "runs"))
    )
    assert [row.case for row in rows[2:]] == [
        "bytes-dot-small: test accuracy",
        "bytes-performer-small: test accuracy",
        "bytes-performer-small minus bytes-dot-small: test accuracy",
        "bytes-performer-small minus bytes-dot-small: test accuracy, McNemar's test",
    ]
    assert [row.samples for row in rows[2:]] == [32] * 4 and rows[1].measured == 0
