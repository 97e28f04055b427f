"""How much faster is TransJect than a dot-product transformer on long sequences?

Both have L = 2 and d = 512; the transformer has 8 heads, an MLP of 2048 and, as in the paper's
comparison, scores of N x N that are written to memory: softmax(Q K' / sqrt(D)) V, one operation
after the other. Both read the same text at batch 1, eager, on all cores, and are measured in turn;
a ratio is the median over pairs. TransJect is folded. The ratio against torch's fused attention
stands beside it, and the precision of both sides in every row.

What bf16 matrices cost in answers is measured on a model that was trained for the occasion: it says
from which package of Python's standard library a window of bytes comes.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

import models
from benchmarks.pairs import measure_pairs, pair_rows
from benchmarks.rows import Row
from benchmarks.standard_library import PACKAGES, windows
from export.threads import available_cores
from models.elliptical import Attention
from models.metric import attention_weights
from models.transject import Layer, TransJect
from robustness.intervals import wilson

NAME = "transject_speedup"
LENGTHS = (1024, 2048, 3072, 4096)
TARGETS = {"fp32": (4.0, 6.5, 8.5, 9.5), "bf16": (5.0, 9.6, 12.8, 26.3)}  # bf16: the paper's curve
AGREEMENT_TARGET = 0.999
_PAIRS = (25, 15, 11, 9)
_STEPS, _BATCH, _WINDOW, _LR = 100, 8, 192, 1e-3
_COMPARED = 400  # windows of every length
_SIZE = {"embed_dim": 512, "depth": 2, "vocab_size": 256, "num_classes": len(PACKAGES)}


def run() -> Iterable[Row]:
    """Compare at 1k to 4k tokens: with four experts, with fixed eigenvalues, with one expert."""
    threads_before = torch.get_num_threads()
    torch.set_num_threads(available_cores())
    try:
        for length, targets, count in zip(
            LENGTHS, zip(*TARGETS.values(), strict=True), _PAIRS, strict=True
        ):
            yield from _speed(length, dict(zip(TARGETS, targets, strict=True)), count)
        yield from _agreement()
    finally:
        torch.set_num_threads(threads_before)


def _speed(length: int, targets: dict[str, float], count: int) -> Iterator[Row]:
    tokens, _ = next(windows(length, 1, train=False, seed=0))
    fused, materialised = _transformer(length), _materialise(_transformer(length))
    four = _transject("transject", length)
    fixed, one = _transject("transject_random", length), _transject("transject", length, experts=1)
    cases: list[tuple[str, nn.Module, torch.dtype, float | None]] = [
        ("TransJect E=4 fp32", four, torch.float32, targets["fp32"]),
        ("TransJect E=4 bf16 matrices", four, torch.bfloat16, targets["bf16"]),
        ("Random-TransJect E=4 fp32", fixed, torch.float32, None),
        ("TransJect E=1 fp32", one, torch.float32, None),
    ]
    for label, model, dtype, target in cases:
        ours = _caller(models.fold(model, dtype=dtype), tokens)
        for name, other, goal in (
            ("materialised transformer fp32", materialised, target),
            ("fused transformer fp32", fused, None),
        ):
            yield from pair_rows(
                NAME,
                f"{length} tokens, batch 1, {available_cores()} thread(s)",
                (label, name),
                measure_pairs(ours, _caller(other, tokens), count),
                target=goal,
                better="higher",
            )


def _agreement() -> Iterator[Row]:
    """Share of equal answers of bf16 and fp32 matrices, and the accuracy of both."""
    model = _train()
    counts = torch.zeros(3)
    for length in LENGTHS:
        exact, low = (
            models.fold(_transject("transject", length, weights=model), dtype=dtype)
            for dtype in (torch.float32, torch.bfloat16)
        )
        batches = windows(length, 1, train=False, seed=1)
        for _ in tqdm(range(_COMPARED), desc=f"answers at {length}", unit="window"):
            tokens, label = next(batches)
            first, second = (_caller(each, tokens)().argmax(1) for each in (exact, low))
            counts += torch.tensor([first == second, first == label, second == label])
    total = len(LENGTHS) * _COMPARED
    agreement, fp32, bf16 = (counts / total).tolist()
    case = f"TransJect E=4, {total} windows of {LENGTHS[0]} to {LENGTHS[-1]} bytes"
    for label, share, target in (
        ("equal argmax, bf16 and fp32 matrices", agreement, AGREEMENT_TARGET),
        ("accuracy, fp32 matrices", fp32, None),
        ("accuracy, bf16 matrices", bf16, None),
    ):
        yield Row(
            name=NAME,
            case=f"{case}, {label}",
            measured=round(share, 5),
            unit="share",
            better="higher",
            target=target,
            samples=total,
            spread=wilson(round(share * total), total),
        )


def _train() -> TransJect:
    model = _transject("transject", _WINDOW)
    optimizer = torch.optim.Adam(model.parameters(), lr=_LR, betas=(0.9, 0.98), eps=1e-9)
    batches = windows(_WINDOW, _BATCH, train=True, seed=0)
    for _ in (bar := tqdm(range(_STEPS), desc="training", unit="step")):
        tokens, labels = next(batches)
        logits, reconstruction = model.logits_and_reconstruction(tokens)
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        (loss + reconstruction).backward()
        optimizer.step()
        bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
    return model


def _transject(
    name: str, length: int, *, experts: int = 4, weights: nn.Module | None = None
) -> TransJect:
    torch.manual_seed(0)
    model = cast(TransJect, models.build(name, seq_len=length, num_experts=experts, **_SIZE).eval())
    if weights is not None:
        model.load_state_dict(weights.state_dict())
        return model
    with torch.no_grad():
        for layer in model.encoder.layers:
            cast(Layer, layer).r.fill_(
                0.5
            )  # at zero, where training usually begins, layers are identities
    return model


def _transformer(length: int) -> nn.Module:
    torch.manual_seed(0)
    return models.build("transformer", seq_len=length, num_heads=8, **_SIZE).eval()


class _Materialised(nn.Module):
    """An attention layer that writes its N x N weights to memory."""

    def __init__(self, layer: Attention) -> None:
        super().__init__()
        self.layer = layer

    def forward(
        self, x: Tensor, v_prev: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `Attention.forward`."""
        q, k, v = self.layer.project(x, v_prev, mask)
        attended = attention_weights(q, k, mask) @ v
        return self.layer.proj(attended.transpose(1, 2).reshape(x.shape)), v


def _materialise(model: nn.Module) -> nn.Module:
    for name, layer in list(model.named_modules()):
        if isinstance(layer, Attention):
            model.set_submodule(name, _Materialised(layer))
    return model


def _caller(model: nn.Module, tokens: Tensor) -> Callable[[], Tensor]:
    return torch.inference_mode()(lambda: model(tokens))
