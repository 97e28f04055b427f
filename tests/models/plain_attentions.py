"""The mechanisms from their papers' equations, for one sample without padding, head by head.

Each takes what a layer's maps make of n tokens and gives what one head makes of them, (n, D).
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.models.plain_transformer import Weights, attend, linear

Head = Callable[..., Tensor]


def scores(q: Tensor, k: Tensor) -> Tensor:
    found = torch.empty(len(q), len(k), dtype=q.dtype)
    for i in range(len(q)):
        for j in range(len(k)):
            found[i, j] = q[i] @ k[j] / math.sqrt(q.shape[1])
    return found


def softmax(rows: Tensor) -> Tensor:
    weights = rows.exp()
    return weights / weights.sum(1, keepdim=True)


def dot(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
    return attend(q, k, v)


def linformer(q: Tensor, k: Tensor, v: Tensor, *, w: Weights, head: int, **_: Any) -> Tensor:
    """Wang et al. 2020, eq. 7."""
    projection = w["projection"][head, :, : len(q)]
    return softmax(scores(q, projection @ k)) @ projection @ v


def performer(q: Tensor, k: Tensor, v: Tensor, *, w: Weights, **_: Any) -> Tensor:
    """Choromanski et al. 2021, eq. 5 to 7 with h(x) = exp(-|x|^2 / 2)."""
    out, scale = torch.zeros_like(v), len(q[0]) ** -0.25

    def phi(x: Tensor) -> Tensor:
        x = x * scale
        return torch.stack([(f @ x - x @ x / 2).exp() for f in w["features"]])

    for i in range(len(q)):
        weights = torch.stack([phi(q[i]) @ phi(key) for key in k])
        out[i] = weights / weights.sum() @ v
    return out


def nystromformer(
    q: Tensor, k: Tensor, v: Tensor, *, w: Weights, head: int, options: Any, **_: Any
) -> Tensor:
    """Xiong et al. 2021, eq. 11 and 13, and figure 2."""
    n, count = len(q), min(options.landmarks, len(q))
    segments = [[t for t in range(n) if t * count // n == i] for i in range(count)]
    queries, keys = (torch.stack([x[s].mean(0) for s in segments]) for x in (q, k))
    a = softmax(scores(queries, keys))
    z = a.T / (a.abs().sum(0).max() * a.abs().sum(1).max())
    one = torch.eye(count, dtype=a.dtype)
    for _step in range(options.steps):
        z = z @ (13 * one - a @ z @ (15 * one - a @ z @ (7 * one - a @ z))) / 4
    mixed = softmax(scores(q, keys)) @ z @ softmax(scores(queries, k)) @ v
    if n <= options.landmarks:
        mixed = attend(q, k, v)
    kernel, half = w["conv.weight"][head, 0, :, 0], options.kernel // 2
    for i in range(n):
        for j in range(max(0, i - half), min(n, i + half + 1)):
            mixed[i] = mixed[i] + kernel[j - i + half] * v[j]
    return mixed


def longformer(
    q: Tensor, k: Tensor, v: Tensor, *, whole: list[Tensor], options: Any, **_: Any
) -> Tensor:
    """Beltagy et al. 2020, sections 3.1 and 4: windows, one global token with maps of its own."""
    out = torch.empty_like(v)
    for i in range(len(q)):
        seen = [j for j in range(len(q)) if abs(i - j) <= options.window // 2 or j == 0]
        out[i] = attend(q[i : i + 1], k[seen], v[seen])[0]
    out[0] = attend(whole[0][:1], whole[1], whole[2])[0]
    return out


def reformer(q: Tensor, v: Tensor, *, w: Weights, options: Any, **_: Any) -> Tensor:
    """Kitaev et al. 2020, eq. 2, 5 and 11 to 16: who shares chunks, round by round."""
    n, size = len(q), options.chunk
    columns, seen = -(-n // size), [set[int]() for _ in q]
    for rotation in w["rotations"]:
        sides = [torch.cat((x @ rotation[:, :columns], -x @ rotation[:, :columns])) for x in q]
        order = sorted(range(n), key=lambda t: (int(sides[t].argmax()), t))
        chunk = {t: place // size for place, t in enumerate(order)}
        for i in range(n):
            seen[i] |= {j for j in range(n) if chunk[j] in (chunk[i] - 1, chunk[i])}
    out = torch.empty_like(v)
    for i in range(n):
        others = sorted(seen[i] - {i}) or [i]
        out[i] = attend(q[i : i + 1], torch.stack([q[j] / q[j].norm() for j in others]), v[others])
    return out


def skyformer(q: Tensor, k: Tensor, v: Tensor, *, w: Weights, options: Any, **_: Any) -> Tensor:
    """Chen et al. 2021, eq. 4 and section 4, with every entry of the kernels by itself."""
    n, order = len(q), w["order"].tolist()
    places = sorted((order[i][t], i, t) for i in range(2) for t in range(n))
    rows = torch.stack([(q, k)[i][t] for _rank, i, t in places[: options.landmarks]])

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        found = [((x - y) @ (x - y) / -2 / math.sqrt(len(x))).exp() for x in a for y in b]
        return torch.stack(found).view(len(a), len(b))

    a = kernel(rows, rows) + options.gamma * torch.eye(len(rows), dtype=q.dtype)
    scale = a.sum(1).rsqrt().diag()
    a, one = scale @ a @ scale, torch.eye(len(rows), dtype=a.dtype)
    z = one
    for _step in range(options.steps):
        z = z @ (13 * one - a @ z @ (15 * one - a @ z @ (7 * one - a @ z))) / 4
    return kernel(q, rows) @ scale @ z @ scale @ kernel(rows, k) @ v


def synthesizer(q: Tensor, v: Tensor, *, w: Weights, head: int, **_: Any) -> Tensor:
    """Tay et al. 2021, eq. 2 and 3."""
    rows = q * (q > 0) @ w["columns"][head] + w["bias"][head]
    return softmax(rows[:, : len(q)]) @ v


def informer(q: Tensor, k: Tensor, v: Tensor, *, w: Weights, options: Any, **_: Any) -> Tensor:
    """Zhou et al. 2021, algorithm 1, with its samples as they are drawn."""
    n, every = len(q), scores(q, k)
    count = max(1, min(n, options.factor * math.ceil(math.log(n))))
    measures = []
    for i in range(n):
        sampled = [every[i, int(w["samples"][s, i]) % n] for s in range(count)]
        measures.append(float(max(sampled) - sum(sampled) / count))
    active = sorted(range(n), key=lambda i: -measures[i])[:count]
    out = v.mean(0).repeat(n, 1)
    for i in active:
        out[i] = attend(q[i : i + 1], k, v)[0]
    return out


def bigbird(
    q: Tensor, k: Tensor, v: Tensor, *, w: Weights, head: int, options: Any, **_: Any
) -> Tensor:
    """Zaheer et al. 2020, appendix D: for each block, the set of blocks that it sees."""
    n, size = len(q), options.block
    out, last = torch.empty_like(v), (n - 1) // size
    for i in range(n):
        own = i // size
        seen = {0, own - 1, own, own + 1, last} & set(range(last + 1))
        others = [block for block in range(last + 1) if block not in seen]
        picks = set[int]()
        rounds = range(len(others) - len(w["draws"]), len(others))
        for draw, top in zip(w["draws"][:, head, own], rounds, strict=True):
            if top >= 0:  # Floyd's way to draw a set
                pick = int(draw) % (top + 1)
                picks.add(top if pick in picks else pick)
        seen |= {others[pick] for pick in picks}
        tokens = [t for t in range(n) if own in (0, last) or t // size in seen]
        out[i] = attend(q[i : i + 1], k[tokens], v[tokens])[0]
    return out


HEADS: dict[str, Head] = {
    "bigbird": bigbird,
    "dot": dot,
    "informer": informer,
    "linformer": linformer,
    "longformer": longformer,
    "nystromformer": nystromformer,
    "performer": performer,
    "reformer": reformer,
    "skyformer": skyformer,
    "synthesizer": synthesizer,
}


def plain_attention(name: str, x: Tensor, w: Weights, num_heads: int, options: Any) -> Tensor:
    """What a layer of a mechanism makes of the tokens (n, C) of one sample without padding."""
    width, D = x.shape[1], x.shape[1] // num_heads
    maps = linear(x, w, "qkv").split(width, dim=1)
    whole = linear(x, w, "qkv_global").split(width, dim=1) if "qkv_global.weight" in w else ()
    heads = []
    for head in range(num_heads):
        part = slice(head * D, (head + 1) * D)
        given = [each[:, part] for each in maps]
        every = [each[:, part] for each in whole]
        heads.append(HEADS[name](*given, w=w, head=head, options=options, whole=every))
    return linear(torch.cat(heads, dim=1), w, "proj")
