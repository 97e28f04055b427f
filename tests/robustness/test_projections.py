import pytest
import torch
from torch import Tensor
from torchattacks.attacks import fab

from robustness.attacks.fab import nearest_l2, nearest_linf

OURS = {"Linf": nearest_linf, "L2": nearest_l2}
KERNELS = {"Linf": fab.projection_linf, "L2": fab.projection_l2}


def problems(count: int = 200, size: int = 50) -> tuple[Tensor, Tensor, Tensor]:
    """Points, some of their pixels at the ends; normals with zeros; hyperplanes near and far."""
    draw = torch.Generator().manual_seed(0)
    points = (torch.rand((count, size), generator=draw) * 1.4 - 0.2).clamp(0, 1)
    normal = torch.randn((count, size), generator=draw)
    normal[torch.rand((count, size), generator=draw) < 0.1] = 0
    shift = torch.randn(count, generator=draw) * torch.logspace(-3, 1.6, count)
    return points, normal, (points * normal).sum(1) + shift


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_the_way_is_that_of_the_sorting_kernel(norm: str) -> None:
    points, normal, offset = problems()
    expected = KERNELS[norm](points, normal, offset)
    torch.testing.assert_close(OURS[norm](points, normal, offset), expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_the_way_ends_on_the_hyperplane_or_in_the_corner_nearest_to_it(norm: str) -> None:
    points, normal, offset = problems()
    reached = points + OURS[norm](points, normal, offset)
    assert float(reached.min()) >= -1e-6 and float(reached.max()) <= 1 + 1e-6
    gap = (normal * reached).sum(1) - offset
    least, most = normal.clamp_max(0).sum(1), normal.clamp_min(0).sum(1)
    meets = (least < offset) & (offset < most)
    assert 0 < int(meets.sum()) < len(points)
    torch.testing.assert_close(gap[meets], torch.zeros_like(gap[meets]), atol=1e-4, rtol=0)
    corner = torch.where(offset >= most, most, least)
    torch.testing.assert_close((offset + gap)[~meets], corner[~meets], atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_without_a_direction_nothing_moves(norm: str) -> None:
    points = torch.full((2, 5), 0.5)
    for normal in (torch.zeros(2, 5), torch.full((2, 5), torch.nan)):
        assert torch.equal(OURS[norm](points, normal, torch.ones(2)), torch.zeros(2, 5))


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e6])
def test_the_way_does_not_depend_on_the_scale_of_the_equation(scale: float) -> None:
    points, normal, offset = problems()
    expected = nearest_linf(points, normal, offset)
    found = nearest_linf(points, normal * scale, offset * scale)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
