import numpy as np
import pytest
import torch
from torch.nn import functional as F

from training.samples import StoredImages
from training.tasks import Classification


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
