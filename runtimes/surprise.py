"""How likely a language model finds the tokens of a text, window by window."""

from collections.abc import Callable

import numpy as np

AT_ONCE = 8
"""Windows whose logits are held."""
Ask = Callable[[np.ndarray], np.ndarray]
"""From tokens (B, N) to logits (B, N, V)."""


def windows(tokens: int, context: int) -> list[int]:
    """Where windows of at most `context` tokens start, half of one apart, the last at the end."""
    last, stride = max(0, tokens - context), max(1, context // 2)
    return [*range(0, last, stride), last]


def losses(logits: np.ndarray, ids: np.ndarray, skipped: int) -> np.ndarray:
    """-log of the probabilities of a window's tokens from place `skipped` on, in nats.

    Args:
        logits: (L, V) after each token, L at least their number.
        ids: (n,) the tokens.
        skipped: of these, at least 1.
    """
    rows = logits[skipped - 1 : len(ids) - 1].astype(np.float64)
    rows -= rows.max(1, keepdims=True)
    chosen = rows[np.arange(len(rows)), ids[skipped:]]
    return np.log(np.exp(rows).sum(1)) - chosen


def score_tokens(ids: np.ndarray, context: int, ask: Ask) -> tuple[int, float, int]:
    """How well a model predicts a text: wrong tokens, summed losses in nats, predicted tokens.

    Args:
        ids: (T,) the text's tokens; the first one is not predicted.
        context: tokens of a window at most.
        ask: the model; its windows are equally long.
    """
    wrong, loss, seen, starts = 0, 0.0, 1, windows(len(ids), context)
    for first in range(0, len(starts), AT_ONCE):
        some = starts[first : first + AT_ONCE]
        rows = np.stack([ids[start : start + context] for start in some])
        for row, start, logits in zip(rows, some, ask(rows), strict=True):
            skipped = seen - start
            loss += float(losses(logits, row, skipped).sum())
            wrong += int((logits[skipped - 1 : len(row) - 1].argmax(1) != row[skipped:]).sum())
            seen = start + len(row)
    return wrong, loss, len(ids) - 1
