"""`robustness.evaluate`: arrays in; arrays, accuracies and the report out."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import robustness
from tests.robustness.conftest import Rowwise

MODEL = Rowwise(num_classes=3)
IMAGES = np.random.default_rng(2).uniform(0.2, 0.8, (40, 1, 8, 8)).astype(np.float32)


def scores(images: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return MODEL.eval()(torch.from_numpy(images)).numpy()


LABELS = scores(IMAGES).argmax(1)
LABELS[:4] = (LABELS[:4] + 1) % 3


def test_a_module_gives_arrays_accuracies_and_the_report(tmp_path: Path) -> None:
    MODEL.train()
    pgd, fog = {"name": "pgd", "steps": 5}, {"name": "corruptions", "names": ["fog"]}
    found = robustness.evaluate(
        MODEL, IMAGES, LABELS, attacks=[pgd, {"name": "fab-t", "steps": 10}, fog],
        eps=["2/255", 0.1], folder=tmp_path, seed=3,
    )  # fmt: skip
    assert MODEL.training and found.not_tried == ""
    assert list(found.robust) == ["pgd 2/255", "pgd 0.1", "fab-t 2/255", "fab-t 0.1"]
    assert found.clean.value == 0.9 and found.clean.low < 0.9 < found.clean.high
    for name, made in found.adversarial.items():
        eps = 0.1 if name.endswith("0.1") else 2 / 255
        assert np.abs(made - IMAGES).max() <= eps + 1e-6
        held = (scores(made).argmax(1) == LABELS) & (scores(IMAGES).argmax(1) == LABELS)
        assert found.robust[name].value == held.mean()
    assert found.worst["0.1"].value <= min(found.robust[f"{n} 0.1"].value for n in ("pgd", "fab-t"))
    assert found.report.seed == 3 and "pgd" in str(found) and "<iframe" in found._repr_html_()
    assert (tmp_path / "report.json").is_file()


def test_without_labels_the_figures_are_about_stability() -> None:
    found = robustness.evaluate(MODEL, torch.from_numpy(IMAGES), attacks=["fgsm"], eps=0.1)
    assert found.report.summary.metric == "stability" and found.clean.value == 1


def torch_scores(images: Any) -> Any:
    return MODEL.eval()(images) if isinstance(images, torch.Tensor) else scores(images)


ASKED: list[dict[str, Any]] = [
    {"name": "square", "queries": 20},
    {"name": "hopskipjump", "queries": 100},
]


@pytest.mark.parametrize(
    ("model", "images", "tried", "said"),
    [
        (torch_scores, torch.from_numpy(IMAGES), {"fgsm", "square", "hopskipjump"}, ""),
        (torch_scores, IMAGES, {"square", "hopskipjump"}, "no gradients. Not tried: fgsm."),
        (lambda x: scores(x).argmax(1), IMAGES, {"hopskipjump"}, "tried: fgsm, square."),
    ],
)
def test_a_function_is_attacked_by_what_it_shows(
    model: Any, images: Any, tried: set[str], said: str
) -> None:
    found = robustness.evaluate(model, images, LABELS, attacks=["fgsm", *ASKED], eps=0.2)
    assert {name.split()[0] for name in found.robust} == tried
    assert said in found.not_tried and found.report.summary.reliable
    assert found.report.not_tried == ([found.not_tried] if said else [])
    expected = robustness.evaluate(MODEL, IMAGES, LABELS, attacks=ASKED, eps=0.2)
    for name in expected.robust.keys() & found.robust.keys():
        assert np.array_equal(found.adversarial[name], expected.adversarial[name])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": IMAGES * 255}, r"images must lie in \[0, 1\], got \[51"),
        ({"images": IMAGES[0]}, r"images must be \(N, C, H, W\) float, got \(1, 8, 8\)"),
        ({"labels": LABELS[:3]}, r"labels must be \(40,\) whole numbers, got \(3,\)"),
        ({"labels": LABELS + 1}, r"labels must be class indices in \[0, 3\)"),
        ({"classes": ["a", "b"]}, "classes must name 3 classes, got 2"),
        ({"attacks": ["pgdd"]}, "did you mean 'pgd'"),
        ({"attacks": ["pgd"], "eps": None}, "eps"),
        ({"model": scores}, "shows no gradients. Not tried: fgsm"),
        ({"model": lambda x: x}, r"model must answer with scores \(1, K\)"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(change: dict[str, Any], message: str) -> None:
    given = {"model": MODEL, "images": IMAGES, "labels": LABELS, "attacks": ["fgsm"], "eps": 0.1}
    given |= change
    with pytest.raises(ValueError, match=message):
        robustness.evaluate(given.pop("model"), given.pop("images"), given.pop("labels"), **given)


def test_the_examples_of_the_docs_run(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path("docs/guides/notebook.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, names)
    clean, not_tried = capsys.readouterr().out.splitlines()
    assert "Accuracy(value=" in clean and "Not tried: pgd, square. " in not_tried
    assert names["found"].adversarial["hopskipjump 8/255"].shape == (10, 1, 28, 28)


def test_probabilities_of_a_function_are_read_as_logits() -> None:
    def probabilities(images: np.ndarray) -> np.ndarray:
        return np.exp(scores(images)) / np.exp(scores(images)).sum(1, keepdims=True)

    given = {"attacks": [ASKED[0]], "eps": 0.2}
    plain, shown = (
        robustness.evaluate(f, IMAGES, LABELS, **given) for f in (scores, probabilities)
    )
    assert plain.robust == shown.robust and shown.report.summary.reliable


def test_a_class_that_nobody_named_is_told() -> None:
    def late(images: np.ndarray) -> np.ndarray:
        return np.where(images.mean((1, 2, 3)) > 0.9, 7, 0)

    with pytest.raises(ValueError, match="classes must name all classes, got class 7"):
        robustness.evaluate(late, IMAGES, attacks=[ASKED[1]], eps=0.1)
