import math
from itertools import pairwise

import numpy as np
import pytest

from data.datasets import paddles
from data.datasets.contours import contour_ends
from data.datasets.pathfinder import SIZE, Scenes, draw_scenes, render, unclear

Dash = tuple[int, int, float]


@pytest.fixture(scope="module")
def scenes() -> Scenes:
    return draw_scenes(np.random.default_rng(0), 60)


def dashes_of(scenes: Scenes, index: int) -> list[list[Dash]]:
    """The chains of a scene: the two long ones, then the others."""
    chains = [*scenes.dashes[index], *scenes.distractors[index]]
    return [
        [(int(y), int(x), float(paddles.ANGLES[d])) for y, x, d in chain]
        for chain in chains
        if chain[0, 2] >= 0
    ]


def ends_of(dash: Dash) -> np.ndarray:
    y, x, angle = dash
    return np.array([[y, x], [y + 2 * math.sin(angle), x + 2 * math.cos(angle)]])


def distance(one: Dash, other: Dash) -> float:
    """Smallest distance between two segments, from 41 points of each."""
    steps = np.linspace(0, 1, 41)[:, None]
    a, b = (ends[0] + steps * (ends[1] - ends[0]) for ends in map(ends_of, (one, other)))
    return float(np.linalg.norm(a[:, None] - b[None], axis=2).min())


def test_labels_are_confirmed_by_following_the_dashes_in_any_order(scenes: Scenes) -> None:
    rng = np.random.default_rng(1)
    left_out = unclear(scenes)
    assert len(left_out) <= 2
    for index in set(range(len(scenes.labels))) - set(left_out):
        dashes = [dash for chain in dashes_of(scenes, index) for dash in chain]
        shuffled = [dashes[place] for place in rng.permutation(len(dashes))]
        (y, x), far = scenes.discs[index].tolist()
        ends = contour_ends(shuffled, (y, x), length=14)
        assert (tuple(far) in ends) == bool(scenes.labels[index])


def test_contour_that_is_broken_or_ends_elsewhere_is_noticed(scenes: Scenes) -> None:
    first = dashes_of(scenes, 0)[0]
    tip, end = first[0][:2], first[-1][:2]
    assert contour_ends(first, tip, length=14) == {end}
    y, x, angle = first[6]
    for other in ([], [(y, x + 1, angle)], [(y, x, angle + 0.3)]):
        assert contour_ends([*first[:6], *other, *first[7:]], tip, length=14) == set()
    broken = scenes.dashes.copy()
    broken[:, :, -1] = broken[:, ::-1, -1]
    assert len(unclear(Scenes(broken, scenes.distractors, scenes.labels))) == len(scenes.labels)


def test_dashes_follow_each_other_at_a_small_turn_and_touch_no_other(scenes: Scenes) -> None:
    for index in range(3):
        chains = dashes_of(scenes, index)
        for number, chain in enumerate(chains):
            headings = [chain[0][2], *(angle + math.pi for _, _, angle in chain[1:])]
            assert all(math.cos(a - b) > 0 for a, b in pairwise(headings))
            assert all(distance(one, other) < 5 for one, other in pairwise(chain))
            others = [dash for other in chains[number + 1 :] for dash in other]
            assert all(distance(one, other) > 0.3 for one in chain for other in others)


def test_chains_have_the_described_sizes_and_repeat_by_seed(scenes: Scenes) -> None:
    again = draw_scenes(np.random.default_rng(0), 60)
    assert np.array_equal(again.dashes, scenes.dashes)
    assert np.array_equal(again.labels, scenes.labels)
    assert scenes.dashes.shape == (60, 2, 14, 3)
    assert scenes.distractors.shape == (60, 5, 4, 3)
    shown = (scenes.distractors[..., 2] >= 0).all(2)
    assert 4 < shown.sum(1).mean() <= 5
    tips = scenes.dashes[:, :, 0, :2]
    assert tips[:, 0].min() >= 14 and tips[:, 0].max() < 18
    apart = np.linalg.norm(tips[:, 0] - tips[:, 1], axis=1)
    assert abs(apart - 7).max() <= math.sqrt(0.5)
    lit, occupied = paddles.LINES >= 64, paddles.ROOMS >= 64
    assert lit.any((1, 2)).all() and not (lit & ~occupied).any()


def test_picture_shows_the_discs_and_is_black_where_nothing_is_drawn(scenes: Scenes) -> None:
    pictures = render(scenes)
    y, x = np.mgrid[:SIZE, :SIZE]
    for index, label in enumerate(scenes.labels[:10].tolist()):
        near = np.zeros((SIZE, SIZE), bool)
        for start, end in (ends_of(dash) for chain in dashes_of(scenes, index) for dash in chain):
            for point in np.linspace(start, end, 5):
                near |= np.hypot(y - point[0], x - point[1]) < 3
        tip, far = scenes.discs[index].tolist()
        assert tip == scenes.dashes[index, 0, 0, :2].tolist()
        assert far == scenes.dashes[index, 1 - label, -1, :2].tolist()
        for disc in (tip, far):
            assert pictures[index, disc[0], disc[1]] > 200
            near |= np.hypot(y - disc[0], x - disc[1]) < 5
        # Shrinking rings a little: up to 2 of 255 from a dash, brightened by the contrast.
        assert pictures[index][~near].max(initial=0) <= 5
        assert pictures[index].max() == 255
