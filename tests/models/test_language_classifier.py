"""Classifiers made from language models: their blocks, their weights."""

from pathlib import Path
from typing import Any

import pytest
import torch

import models
from models.checkpoints import load_first_weights, save_weights
from models.language_classifier import LanguageClassifier
from tests.models.small import padding, small

VARIANTS: list[dict[str, Any]] = [
    {},
    {"attention": "elliptical"},
    {"experts": "switch"},
    {"attention": "elliptical", "experts": "glam"},
]
every_variant = pytest.mark.parametrize("overrides", VARIANTS)


@every_variant
def test_logits_are_of_the_mean_of_what_a_language_model_makes_of_the_tokens(
    overrides: dict[str, Any], tmp_path: Path
) -> None:
    language = small("lm_small", **overrides)
    classifier = small("lm_classifier", **overrides)
    save_weights(language, tmp_path / "language.safetensors")
    load_first_weights(classifier, tmp_path / "language.safetensors")
    tokens = torch.randint(11, (3, 9), generator=torch.Generator().manual_seed(0))
    lengths = [9, 1, 4]
    logits = classifier(tokens, padding(lengths, 9))
    for row, length, found in zip(tokens, lengths, logits, strict=True):
        mean = language.features(row[None, :length])[0].mean(0)
        assert (classifier.head(mean) - found).abs().max() <= 1e-10


def test_training_starts_from_a_language_model_or_from_its_own_weights(tmp_path: Path) -> None:
    language = small("lm_small", cutoffs=(4, 7))  # whose softmax is left behind
    save_weights(language, tmp_path / "language.safetensors")
    classifier, path = small("lm_classifier"), tmp_path / "own.safetensors"
    head = classifier.head.weight.clone()
    load_first_weights(classifier, tmp_path / "language.safetensors")
    assert torch.equal(classifier.head.weight, head)
    assert torch.equal(classifier.token_embed.weight, language.token_embed.weight)
    save_weights(classifier, path)
    again = small("lm_classifier")
    load_first_weights(again, path)
    own = classifier.state_dict()
    assert all(torch.equal(value, own[key]) for key, value in again.state_dict().items())
    with pytest.raises(ValueError, match=r"language.safetensors does not fit .*mlp.fc1.weight"):
        load_first_weights(small("lm_classifier", experts="switch"), path.with_stem("language"))
    with pytest.raises(ValueError, match=r"token_embed.weight must be \(12, 16\), got \(11, 16\)"):
        load_first_weights(small("lm_classifier", vocab_size=12), tmp_path / "language.safetensors")


def test_values_against_the_rules_are_refused() -> None:
    assert isinstance(small("lm_classifier_elliptical"), LanguageClassifier)
    with pytest.raises(ValueError, match=r"cutoffs must be \(\) in a classifier, got \(9,\)"):
        models.config("lm_classifier", cutoffs=(9,))
    with pytest.raises(ValueError, match="num_classes must be at least 1, got 0"):
        models.config("lm_classifier", num_classes=0)
    with pytest.raises(ValueError, match="attention must be causal in a language model"):
        models.config("lm_classifier", attention="linformer")
