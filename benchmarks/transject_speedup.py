"""How much faster is TransJect than a dot-product transformer on long sequences?

Both have L = 2 and d = 512 and read the same text as bytes (256 token ids) at batch 1, eager, on
all cores; the transformer has 8 heads and an MLP of 2048. TransJect is folded. They are measured in
turn; a ratio is the median over pairs. The paper leaves its own setting open, so ours is said in
full. The transformer's attention comes in three forms:

- "materialised": torch's own reference of attention, its math backend, which writes N x N weights;
- "scaled first": the same written out in its cheapest form, softmax((Q / sqrt(D)) K') V;
- "fused": torch's fused kernel, which writes no weights.

What bf16 matrices cost in answers is measured on a model that was trained for the occasion: it says
from which package of Python's standard library a window of bytes comes.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from tqdm import tqdm

import models
from benchmarks.support.long_models import (
    PACKAGES,
    disjoint_windows,
    transformer,
    transject,
    windows,
)
from benchmarks.support.pairs import measure_pairs, pair_rows, torch_threads
from benchmarks.support.rows import Row, figure
from core.stats import wilson
from models.attention.elliptical import Attention
from models.transject import TransJect
from runtimes.threads import available_cores

_PLANS = {
    1024: (4.0, 5.0, 25),
    2048: (6.5, 9.6, 15),
    3072: (8.5, 12.8, 11),
    4096: (9.5, 26.3, 9),
}
"""By length: the ratios to reach in fp32 and, on the paper's curve, in bf16; and pairs."""
AGREEMENT_TARGET = 0.999
_STEPS, _BATCH, _WINDOW, _LR = 60, 8, 192, 1e-3
_FITTED, _FITTED_LENGTH, _RIDGE = 800, 1024, 1e-3  # windows that the classifier is fitted to
_COMPARED = 250  # windows of every length


def run() -> Iterable[Row]:
    """Compare at 1k to 4k tokens: with four experts, with fixed eigenvalues, with one expert."""
    with torch_threads(available_cores()):
        for length, (fp32, bf16, count) in _PLANS.items():
            yield from _speed(length, {"fp32": fp32, "bf16": bf16}, count)
        yield from _answers()


def _speed(length: int, targets: dict[str, float], count: int) -> Iterator[Row]:
    tokens, _ = next(windows(length, 1, train=False, seed=0))
    four = transject("transject", length)
    fused = transformer(length)
    materialised = _with_attention(fused, _Reference)
    against = [
        ("materialised transformer fp32", materialised),
        ("scaled-first transformer fp32", _with_attention(fused, _ScaledFirst)),
        ("fused transformer fp32", fused),
    ]
    low = [("materialised transformer bf16", copy.deepcopy(materialised).bfloat16())]
    cases: list[tuple[str, nn.Module, float | None, list[tuple[str, nn.Module]]]] = [
        ("TransJect E=4 fp32", models.fold(four), targets["fp32"], against),
        (
            "TransJect E=4 bf16 matrices",
            models.fold(four, dtype=torch.bfloat16),
            targets["bf16"],
            against[:1] + low + against[2:],
        ),
        (
            "Random-TransJect E=4 fp32",
            models.fold(transject("transject_random", length)),
            None,
            against[:1],
        ),
        ("TransJect E=1 fp32", models.fold(transject("transject", length, 1)), None, against[:1]),
    ]
    for label, ours, target, others in cases:
        for index, (name, other) in enumerate(others):
            yield from pair_rows(
                f"{length} tokens, batch 1, {available_cores()} thread(s)",
                (label, name),
                measure_pairs(_caller(ours, tokens), _caller(other, tokens), count),
                target=None if index else target,
                better="higher",
            )


def _answers() -> Iterator[Row]:
    """In how many answers bf16 matrices change nothing."""
    trained = _train()
    folded = {
        length: [
            models.fold(transject("transject", length, weights=trained), dtype=dtype)
            for dtype in (torch.float32, torch.bfloat16)
        ]
        for length in _PLANS
    }
    equal = total = 0
    for length, (exact, low) in folded.items():
        texts = disjoint_windows(length, _COMPARED)
        for tokens in tqdm(texts, desc=f"answers at {length}", unit="window", total=_COMPARED):
            first, second = (_caller(each, tokens)().argmax(1) for each in (exact, low))
            equal, total = equal + int(first == second), total + 1
    yield figure(
        f"TransJect E=4, equal argmax, bf16 and fp32 matrices, {total} windows of 1k to 4k bytes",
        equal / total,
        "share",
        target=AGREEMENT_TARGET,
        better="higher",
        samples=total,
        spread=wilson(equal, total),
    )


def _train() -> TransJect:
    model = transject("transject", _WINDOW)
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
    _fit_head(model)
    return model


@torch.no_grad()
def _fit_head(model: TransJect) -> None:
    """Ridge regression from the encoding of windows to their labels: training would take hours."""
    encoder = models.fold(transject("transject", _FITTED_LENGTH, weights=model))
    batches = windows(_FITTED_LENGTH, 1, train=True, seed=2)
    pairs = [next(batches) for _ in tqdm(range(_FITTED), desc="windows", unit="window")]
    features = torch.cat([cast(TransJect, encoder).features(tokens) for tokens, _ in pairs])
    answers = F.one_hot(torch.cat([labels for _, labels in pairs]), len(PACKAGES)).double()
    center, mean = features.double().mean(0), answers.mean(0)
    spread = features.double() - center
    ridge = _RIDGE * len(pairs) * torch.eye(spread.shape[1], dtype=torch.float64)
    weight = torch.linalg.solve(spread.T @ spread + ridge, spread.T @ (answers - mean)).T
    model.head.weight.copy_(weight)
    model.head.bias.copy_(mean - weight @ center)


class _Reference(nn.Module):
    """An attention layer on torch's math backend."""

    def __init__(self, layer: Attention) -> None:
        super().__init__()
        self.layer = layer

    def forward(
        self, x: Tensor, v_prev: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `Attention.forward`."""
        with sdpa_kernel(SDPBackend.MATH):
            return self.layer(x, v_prev, mask)


class _ScaledFirst(_Reference):
    """An attention layer written out, with the N queries scaled and not the N x N scores."""

    def forward(
        self, x: Tensor, v_prev: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `Attention.forward`; without padding."""
        q, k, v = self.layer.project(x, v_prev, mask)
        attended = (q * q.shape[-1] ** -0.5 @ k.mT).softmax(-1) @ v
        return self.layer.proj(attended.transpose(1, 2).reshape(x.shape)), v


def _with_attention(model: nn.Module, form: type[_Reference]) -> nn.Module:
    model = copy.deepcopy(model)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, Attention):
            model.set_submodule(name, form(layer))
    return model


def _caller(model: nn.Module, tokens: Tensor) -> Callable[[], Tensor]:
    return torch.inference_mode()(lambda: model(tokens))
