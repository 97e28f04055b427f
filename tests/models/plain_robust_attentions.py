"""The robust mechanisms from their papers' equations, for one sample without padding, by loops.

Each takes what one head's maps make of n tokens and gives what the head makes of them, (n, D).
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.models.plain_transformer import Weights, linear

Head = Callable[..., Tensor]


def gauss(a: Tensor, b: Tensor, width: float, dim: int) -> float:
    squares = sum((float(s) - float(t)) ** 2 for s, t in zip(a, b, strict=True))
    return math.exp(-squares / (2 * width * math.sqrt(dim)))


def unit(k: Tensor) -> Tensor:
    return torch.stack([key / key.square().sum().sqrt() for key in k])


def regress(v: Tensor, above: list[float], below: list[float]) -> Tensor:
    return sum((a * row for a, row in zip(above, v, strict=True)), torch.zeros_like(v[0])) / sum(
        below
    )


def kde(q: Tensor, k: Tensor, v: Tensor, *, options: Any, **_: Any) -> Tensor:
    k, rows = unit(k), []
    for query in q:
        kernel = [gauss(query, key, options.width, q.shape[1]) for key in k]
        rows.append(regress(v, kernel, kernel))
    return torch.stack(rows)


def mom(q: Tensor, k: Tensor, v: Tensor, *, options: Any, **_: Any) -> Tensor:
    k, rows = unit(k), []
    blocks = [list(range(b, len(k), options.blocks)) for b in range(min(options.blocks, len(k)))]
    for query in q:
        kernel = [gauss(query, key, options.width, q.shape[1]) for key in k]
        means = [sum(kernel[j] for j in block) / len(block) for block in blocks]
        block = blocks[means.index(sorted(means)[len(means) // 2])]
        chosen = [kernel[j] for j in block]
        rows.append(regress(v[block], chosen, chosen))
    return torch.stack(rows)


def with_shares(
    find: Callable[[list[list[float]], Any], list[float]],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: Any,
) -> Tensor:
    k, D = unit(k), q.shape[1]
    given = []
    for x in (k, torch.cat([k, v], dim=1)):
        given.append(find([[gauss(a, b, options.width, D) for b in x] for a in x], options))
    below, above = given
    rows = []
    for query in q:
        kernel = [gauss(query, key, options.width, D) for key in k]
        parts = [[s * w for s, w in zip(shares, kernel, strict=True)] for shares in (above, below)]
        rows.append(regress(v, *parts))
    return torch.stack(rows)


def kirwls(gram: list[list[float]], options: Any) -> list[float]:
    n, a = len(gram), options.threshold
    shares = [1 / n] * n
    for _ in range(options.steps):
        norm = sum(shares[i] * shares[j] * gram[i][j] for i in range(n) for j in range(n))
        found = []
        for j in range(n):
            x = math.sqrt(gram[j][j] - 2 * sum(shares[m] * gram[j][m] for m in range(n)) + norm)
            psi = 1.0 if x <= a else a / x
            if options.loss == "hampel" and x > 2 * a:
                psi = a * (3 * a - x) / (a * x)
            found.append(max(psi, 0.01))
        shares = [psi / sum(found) for psi in found]
    return shares


def simplex(y: list[float]) -> list[float]:
    low, high = min(y) - 1, max(y)
    for _ in range(200):  # bisection for the number that leaves a sum of 1
        middle = (low + high) / 2
        low, high = (middle, high) if sum(max(e - middle, 0) for e in y) > 1 else (low, middle)
    return [max(e - low, 0) for e in y]


def programme(gram: list[list[float]], options: Any) -> list[float]:
    """Accelerated projected gradient for min a' K a / 2 - beta a' K 1 / n on the simplex."""
    n, beta = len(gram), 1 / (1 - options.outliers)
    K = torch.tensor(gram, dtype=torch.float64)
    P = torch.eye(n, dtype=torch.float64) - 1 / n
    bound = max(float((P @ K @ P).abs().sum(1).max()), 1e-3)
    shares = ahead = [1 / n] * n
    for step in range(options.steps):
        slope = [sum(gram[i][j] * (ahead[j] - beta / n) for j in range(n)) for i in range(n)]
        before = shares
        shares = simplex([a - s / bound for a, s in zip(ahead, slope, strict=True)])
        ahead = [s + step / (step + 3) * (s - b) for s, b in zip(shares, before, strict=True)]
    return [0.99 * share + 0.01 / n for share in shares]


def rkde(q: Tensor, k: Tensor, v: Tensor, *, options: Any, **_: Any) -> Tensor:
    return with_shares(kirwls, q, k, v, options)


def spkde(q: Tensor, k: Tensor, v: Tensor, *, options: Any, **_: Any) -> Tensor:
    return with_shares(programme, q, k, v, options)


def mgk(
    q: Tensor, k: Tensor, v: Tensor, *, x: Tensor, w: Weights, head: int, options: Any, **_: Any
) -> Tensor:
    D, part = q.shape[1], slice(head * q.shape[1], (head + 1) * q.shape[1])
    more = linear(x, w, "keys").split(x.shape[1], dim=1) if options.sets > 1 else ()
    sets = [k, *(each[:, part] for each in more)]
    prior = [math.exp(float(e)) for e in w["mixture"][head]]
    rows = []
    for query in q:
        kernel = [
            sum(
                prior[r]
                / sum(prior)
                * gauss(query, sets[r][j], math.exp(w["log_widths"][head, r]), D)
                for r in range(options.sets)
            )
            for j in range(len(k))
        ]
        rows.append(regress(v, kernel, kernel))
    return torch.stack(rows)


def fourier(q: Tensor, k: Tensor, v: Tensor, *, w: Weights, head: int, **_: Any) -> Tensor:
    radius, rows = float(w["radius"][head]), []
    for query in q:
        kernel = []
        for key in k:
            xs = [radius * float(a - b) for a, b in zip(query, key, strict=True)]
            kernel.append(math.prod((math.sin(x) / x if x else 1.0) ** 4 for x in xs))
        rows.append(regress(v, kernel, kernel))
    return torch.stack(rows)


ROBUST_HEADS: dict[str, Head] = {
    "kde": kde,
    "mom": mom,
    "rkde": rkde,
    "mgk": mgk,
    "fourier": fourier,
    "spkde": spkde,
}


def plain_robust_attention(
    name: str, x: Tensor, w: Weights, num_heads: int, options: Any
) -> Tensor:
    """What a layer of a mechanism makes of the tokens (n, C) of one sample without padding."""
    width, D = x.shape[1], x.shape[1] // num_heads
    maps, heads = linear(x, w, "qkv").split(width, dim=1), []
    for head in range(num_heads):
        given = [each[:, head * D : (head + 1) * D] for each in maps]
        heads.append(ROBUST_HEADS[name](*given, x=x, w=w, head=head, options=options))
    return linear(torch.cat(heads, dim=1), w, "proj")
