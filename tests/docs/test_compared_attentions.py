import dataclasses
from typing import Any

import numpy as np

from benchmarks.attention_comparison import accuracy, difference
from docs.compared_attentions import comparison_table, severity_picture

HELD = {
    "cifar10-deit-small": np.array([True, True, False, False]),
    "cifar10-kde-small": np.array([True, True, True, False]),
}
CASES = ("test accuracy", "FGSM 1/255, 4 images", "fog, severity 1, 4 images",
         "fog, severity 2, 4 images", "pixelate, severity 1, 4 images")  # fmt: skip


def rows() -> list[dict[str, Any]]:
    first, second = HELD
    found = [accuracy(f"{run}: {case}", held) for run, held in HELD.items() for case in CASES]
    for case in CASES:
        found += difference(f"{second} minus {first}: {case}", HELD[second], HELD[first])
    return [dataclasses.asdict(row) for row in found]


def test_a_model_stands_beside_the_first_one_with_its_interval() -> None:
    text = comparison_table(rows())
    assert "| model | test accuracy | FGSM 1/255, 4 images |" in text
    assert "| cifar10-deit-small | 50.0 | 50.0 |" in text
    apart = next(row for row in rows() if " minus " in row["case"])
    low, high = (100 * end for end in apart["spread"])
    assert f"| cifar10-kde-small | 75.0 (+25.0: {low:+.1f} to {high:+.1f}) |" in text


def test_severities_are_drawn_for_each_corruption() -> None:
    picture = severity_picture(rows())
    assert "fog: accuracy in %" in picture and "pixelate: accuracy in %" in picture
    assert picture.count("<polyline") == 4 and all(run in picture for run in HELD)
