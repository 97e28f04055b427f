"""Gradients of the image models, which attacks rely on: of one image and of a batch alike."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

import models
from models.attention.elliptical import metric_gradient

SMALL = {"img_size": 16, "patch_size": 4, "in_chans": 1, "num_classes": 5, "depth": 2}
SMALL |= {"embed_dim": 32, "num_heads": 2}
every_image_model = pytest.mark.parametrize(
    "name",
    ["deit_tiny", "deit_tiny_elliptical", "fan_tiny", "fan_tiny_elliptical", "transject_image"],
)


def build(name: str) -> nn.Module:
    """A model in float64 away from its initial point, where steps and statistics are 0 or 1."""
    fields = [field.name for field in dataclasses.fields(models.config(name))]
    torch.manual_seed(0)
    model = models.build(name, **{key: value for key, value in SMALL.items() if key in fields})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None:
                module.running_mean.normal_(std=0.1)
    return model.double().eval()


def images(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, 1, 16, 16, generator=generator, dtype=torch.float64)


def score(logits: Tensor) -> Tensor:
    """The sum of a function of each image alone."""
    return (logits.sin() @ torch.arange(1.0, 6.0, dtype=torch.float64)).sum()


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Of the score with respect to the images and to every parameter."""
    x = x.clone().requires_grad_()
    return list(torch.autograd.grad(score(model(x)), [x, *model.parameters()]))


@every_image_model
@pytest.mark.parametrize("through_m", [False, True])
def test_an_image_alone_has_the_gradients_that_it_has_in_a_batch(
    name: str, through_m: bool
) -> None:
    model, batch = build(name), images(3)
    with metric_gradient(model, through_m):
        together = gradients(model, batch)
        alone = [gradients(model, image) for image in batch.split(1)]
    of_each = list(zip(*alone, strict=True))
    expected = [torch.cat(of_each[0])]
    expected += [torch.stack(each).sum(0) for each in of_each[1:]]
    for found, wanted in zip(together, expected, strict=True):
        assert (found - wanted).abs().max() < 1e-9 * (1 + wanted.abs().max())


@every_image_model
@pytest.mark.parametrize("count", [1, 3])
def test_gradients_agree_with_finite_differences(name: str, count: int) -> None:
    model, x, step = build(name), images(count), 1e-6
    with metric_gradient(model, True):
        found = gradients(model, x)
    tensors = [x, *(parameter.detach() for parameter in model.parameters())]
    generator = torch.Generator().manual_seed(2)
    for moved in [*[slice(0, 1)] * 3, *[slice(1, None)] * 3]:  # the images, then the parameters
        directions = [
            torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            for tensor in tensors[moved]
        ]
        ends = []
        for distance in (step, -2 * step, step):  # there, to the other side, and back
            for tensor, direction in zip(tensors[moved], directions, strict=True):
                tensor.add_(direction, alpha=distance)
            with torch.no_grad():
                ends.append(score(model(x)))
        slope = (ends[0] - ends[1]) / (2 * step)
        expected = sum((g * d).sum() for g, d in zip(found[moved], directions, strict=True))
        assert (slope - expected).abs() < 1e-6 * (1 + slope.abs())
