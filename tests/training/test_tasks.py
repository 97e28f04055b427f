import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from data.sets import IGNORED
from training.samples import UNSCORED, Segments, StoredImages, StoredMasks
from training.tasks import Classification, Language, Segmentation


def samples(labels: list[int]) -> StoredImages:
    return StoredImages(np.zeros((len(labels), 1, 1, 1), np.uint8), np.array(labels))


def test_sums_over_batches_give_the_figures_of_all_samples() -> None:
    logits = torch.randn(20, 7, generator=torch.Generator().manual_seed(0))
    targets, task = torch.arange(20) % 7, Classification(7, label_smoothing=0.1)
    parts = zip(logits.split(6), targets.split(6), strict=True)
    figures = task.figures(sum((task.sums(*part) for part in parts), task.zeros))
    ranks = (logits > logits.gather(1, targets[:, None])).sum(1)
    expected = {
        "accuracy": float((ranks == 0).float().mean()),
        "loss": float(F.cross_entropy(logits, targets)),
        "top5_accuracy": float((ranks < 5).float().mean()),
    }
    assert figures == pytest.approx(expected)
    smooth = F.cross_entropy(logits, targets, label_smoothing=0.1)
    assert torch.equal(task.loss(logits, targets), smooth)
    task = Classification(5)
    assert task.figures(task.sums(logits[:, :5], targets % 5)).keys() == {"accuracy", "loss"}


def test_best_weights_are_those_of_the_accuracy_under_attack_or_of_the_loss() -> None:
    task, figures = Classification(2), {"accuracy": 0.9, "loss": 0.4}
    assert task.score(figures, "accuracy") == 0.9
    assert task.score(figures, "loss") == -0.4
    assert task.score(figures | {"attacked_accuracy": 0.5}, "accuracy") == 0.5


def test_floor_answers_the_commonest_class_of_the_training_split() -> None:
    train, test = samples([0, 0, 1, 1, 1]), samples([1, 0, 0, 0])
    assert Classification(2).floor(train, test) == {"majority_accuracy": 0.25}


def scenes() -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of five images and their masks, with pixels of no class and a class that is absent."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(5, 4, 6, 7, generator=generator)
    targets = torch.randint(0, 3, (5, 6, 7), generator=generator)
    return logits, targets.masked_fill(torch.rand(5, 6, 7, generator=generator) < 0.2, IGNORED)


def test_figures_of_masks_are_those_of_all_pixels_together() -> None:
    logits, targets = scenes()
    task = Segmentation(4, background=0)
    parts = zip(logits.split(2), targets.split(2), strict=True)
    figures = task.figures(sum((task.sums(*part) for part in parts), task.zeros))
    told = [
        (int(t), int(p))
        for t, p in zip(targets.flatten(), logits.argmax(1).flatten(), strict=True)
        if t != IGNORED
    ]
    iou, recall = [], []
    for k in range(4):
        both = sum(t == p == k for t, p in told)
        iou.append(both / sum(k in pair for pair in told))
        recall += [both / count] if (count := sum(t == k for t, _ in told)) else []
    expected = {
        "accuracy": sum(t == p for t, p in told) / len(told),
        "loss": float(F.cross_entropy(logits, targets, ignore_index=IGNORED)),
        "mean_class_accuracy": sum(recall) / 3,
        "mean_iou": sum(iou) / 4,
        "item_mean_iou": sum(iou[1:]) / 3,
    }
    assert figures == pytest.approx(expected)
    assert float(task.loss(logits, targets)) == pytest.approx(expected["loss"])
    assert "item_mean_iou" not in Segmentation(4).figures(task.sums(logits, targets))
    assert task.score(figures, "accuracy") == figures["mean_iou"]
    assert task.score(figures, "loss") == -figures["loss"]


def test_a_class_that_neither_occurs_nor_is_predicted_has_no_part_in_the_mean() -> None:
    logits, targets = scenes()
    logits[:, 3] = -100.0
    figures = Segmentation(4).figures(Segmentation(4).sums(logits, targets))
    same = Segmentation(3).figures(Segmentation(3).sums(logits[:, :3], targets))
    assert figures["mean_iou"] == pytest.approx(same["mean_iou"])


def test_masks_without_any_class_give_no_loss_and_no_gradient() -> None:
    logits = torch.randn(2, 3, 4, 4, requires_grad=True)
    loss = Segmentation(3).loss(logits, torch.full((2, 4, 4), IGNORED))
    loss.backward()
    assert loss == 0 and logits.grad is not None and (logits.grad == 0).all()


def test_floor_of_masks_answers_the_commonest_class_of_all_training_pixels() -> None:
    pixels = np.zeros((1, 1, 2, 3), np.uint8)
    train = StoredMasks(pixels, np.array([[[0, 1, 1], [IGNORED] * 3]], np.uint8))
    test = StoredMasks(pixels, np.array([[[1, 0, 0], [0, IGNORED, IGNORED]]], np.uint8))
    assert Segmentation(2).floor(train, test) == {"majority_accuracy": 0.25}


def test_language_figures_are_means_over_the_tokens_that_count() -> None:
    logits = torch.randn(4, 5, 7, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(20).view(4, 5) % 7
    targets[1, :3] = targets[3] = UNSCORED
    task = Language(characters=True, label_smoothing=0.1)
    parts = zip(logits.split(1), targets.split(1), strict=True)
    figures = task.figures(sum((task.sums(*part) for part in parts), task.zeros))
    counted = targets != UNSCORED
    loss = float(F.cross_entropy(logits[counted], targets[counted]))
    right = (logits.argmax(2) == targets)[counted].double().mean()
    assert figures == pytest.approx(
        {
            "accuracy": float(right),
            "loss": loss,
            "perplexity": math.exp(loss),
            "bits_per_character": loss / math.log(2),
            "tokens": 12,
        }
    )
    smooth = F.cross_entropy(logits[counted], targets[counted], label_smoothing=0.1)
    assert float(task.loss(logits, targets)) == pytest.approx(float(smooth))
    assert "bits_per_character" not in Language(characters=False).figures(task.zeros + 1)
    assert task.figures(torch.tensor([0.0, 1e9, 1.0]))["perplexity"] == math.inf
    assert task.score(figures, "loss") == -figures["loss"]


def segments(tokens: list[int], context: int = 2) -> Segments:
    stream = np.array(tokens, np.uint8)
    return Segments(stream, context=context, stride=context, vocab_size=3, whole=True)


def test_floor_of_a_language_is_how_often_each_token_was_seen() -> None:
    floor = Language(characters=False).floor(segments([0, 0, 0, 0, 1]), segments([0, 0, 2]))
    assert floor == pytest.approx({"unigram_perplexity": math.exp(math.log(8 / 5 * 8) / 2)})
