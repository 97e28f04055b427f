"""Searching in bfloat16: its gradients, what counts as found, and where it may be asked for."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import models
from data.sources import ImageSet
from robustness import evaluation as engine
from robustness.attack_spec import AttackSpec
from robustness.attacks.gradient import perturb
from robustness.catalog import Variant
from robustness.evaluation import evaluate_targets
from robustness.proposals import Aim, Loss, Proposer, available, propose
from robustness.spec import EvaluationSpec
from robustness.target import Target, gradient_path, undisturbed

LOSSES: Sequence[Loss] = ("cross-entropy", "targeted-dlr", "margin")


class Shifted(nn.Module):
    """A linear classifier that stands for a model, or for what a lower precision makes of it."""

    def __init__(self, shift: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 64).reshape(4, 16))
        self.shift = shift

    def forward(self, images: Tensor) -> Tensor:
        logits = images.flatten(1) @ self.weight.T
        return logits + self.shift * nn.functional.one_hot(torch.tensor([1]), 4)


class Deceived:
    """A proposer that sees images as fooled which are not, by a constant shift of one logit."""

    def __init__(self, model: Shifted) -> None:
        self.model = model

    def logits(self, images: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return self.model(torch.from_numpy(images)).numpy()

    def gradients(
        self, images: np.ndarray, labels: np.ndarray, targets: np.ndarray | None, loss: Loss
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        leaf = torch.from_numpy(images).requires_grad_(True)
        logits = self.model(leaf)
        pull = torch.softmax(logits.detach(), 1)
        pull[torch.arange(len(labels)), torch.from_numpy(labels)] -= 1
        (gradient,) = torch.autograd.grad(logits, leaf, pull)
        return logits.detach().numpy(), pull.numpy(), gradient.numpy()


def tiny(name: str) -> nn.Module:
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = models.build(
            name, img_size=8, patch_size=4, in_chans=1, num_classes=5, embed_dim=16, num_heads=2,
            depth=2, mlp_ratio=2.0,
        )  # fmt: skip
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval().requires_grad_(False)


def eager(
    model: nn.Module, variant: Variant, images: Tensor, labels: Tensor, targets: Tensor, loss: Loss
) -> tuple[Tensor, Tensor]:
    rows = torch.arange(len(images))
    with undisturbed(model), gradient_path(model, variant):
        leaf = images.clone().requires_grad_(True)
        logits = model(leaf)
        lead = logits[rows, targets] - logits[rows, labels]
        if loss == "cross-entropy":
            value = nn.functional.cross_entropy(logits, labels, reduction="sum")
        elif loss == "margin":
            value = lead.sum()
        else:
            top = logits.sort(1, descending=True)[0]
            value = (lead / (top[:, 0] - 0.5 * top[:, 2] - 0.5 * top[:, 3] + 1e-12)).sum()
        (gradient,) = torch.autograd.grad(value, leaf)
    return logits.detach(), gradient


@pytest.mark.skipif(not available(), reason="needs OpenVINO and a processor with bfloat16")
@pytest.mark.parametrize(
    ("name", "variant"), [("deit_tiny", "plain"), ("deit_tiny_elliptical", "full")]
)
def test_gradients_point_where_those_of_the_model_do(name: str, variant: Variant) -> None:
    model = tiny(name)
    draw = np.random.default_rng(0)
    images = draw.random((5, 1, 8, 8), np.float32)
    labels, targets = np.arange(5), (np.arange(5) + 2) % 5
    proposer = Proposer(model, variant=variant, threads=1)
    for loss in LOSSES:
        logits, _, gradient = proposer.gradients(images, labels, targets, loss)
        pixels, truth, aims = (torch.from_numpy(x) for x in (images, labels, targets))
        expected, slope = eager(model, variant, pixels, truth, aims, loss)
        spread = float(expected.std())
        np.testing.assert_allclose(logits, expected.numpy(), atol=0.05 * spread + 0.01)
        ours, theirs = gradient.reshape(5, -1), slope.numpy().reshape(5, -1)
        lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
        assert ((ours * theirs).sum(1) / lengths).min() > 0.99, loss
    np.testing.assert_array_equal(proposer.logits(images), proposer.logits(images))


def test_a_kernel_meets_the_known_gradient_scaled_by_its_loss() -> None:
    images = torch.rand((3, 1, 4, 4), generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2])
    aim = Aim(loss="cross-entropy", labels=labels, targets=None)
    model = Shifted()
    leaf = images.clone().requires_grad_(True)
    proposer = Deceived(model)
    logits = propose(proposer, leaf, aim, torch.arange(3))  # pyright: ignore[reportArgumentType]  stands for a Proposer
    (found,) = torch.autograd.grad(nn.functional.cross_entropy(logits, labels), leaf)
    exact = images.clone().requires_grad_(True)
    (expected,) = torch.autograd.grad(nn.functional.cross_entropy(model(exact), labels), exact)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["pgd", "apgd-ce", "apgd-t", "fab-t"])
def test_what_only_seems_to_fool_the_model_does_not_count(name: str) -> None:
    model = Shifted()
    images = torch.rand((6, 1, 4, 4), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        labels = model(images).argmax(1)
    proposer = Deceived(Shifted(shift=100.0))
    attack = AttackSpec.model_validate({"name": name, "eps": ["1/255"], "steps": 5})
    found = perturb(
        model, images, labels, attack=attack, eps=1 / 255, seeds=range(6),
        proposer=proposer,  # pyright: ignore[reportArgumentType]  stands for a Proposer
    )  # fmt: skip
    with torch.no_grad():
        held = model(found).argmax(1) == labels
    own = perturb(model, images, labels, attack=attack, eps=1 / 255, seeds=range(6))
    with torch.no_grad():
        held_alone = model(own).argmax(1) == labels
    assert (held >= held_alone).all()
    assert float((found - images).abs().max()) <= 1 / 255 + 1e-6


def spec(**fields: object) -> EvaluationSpec:
    attacks = [{"name": "pgd", "eps": ["4/255"], "steps": 2}]
    return EvaluationSpec.model_validate({"attacks": attacks, **fields})


def test_short_work_is_done_in_float32_and_the_report_says_so(
    make_target: Callable[..., Target], make_images: Callable[..., ImageSet], tmp_path: Path
) -> None:
    report = evaluate_targets(spec(), [make_target(3)], make_images(4), tmp_path)
    assert report.spec.proposals == "float32"


@pytest.mark.parametrize(
    ("able", "fields"), [(False, {}), (True, {"top_k": [1, 2]})], ids=["processor", "ranks"]
)
def test_bfloat16_is_refused_where_it_cannot_be_had(
    able: bool,
    fields: dict[str, object],
    make_target: Callable[..., Target],
    make_images: Callable[..., ImageSet],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "available", lambda: able)
    with pytest.raises(ValueError, match="proposals: bfloat16 needs"):
        evaluate_targets(
            spec(proposals="bfloat16", **fields), [make_target(3)], make_images(4), tmp_path
        )
