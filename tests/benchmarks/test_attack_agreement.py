import pytest
import torch
from torch import Tensor, nn

from benchmarks.attack_agreement import Case, compare
from robustness.spec import ATTACKS


class Waves(nn.Module):
    """Ten logits of 36 pixels that no plane separates."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn((10, 36), generator=draw))

    def forward(self, images: Tensor) -> Tensor:
        return (3 * images.flatten(1)).sin() @ self.weight.T


@pytest.mark.parametrize("name", ["pgd", "apgd-t", "fab-t", "square"])
def test_no_flag_differs_under_the_draws_of_a_kernel(name: str) -> None:
    model = Waves()
    images = torch.rand((8, 1, 6, 6), generator=torch.Generator().manual_seed(1))
    labels = model(images).argmax(1)
    fields = {"queries": 20} if name == "square" else {"steps": 5}
    attack = ATTACKS[name].model_validate({"name": name, "eps": "0.01", **fields})
    case = Case(name="waves", model=model, images=images, labels=labels, attack=attack)
    flags = compare(case)
    assert flags.measured == 0 and flags.met and flags.samples == 8
