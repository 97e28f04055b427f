"""Every attack by what all of them promise, and every attack of torchattacks."""

import inspect
import random
from copy import deepcopy
from typing import Any, cast

import numpy as np
import pytest
import torch
import torchattacks
from pydantic import ValidationError
from torch import Tensor, nn

from data.images import ImageSpec
from robustness.attacks.base import Attack, Batch, Budget, Certificate, Search
from robustness.attacks.torchattacks import LIBRARY, REFUSED
from robustness.kinds import NotPossible
from robustness.progress import Cancelled, Meter
from robustness.spec import ATTACKS, EvaluationSpec
from robustness.target import ImageTarget, Target
from robustness.text_target import TextTarget

SHORT = {"steps": 3, "queries": 12, "samples": 6, "names": ["fog"], "severities": [3]}
SHORT |= {"edits": [2], "rate": ["0.3"]}
EPS = {"Linf": "0.05", "L2": "0.4", "L1": "2", "L0": "3"}
CASES = [
    (name, norm)
    for name, kind in ATTACKS.items()
    if name != "torchattacks"  # whose attacks have a test of their own below
    for norm in kind.info.norms or [""]
]
every = pytest.mark.parametrize(("name", "norm"), CASES)
asking = pytest.mark.parametrize(
    ("name", "norm"), [case for case in CASES if ATTACKS[case[0]].info.access != "none"]
)
THEIRS = [(name, norm) for name, entry in LIBRARY.items() for norm in entry.norms]
QUICK = {
    "steps": 3, "nb_iter": 2, "nb_sample": 4, "num_iter_set": 3, "max_iterations": 10,
    "binary_search_steps": 2, "n_queries": 12, "restarts": 2,
}  # fmt: skip


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
        self.module = deepcopy(module).eval()

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


def small(name: str, norm: str) -> Attack:
    """An attack with little to do."""
    kind = ATTACKS[name]
    options = {key: value for key, value in SHORT.items() if key in kind.model_fields}
    ball = {"norm": norm, "eps": EPS[norm]} if norm else {}
    return kind.model_validate({"name": name, **ball, **options})


def adapted(name: str, norm: str, **params: Any) -> Attack:
    quick = {key: value for key, value in QUICK.items() if key in LIBRARY[name].params} | params
    given = {"name": "torchattacks", "attack": name, "norm": norm, "eps": EPS[norm]}
    return ATTACKS["torchattacks"].model_validate({**given, "params": quick})


def run(
    attack: Attack,
    target: Target,
    batch: Batch,
    *,
    seeds: list[int] | None = None,
    leave: bool = True,
    meter: Meter | None = None,
) -> Batch:
    """The result at the first budget; parts of an attack work on what the ones before left."""
    budget = attack.budgets()[0]
    own = list(range(len(batch.inputs))) if seeds is None else seeds
    search = Search(seeds=own, leave=leave, meter=meter)
    if isinstance(attack, Certificate):
        index, radius = attack.certify(target, batch, [budget], search)[budget]
        return Batch(inputs=batch.inputs, labels=index, found={"radius": radius})
    parts = attack.parts(10)
    if len(parts) == 1:
        return attack.run(target, batch, [budget], search)[budget]
    found = batch
    for part in parts:
        right = np.flatnonzero(target.predict(found.images).argmax(axis=1) == batch.labels).tolist()
        made = run(shortened(part), target, take(batch, right), seeds=right, meter=meter)
        inputs = found.images.copy()
        inputs[right] = made.images
        found = Batch(inputs=inputs, labels=batch.labels)
    return found


def shortened(part: Attack) -> Attack:
    known = {key: value for key, value in SHORT.items() if key in type(part).model_fields}
    return part.model_copy(update=known)


def take(batch: Batch, rows: list[int]) -> Batch:
    return batch.take(np.array(rows, np.int64))


def same(first: Batch, second: Batch) -> bool:
    """Whether two results are the same, bit by bit."""
    one, other = ((np.asarray(b.inputs), b.labels, *b.found.values()) for b in (first, second))
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.fixture
def subject(name: str, bag: TextTarget, texts: list[str]) -> tuple[Target, Batch]:
    """A model that reads what the attack changes, and inputs that it gets right."""
    if ATTACKS[name].info.input == "image":
        target = make_target()
        return target, make_batch(target)
    chosen = texts[:8]
    return bag, Batch(inputs=chosen, labels=bag.predict(chosen).argmax(axis=1))


@pytest.mark.parametrize("leave", [True, False])
@every
def test_results_are_allowed_described_and_repeated(
    name: str, norm: str, leave: bool, subject: tuple[Target, Batch]
) -> None:
    attack, (target, batch), meter = small(name, norm), subject, Meter(10**9)
    found, budget = run(attack, target, batch, leave=leave, meter=meter), attack.budgets()[0]
    cost = sum(shortened(part).cost(num_classes=10) for part in attack.parts(10))
    assert attack.cost(10) == sum(part.cost(10) for part in attack.parts(10)) >= cost
    assert meter.done <= len(batch.inputs) * cost
    assert same(found, run(attack, target, batch, leave=leave))
    assert budget.text.split(":")[0] in attack.describe(budget)
    if attack.info.role == "certificate":
        return
    given = {"target": target, "seeds": range(len(batch.inputs))}
    assert attack.allowed(batch, found, budget, **given).all()
    if attack.info.norms or "edits" in type(attack).model_fields:
        assert (attack.size(batch, found, budget) <= budget.value + 1e-6).all()


@every
def test_an_input_fares_alike_in_every_batch(
    name: str, norm: str, subject: tuple[Target, Batch]
) -> None:
    attack, (target, batch), rows = small(name, norm), subject, [5, 0, 3]
    whole = run(attack, target, batch)
    if len(attack.parts(10)) > 1:  # seeds are those of the places in the batch
        rows = [0, 1, 2]
    part = run(attack, target, take(batch, rows), seeds=rows)
    assert same(part, take(whole, rows))


@asking
def test_a_fooled_input_leaves_early(name: str, norm: str, subject: tuple[Target, Batch]) -> None:
    attack, (target, batch), meter = small(name, norm), subject, Meter(10**9)
    if attack.info.role == "certificate":
        return
    wrong = Batch(inputs=batch.inputs, labels=(batch.labels + 1) % len(target.labels))
    run(attack, target, wrong, meter=meter)
    assert meter.done <= 2 * len(batch.inputs)


@asking
def test_cancel_is_heeded_before_the_next_evaluation(
    name: str, norm: str, subject: tuple[Target, Batch]
) -> None:
    attack, (target, batch), seen = small(name, norm), subject, [0]
    meter = Meter(
        10**9, on_progress=lambda now: seen.append(now.done), should_stop=lambda: meter.done >= 10
    )
    if name == "fgsm":  # one evaluation is all that it makes
        meter.done = 10
    with pytest.raises(Cancelled):
        run(attack, target, batch, leave=False, meter=meter)
    assert name == "fgsm" or seen[-2] < 10 <= seen[-1]


@every
def test_nothing_but_the_result_changes(
    name: str, norm: str, subject: tuple[Target, Batch]
) -> None:
    attack, (target, batch) = small(name, norm), subject
    expected, before = run(attack, target, batch), take(batch, list(range(8)))
    model = target.require_torch_model().train()
    frozen, *parameters = model.parameters()
    frozen.requires_grad_(False)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    drawn = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    with torch.no_grad():
        assert same(run(attack, target, batch), expected)  # its dropout is silent meanwhile
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), drawn[0])
    assert (random.getstate(), str(np.random.get_state())) == drawn[1:]
    assert all(part.training and not part._forward_hooks for part in model.modules())
    assert not frozen.requires_grad and frozen.grad is None
    assert all(p.requires_grad and bool((cast(Tensor, p.grad) == 1).all()) for p in parameters)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert same(batch, before)


@every
def test_what_goes_too_far_is_not_allowed(
    name: str, norm: str, subject: tuple[Target, Batch]
) -> None:
    attack, (target, batch) = small(name, norm), subject
    if attack.info.role == "certificate":
        return
    budget, seeds = attack.budgets()[0], range(8)
    if attack.info.input == "text":
        moved = Batch(inputs=["great " * 9] * 8, labels=batch.labels)
        assert not attack.allowed(batch, moved, budget, target=target, seeds=seeds).any()
        return
    for change in (0.5, -2.0, np.nan) if norm else (-2.0, np.nan):
        moved = Batch(inputs=batch.images + np.float32(change), labels=batch.labels)
        assert not attack.allowed(batch, moved, budget).any()


@pytest.mark.parametrize(("name", "norm"), [case for case in CASES if case[1]])
def test_no_images_are_no_work(name: str, norm: str, subject: tuple[Target, Batch]) -> None:
    target, batch = subject
    assert run(small(name, norm), target, take(batch, [])).images.shape == (0, 1, 8, 8)


@pytest.mark.parametrize("name", ["fgsm", "square", "smoothing"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x + 1, y), r"images must lie in \[0, 1\]"),
        (lambda x, y: (x * np.float32(np.nan), y), r"images must lie in \[0, 1\]"),
        (lambda x, y: (x.astype(np.float64), y), "images must be .* float64"),
        (lambda x, y: (x, y.astype(np.int32)), "labels must be .* int32"),
        (lambda x, y: (x, y[:-1]), r"labels must be \(8,\) int64"),
        (lambda x, y: (x[:3], y[:3]), "seeds must be one an image, 3, got 8"),
    ],
)
def test_meaningless_input_is_refused(
    change: Any, message: str, name: str, subject: tuple[Target, Batch]
) -> None:
    target, batch = subject
    images, labels = change(batch.images, batch.labels)
    attack = small(name, "" if name == "smoothing" else "Linf")
    with pytest.raises(ValueError, match=message):
        run(attack, target, Batch(inputs=images, labels=labels), seeds=list(range(8)))


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
