"""Evaluate a model on a split: accuracy and loss, clean or attacked."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from training.distributed import Processes
from training.draws import Draws, source
from training.objective import attack
from training.recipe import AdversarialRecipe
from training.samples import Samples

ATTACKED = 1000
"""Images of a split that an adversarial recipe attacks."""
_BATCH, _TOKENS = 500, 64_000
"""Samples and tokens of one batch, at most."""


def evaluate(
    model: nn.Module,
    samples: Samples,
    processes: Processes,
    *,
    adversarial: AdversarialRecipe | None = None,
    progress: str | None = None,
) -> dict[str, float]:
    """Measure a model in eval mode, on several processes together.

    Args:
        model: the classifier; it is left in eval mode.
        samples: the split; of an attacked one the first 1,000 images.
        processes: among which the samples are shared.
        adversarial: the attack (its seed is fixed), or None for clean samples.
        progress: what to call this on a progress bar; None shows none.

    Returns:
        `accuracy` and, of clean samples, `loss`, and `top5_accuracy` where there are more than five
        classes.
    """
    model.eval()
    count = len(samples.labels) if adversarial is None else min(ATTACKED, len(samples.labels))
    own = np.arange(count)[processes.rank :: processes.size]
    sums = torch.zeros(3, dtype=torch.float64)
    classes = 0
    bar = tqdm(desc=progress, total=len(own), unit="sample", leave=False, disable=progress is None)
    for indices in _batches(own, samples.lengths):
        labels = torch.from_numpy(samples.labels[indices]).to(processes.device)
        inputs = to_model(samples.batch(indices), processes.device)
        if adversarial is not None:
            draws = Draws(source(0, "attack", int(indices[0])), len(indices))
            noise = draws.uniform(*inputs[0].shape[1:]).to(processes.device)
            inputs = (attack(model, inputs[0], labels, adversarial, noise),)
        with torch.inference_mode():
            logits = model(*inputs)
            sums += _sums(logits, labels)
        classes = logits.shape[1]
        bar.update(len(indices))
    bar.close()
    correct, loss, top5 = (processes.sum(sums) / count).tolist()
    if adversarial is not None:
        return {"accuracy": correct}
    return {"accuracy": correct, "loss": loss} | ({"top5_accuracy": top5} if classes > 5 else {})


def predict(
    model: nn.Module, samples: Samples, device: torch.device, *, progress: str | None = None
) -> np.ndarray:
    """The class that a model gives each sample, in eval mode.

    Args:
        model: the classifier, on the device; it is left in eval mode.
        samples: what to classify.
        device: where to compute.
        progress: what to call this on a progress bar; None shows none.

    Returns:
        (N,) int64 in the order of the samples.
    """
    model.eval()
    found = np.empty(len(samples.labels), np.int64)
    with tqdm(desc=progress, total=len(found), unit="sample", disable=progress is None) as bar:
        for indices in _batches(np.arange(len(found)), samples.lengths):
            with torch.inference_mode():
                logits = model(*to_model(samples.batch(indices), device))
            found[indices] = logits.argmax(1).cpu().numpy()
            bar.update(len(indices))
    return found


def to_model(inputs: tuple[Tensor, ...], device: torch.device) -> tuple[Tensor, ...]:
    """Bring a batch to the device; pixels become numbers in [0, 1]."""
    moved = (each.to(device, non_blocking=True) for each in inputs)
    return tuple(each.float() / 255 if each.dtype == torch.uint8 else each for each in moved)


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
