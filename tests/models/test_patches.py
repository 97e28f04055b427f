"""Bounds of changed pixels against searches on tiny models, and rounding of float32."""

import math
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import models
from models.analysis.patches import Patches, Region, refusal
from models.inference.fold import fold

SIZES: dict[str, Any] = {
    "img_size": 6, "patch_size": 2, "in_chans": 2, "mean": (0.3, 0.5), "std": (0.3, 0.5),
    "embed_dim": 12, "depth": 2, "num_experts": 1, "num_classes": 3, "random_eigenvalues": True,
}  # fmt: skip


def provable(seed: int = 0, **config: Any) -> nn.Module:
    """A TransJect with weights large enough that everything matters."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = models.build("transject_image", **SIZES | config)
        for name, parameter in model.named_parameters():
            if name.endswith((".r", "bias", ".b1", ".b2")):
                nn.init.normal_(parameter)
    return model.eval()


def drawn(seed: int, *shape: int) -> Tensor:
    """Pixels, many of them at a border."""
    generator = torch.Generator().manual_seed(seed)
    return (1.6 * torch.rand(*shape, generator=generator) - 0.3).clamp(0, 1)


def margins(model: nn.Module, images: Tensor, label: int) -> Tensor:
    logits = model(images)
    others = torch.cat((logits[:, :label], logits[:, label + 1 :]), dim=1)
    return logits[:, label] - others.amax(1)


def lowest(model: nn.Module, images: Tensor, label: int, project: Any, step: float) -> float:
    """The least margin that a search from many starts finds, which it can step to as it likes."""
    least, images = math.inf, project(images)
    for _ in range(30):
        images.requires_grad_(True)
        left = margins(model, images, label)
        least = min(least, float(left.min().detach()))
        (gradient,) = torch.autograd.grad(left.sum(), images)
        images = project(images.detach() - step * gradient.sign())
    return least


@pytest.mark.parametrize(("seed", "limit"), [(0, None), (1, 0.5), (2, 0.05)])
def test_no_change_within_a_ball_beats_its_bound(seed: int, limit: float | None) -> None:
    model, image, label = provable(seed, token_bound=limit).double(), drawn(seed, 2, 6, 6), seed
    known, starts = (
        Patches(provable(seed, token_bound=limit)),
        drawn(seed + 9, 16, 2, 6, 6).double(),
    )
    clean = float(margins(model, image[None].double(), label).detach())
    assert known.box(image, label, 0).margin == pytest.approx(clean)
    for eps in (0.02, 0.2):

        def within(x: Tensor, eps: float = eps) -> Tensor:
            return (image + (x - image).clamp(-eps, eps)).clamp(0, 1)

        def near(x: Tensor, radius: float = 4 * eps) -> Tensor:
            change = x - image
            length = change.flatten(1).norm(dim=1)[:, None, None, None]
            return (image + change * (radius / length).clamp(max=1)).clamp(0, 1)

        for bound, inside, step in (
            (known.box(image, label, eps), within, eps / 4),
            (known.ball(image, label, 4 * eps), near, eps),
        ):
            found = lowest(model, starts, label, inside, step)
            assert bound.margin <= found + 1e-12
            assert limit or bound.method == 1
            assert limit or max(eps, step) > 0.01 or found - bound.margin < 0.1 * (clean - found)


@pytest.mark.parametrize(("seed", "limit"), [(0, None), (1, 0.5)])
def test_no_contents_of_patches_beat_their_bound(seed: int, limit: float | None) -> None:
    model, image = provable(seed, token_bound=limit).double(), drawn(seed, 2, 6, 6).double()
    label, known, starts = (
        1,
        Patches(provable(seed, token_bound=limit)),
        drawn(seed + 9, 4, 2, 6, 6).double(),
    )
    one, two = known.aligned(image.float(), label, [1, 2])
    square = known.square(image.float(), label, 2)
    assert len(one.places) == 1 and len(two.places) == 2
    assert len(square.places) in (1, 2, 4)
    pixel = known.square(image.float(), label, 1)
    assert pixel.margin >= one.margin > two.margin and pixel.margin > square.margin
    whole = torch.arange(36).reshape(6, 6)
    tiles = whole.unfold(0, 2, 2).unfold(1, 2, 2).flatten(2).flatten(0, 1)
    anywhere = whole.unfold(0, 2, 1).unfold(1, 2, 1).flatten(2).flatten(0, 1)
    pairs = torch.stack([torch.cat((a, b)) for a, b in combinations(tiles, 2)])
    ones = torch.arange(36)[:, None]
    for places, bound in ((tiles, one), (pairs, two), (anywhere, square), (ones, pixel)):
        free = torch.zeros(len(places), 36).scatter(1, places, 1).reshape(-1, 1, 1, 6, 6).bool()

        def put(x: Tensor, free: Tensor = free) -> Tensor:
            made = torch.where(free, x.reshape(-1, 4, 2, 6, 6), image)
            return made.clamp(0, 1).flatten(0, 1)

        found = lowest(model, starts.repeat(len(places), 1, 1, 1), label, put, 0.1)
        assert bound.margin <= found


@pytest.mark.parametrize("limit", [None, 0.5, 0.1])
def test_a_patch_stays_above_its_linear_bound(limit: float | None) -> None:
    known, patches = Patches(provable(token_bound=limit)), drawn(3, 9, 8).double()
    places = torch.arange(9)
    rows = torch.cat((torch.eye(3), torch.eye(3)[0] - torch.eye(3))).double()
    low, high = (patches - 0.3).clamp(0, 1), (patches + 0.3).clamp(0, 1)
    draws = low + (high - low) * torch.rand(500, 9, 8, dtype=torch.float64)
    changes = draws - patches
    draws = patches + changes * (0.4 / changes.norm(dim=-1, keepdim=True)).clamp(max=1)
    given = known.contributions(draws) @ rows.T
    for radius in (0.4, math.inf):
        region = Region(low=low, high=high, clean=patches, radius=radius)
        slopes, values, least = known.relaxed(rows, region, places)
        bound = values + (slopes @ (draws - patches)[..., None])[..., 0]
        assert (bound <= given + 1e-12).all() and (least <= given + 1e-12).all()
        assert (values - region.falls(slopes) <= bound.amin(0) + 1e-12).all()
        assert limit is None or float(least.min()) >= -2 * limit
    steep = known.lipschitz(rows) * (draws - patches).norm(dim=-1)[..., None]
    assert ((given - known.contributions(patches) @ rows.T).abs() <= steep).all()


@pytest.mark.parametrize("limit", [None, 0.5])
def test_float32_stays_within_the_stated_rounding(limit: float | None) -> None:
    sizes: dict[str, Any] = {"embed_dim": 32, "depth": 3, "token_bound": limit}
    model, exact, images = provable(**sizes), provable(**sizes).double(), drawn(5, 16, 2, 6, 6)
    known, true = Patches(model), exact(images.double()).detach()
    bounds = [known.box(image, 0, 0.0).rounding for image in images]
    assert all(0 < bound < 0.01 for bound in bounds)
    for eps in (0.1, 1.0):
        assert known.box(images[0], 0, eps).rounding > bounds[0]
    one, all_of_it = known.aligned(images[0], 0, [1, 9])
    assert bounds[0] < one.rounding < all_of_it.rounding == known.box(images[0], 0, 1.0).rounding
    for made in (model, fold(model)):
        own = made(images).detach().double()
        for first, second in combinations(range(3), 2):
            wrong = (own[:, first] - own[:, second]) - (true[:, first] - true[:, second])
            assert (wrong.abs() < torch.tensor(bounds)).all()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"random_eigenvalues": False}, "computed from the input"),
        ({"num_experts": 4}, "gate of 4"),
        ({"pooling": "max"}, "max pooling"),
    ],
)
def test_models_whose_patches_meet_are_refused(config: dict, message: str) -> None:
    model = models.build("transject_image", **SIZES | config)
    assert message in str(refusal(model))
    with pytest.raises(ValueError, match=message):
        Patches(model)
    assert "not of Linear" in str(refusal(nn.Linear(2, 2)))
