"""Signs of a false figure that models of texts can show."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data.sets import TextSet
from robustness.evaluation import evaluate
from robustness.spec import EvaluationSpec
from robustness.text_target import TextTarget
from runtimes.base import Inputs, Runtime

SPEC = EvaluationSpec.model_validate(
    {"attacks": [{"name": "hotflip", "edits": [1, 2], "queries": 50}, {"name": "word-swap"}]}
)


class Faulty:
    """Serves another runtime's logits, changed by one fault."""

    name, precision = "faulty", "fp32"

    def __init__(self, inner: Runtime, fault: str) -> None:
        self.inner, self.fault = inner, fault
        self.draw = np.random.default_rng(0)

    def predict(self, inputs: Inputs) -> np.ndarray:
        assert isinstance(inputs, Mapping)
        logits = self.inner.predict(inputs)
        match self.fault:
            case "padded length counts":
                return logits / np.float32(inputs["tokens"].shape[1] ** 0.5)
            case "noise":
                return logits + self.draw.normal(size=logits.shape).astype(np.float32) / 100
            case "probabilities":
                shares = np.exp(logits - logits.max(axis=1, keepdims=True))
                return shares / shares.sum(axis=1, keepdims=True)
            case "constant":
                return np.zeros_like(logits)
            case _:
                return logits


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("none", set()),
        ("padded length counts", {"depends_on_batch"}),
        ("noise", {"randomised"}),
        ("probabilities", {"probabilities"}),
        ("constant", {"constant_output"}),
    ],
)
def test_a_fault_raises_its_warning(
    fault: str, expected: set[str], bag: TextTarget, texts: list[str], tmp_path: Path
) -> None:
    target = replace(bag, runtime=Faulty(bag.runtime, fault))
    inputs = TextSet(
        names=[f"{i}.txt" for i in range(len(texts))],
        labels=None,
        label_names=None,
        description="made",
        reader=lambda i: texts[i],
    )
    summary = evaluate(SPEC, [target], inputs, tmp_path).summary
    found = {warning.code for warning in summary.warnings}
    assert found - {"twin_differs", "transfer_gap"} == expected
    assert found == expected or fault == "constant"  # its PyTorch model, which is sound, differs
