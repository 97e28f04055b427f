"""Signs of a false figure that models of texts can show."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax

from data.sets import TextSet
from robustness.evaluation import evaluate
from robustness.spec import EvaluationSpec
from robustness.text_target import TextTarget
from runtimes.base import Inputs, Runtime

SPEC = EvaluationSpec.model_validate(
    {"attacks": [{"name": "hotflip", "edits": [1, 2], "queries": 50}, {"name": "word-swap"}]}
)


DRAW = np.random.default_rng(0)
Fault = Callable[[np.ndarray, int], np.ndarray]


class Faulty:
    """Serves another runtime's logits, changed by a fault that knows the padded length."""

    name, precision = "faulty", "fp32"

    def __init__(self, inner: Runtime, fault: Fault) -> None:
        self.inner, self.fault = inner, fault

    def predict(self, inputs: Inputs) -> np.ndarray:
        assert isinstance(inputs, Mapping)
        changed = self.fault(self.inner.predict(inputs), inputs["tokens"].shape[1])
        return changed.astype(np.float32)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (lambda logits, _: logits, set()),
        (lambda logits, length: logits / length**0.5, {"depends_on_batch"}),
        (lambda logits, _: logits + DRAW.normal(size=logits.shape) / 100, {"randomised"}),
        (lambda logits, _: softmax(logits, axis=1), {"probabilities"}),
        (lambda logits, _: 0 * logits, {"constant_output"}),
    ],
)
def test_a_fault_raises_its_warning(
    fault: Fault, expected: set[str], bag: TextTarget, texts: list[str], tmp_path: Path
) -> None:
    target = replace(bag, runtime=Faulty(bag.runtime, fault))
    inputs = TextSet(
        names=texts, labels=None, label_names=None, description="made", reader=lambda i: texts[i]
    )
    summary = evaluate(SPEC, [target], inputs, tmp_path).summary
    found = {warning.code for warning in summary.warnings}
    assert found - {"copy_differs", "transfer_gap"} == expected
    # What is constant differs from its PyTorch model, which is sound.
    assert found == expected or "constant_output" in expected
