import torch
from torch import Tensor, nn
from torchattacks.attacks import fab

from robustness.attacks.kernels import (
    Observed,
    OwnDraws,
    SortlessFAB,
    TargetedAPGD,
    Watch,
    distances,
    kernel_draws,
)


def generators(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def test_each_row_draws_from_its_own_generator() -> None:
    before = torch.get_rng_state()
    with OwnDraws(generators(1, 2, 3)):
        whole = torch.rand((3, 1, 4, 4)), torch.randn((3, 1, 4, 4))
        start = torch.empty(3, 1, 4, 4).uniform_(-2, 5)
    with OwnDraws(generators(3)):
        assert torch.equal(torch.rand((1, 1, 4, 4))[0], whole[0][2])
        assert torch.equal(torch.randn((1, 1, 4, 4))[0], whole[1][2])
        assert torch.equal(torch.empty(1, 1, 4, 4).uniform_(-2, 5)[0], start[2])
    assert -2 <= float(start.min()) < 0 and 2 < float(start.max()) <= 5
    assert torch.equal(torch.get_rng_state(), before)


def test_kernel_draws_are_those_of_the_global_generator_which_comes_back() -> None:
    before = torch.get_rng_state()
    with kernel_draws(7, torch.device("cpu")):
        drawn = torch.rand(5)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(drawn, torch.rand(5, generator=torch.Generator().manual_seed(7)))


def test_fab_of_everybody_else_keeps_its_own_projections() -> None:
    plain = fab.FAB.attack_single_run_targeted.__globals__["projection_linf"]
    own = SortlessFAB.attack_single_run_targeted.__globals__["projection_linf"]
    assert plain is fab.projection_linf and own is not plain


class Quadratic(nn.Module):
    """Ten logits that curve, each row alone, at very different scales from row to row."""

    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.rand((10, 16), generator=generators(4)[0]))

    def forward(self, images: Tensor) -> Tensor:
        offset = images.flatten(1)[:, None] - self.centres
        return torch.sin(9 * offset).sum(-1) - (offset**2).sum(-1)


def test_each_sample_has_its_own_step_size_under_l2() -> None:
    model = Quadratic()
    images = torch.rand((6, 1, 4, 4), generator=generators(5)[0])
    labels = model(images).argmax(1)
    targets = model(images).sort(dim=1)[1][:, -2]

    def best(rows: list[int]) -> Tensor:
        observed = Observed(model, None)
        kernel = TargetedAPGD(observed, norm="L2", eps=0.5, steps=40, loss="dlr")
        kernel.target = targets[rows]
        watch = Watch(images[rows], labels[rows], norm="L2", until=None)
        attack = kernel.attack_single_run
        draws = OwnDraws(generators(*rows))
        return observed.run(watch, attack, images[rows], labels[rows], draws=draws)[0]

    whole = best([0, 1, 2, 3, 4, 5])
    for row in range(6):
        assert torch.equal(best([row])[0], whole[row])


def test_distances_follow_the_norm() -> None:
    inputs = torch.tensor([[[[0.3, 0.4], [0.0, 0.0]]]])
    clean = torch.zeros_like(inputs)
    torch.testing.assert_close(distances(inputs, clean, "Linf"), torch.tensor([0.4]))
    torch.testing.assert_close(distances(inputs, clean, "L2"), torch.tensor([0.5]))
