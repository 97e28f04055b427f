"""How a run's text model answers when words of the test set are swapped."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from core.stats import mcnemar, wilson
from data.sources import open_texts
from data.tokenizer import load_tokenizer, tokenize
from robustness.attacks.word_swap import swap_words
from training import run as records
from training.distributed import Processes
from training.recipe import TextData
from training.run import trained_model
from training.samples import Sequences
from training.task import some
from training.validation import predict


def evaluate_swapped(
    folder: Path, *, rate: float, seed: int, count: int | None = None, progress: bool = False
) -> dict[str, Any]:
    """Evaluate the best weights of a run on test texts as they are, and with words swapped.

    Args:
        folder: of a run on texts.
        rate: share of the words, see `robustness.attacks.word_swap`.
        seed: of the swaps.
        count: test texts, drawn by a fixed seed; None takes all.
        progress: show progress bars.

    Returns:
        `clean`, `swapped`, and `robust`, the share right on both, each with its interval; and
        McNemar's `p_value` for clean and swapped being alike.

    Raises:
        ValueError: the folder holds no run on texts, or its data cannot be read.
    """
    recipe = records.recorded_recipe(folder)
    data = recipe.data
    if not isinstance(data, TextData):
        raise ValueError(f"{folder.name} must be a run on texts, got data of {data.source}")
    texts = open_texts(data.source, split="test", own_split=True, label_names=recipe.labels)
    texts = texts.take(some(len(texts), count))
    tokenizer = load_tokenizer(folder / records.TOKENIZER)
    device = Processes().device
    model = trained_model(folder, recipe).to(device)

    def right(name: str, share: float) -> np.ndarray:
        swapped = texts.changed(partial(swap_words, rate=share, seed=seed))
        samples = Sequences(tokenize(swapped, tokenizer, max_len=data.max_len))
        shown = f"{folder.name}, {name}" if progress else None
        return predict(model, samples, device, progress=shown) == samples.labels

    clean, swapped = right("clean", 0.0), right("swapped", rate)
    asked = {"rate": rate, "seed": seed, "samples": len(texts)}
    return asked | {
        "clean": _figure(clean),
        "swapped": _figure(swapped),
        "robust": _figure(clean & swapped),
        "p_value": mcnemar(int((clean & ~swapped).sum()), int((swapped & ~clean).sum())),
    }


def _figure(right: np.ndarray) -> dict[str, Any]:
    return {"top1": float(right.mean()), "ci": wilson(int(right.sum()), len(right))}
