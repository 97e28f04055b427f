"""Our attacks against torchattacks' on the same batch, with the same random draws."""

from functools import cache
from typing import Any, cast

import numpy as np
import pytest
import torch
import torchattacks
from torch import Tensor, nn
from torchattacks.attacks import fab

from benchmarks.attack_agreement import OneGenerator, kernel, square_as_kernel
from data.sources import load_inputs, open_images
from robustness.attacks.fab import nearest_l2, nearest_linf
from robustness.attacks.queries import Oracle
from robustness.attacks.tensors import attackable
from robustness.spec import ATTACKS
from runtimes.artifact import open_artifact
from runtimes.torch_model import load_torch_model
from service.settings import ROOT

RADII = {
    ("fashion-dot", "Linf"): 4 / 255, ("fashion-dot", "L2"): 0.25,
    ("fashion-elliptical-adv", "Linf"): 24 / 255, ("fashion-elliptical-adv", "L2"): 1.5,
}  # fmt: skip
COUNT = 8  # a power of two: the mean loss of torchattacks' PGD has the rounding of our sum
STEPS = {"pgd": 8, "apgd-ce": 24, "apgd-t": 4, "fab-t": 4}
CASES = [
    pytest.param(
        name, model, norm,
        marks=[pytest.mark.slow] * (name in ("apgd-t", "fab-t") and (model, norm) != [*RADII][0]),
    )
    for name in ("fgsm", *STEPS)
    for model, norm in RADII
    if norm in ATTACKS[name].info.norms
]  # fmt: skip


@cache
def batch(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A shipped model, images and labels of all classes; one label is wrong."""
    artifact = open_artifact(ROOT / "artifacts" / name)
    folder = ROOT / "artifacts" / "samples" / "fashion-mnist"
    sample = open_images(folder, label_names=artifact.labels)
    sample = sample.take(range(0, len(sample), len(sample) // COUNT)[:COUNT])
    images = torch.from_numpy(load_inputs(sample, artifact.image_spec))
    model = load_torch_model(artifact)
    with torch.no_grad():
        labels = model(images).argmax(1)
    labels[3] = (labels[3] + 1) % 10
    return model.requires_grad_(False), images, labels


class CorrectedAPGDT(torchattacks.APGD):
    """APGDT by the runs of APGD, where each sample has its own step size under l2, too."""

    target_class = 0

    def perturb(self, *args: Any, **options: Any) -> Any:
        self.n_target_classes, self.loss = 9, "dlr"
        return torchattacks.APGDT.perturb(cast(Any, self), *args, **options)

    def attack_single_run(self, x_in: Tensor, y_in: Tensor) -> Any:
        self.aim = self.get_logits(x_in).sort(dim=1)[1][:, -self.target_class]
        return super().attack_single_run(x_in, y_in)

    def dlr_loss(self, x: Tensor, y: Tensor) -> Tensor:
        return torchattacks.APGDT.dlr_loss_targeted(cast(Any, self), x, y, self.aim)


def check(name: str, subject: str, norm: str, steps: int) -> None:
    """Flags agree; and bits: everywhere, or where nothing is found and theirs is the best point."""
    (model, images, labels), eps = batch(subject), RADII[subject, norm]

    def robust(found: Tensor) -> Tensor:
        with torch.no_grad():
            return (model(images).argmax(1) == labels) & (model(found).argmax(1) == labels)

    options = {"steps": steps} if name in STEPS else {}
    attack: Any = ATTACKS[name].model_validate(
        {"name": name, "norm": norm, "eps": [str(eps)], **options}
    )
    theirs: Any = kernel(attack, model)
    if (name, norm) == ("apgd-t", "L2"):
        theirs = CorrectedAPGDT(model, norm=norm, eps=eps, steps=steps, n_restarts=1, seed=0)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        expected = theirs(images, labels).detach()
    found = {}
    for leave in (True, False):
        with attackable(model) as ask:
            search = OneGenerator(seeds=[0] * COUNT, leave=leave)
            found[leave] = attack.perturb(ask, images, labels, eps, search)
    flags = robust(expected)
    assert 0 < int(flags.sum()) < COUNT - 1
    assert torch.equal(robust(found[False]), flags)
    # The last point of PGD may be right again where an earlier one was not.
    assert bool((robust(found[True]) <= flags).all())
    assert name == "pgd" or torch.equal(robust(found[True]), flags)
    if name == "fgsm":
        torch.testing.assert_close(found[False], expected, atol=1e-7, rtol=0)
    elif name != "fab-t":
        same = torch.ones_like(flags) if name == "pgd" else ~flags
        assert torch.equal(found[False][same], expected[same])


@pytest.mark.parametrize(("name", "subject", "norm"), CASES)
def test_attacks_are_those_of_torchattacks(name: str, subject: str, norm: str) -> None:
    check(name, subject, norm, STEPS.get(name, 1))


@pytest.mark.slow
@pytest.mark.parametrize(("subject", "norm"), RADII)
def test_a_hundred_steps_agree(subject: str, norm: str) -> None:
    for name in ("apgd-ce", "apgd-t"):
        check(name, subject, norm, 100)


@pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.05), ("L2", 0.3), ("Linf", 0.02)])
def test_square_is_that_of_torchattacks_under_its_own_draws(norm: str, eps: float) -> None:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Conv2d(1, 6, 5, stride=2), nn.ReLU(), nn.Conv2d(6, 8, 5, stride=2), nn.ReLU(),
            nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(72, 5),
        ).eval()  # fmt: skip
    images = torch.rand(60, 1, 28, 28, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        labels = network(images).argmax(1)
    labels[::9] = (labels[::9] + 1) % 5

    def predict(inputs: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return (network(torch.from_numpy(inputs)) * 30).numpy()

    attack: Any = ATTACKS["square"].model_validate(
        {"name": "square", "norm": norm, "eps": [str(eps)], "queries": 250}
    )
    with torch.random.fork_rng([]):
        expected = kernel(attack, network)(images, labels).numpy()
    arrays = images.numpy(), labels.numpy()
    found = square_as_kernel(attack, Oracle(predict), *arrays, eps=eps, seed=0)
    theirs, ours = (predict(x).argmax(1) != labels.numpy() for x in (expected, found))
    assert np.array_equal(ours, theirs) and 8 < ours.sum() < 56
    assert np.allclose(found[ours], expected[ours], atol=1e-5)


ways = pytest.mark.parametrize(
    ("ours", "theirs"), [(nearest_linf, fab.projection_linf), (nearest_l2, fab.projection_l2)]
)


@ways
def test_the_way_is_that_of_the_sorting_kernel_and_ends_on_the_plane(
    ours: Any, theirs: Any
) -> None:
    """Points, some of their pixels at the ends; normals with zeros; hyperplanes near and far."""
    draw = torch.Generator().manual_seed(0)
    points = (torch.rand((200, 50), generator=draw) * 1.4 - 0.2).clamp(0, 1)
    normal = torch.randn((200, 50), generator=draw)
    normal[torch.rand((200, 50), generator=draw) < 0.1] = 0
    shift = torch.randn(200, generator=draw) * torch.logspace(-3, 1.6, 200)
    offset = (points * normal).sum(1) + shift
    expected = theirs(points, normal, offset)
    for scale in (1, 1e-30, 1e-6, 1e6) if ours is nearest_linf else (1,):
        found = ours(points, normal * scale, offset * scale)
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
    reached = points + ours(points, normal, offset)
    assert float(reached.min()) >= -1e-6 and float(reached.max()) <= 1 + 1e-6
    least, most = normal.clamp_max(0).sum(1), normal.clamp_min(0).sum(1)
    assert 0 < int(((least < offset) & (offset < most)).sum()) < len(points)
    nearest = offset.clamp(least, most)  # else the corner nearest to it
    torch.testing.assert_close((normal * reached).sum(1), nearest, atol=1e-4, rtol=1e-5)


@ways
def test_without_a_direction_nothing_moves(ours: Any, theirs: Any) -> None:
    points = torch.full((2, 5), 0.5)
    for normal in (torch.zeros(2, 5), torch.full((2, 5), torch.nan)):
        assert torch.equal(ours(points, normal, torch.ones(2)), torch.zeros(2, 5))
