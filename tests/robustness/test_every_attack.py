"""Every attack by what all of them promise, and every attack of torchattacks."""

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchattacks
from onnx import helper
from pydantic import ValidationError
from torch import Tensor

from robustness.attacks.base import Attack, Batch, Budget, Search
from robustness.attacks.torchattacks import LIBRARY, REFUSED
from robustness.certificates.base import Certificate, Proof
from robustness.evaluation import evaluate
from robustness.kinds import NotPossible
from robustness.progress import Cancelled, Meter
from robustness.spec import ATTACKS, EvaluationSpec
from robustness.target import ImageTarget, Target
from robustness.text_target import TextTarget
from tests.robustness.conftest import (
    Rowwise,
    image_target,
    make_images,
    make_target,
    provable_images,
    undisturbed,
)
from tests.robustness.test_graph_bounds import graph_of

SHORT = {"steps": 3, "queries": 12, "samples": 6, "names": ["fog"], "severities": [3]}
SHORT |= {"edits": [2], "rate": ["0.3"], "patch": [3], "table": {"film": ["end", "bad acting"]}}
EPS = {"Linf": "0.05", "L2": "0.4", "L1": "2", "L0": "3"}
CASES = [
    (name, norm)
    for name, kind in ATTACKS.items()
    if name != "torchattacks"  # whose attacks have a test of their own below
    for norm in kind.info.norms or [""]
]
PROVES = ("certificate", "proof")
Case = tuple[Attack, Target, Batch]
every = pytest.mark.parametrize(("name", "norm"), CASES)
asking = pytest.mark.parametrize(
    ("name", "norm"), [case for case in CASES if ATTACKS[case[0]].info.access != "none"]
)
THEIRS = [(name, norm) for name, entry in LIBRARY.items() for norm in entry.norms]
QUICK = {
    "steps": 3, "nb_iter": 2, "nb_sample": 4, "num_iter_set": 3, "max_iterations": 10,
    "binary_search_steps": 2, "n_queries": 12, "restarts": 2,
}  # fmt: skip


def rowwise(channels: int = 1, num_classes: int = 10) -> ImageTarget:
    return image_target(Rowwise(channels, num_classes).eval(), num_classes, channels)


def seen_through(num_classes: int = 10) -> ImageTarget:
    """The same with its graph."""
    model, target = Rowwise(1, num_classes), rowwise(1, num_classes)
    nodes = [
        helper.make_node("Flatten", ["images"], ["x"]),
        helper.make_node("Gemm", ["x", "inner", "shift"], ["y"], transB=1),
        helper.make_node("Tanh", ["y"], ["z"]),
        helper.make_node("Gemm", ["z", "outer"], ["logits"], transB=1),
    ]
    weights = {"inner": model.inner, "shift": -model.inner.sum(1) / 2, "outer": model.outer}
    arrays = {name: one.detach().numpy() for name, one in weights.items()}
    return replace(target, graph=lambda: graph_of(nodes, arrays, (1, 1, 8, 8)))


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
        index, radius = attack.certify(target, batch, budget, search)
        return Batch(inputs=batch.inputs, labels=index, found={"radius": radius})
    if isinstance(attack, Proof):
        found = attack.prove(target, batch, budget, search)
        return Batch(inputs=batch.inputs, labels=batch.labels, found={"all": found["margin"]})
    parts = attack.parts(10)
    if len(parts) == 1:
        return attack.run(target, batch, budget, search)
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
def subject(
    name: str, bag: TextTarget, provable: TextTarget, texts: list[str]
) -> tuple[Target, Batch]:
    """A model that reads what the attack changes, and inputs that it gets right."""
    proves = issubclass(ATTACKS[name], Proof)
    if ATTACKS[name].info.input == "image":
        target = provable_images() if proves or name == "patch-fool" else rowwise()
        target = seen_through() if name == "graph-bounds" else target
        return target, make_batch(target)
    chosen, access = texts[:8], ATTACKS[name].info.access
    target = provable if access in ("weights", "token-wise") else bag
    return target, Batch(inputs=chosen, labels=target.predict(chosen).argmax(axis=1))


@pytest.fixture
def case(name: str, norm: str, subject: tuple[Target, Batch]) -> Case:
    """An attack with little to do, and what it attacks."""
    return small(name, norm), *subject


@pytest.mark.parametrize("leave", [True, False])
@every
def test_results_are_allowed_described_and_repeated(leave: bool, case: Case) -> None:
    (attack, target, batch), meter = case, Meter(10**9)
    found, budget = run(attack, target, batch, leave=leave, meter=meter), attack.budgets()[0]
    cost = sum(shortened(part).cost(num_classes=10) for part in attack.parts(10))
    assert attack.cost(10) == sum(part.cost(10) for part in attack.parts(10)) >= cost
    assert meter.done <= len(batch.inputs) * cost
    # With leaving early, `test_nothing_but_the_result_changes` repeats it.
    assert leave or same(found, run(attack, target, batch, leave=False))
    assert budget.text.split(":")[0] in attack.describe(budget)
    if attack.info.role in PROVES:
        return
    assert attack.allowed(batch, found, budget, target, range(len(batch.inputs))).all()
    if attack.info.norms or attack.info.budget in ("edits", "patch"):
        assert (attack.size(batch, found, budget) <= budget.value + 1e-6).all()


@every
def test_an_input_fares_alike_in_every_batch(case: Case) -> None:
    (attack, target, batch), rows = case, [5, 0, 3]
    whole = run(attack, target, batch)
    if len(attack.parts(10)) > 1:  # seeds are those of the places in the batch
        rows = [0, 1, 2]
    part = run(attack, target, take(batch, rows), seeds=rows)
    assert same(part, take(whole, rows))
    if attack.norm_name is not None and not isinstance(attack, Proof):
        assert run(attack, target, take(batch, [])).images.shape == (0, 1, 8, 8)


@asking
def test_a_fooled_input_leaves_early(case: Case) -> None:
    (attack, target, batch), meter = case, Meter(10**9)
    if attack.info.role in PROVES:
        return
    wrong = Batch(inputs=batch.inputs, labels=(batch.labels + 1) % len(target.labels))
    run(attack, target, wrong, meter=meter)
    assert meter.done <= 2 * len(batch.inputs)


@asking
def test_cancel_is_heeded_before_the_next_evaluation(case: Case) -> None:
    (attack, target, batch), seen = case, [0]
    meter = Meter(
        10**9, on_progress=lambda now: seen.append(now.done), should_stop=lambda: meter.done >= 10
    )
    single = attack.name == "fgsm" or isinstance(attack, Proof)
    if single:  # one evaluation is all that they make
        meter.done = 10
    with pytest.raises(Cancelled):
        run(attack, target, batch, leave=False, meter=meter)
    assert single or seen[-2] < 10 <= seen[-1]


@every
def test_nothing_but_the_result_changes(case: Case) -> None:
    attack, target, batch = case
    expected, before = run(attack, target, batch), take(batch, list(range(8)))
    with undisturbed(target.require_torch_model()), torch.no_grad():
        assert same(run(attack, target, batch), expected)  # its dropout is silent meanwhile
        assert not torch.is_grad_enabled()
    assert same(batch, before)


@every
def test_what_goes_too_far_is_not_allowed(case: Case) -> None:
    attack, target, batch = case
    if attack.info.role in PROVES:
        return
    budget, seeds = attack.budgets()[0], range(8)
    if attack.info.input == "text":
        moved = Batch(inputs=["great " * 9] * 8, labels=batch.labels)
        assert not attack.allowed(batch, moved, budget, target, seeds).any()
        return
    for change in (0.5, -2.0, np.nan) if attack.norm_name else (-2.0, np.nan):
        moved = Batch(inputs=batch.images + np.float32(change), labels=batch.labels)
        assert not attack.allowed(batch, moved, budget, target, seeds).any()


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
    attack, target = adapted(name, norm), rowwise(channels=entry.channels or 1)
    batch, meter = make_batch(target, 3), Meter(10**9)
    with undisturbed(target.require_torch_model()):
        found = run(attack, target, batch, meter=meter)
    assert attack.allowed(batch, found, attack.budgets()[0], target, range(3)).all()
    assert meter.done <= len(batch.inputs) * attack.cost(num_classes=10)
    assert np.array_equal(found.images, run(attack, target, batch).images)


def test_one_run_without_a_radius_serves_every_budget() -> None:
    attack, target = adapted("DeepFool", "L2"), rowwise()
    batch = make_batch(target)
    budget = attack.searched(attack.budgets()[0])
    found = attack.run(target, batch, budget, Search(seeds=range(8)))
    assert np.isfinite(found.found["nearest"]).all() and budget.value == np.inf
    fooled = target.predict(found.images).argmax(axis=1) != batch.labels
    assert fooled.all()


def test_outputs_that_are_no_numbers_count_as_the_clean_images() -> None:
    class Flat(Rowwise):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images) + (images.flatten(1).sum(1) * torch.nan)[:, None]

    found = run(adapted("MIFGSM", "Linf"), image_target(Flat().eval()), make_batch(rowwise()))
    assert np.isfinite(found.images).all()


def test_written_options_are_those_of_the_library() -> None:
    given = {"self", "model", "eps", "max_epsilon", "norm", "seed", "verbose", "multi_targeted"}
    given |= {"update_each_iteration"}  # which works on one image alone
    assert set(torchattacks.__all__) == {*LIBRARY, *REFUSED}
    for name, entry in LIBRARY.items():
        known = inspect.signature(getattr(torchattacks, name).__init__).parameters
        assert set(known) - given == set(entry.params), name
        for option, rule in entry.params.items():
            default = rule if isinstance(rule, bool) else rule[0]
            default = tuple(default) if isinstance(default, list) else default
            assert default in (None, known[option].default), (name, option)


def spec(**attack: Any) -> EvaluationSpec:
    one = {"name": "torchattacks", "attack": "MIFGSM", "eps": ["8/255"]} | attack
    return EvaluationSpec.model_validate({"attacks": [one]})


PIXLE = {"attack": "Pixle", "eps": ["1"]}


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
        ({**PIXLE, "params": {"x_dimensions": [9, 2]}}, "two numbers, the smaller first"),
        ({**PIXLE, "params": {"x_dimensions": [0, 2]}}, "x_dimensions must lie in"),
        ({"norm": "L2"}, "norm of 'torchattacks:MIFGSM' must be 'Linf'"),
        ({"attack": "APGDT", "norm": "L2"}, "must be 'Linf'"),
        ({"attack": "OnePixel", "eps": ["0.5"]}, "whole numbers of pixels"),
    ],
)
def test_what_the_library_does_not_take_is_refused(change: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        spec(**change)


def test_a_step_that_is_not_given_crosses_the_ball() -> None:
    [attack] = spec(eps=["24/255"]).attacks
    [budget] = attack.budgets()
    assert attack.settings(budget) == (10, 0.25 * budget.value)
    [attack] = spec(params={"steps": 4}).attacks
    assert attack.settings(Budget(kind="Linf", value=0.4, text="0.4")) == (4, 0.25)


def test_a_model_that_an_attack_cannot_run_on_is_refused() -> None:
    target = rowwise()
    with pytest.raises(NotPossible, match="needs 3 channels, got 1"):
        run(adapted("TIFGSM", "Linf"), target, make_batch(target))
    few = rowwise(num_classes=3)
    with pytest.raises(NotPossible, match="at least 4 classes"):
        run(adapted("APGDT", "Linf"), few, make_batch(few))


@pytest.mark.parametrize("num_classes", [2, 3, 12])
@pytest.mark.parametrize(
    ("name", "norm"),
    [(n, norm) for n, norm in CASES if ATTACKS[n].info.input == "image" and n != "autoattack"],
)
def test_any_number_of_classes_is_attacked(name: str, norm: str, num_classes: int) -> None:
    attack, meter = small(name, norm), Meter(10**9)
    cut = isinstance(attack, Proof) or name == "patch-fool"  # which need a model of patches
    make = provable_images if cut else rowwise
    make = seen_through if name == "graph-bounds" else make
    target = make(num_classes=num_classes)
    batch = make_batch(target, 3)
    if num_classes < attack.info.min_classes:  # the evaluation refuses it, see below
        return
    found = run(attack, target, batch, leave=False, meter=meter)
    assert meter.done <= 3 * attack.cost(num_classes)
    if attack.info.role not in PROVES:
        assert attack.allowed(batch, found, attack.budgets()[0], target, range(3)).all()


@pytest.mark.parametrize(("num_classes", "parts"), [(3, 3), (4, 4)])
def test_an_evaluation_leaves_out_what_needs_more_classes_or_refuses(
    num_classes: int, parts: int, tmp_path: Path
) -> None:
    target, images = make_target(num_classes), make_images(5, num_classes=num_classes)
    spec = EvaluationSpec.model_validate({"attacks": [{"name": "autoattack", "eps": ["0.5"]}]})
    report = evaluate(spec, [target], images, tmp_path)
    assert len(spec.attacks[0].parts(num_classes)) == parts
    assert any("without APGD-T" in note for note in report.notes) == (num_classes < 4)
    assert report.summary.models[0].worst["0.5"].top1 == 0
    if num_classes < 4:
        spec = EvaluationSpec.model_validate({"attacks": [{"name": "apgd-t", "eps": ["0.1"]}]})
        with pytest.raises(NotPossible, match="'apgd-t' needs at least 4 classes"):
            evaluate(spec, [target], images, tmp_path)
