from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from data.images import ImageSpec
from data.sources import ImageSet, load_inputs
from robustness.attacks.base import Batch as Clean
from robustness.attacks.base import Budget, Norm, Search
from robustness.attacks.tensors import attackable
from robustness.progress import Meter
from robustness.spec import ATTACKS
from robustness.target import ImageTarget

EPS = 8 / 255
STEPS = 12
ALL: list[tuple[str, Norm]] = [
    ("fgsm", "Linf"), ("pgd", "Linf"), ("apgd-ce", "Linf"), ("apgd-ce", "L2"),
    ("apgd-t", "Linf"), ("apgd-t", "L2"), ("fab-t", "Linf"), ("fab-t", "L2"),
]  # fmt: skip
Batch = tuple[Any, Tensor, Tensor]  # the PyTorch model, images, labels


def attack(name: str, norm: Norm = "Linf", steps: int = STEPS) -> Any:
    options = {} if name == "fgsm" else {"steps": steps}
    return ATTACKS[name].model_validate({"name": name, "norm": norm, "eps": [EPS], **options})


class Rowwise(nn.Module):
    """Two layers without a matrix product: a row's bits do not depend on the rest of the batch."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(1)
        self.inner = nn.Parameter(torch.randn((24, 64), generator=draw) / 4)
        self.outer = nn.Parameter(torch.randn((num_classes, 24), generator=draw))

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.tanh((images.flatten(1)[:, None] * self.inner - self.inner / 2).sum(-1))
        return (hidden[:, None] * self.outer).sum(-1)


@pytest.fixture
def batch(make_target: Callable[..., ImageTarget], make_images: Callable[..., ImageSet]) -> Batch:
    """A linear model of two classes and random labels."""
    target = make_target(2)
    images = make_images(64)
    assert images.labels is not None and target.torch_model is not None
    inputs = torch.from_numpy(load_inputs(images, target.image_spec))
    return target.torch_model, inputs, torch.from_numpy(images.labels)


@pytest.fixture
def ten() -> Batch:
    """A small network of ten classes; two of its 24 answers are called wrong."""
    model = Rowwise()
    images = torch.rand((24, 1, 8, 8), generator=torch.Generator().manual_seed(2)) * 0.6 + 0.2
    labels = model(images).argmax(1)
    labels[:2] = (labels[:2] + 1) % 10
    return model, images, labels


def run(
    batch: Batch,
    spec: Any,
    *,
    eps: float = EPS,
    seeds: Sequence[int] | None = None,
    leave: bool = True,
    meter: Meter | None = None,
) -> Tensor:
    model, images, labels = batch
    search = Search(seeds=range(len(images)) if seeds is None else seeds, leave=leave, meter=meter)
    clean = Clean(inputs=images.numpy(), labels=labels.numpy())
    budget = Budget(kind=spec.norm, value=eps, text="eps")
    found = spec.run(target_of(model), clean, [budget], search)
    return torch.from_numpy(found[budget].images)


def target_of(model: nn.Module) -> ImageTarget:
    return ImageTarget(
        name="model", version="1", digest="", labels=[], runtime=cast(Any, None), torch_model=model,
        image_spec=ImageSpec(channels=1, height=8, width=8),
    )  # fmt: skip


def flags(batch: Batch, adversarial: Tensor) -> Tensor:
    model, images, labels = batch
    with torch.no_grad():
        return (model(images).argmax(1) == labels) & (model(adversarial).argmax(1) == labels)


@pytest.mark.parametrize("leave", [True, False])
@pytest.mark.parametrize("name", ["fgsm", "pgd", "apgd-ce"])
def test_two_class_linear_model_falls_exactly_where_theory_says(
    name: str, leave: bool, batch: Batch
) -> None:
    torch_model, inputs, labels = batch
    weight = torch_model.linear.weight.detach()
    logits = torch_model(inputs).detach()
    rows = torch.arange(len(labels))
    own_margin = logits[rows, labels] - logits[rows, 1 - labels]
    # An l-infinity ball of radius eps moves the margin by at most eps times the dual norm.
    reach = EPS * (weight[0] - weight[1]).abs().sum()
    adversarial = run(batch, attack(name, steps=20), leave=leave)
    after = torch_model(adversarial).detach()
    fooled = after.argmax(1) != labels
    clear = (own_margin - reach).abs() > 1e-3
    assert torch.equal(fooled[clear], (own_margin < reach)[clear])
    assert 0 < int((own_margin < reach).sum()) < len(labels)
    margin = after[rows, labels] - after[rows, 1 - labels]
    whole = ~fooled if leave or name == "apgd-ce" else torch.ones_like(fooled)
    torch.testing.assert_close(margin[whole], (own_margin - reach)[whole], atol=1e-3, rtol=0)


@pytest.mark.parametrize(("norm", "dual"), [("Linf", 1), ("L2", 2)])
def test_distance_to_a_linear_boundary_is_the_margin_over_the_dual_norm(
    norm: Norm, dual: int, batch: Batch
) -> None:
    torch_model, inputs, labels = batch
    weight = (torch_model.linear.weight[0] - torch_model.linear.weight[1]).detach()
    logits = torch_model(inputs).detach()
    rows = torch.arange(len(labels))
    margin = logits[rows, labels] - logits[rows, 1 - labels]
    exact = (margin / weight.norm(dual)).clamp_min(0)
    with attackable(torch_model) as ask:
        found = attack("fab-t", norm, 20).nearest(ask, inputs, labels, until=0.0, leave=True)
    nearest, distance = found
    inside = exact < 0.3  # further out the walls of [0, 1] matter
    assert torch.equal(distance == 0, margin < 0)
    assert bool((distance[inside] >= exact[inside] - 1e-6).all())
    assert bool((distance[inside] <= 1.06 * exact[inside] + 1e-6).all())
    kind = float("inf") if norm == "Linf" else 2
    torch.testing.assert_close((nearest - inputs).flatten(1).norm(kind, dim=1), distance)


@pytest.mark.parametrize("norm", ["Linf", "L2"])
def test_one_run_serves_every_radius(norm: Norm, ten: Batch) -> None:
    model, images, labels = ten
    radii = [0.02, 0.05, 0.1] if norm == "Linf" else [0.1, 0.3, 0.5]
    with attackable(model) as ask:
        _, distance = attack("fab-t", norm).nearest(ask, images, labels, until=radii[0], leave=True)
    for eps in radii:
        robust = flags(ten, run(ten, attack("fab-t", norm), eps=eps))
        assert torch.equal(distance > eps, robust)


class Recorded(nn.Module):
    """Remembers how many images it was shown in each call."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.shown: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        self.shown.append(len(images))
        return self.inner(images)


@pytest.mark.parametrize("name", ["fgsm", "pgd", "apgd-ce", "apgd-t", "fab-t"])
def test_a_blind_or_broken_model_yields_finite_images_in_the_ball(name: str, ten: Batch) -> None:
    _, images, _ = ten
    labels = torch.zeros(24, dtype=torch.int64)

    class Blind(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images.flatten(1)[:, :10] * 0 + self.answer

        answer = torch.arange(10.0).flip(0)

    model = Blind()
    for answer in (model.answer, torch.full((10,), torch.nan), torch.ones(10)):
        model.answer = answer
        for leave in (True, False):
            found = run((model, images, labels), attack(name, steps=4), leave=leave)
            assert torch.isfinite(found).all()
            assert float((found - images).abs().max()) <= EPS + 1e-6


def test_a_gradient_that_is_no_number_spoils_no_image() -> None:
    class Edge(nn.Module):
        """Infinity, the gradient of a root at 0, is multiplied by 0."""

        def forward(self, images: Tensor) -> Tensor:
            above = images.flatten(1)[:, :9] - 0.5
            roots = (above * (above > 0)).sqrt()
            return torch.cat([roots, torch.ones(len(images), 1)], dim=1)

    images = torch.full((4, 1, 8, 8), 0.49)
    labels = torch.full((4,), 9)
    for leave in (True, False):
        for name, norm in ALL:
            found = run((Edge(), images, labels), attack(name, norm, 4), eps=0.3, leave=leave)
            assert torch.isfinite(found).all()


class Failing(nn.Module):
    """Works twice, then raises."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.calls = 0

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 2:
            raise RuntimeError("broken model")
        return self.inner(images)


def test_a_thousand_classes_are_nine_targets(ten: Batch) -> None:
    model, images = Rowwise(1000), ten[1][:2]
    many = (Recorded(model), images, model(images).argmax(1))
    run(many, attack("apgd-t", steps=2), eps=1e-6)
    assert len(many[0].shown) == 1 + 9 * 3


def test_a_model_without_gradients_is_refused(ten: Batch) -> None:
    class Served(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return ten[0](images.detach()).detach()

    for name in ("fgsm", "pgd", "apgd-ce", "apgd-t", "fab-t"):
        with pytest.raises(ValueError, match="logits have no gradient"):
            run((Served(), *ten[1:]), attack(name))


def test_after_an_error_the_model_is_as_it_was(batch: Batch) -> None:
    torch_model, inputs, labels = batch
    model = Failing(torch_model).train()
    torch_model.linear.eval()  # a mixture of modes, as with a frozen BatchNorm
    gradient = torch_model.linear.weight.grad = torch.ones_like(torch_model.linear.weight)
    modes = [part.training for part in model.modules()]
    with torch.no_grad(), pytest.raises(RuntimeError, match="broken model"):
        run((model, inputs, labels), attack("pgd"))
    assert [part.training for part in model.modules()] == modes
    assert torch_model.linear.weight.requires_grad and torch_model.linear.weight.grad is gradient
