import pytest
import torch
from torch import nn
from torch.nn import functional as F

import models
from models.attention.elliptical import metric_gradient
from training.adversarial import attack, pgd, trades
from training.objective import kl_divergence
from training.recipe import AdversarialRecipe


def linear(classes: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, classes))


def test_pgd_finds_the_worst_image_of_a_linear_model() -> None:
    model = linear()
    images, labels = torch.rand(8, 1, 4, 4) * 0.6 + 0.2, torch.randint(0, 2, (8,))
    noise = torch.rand(images.shape)
    found = pgd(model, images, labels, eps=0.1, alpha=0.05, steps=20, noise=noise)
    weight = model[1].weight
    assert isinstance(weight, torch.Tensor)
    direction = (weight[1 - labels] - weight[labels]).sign().view_as(images)
    assert torch.allclose(found, images + 0.1 * direction, atol=1e-6)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_trades_climbs_the_kl_divergence_with_the_clean_opinion() -> None:
    model = linear(3)
    images = torch.rand(8, 1, 4, 4) * 0.6 + 0.2
    noise = torch.rand(images.shape)
    found = trades(model, images, eps=0.1, alpha=0.03, steps=10, noise=noise)
    random = (images + 0.1 * (2 * noise - 1).sign()).clamp(0, 1)
    clean = model(images)
    assert kl_divergence(clean, model(found)) > 2 * kl_divergence(clean, model(random))
    assert (found - images).abs().max() <= 0.1 + 1e-6


@pytest.mark.parametrize("method", ["pgd", "trades"])
def test_attack_stays_in_the_ball_and_in_the_pixel_range(method: str) -> None:
    model = linear(3).train()
    images, labels = torch.rand(8, 1, 4, 4).round(), torch.zeros(8, dtype=torch.int64)
    recipe = AdversarialRecipe(eps=0.3, alpha=0.2, steps=3, method=method)  # type: ignore[arg-type]
    found = attack(model, images, labels, recipe, torch.rand(images.shape))
    assert (found - images).abs().max() <= 0.3 + 1e-6
    assert found.min() >= 0 and found.max() <= 1
    assert model.training and not found.requires_grad


def test_attack_follows_the_path_through_the_metric() -> None:
    torch.manual_seed(0)
    options = {"img_size": 8, "patch_size": 4, "num_classes": 3, "embed_dim": 16, "num_heads": 2}
    model = models.build("deit_tiny_elliptical", **options, depth=3)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    images, labels = torch.rand(8, 3, 8, 8), torch.randint(0, 3, (8,))
    ball, noise = {"eps": 0.1, "alpha": 0.1, "steps": 1}, torch.rand(8, 3, 8, 8)
    found = attack(model, images, labels, AdversarialRecipe(method="pgd", **ball), noise)
    with metric_gradient(model, True):
        assert torch.equal(found, pgd(model.eval(), images, labels, noise=noise, **ball))
    assert not torch.equal(found, pgd(model, images, labels, noise=noise, **ball))


def test_kl_divergence_is_the_divergence_written_out() -> None:
    torch.manual_seed(0)
    clean, attacked = torch.randn(2, 5, 4, dtype=torch.float64)
    p, q = clean.softmax(1), attacked.softmax(1)
    assert kl_divergence(clean, attacked) == pytest.approx(float((p * (p / q).log()).sum() / 5))
    assert F.softmax(clean, 1).sum() == pytest.approx(5)
