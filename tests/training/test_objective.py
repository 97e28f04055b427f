from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.objective import Objective, kl_divergence
from training.recipe import Recipe
from training.recipe_file import read_recipe


class Reconstructing(nn.Module):
    """A classifier with a reconstruction loss of 3."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1))

    def logits_and_reconstruction(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self(x), torch.tensor(3.0)


def recipe(path: Path, *overrides: str) -> Recipe:
    return read_recipe(path, list(overrides))


@torch.no_grad()
def test_reconstruction_is_added_with_its_weight(recipe_file: Path) -> None:
    model, x, labels = Reconstructing(), torch.rand(5, 4), torch.tensor([0, 1, 0, 1, 1])
    plain = F.cross_entropy(model(x), labels)
    for weight in (1.0, 0.25):
        objective = Objective(model, recipe(recipe_file, f"train.reconstruction={weight}"))
        assert float(objective((x,), labels)) == pytest.approx(float(plain) + 3 * weight)


@torch.no_grad()
def test_targets_may_be_shares_and_are_smoothed(recipe_file: Path) -> None:
    model, x = nn.Linear(4, 2), torch.rand(3, 4)
    shares = torch.tensor([[0.3, 0.7], [1.0, 0.0], [0.5, 0.5]])
    objective = Objective(model, recipe(recipe_file, "train.label_smoothing=0.1"))
    expected = -((0.9 * shares + 0.05) * model(x).log_softmax(1)).sum(1).mean()
    assert float(objective((x,), shares)) == pytest.approx(float(expected))


@torch.no_grad()
def test_trades_learns_labels_on_clean_and_agreement_on_attacked_images(recipe_file: Path) -> None:
    model, clean, attacked = nn.Linear(4, 2), torch.rand(3, 4), torch.rand(3, 4)
    labels = torch.tensor([0, 1, 1])
    attack: dict[str, Any] = {"eps": 0.1, "alpha": 0.1, "steps": 1, "method": "trades", "beta": 2}
    objective = Objective(model, recipe(recipe_file, f"adversarial={attack}"))
    loss = objective((attacked,), labels, None, clean)
    expected = F.cross_entropy(model(clean), labels)
    expected = expected + 2 * kl_divergence(model(clean), model(attacked))
    assert float(loss) == pytest.approx(float(expected))


@torch.no_grad()
def test_bf16_keeps_weights_and_loss_in_fp32(recipe_file: Path) -> None:
    model, x, labels = nn.Linear(4, 2), torch.rand(3, 4), torch.tensor([0, 1, 1])
    loss = Objective(model, recipe(recipe_file, "train.precision=bf16"))((x,), labels)
    full = Objective(model, recipe(recipe_file))((x,), labels)
    assert loss.dtype == torch.float32 and model.weight.dtype == torch.float32
    assert float(loss) == pytest.approx(float(full), rel=2e-2) and float(loss) != float(full)
