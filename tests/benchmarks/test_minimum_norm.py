import numpy as np
import torch

from benchmarks.minimum_norm import FAR, Case, Found, compare, scored
from tests.robustness.conftest import Linear


def found(*distances: float) -> Found:
    return Found(distances=np.array(distances), gradients=90.0, others=1.0)


def test_a_ratio_is_one_of_medians_over_the_same_images() -> None:
    row = compare("l2", found(1, 2, 3, 4, 5), found(2, 4, 6, 8, 10), 1.05)
    assert row.measured == 0.5 and row.met and row.samples == 5
    assert tuple(row.spread) == (0.5, 0.5)  # each resample draws pairs
    missed = compare("l2", found(1, 2, FAR, FAR, FAR), found(1, 2, 3, 4, 5), 1.05)
    assert missed.measured > 1e8 and missed.met is False


def test_only_what_misleads_has_a_distance() -> None:
    images = torch.rand((6, 1, 6, 6), generator=torch.Generator().manual_seed(0))
    model = Linear(2).eval().requires_grad_(False)
    labels = model(images).argmax(1)
    made, weight = images.clone(), model.linear.weight
    made[0] = ((weight[1 - labels[0]] - weight[labels[0]]).sign() / 2 + 0.5).view(1, 6, 6)
    one = scored(Case(model=model, images=images, labels=labels), made, "L0", [90, 1])
    assert one.distances[0] == 36 and (one.distances[1:] == FAR).all()
