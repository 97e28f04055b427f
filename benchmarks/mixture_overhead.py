"""What do experts cost? Mixtures over the dense language model with equal active parameters.

The small language model (16 layers, width 128, feed-forwards of 2048) on sequences of 256 tokens,
its feed-forwards dense, or 8 experts by Switch or GLaM with the default room. Eager: the blocks
without the softmax over words; exported: with a softmax over 1,000 words, on ONNX Runtime. One
thread, processor time of forward passes in turn and in alternating order; a ratio is the median
over pairs, its spread the interval of the median at 95 %.
"""

import time
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

import models
from benchmarks.support.pairs import in_turn, pair_rows, torch_threads
from benchmarks.support.rows import Row
from export.onnx import to_onnx
from models.language import LanguageModel
from runtimes.onnx import open_session

_TARGET = 1.3
_WORDS, _TOKENS, _WARM_UP = 1000, 256, 2
_KINDS: tuple[str, ...] = ("switch", "glam")
_BATCHES: tuple[int, ...] = (1, 8)
Call = Callable[[], object]


def run(
    kinds: tuple[str, ...] = _KINDS, batches: tuple[int, ...] = _BATCHES, pairs: int = 21
) -> Iterable[Row]:
    """Compare each kind of mixture with the dense model.

    Args:
        kinds: of mixtures.
        batches: sequences of a forward pass.
        pairs: how many runs of each.
    """
    with torch_threads(1), torch.inference_mode():
        dense = _model(None)
        graph = _exported(dense)
        for kind in kinds:
            model = _model(kind)
            mixture = _exported(model)
            for size in batches:
                tokens = _tokens(size)
                both = (_features(dense, tokens), _features(model, tokens))
                yield from _rows(f"eager, batch {size}", kind, both, pairs)
                calls = (graph(tokens), mixture(tokens))
                yield from _rows(f"ONNX Runtime, batch {size}", kind, calls, pairs)


def _rows(case: str, kind: str, calls: tuple[Call, Call], count: int) -> Iterator[Row]:
    first, second = ((lambda call=call: _seconds(call)) for call in calls)
    pairs = [*in_turn(first, second, _WARM_UP + count)][_WARM_UP:]
    about = f"language model of {_TOKENS} tokens, {case}, 1 thread, processor time"
    yield from pair_rows(about, ("dense", kind), pairs, target=_TARGET)


def _seconds(call: Call) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def _model(kind: str | None) -> LanguageModel:
    torch.manual_seed(0)
    model = models.build("lm_small", vocab_size=_WORDS, experts=kind)
    if not isinstance(model, LanguageModel):
        raise TypeError(f"lm_small must be a language model, got {type(model)}")
    return model.eval().requires_grad_(False)


def _tokens(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(0, _WORDS, (count, _TOKENS), generator=generator)


def _features(model: LanguageModel, tokens: Tensor) -> Call:
    return lambda: model.features(tokens)


def _exported(model: LanguageModel) -> Callable[[Tensor], Call]:
    tokens = _tokens(2)
    session = open_session(to_onnx(model, (tokens, torch.ones_like(tokens).bool()), {}), threads=1)

    def calls(tokens: Tensor) -> Call:
        """What runs the graph on tokens."""
        feed = {"tokens": tokens.numpy(), "mask": torch.ones_like(tokens).bool().numpy()}
        return lambda: session.run(["logits"], feed)

    return calls
