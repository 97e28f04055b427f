"""Evaluate a model on a split: accuracy and loss, clean or attacked."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from core.progress import Bar
from training.distributed import Processes
from training.draws import Draws, source
from training.objective import attack
from training.recipe import AdversarialRecipe
from training.samples import Samples, to_model

ATTACKED = 1000
"""Images of a split that an adversarial recipe attacks."""
_BATCH, _TOKENS = 500, 16_000  # of one batch, at most


def evaluate(
    model: nn.Module,
    samples: Samples,
    processes: Processes,
    *,
    adversarial: AdversarialRecipe | None = None,
    count: int | None = None,
    progress: str | None = None,
) -> dict[str, float]:
    """Measure a model in eval mode, on several processes together.

    Args:
        model: the classifier; it is left in eval mode.
        samples: the split.
        processes: among which the samples are shared.
        adversarial: an attack (its seed is fixed) on the first 1,000 images; None does none.
        count: of the first samples; None, or more than there are, takes all.
        progress: what to call this on a progress bar; None shows none.

    Returns:
        `accuracy` and `loss`, `top5_accuracy` where there are more than five classes, and
        `attacked_accuracy` where there is an attack.
    """

    def means(count: int, attack_: AdversarialRecipe | None) -> tuple[list[float], int]:
        """Means over the first `count` samples, see `_sums`, and the number of classes."""
        own = np.arange(count)[processes.rank :: processes.size]
        sums, classes = torch.zeros(3, dtype=torch.float64), 0
        for _, logits, labels in _answers(model, samples, own, processes.device, attack_, progress):
            sums += _sums(logits, labels)
            classes = logits.shape[1]
        return (processes.sum(sums) / count).tolist(), classes

    total = len(samples.labels) if count is None else min(count, len(samples.labels))
    (correct, loss, top5), classes = means(total, None)
    figures = {"accuracy": correct, "loss": loss} | ({"top5_accuracy": top5} if classes > 5 else {})
    if adversarial is not None:
        attacked, _ = means(min(ATTACKED, total), adversarial)
        figures["attacked_accuracy"] = attacked[0]
    return figures


def predict(
    model: nn.Module, samples: Samples, device: torch.device, *, progress: str | None = None
) -> np.ndarray:
    """The class that a model gives each sample, (N,) int64; see `evaluate`."""
    found = np.empty(len(samples.labels), np.int64)
    for own, logits, _ in _answers(model, samples, np.arange(len(found)), device, None, progress):
        found[own] = logits.argmax(1).cpu().numpy()
    return found


def _answers(
    model: nn.Module,
    samples: Samples,
    indices: np.ndarray,
    device: torch.device,
    adversarial: AdversarialRecipe | None,
    progress: str | None,
) -> Iterator[tuple[np.ndarray, Tensor, Tensor]]:
    """Of samples, batch by batch: their indices, logits and labels."""
    model.eval()
    options = {"unit": "sample", "leave": False, "disable": progress is None}
    with Bar(desc=progress, total=len(indices), **options) as bar:
        for own in _batches(indices, samples.lengths):
            labels = torch.from_numpy(samples.labels[own]).to(device)
            inputs = to_model(samples.batch(own), device)
            if adversarial is not None:
                draws = Draws(source(0, "attack", int(own[0])), len(own))
                noise = draws.uniform(*inputs[0].shape[1:]).to(device)
                inputs = (attack(model, inputs[0], labels, adversarial, noise),)
            with torch.inference_mode():
                logits = model(*inputs)
            yield own, logits, labels
            bar.update(len(own))


def _batches(indices: np.ndarray, lengths: np.ndarray | None) -> Iterator[np.ndarray]:
    """Batches of at most 500 samples; sequences by length, so that little of them is padding."""
    if lengths is None:
        yield from (indices[start : start + _BATCH] for start in range(0, len(indices), _BATCH))
        return
    ordered = indices[np.argsort(lengths[indices], kind="stable")]
    while len(ordered):
        size = min(_BATCH, len(ordered))
        while size > 1 and size * lengths[ordered[size - 1]] > _TOKENS:
            size = size // 2
        yield ordered[:size]
        ordered = ordered[size:]


def _sums(logits: Tensor, labels: Tensor) -> Tensor:
    """Number right, sum of the losses, number among the first five: (3,) float64."""
    best = logits.topk(min(5, logits.shape[1])).indices == labels[:, None]
    loss = F.cross_entropy(logits.float(), labels, reduction="sum")
    return torch.stack((best[:, 0].sum(), loss, best.sum())).double().cpu()
