"""What does the cache of generation save? 256 tokens with it and without.

The small language model (16 layers, width 128, feed-forwards of 2048) with a softmax over 1,000
words continues prompts of one token, one of them or eight together. Without the cache the model
reads all tokens so far again for each new one. One thread, processor time in turn; a ratio is the
median over pairs, its spread the interval of the median at 95 %.
"""

from collections.abc import Iterable
from functools import partial
from time import process_time

import torch
from torch import Tensor

import models
from benchmarks.support.pairs import in_turn, pair_rows, torch_threads
from benchmarks.support.rows import Row
from models.inference.generate import generate
from models.language import LanguageModel

_TARGET = 30
_WORDS = 1000
_NAMES: tuple[str, ...] = ("lm_small", "lm_small_elliptical")
_BATCHES: tuple[int, ...] = (1, 8)


def run(
    names: tuple[str, ...] = _NAMES,
    batches: tuple[int, ...] = _BATCHES,
    tokens: int = 256,
    pairs: int = 3,
) -> Iterable[Row]:
    """Compare generation with and without the cache.

    Args:
        names: of models.
        batches: prompts that are continued together.
        tokens: that are added.
        pairs: how many runs of each.
    """
    with torch_threads(1):
        for name in names:
            torch.manual_seed(0)
            model = models.build(name, vocab_size=_WORDS).eval().requires_grad_(False)
            if not isinstance(model, LanguageModel):
                raise TypeError(f"{name} must be a language model, got {type(model)}")
            for size in batches:
                prompt = torch.arange(size)[:, None]
                cached, recomputed = (
                    partial(_seconds, model, prompt, tokens, cache) for cache in (True, False)
                )
                generate(model, prompt, count=1)  # a warm-up
                found = [*in_turn(cached, recomputed, pairs)]
                case = f"{tokens} tokens of {name}, batch {size}, 1 thread, processor time"
                labels = ("cached", "recomputed")
                yield from pair_rows(case, labels, found, target=_TARGET, better="higher")


def _seconds(model: LanguageModel, prompt: Tensor, tokens: int, cache: bool) -> float:
    began = process_time()
    generate(model, prompt, count=tokens, cache=cache)
    return process_time() - began
