import numpy as np
import pytest

from benchmarks.label_attacks import Found, compare


def found(*distances: float, seconds: float = 1.0) -> Found:
    return Found(np.array(distances), seconds, inside=seconds / 2, calls=10 * seconds)


def test_ratios_are_of_pairs_and_leave_out_what_only_the_other_does_not_find() -> None:
    ours = [found(1, 2, 3), found(1, 1, 3)]
    theirs = [found(2, 2, np.inf, seconds=4.0), found(2, 2, np.inf, seconds=4.0)]
    rows = {row.case.removeprefix("dot, Linf, "): row for row in compare("dot, Linf", ours, theirs)}
    distance = rows["distance, ours / ART (geometric mean)"]
    assert distance.measured == pytest.approx(0.5946, abs=1e-4) and distance.samples == 4
    quick = rows["CPU time, ours / ART"]
    assert quick.measured == 0.25 and quick.met is False
    assert rows["images without a start, ART"].measured == 2


def test_what_ours_alone_does_not_find_fails_the_target() -> None:
    distance, *_ = compare("dot, Linf", [found(1, 1, np.inf)], [found(2, 2, 2)])
    assert distance.met is False
