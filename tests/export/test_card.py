import copy
import json

from export.card import make_card, render, write_card
from runtimes.artifact import Artifact, open_artifact

RESULT = {
    "metric": "accuracy",
    "data": "fashion-mnist",
    "warnings": ["one warning"],
    "name": "tiny-elliptical",
    "runtime": "onnx-cpu",
    "samples": 100,
    "clean": {"top1": 0.9, "ci": [0.83, 0.94]},
    "attacks": [
        {
            "name": "pgd",
            "norm": "Linf",
            "eps": "4/255",
            "robust": {"top1": 0.31, "ci": [0.23, 0.41]},
            "confirmed": 0.31,
            "confirmed_8bit": 0.32,
            "transfer_gap": 0.0,
        }
    ],
}


def test_card_of_a_model_that_was_not_scored_says_so(artifact: Artifact) -> None:
    assert artifact.card == json.loads((artifact.folder / "card.json").read_text())
    assert artifact.card == make_card(artifact)
    assert "card.json" not in artifact.manifest.files
    text = render(make_card(artifact))
    assert text.startswith("# tiny-elliptical 1\n")
    assert "elliptical attention" in text
    assert "Not scored yet." in text
    assert artifact.digest in text
    assert "| test_accuracy | 0.25 |" in text


def test_card_shows_accuracy_under_attack(reopened: Artifact) -> None:
    card = make_card(reopened, robustness=RESULT)
    write_card(reopened.folder, card)
    assert open_artifact(reopened.folder).card == card
    text = (reopened.folder / "card.md").read_text()
    assert "Scored on 100 images of fashion-mnist (onnx-cpu)." in text
    assert "**Unreliable:** one warning" in text
    assert "| clean |  | 90.0% (83.0% to 94.0%) |  |  |" in text
    assert "| pgd | 4/255 | 31.0% (23.0% to 41.0%) | 31.0% | 32.0% |" in text


def test_card_shows_precision_runtime_and_accuracy_of_every_graph(artifact: Artifact) -> None:
    card = copy.deepcopy(make_card(artifact))
    assert "in fp32" not in render(card)
    card["parity"]["accuracy"] = 0.5
    for figures in card["parity"]["formats"].values():
        figures.update(runtime=None, accuracy=None, max_abs_diff=0.0, top1_mismatches=0)
    graph = card["parity"]["formats"]["model.onnx"]
    graph.update(precision="bf16", runtime="openvino", accuracy=0.499, top1_mismatches=3)
    text = render(card)
    assert "| eager model | fp32 |  |  |  | 50.00% |" in text
    assert "| model.onnx | bf16 | openvino | 0.0e+00 | 3 | 49.90% |" in text
    assert "| model.torchscript.pt | fp32 |  | 0.0e+00 | 0 |  |" in text
    assert "Training measured these in fp32, not on model.onnx, which is bf16" in text
