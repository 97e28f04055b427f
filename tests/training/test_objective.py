import json
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import models
from models.attention.base import metric_gradient
from training.distillation import ConvTeacher, soft_labels, train_teacher
from training.objective import Objective, attack, kl_divergence, worst_replacements
from training.recipe import AdversarialRecipe
from training.recipe_file import read_recipe
from training.samples import StoredImages


class Reconstructing(nn.Module):
    """A classifier with a reconstruction loss of 3."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1))

    def logits_and_reconstruction(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self(x), torch.tensor(3.0)


def objective(model: nn.Module, path: Path, *overrides: str) -> Objective:
    return Objective(model, read_recipe(path, list(overrides)))


@torch.no_grad()
def test_reconstruction_is_added_with_its_weight(recipe_file: Path) -> None:
    model, x, labels = Reconstructing(), torch.rand(5, 4), torch.tensor([0, 1, 0, 1, 1])
    plain = F.cross_entropy(model(x), labels)
    for weight in (1.0, 0.25):
        loss = objective(model, recipe_file, f"train.reconstruction={weight}")((x,), labels)
        assert float(loss) == pytest.approx(float(plain) + 3 * weight)


class Balancing(nn.Linear):
    """A classifier whose pass leaves an auxiliary loss of 3 behind."""

    auxiliary_loss: Tensor | None = None

    def forward(self, input: Tensor) -> Tensor:
        self.auxiliary_loss = torch.tensor(3.0)
        return super().forward(input)


@torch.no_grad()
def test_auxiliary_losses_of_all_modules_are_added_with_their_weight(recipe_file: Path) -> None:
    model = nn.Sequential(Balancing(4, 4), Balancing(4, 2))
    x, labels = torch.rand(5, 4), torch.tensor([0, 1, 0, 1, 1])
    plain = F.cross_entropy(model(x), labels)
    for weight in (0.01, 0.5, 0.0):
        loss = objective(model, recipe_file, f"train.load_balance={weight}")((x,), labels)
        assert float(loss) == pytest.approx(float(plain) + 6 * weight)
        assert all(layer.auxiliary_loss is None for layer in model)  # its graph is not kept


@torch.no_grad()
def test_targets_may_be_shares_and_are_smoothed(recipe_file: Path) -> None:
    model, x = nn.Linear(4, 2), torch.rand(3, 4)
    shares = torch.tensor([[0.3, 0.7], [1.0, 0.0], [0.5, 0.5]])
    loss = objective(model, recipe_file, "train.label_smoothing=0.1")((x,), shares)
    expected = -((0.9 * shares + 0.05) * model(x).log_softmax(1)).sum(1).mean()
    assert float(loss) == pytest.approx(float(expected))


@torch.no_grad()
def test_trades_learns_labels_on_clean_and_agreement_on_attacked_images(recipe_file: Path) -> None:
    model, clean, attacked = nn.Linear(4, 2), torch.rand(3, 4), torch.rand(3, 4)
    labels = torch.tensor([0, 1, 1])
    ball = "adversarial={eps: 0.1, alpha: 0.1, steps: 1, method: trades, beta: 2}"
    loss = objective(model, recipe_file, ball)((attacked,), labels, None, clean)
    p, q = model(clean).softmax(1), model(attacked).softmax(1)
    expected = F.cross_entropy(model(clean), labels) + 2 * (p * (p / q).log()).sum() / 3
    assert float(loss) == pytest.approx(float(expected))


@torch.no_grad()
def test_replaced_tokens_are_the_worst_of_the_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    given, labels = torch.randn(2, 4, 3, generator=generator), torch.tensor([2, 0])
    mask = torch.tensor([[True] * 4, [True, True, True, False]])
    found = worst_replacements(given, mask, labels, 2)
    pool = given[mask]
    for i, length in enumerate((4, 3)):
        rows = torch.stack(  # every way to replace two tokens by tokens of the batch
            [
                torch.cat((given[i, :length][[k for k in range(length) if k not in places]], new))
                for places in combinations(range(length), 2)
                for new in (pool[list(pair)] for pair in product(range(7), repeat=2))
            ]
        ).mean(1)
        clean = given[i, :length].mean(0)
        lead = (rows - rows[:, labels[i], None]).amax(0) - (clean - clean[labels[i]])
        torch.testing.assert_close(found[i], lead)


def test_bounded_tokens_are_replaced_by_the_worst_that_the_bound_allows() -> None:
    given, labels = torch.rand(3, 4, 3) - 0.5, torch.tensor([0, 2, 1])
    worst = 0.5 - torch.eye(3)[[0, 1, 2, 0]]  # a sample that has the worst token of every label
    expected = worst_replacements(torch.cat((given, worst[None])), None, labels[[0, 1, 2, 0]], 2)
    found = worst_replacements(given, None, labels, 2, bound=0.5)
    torch.testing.assert_close(found, expected[:3])


@torch.no_grad()
def test_the_loss_counts_on_replaced_tokens(recipe_file: Path) -> None:
    sizes = {"img_size": 8, "patch_size": 4, "in_chans": 1, "num_classes": 2, "embed_dim": 8}
    sizes |= {"depth": 1, "num_experts": 1, "random_eigenvalues": True, "token_bound": 0.2}
    chosen = [f"model={json.dumps({'name': 'transject_image', **sizes})}", "train.replaced=1"]
    model: Any = models.build("transject_image", **sizes)
    images = torch.rand(2, 1, 8, 8)
    labels, given = torch.tensor([0, 1]), model.contributions(images)
    moved = model(images) + worst_replacements(given, None, labels, 1, 0.2)
    loss = objective(model, recipe_file, *chosen)((images,), labels)
    expected = F.cross_entropy(moved, labels) + F.cross_entropy(model(images), labels)
    assert float(loss) == pytest.approx(float(expected) / 2, rel=1e-5)
    assert float(given.abs().max()) <= 0.2 + 1e-6


@torch.no_grad()
def test_bf16_keeps_weights_and_loss_in_fp32(recipe_file: Path) -> None:
    model, x, labels = nn.Linear(4, 2), torch.rand(3, 4), torch.tensor([0, 1, 1])
    loss = objective(model, recipe_file, "train.precision=bf16")((x,), labels)
    full = objective(model, recipe_file)((x,), labels)
    assert loss.dtype == torch.float32 and model.weight.dtype == torch.float32
    assert float(loss) == pytest.approx(float(full), rel=2e-2) and float(loss) != float(full)


def linear(classes: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, classes)).train()


def test_pgd_finds_the_worst_image_of_a_linear_model() -> None:
    model = linear(2)
    images, labels = torch.rand(8, 1, 4, 4), torch.randint(0, 2, (8,))
    recipe = AdversarialRecipe(eps=0.1, alpha=0.05, steps=20)
    found = attack(model, images, labels, recipe, torch.rand(images.shape))
    weight = model[1].weight
    assert isinstance(weight, torch.Tensor)
    direction = (weight[1 - labels] - weight[labels]).sign().view_as(images)
    assert torch.allclose(found, (images + 0.1 * direction).clamp(0, 1), atol=1e-6)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training and not found.requires_grad


def test_trades_climbs_the_kl_divergence_with_the_clean_opinion() -> None:
    model = linear(3)
    images, noise = torch.rand(8, 1, 4, 4), torch.rand(8, 1, 4, 4)
    recipe = AdversarialRecipe(eps=0.1, alpha=0.03, steps=10, method="trades")
    found = attack(model, images, torch.zeros(8), recipe, noise)
    random = (images + 0.1 * (2 * noise - 1).sign()).clamp(0, 1)
    clean = model(images)
    assert kl_divergence(clean, model(found)) > 2 * kl_divergence(clean, model(random))
    assert (found - images).abs().max() <= 0.1 + 1e-6 and 0 <= found.min() and found.max() <= 1


def test_attack_follows_the_path_through_the_metric() -> None:
    torch.manual_seed(0)
    options = {"img_size": 8, "patch_size": 4, "num_classes": 3, "embed_dim": 16, "num_heads": 2}
    model = models.build("deit_tiny_elliptical", **options, depth=3).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    images, labels = torch.rand(8, 3, 8, 8), torch.randint(0, 3, (8,))
    recipe, middle = AdversarialRecipe(eps=0.1, alpha=0.1, steps=1), torch.full((8, 3, 8, 8), 0.5)
    low, high = (images - 0.1).clamp(min=0), (images + 0.1).clamp(max=1)
    start = ((low + high) / 2).requires_grad_(True)
    steps = []
    for through in (True, False):
        with metric_gradient(model, through):
            (gradient,) = torch.autograd.grad(F.cross_entropy(model(start), labels), start)
        steps.append((start.detach() + 0.1 * gradient.sign()).clamp(low, high))
    found = attack(model, images, labels, recipe, middle)
    same = [(found - step).abs() < 1e-6 for step in steps]
    assert same[0].float().mean() > 0.999 > 0.99 > same[1].float().mean()


@torch.no_grad()
def test_teacher_has_its_share_of_the_loss(recipe_file: Path) -> None:
    teacher, x, labels = torch.randn(5, 2), torch.rand(5, 4), torch.tensor([0, 1, 0, 1, 1])
    options = "{teacher_epochs: 1, weight: 0.3, temperature: 3}"
    model = nn.Linear(4, 2)
    found = objective(model, recipe_file, f"distillation={options}")((x,), labels, teacher)
    p, q = (teacher / 3).softmax(1), (model(x) / 3).softmax(1)
    distilled = 9 * (p * (p / q).log()).sum() / 5
    expected = 0.7 * F.cross_entropy(model(x), labels) + 0.3 * distilled
    assert float(found) == pytest.approx(float(expected), rel=1e-5)


def test_teacher_learns_and_repeats() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 256)
    pixels = random.integers(0, 100, (256, 1, 8, 8)) + 100 * labels[:, None, None, None]
    samples = StoredImages(pixels.astype(np.uint8), labels)

    def learn(epochs: int) -> Tensor:
        torch.manual_seed(0)
        teacher = ConvTeacher(1, 2)
        train_teacher(teacher, samples, epochs=epochs, seed=0)
        labels_found = soft_labels(teacher, samples.pixels)
        mirrored = soft_labels(teacher, samples.pixels.flip(-1))
        assert (labels_found - mirrored).abs().max() < 1e-5
        return labels_found

    assert torch.equal(learn(1), learn(1))
    outputs = learn(25).argmax(1)
    assert (outputs == torch.from_numpy(labels)).float().mean() > 0.9
