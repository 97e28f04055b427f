from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from data.sources import ImageSet
from robustness.engine import evaluate_targets
from robustness.report.schema import Summary
from robustness.spec import EvaluationSpec
from robustness.target import Target

MakeTarget = Callable[..., Target]
Judge = Callable[..., Summary]


@pytest.fixture
def judge(make_images: Callable[..., ImageSet], tmp_path: Path) -> Judge:
    def run(target: Target, *, eps: tuple[str, ...] = ("4/255",), name: str = "pgd") -> Summary:
        spec = EvaluationSpec.model_validate(
            {"attacks": [{"name": name, "eps": list(eps)}], "gate": "robust_accuracy >= 0"}
        )
        images = make_images(64, num_classes=None)
        return evaluate_targets(spec, [target], images, tmp_path).summary

    return run


def codes(summary: Summary) -> set[str]:
    assert summary.reliable is (not summary.warnings)
    assert summary.gate is not None and summary.gate.passed is summary.reliable
    return {warning.code for warning in summary.warnings}


class Wrapped(nn.Module):
    """A twin whose forward is the given function of the inner logits and the images."""

    def __init__(self, inner: nn.Module, change: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.inner = inner
        self.change = change

    def forward(self, images: Tensor) -> Tensor:
        return self.change(self.inner(images), images)


class WrappedRuntime:
    """A served model whose logits are the given function of the inner ones and the inputs."""

    name, precision = "numpy", "fp32"

    def __init__(
        self, target: Target, change: Callable[[np.ndarray, np.ndarray], np.ndarray]
    ) -> None:
        self.inner = target.runtime
        self.change = change

    def predict(self, inputs: np.ndarray) -> np.ndarray:
        return self.change(self.inner.predict(inputs), inputs).astype(np.float32)


def test_an_honest_model_raises_no_doubt(make_target: MakeTarget, judge: Judge) -> None:
    assert codes(judge(make_target(4), eps=("1/255", "4/255", "0.6"))) == set()


def test_logits_that_are_not_finite_are_reported(make_target: MakeTarget, judge: Judge) -> None:
    target = make_target(3)

    def overflow(logits: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        return np.where(inputs[:, :, 0, 0] > 0.5, np.nan, logits)

    runtime = WrappedRuntime(target, overflow)
    assert "non_finite_logits" in codes(judge(replace(target, runtime=runtime)))


def test_saturated_model_without_gradients_is_reported(
    make_target: MakeTarget, judge: Judge
) -> None:
    summary = judge(make_target(3, scale=1e5), name="fgsm")
    assert summary.models[0].attacks[0].robust.top1 > 0.5
    assert "zero_gradients" in codes(summary)


def test_randomised_model_is_reported(make_target: MakeTarget, judge: Judge) -> None:
    target, draw = make_target(3), np.random.default_rng(0)
    runtime = WrappedRuntime(target, lambda logits, _: logits + draw.normal(size=logits.shape) / 99)
    assert "randomised" in codes(judge(replace(target, runtime=runtime)))


def test_probabilities_in_place_of_logits_are_reported(
    make_target: MakeTarget, judge: Judge
) -> None:
    target = make_target(3)

    def softmax(logits: np.ndarray, _: np.ndarray) -> np.ndarray:
        return torch.from_numpy(logits).softmax(1).numpy()

    twin = Wrapped(target.require_twin(), lambda logits, _: logits.softmax(1))
    changed = replace(target, runtime=WrappedRuntime(target, softmax), twin=twin)
    assert codes(judge(changed)) == {"probabilities"}


def test_served_model_that_hides_behind_rounding_shows_a_transfer_gap(
    make_target: MakeTarget, judge: Judge
) -> None:
    target = make_target(3)
    coarse = WrappedRuntime(
        target, lambda _, inputs: target.runtime.predict(np.rint(inputs * 8) / 8)
    )
    summary = judge(replace(target, runtime=coarse))
    attack = summary.models[0].attacks[0]
    assert attack.transfer_gap == pytest.approx(attack.confirmed - attack.robust.top1)
    assert codes(summary) >= {"transfer_gap", "twin_differs"}


def test_accuracy_that_rises_with_eps_is_reported(make_target: MakeTarget, judge: Judge) -> None:
    target = make_target(3)

    def hide(logits: Tensor, images: Tensor) -> Tensor:
        far = (images - 0.5).abs().amax((1, 2, 3)) > 0.3
        return torch.where(far[:, None], logits.detach() * 0 + torch.tensor([9.0, 0, 0]), logits)

    found = codes(
        judge(replace(target, twin=Wrapped(target.require_twin(), hide)), eps=("0.05", "0.3"))
    )
    assert "accuracy_rises_with_eps" in found


def test_accuracy_that_cannot_be_is_reported(make_target: MakeTarget, judge: Judge) -> None:
    found = codes(judge(make_target(3, scale=1e5), eps=("0.6",), name="fgsm"))
    assert found >= {"impossible_accuracy", "zero_gradients"}
