"""Every attack on images, and every attack of torchattacks, by what all of them promise."""

import inspect
import random
from typing import Any, cast

import numpy as np
import pytest
import torch
import torchattacks
from pydantic import ValidationError
from torch import Tensor, nn

from data.images import ImageSpec
from robustness.attacks.base import Attack, Batch, Budget, NotPossible, Search
from robustness.attacks.torchattacks import LIBRARY, REFUSED
from robustness.progress import Meter
from robustness.spec import ATTACKS, EvaluationSpec
from robustness.target import ImageTarget

SHORT = {"steps": 3, "queries": 12, "samples": 6}
OWN = [
    (name, norm)
    for name, kind in ATTACKS.items()
    if kind.info.norms and name not in ("torchattacks", "autoattack")
    for norm in kind.info.norms
]
THEIRS = [(name, norm) for name, entry in LIBRARY.items() for norm in entry.norms]
QUICK = {
    "steps": 3, "nb_iter": 2, "nb_sample": 4, "num_iter_set": 3, "max_iterations": 10,
    "binary_search_steps": 2, "n_queries": 12, "restarts": 2,
}  # fmt: skip
EPS = {"Linf": "0.05", "L2": "0.4", "L1": "2", "L0": "3"}


class Rowwise(nn.Module):
    """Two layers without a matrix product: a row's bits do not depend on the rest of the batch."""

    def __init__(self, channels: int = 1, num_classes: int = 10) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(1)
        self.dropout = nn.Dropout(0.5)
        self.inner = nn.Parameter(torch.randn((16, 64 * channels), generator=draw) / 4)
        self.outer = nn.Parameter(torch.randn((num_classes, 16), generator=draw))

    def forward(self, images: Tensor) -> Tensor:
        rows = images.flatten(1)[:, None]
        hidden = torch.tanh((self.dropout(rows) * self.inner - self.inner / 2).sum(-1))
        return (hidden[:, None] * self.outer).sum(-1)


class Served:
    """The same module as a runtime."""

    name, precision = "module", "fp32"

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def predict(self, inputs: Any) -> np.ndarray:
        with torch.no_grad():
            return self.module(torch.from_numpy(np.asarray(inputs))).numpy()


def make_target(channels: int = 1, num_classes: int = 10) -> ImageTarget:
    torch_model = Rowwise(channels, num_classes).eval()
    return ImageTarget(
        name="rowwise", version="1", digest="", labels=["class"] * num_classes,
        runtime=cast(Any, Served(torch_model)), torch_model=torch_model,
        image_spec=ImageSpec(channels=channels, height=8, width=8),
    )  # fmt: skip


def make_batch(target: ImageTarget, count: int = 8) -> Batch:
    shape = (count, target.image_spec.channels, 8, 8)
    images = np.random.default_rng(2).uniform(0.2, 0.8, shape).astype(np.float32)
    return Batch(inputs=images, labels=target.predict(images).argmax(axis=1))


def native(name: str, norm: str) -> Attack:
    kind = ATTACKS[name]
    options = {key: value for key, value in SHORT.items() if key in kind.model_fields}
    return kind.model_validate({"name": name, "norm": norm, "eps": EPS[norm], **options})


def adapted(name: str, norm: str, **params: Any) -> Attack:
    quick = {key: value for key, value in QUICK.items() if key in LIBRARY[name].params} | params
    given = {"name": "torchattacks", "attack": name, "norm": norm, "eps": EPS[norm]}
    return ATTACKS["torchattacks"].model_validate({**given, "params": quick})


def run(
    attack: Attack,
    target: ImageTarget,
    batch: Batch,
    *,
    seeds: list[int] | None = None,
    leave: bool = True,
    meter: Meter | None = None,
) -> Batch:
    budget = attack.budgets()[0]
    own = list(range(len(batch.inputs))) if seeds is None else seeds
    search = Search(seeds=own, leave=leave, meter=meter)
    return attack.run(target, batch, [budget], search)[budget]


def take(batch: Batch, rows: list[int]) -> Batch:
    return Batch(inputs=batch.images[rows], labels=batch.labels[rows])


@pytest.mark.parametrize("leave", [True, False])
@pytest.mark.parametrize(("name", "norm"), OWN)
def test_results_are_allowed_described_and_repeated(name: str, norm: str, leave: bool) -> None:
    attack, target = native(name, norm), make_target()
    batch, meter = make_batch(target), Meter(10**9)
    found = run(attack, target, batch, leave=leave, meter=meter)
    budget = attack.budgets()[0]
    assert found.images.dtype == np.float32
    assert attack.allowed(batch, found, budget).all()
    assert (attack.size(batch, found, budget) <= budget.value + 1e-6).all()
    assert meter.done <= len(batch.inputs) * attack.cost(num_classes=10)
    again = run(attack, target, batch, leave=leave)
    assert np.array_equal(found.images, again.images)
    assert EPS[norm] in attack.describe(budget)


@pytest.mark.parametrize(("name", "norm"), OWN)
def test_an_image_fares_alike_in_every_batch(name: str, norm: str) -> None:
    attack, target = native(name, norm), make_target()
    batch = make_batch(target)
    whole = run(attack, target, batch)
    part = run(attack, target, take(batch, [5, 0, 3]), seeds=[5, 0, 3])
    assert np.array_equal(part.images, whole.images[[5, 0, 3]])


@pytest.mark.parametrize(("name", "norm"), OWN)
def test_a_fooled_image_leaves_early(name: str, norm: str) -> None:
    attack, target, meter = native(name, norm), make_target(), Meter(10**9)
    batch = make_batch(target)
    wrong = Batch(inputs=batch.inputs, labels=(batch.labels + 1) % 10)
    run(attack, target, wrong, meter=meter)
    assert meter.done <= 2 * len(batch.inputs)


def test_what_moves_too_far_or_leaves_the_image_is_not_allowed() -> None:
    target = make_target()
    batch = make_batch(target)
    for name, norm in OWN:
        attack = native(name, norm)
        budget = attack.budgets()[0]
        for change in (0.5, -2.0, np.nan):
            moved = Batch(inputs=batch.images + np.float32(change), labels=batch.labels)
            assert not attack.allowed(batch, moved, budget).any()


@pytest.mark.parametrize(("name", "norm"), THEIRS)
def test_the_adapter_repeats_a_chunk_and_changes_nothing_else(name: str, norm: str) -> None:
    entry = LIBRARY[name]
    attack, target = adapted(name, norm), make_target(channels=entry.channels or 1)
    batch, meter = make_batch(target, 3), Meter(10**9)
    torch_model = cast(Rowwise, target.require_torch_model())
    torch_model.train()
    gradient = torch.ones_like(torch_model.inner)
    torch_model.inner.grad = gradient
    before = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    found = run(attack, target, batch, meter=meter)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), str(np.random.get_state())) == before[1:]
    assert torch_model.training and torch_model.dropout.training and torch_model.inner.requires_grad
    assert torch_model.inner.grad is gradient and bool((gradient == 1).all())
    assert attack.allowed(batch, found, attack.budgets()[0]).all()
    assert meter.done <= len(batch.inputs) * attack.cost(num_classes=10)
    assert np.array_equal(found.images, run(attack, target, batch).images)


def test_one_run_without_a_radius_serves_every_budget() -> None:
    attack, target = adapted("DeepFool", "L2"), make_target()
    batch = make_batch(target)
    budget = attack.searched(attack.budgets()[0])
    found = attack.run(target, batch, [budget], Search(seeds=range(8)))[budget]
    assert np.isfinite(found.found["nearest"]).all() and budget.value == np.inf
    fooled = target.predict(found.images).argmax(axis=1) != batch.labels
    assert fooled.all()


def test_outputs_that_are_no_numbers_count_as_the_clean_images() -> None:
    class Flat(Rowwise):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images) + (images.flatten(1).sum(1) * torch.nan)[:, None]

    target = make_target()
    batch = make_batch(target)
    broken = ImageTarget(
        name="nan", version="1", digest="", labels=target.labels, runtime=target.runtime,
        torch_model=Flat().eval(), image_spec=target.image_spec,
    )  # fmt: skip
    found = run(adapted("MIFGSM", "Linf"), broken, batch)
    assert np.isfinite(found.images).all()


def test_written_options_are_those_of_the_library() -> None:
    given = {"self", "model", "eps", "max_epsilon", "norm", "seed", "verbose", "multi_targeted"}
    given |= {"x_dimensions", "y_dimensions", "update_each_iteration"}  # pairs; batches of one
    assert set(torchattacks.__all__) == {*LIBRARY, *REFUSED}
    for name, entry in LIBRARY.items():
        known = inspect.signature(getattr(torchattacks, name).__init__).parameters
        assert set(known) - given == set(entry.params), name
        for option, rule in entry.params.items():
            default = rule if isinstance(rule, bool) else rule[0]
            assert default in (None, known[option].default), (name, option)


def spec(**attack: Any) -> EvaluationSpec:
    one = {"name": "torchattacks", "attack": "MIFGSM", "eps": ["8/255"]} | attack
    return EvaluationSpec.model_validate({"attacks": [one]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(({"attack": name}, f"torchattacks' {name} is refused") for name in REFUSED),
        ({"attack": "MIFSGM"}, "did you mean 'MIFGSM'"),
        ({"params": {"step": 3}}, "MIFGSM takes no 'step'; did you mean 'steps'"),
        ({"params": {"steps": 0}}, "params.steps must lie in"),
        ({"params": {"steps": 2.5}}, "params.steps must be a whole number"),
        ({"params": {"alpha": "x"}}, "alpha must be a number"),
        ({"attack": "PGD", "params": {"random_start": 1}}, "must be true or false"),
        ({"attack": "UPGD", "params": {"loss": "kl"}}, "must be one of ce, margin, dlr"),
        ({"norm": "L2"}, "norm of 'torchattacks:MIFGSM' must be 'Linf'"),
        ({"attack": "APGDT", "norm": "L2"}, "must be 'Linf'"),
        ({"attack": "OnePixel", "eps": ["0.5"]}, "whole numbers of pixels"),
    ],
)
def test_what_the_library_does_not_take_is_refused(change: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        spec(**change)


def test_other_options_at_the_same_radius_are_refused() -> None:
    one = {"name": "torchattacks", "attack": "MIFGSM", "eps": ["8/255"]}
    with pytest.raises(ValidationError, match="'torchattacks:MIFGSM' twice at eps 8/255"):
        EvaluationSpec.model_validate({"attacks": [one, one | {"params": {"steps": 20}}]})


def test_a_step_that_is_not_given_crosses_the_ball() -> None:
    [attack] = spec(eps=["24/255"]).attacks
    [budget] = attack.budgets()
    assert attack.settings(budget) == (10, 0.25 * budget.value)
    [attack] = spec(params={"steps": 4}).attacks
    assert attack.settings(Budget(kind="Linf", value=0.4, text="0.4")) == (4, 0.25)


def test_a_model_that_an_attack_cannot_run_on_is_refused() -> None:
    target = make_target()
    with pytest.raises(NotPossible, match="needs 3 channels, got 1"):
        run(adapted("TIFGSM", "Linf"), target, make_batch(target))
    few = make_target(num_classes=3)
    with pytest.raises(NotPossible, match="at least 4 classes"):
        run(adapted("APGDT", "Linf"), few, make_batch(few))


def test_refused_saliency_maps_fail_on_few_classes() -> None:
    target = make_target(num_classes=3)
    images = torch.from_numpy(make_batch(target, 1).images)
    with pytest.raises(IndexError):
        torchattacks.JSMA(target.require_torch_model())(images, torch.tensor([2]))
