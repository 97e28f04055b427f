import torch
from torch import nn

from training.adversarial import pgd


def test_pgd_finds_the_worst_image_of_a_linear_model() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    images, labels = torch.rand(8, 1, 4, 4) * 0.6 + 0.2, torch.randint(0, 2, (8,))
    found = pgd(
        model, images, labels, eps=0.1, alpha=0.05, steps=20,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    weight = model[1].weight
    assert isinstance(weight, torch.Tensor)
    direction = (weight[1 - labels] - weight[labels]).sign().view_as(images)
    assert torch.allclose(found, images + 0.1 * direction, atol=1e-6)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_pgd_stays_in_the_ball_and_in_the_pixel_range() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    images, labels = torch.rand(8, 1, 4, 4).round(), torch.zeros(8, dtype=torch.int64)
    found = pgd(
        model, images, labels, eps=0.3, alpha=0.2, steps=3,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert (found - images).abs().max() <= 0.3 + 1e-6
    assert found.min() >= 0 and found.max() <= 1
