import pytest
import torch
from torch import nn

import models
from benchmarks.elliptical_overhead import TARGETS, peak_bytes


def test_peak_is_what_weights_and_living_tensors_hold() -> None:
    images, size = torch.rand(4, 3, 8, 8), 4 * 3 * 8 * 8 * 4
    chain = nn.Sequential(nn.GELU(), nn.GELU(), nn.GELU(), nn.Flatten())
    assert peak_bytes(chain, "forward", images) == 2 * size
    assert peak_bytes(nn.Linear(8, 8), "forward", images) == size + (8 * 8 + 8) * 4


@pytest.mark.parametrize("work", TARGETS)
def test_both_twins_hold_the_same_memory(work: str) -> None:
    sizes = {"img_size": 32, "patch_size": 4, "embed_dim": 48, "depth": 4}
    counterparts = [models.build(name, **sizes) for name in ("deit_tiny", "deit_tiny_elliptical")]
    images = torch.rand(2, 3, 32, 32)
    first, second = (
        peak_bytes(counterpart.eval().requires_grad_(False), work, images)
        for counterpart in counterparts
    )
    assert second <= 1.02 * first
