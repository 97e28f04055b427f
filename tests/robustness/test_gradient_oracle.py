"""PGD, APGD and FAB against torchattacks' on the same batch, with the same random draws."""

from collections.abc import Callable
from functools import cache
from typing import Any, cast

import pytest
import torch
import torchattacks
from torch import Tensor, nn

from data.sources import load_inputs, open_images
from robustness.attacks.apgd import APGDCE, APGDT
from robustness.attacks.base import Norm
from robustness.attacks.fab import FABT
from robustness.attacks.pgd import pgd
from robustness.attacks.tensors import attackable
from runtimes.artifact import open_artifact
from runtimes.torch_model import load_torch_model
from service.settings import ROOT

RADII = {
    "fashion-dot": {"Linf": 4 / 255, "L2": 0.25},
    "fashion-elliptical-adv": {"Linf": 24 / 255, "L2": 1.5},
}
COUNT = 8  # a power of two: the mean loss of torchattacks' PGD has the rounding of our sum
STEPS = 8
FEW = 4  # towards each of nine classes
models = pytest.mark.parametrize("name", RADII)
costly = pytest.mark.parametrize(
    ("name", "norm"),
    [
        ("fashion-dot", "Linf"),
        pytest.param("fashion-dot", "L2", marks=pytest.mark.slow),
        pytest.param("fashion-elliptical-adv", "Linf", marks=pytest.mark.slow),
        pytest.param("fashion-elliptical-adv", "L2", marks=pytest.mark.slow),
    ],
)
norms = pytest.mark.parametrize("norm", ["Linf", "L2"])


@cache
def batch(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A shipped model, images and labels of all classes; one label is wrong."""
    artifact = open_artifact(ROOT / "artifacts" / name)
    sample = open_images(
        ROOT / "artifacts" / "samples" / "fashion-mnist", label_names=artifact.labels
    )
    sample = sample.take(range(0, len(sample), len(sample) // COUNT)[:COUNT])
    images = torch.from_numpy(load_inputs(sample, artifact.image_spec))
    model = load_torch_model(artifact)
    with torch.no_grad():
        labels = model(images).argmax(1)
    labels[3] = (labels[3] + 1) % 10
    return model.requires_grad_(False), images, labels


def shared(count: int = COUNT) -> list[torch.Generator]:
    """One generator for all images, which draws row by row what torchattacks draws at once."""
    return [torch.Generator().manual_seed(5)] * count


def oracle(kernel: Any, images: Tensor, labels: Tensor) -> Tensor:
    with torch.random.fork_rng([]):
        torch.manual_seed(5)
        return kernel(images, labels).detach()


def robust(name: str, found: Tensor) -> Tensor:
    model, images, labels = batch(name)
    with torch.no_grad():
        return (model(images).argmax(1) == labels) & (model(found).argmax(1) == labels)


def run(name: str, attack: Callable[..., Any], **options: Any) -> Any:
    model, images, labels = batch(name)
    with attackable(model) as ask:
        return attack(ask, images, labels, **options)


@models
@pytest.mark.parametrize("random_start", [True, False])
def test_pgd_is_torchattacks_bit_by_bit(name: str, random_start: bool) -> None:
    model, images, labels = batch(name)
    eps = RADII[name]["Linf"]
    kernel = torchattacks.PGD(
        model, eps=eps, alpha=0.15 * eps, steps=STEPS, random_start=random_start
    )
    expected = oracle(kernel, images, labels)
    options = {"eps": eps, "alpha": 0.15 * eps, "steps": STEPS}
    rng = shared() if random_start else None
    assert torch.equal(run(name, pgd, rng=rng, leave=False, **options), expected)
    left = run(name, pgd, rng=shared() if random_start else None, **options)
    assert bool((robust(name, left) <= robust(name, expected)).all())


@models
def test_one_step_is_fgsm(name: str) -> None:
    model, images, labels = batch(name)
    eps = RADII[name]["Linf"]
    expected = oracle(torchattacks.FGSM(model, eps=eps), images, labels)
    found = run(name, pgd, eps=eps, alpha=eps, steps=1, rng=None, leave=False)
    torch.testing.assert_close(found, expected, atol=1e-7, rtol=0)
    assert torch.equal(robust(name, found), robust(name, expected))


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


def same_as_apgd(name: str, norm: Norm, kind: type[APGDCE | APGDT], steps: int) -> None:
    model, images, labels = batch(name)
    eps = RADII[name][norm]
    common = {"norm": norm, "eps": eps, "steps": steps, "n_restarts": 1, "seed": 5, "rho": 0.75}
    if kind is APGDCE:
        kernel = torchattacks.APGD(model, loss="ce", **common)
    else:
        plain = torchattacks.APGDT(model, n_classes=10, **common)
        kernel = plain if norm == "Linf" else CorrectedAPGDT(model, **common)
    expected = oracle(kernel, images, labels)
    flags = robust(name, expected)
    assert 0 < int(flags.sum()) < COUNT - 1
    attack = kind.model_validate({"norm": norm, "eps": [str(eps)], "steps": steps})
    left, full = (
        run(name, attack.perturb, eps=eps, rng=shared(), leave=leave) for leave in (True, False)
    )
    assert torch.equal(robust(name, left), flags)
    assert torch.equal(robust(name, full), flags)
    # Where nothing was found, torchattacks answers with the clean image.
    assert torch.equal(full[~flags], expected[~flags])


@norms
@models
def test_apgd_is_torchattacks_bit_by_bit(name: str, norm: Norm) -> None:
    same_as_apgd(name, norm, APGDCE, 3 * STEPS)


@costly
def test_targeted_apgd_is_torchattacks_bit_by_bit(name: str, norm: Norm) -> None:
    same_as_apgd(name, norm, APGDT, FEW)


@costly
def test_fab_flags_the_images_that_torchattacks_flags(name: str, norm: Norm) -> None:
    model, images, labels = batch(name)
    eps = RADII[name][norm]
    kernel = torchattacks.FAB(
        model, norm=norm, eps=eps, steps=FEW, n_restarts=1, alpha_max=0.1, eta=1.05, beta=0.9,
        multi_targeted=True, n_classes=10, seed=5,
    )  # fmt: skip
    flags = robust(name, oracle(kernel, images, labels))
    assert 0 < int(flags.sum()) < COUNT - 1
    attack = FABT.model_validate({"norm": norm, "eps": [str(eps)], "steps": FEW})
    for leave in (True, False):
        nearest, distance = run(name, attack.nearest, until=eps, leave=leave)
        assert torch.equal(distance > eps, flags)
        order = float("inf") if norm == "Linf" else 2
        change = (nearest - images).flatten(1).norm(order, dim=1)
        known = distance.isfinite()
        torch.testing.assert_close(change[known], distance[known])


@pytest.mark.slow
@norms
@models
def test_a_hundred_steps_agree(name: str, norm: Norm) -> None:
    same_as_apgd(name, norm, APGDCE, 100)
    same_as_apgd(name, norm, APGDT, 100)
