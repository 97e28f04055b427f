"""What a model does inside: figures per layer, and maps of what the prediction draws on.

`observe` runs a model once and keeps what every layer took and gave; `diagnose` computes the
figures from it. Padding never counts, and every figure of a sample is independent of its batch.

Sources: Nielsen et al., "Elliptical Attention", NeurIPS 2024 (EA); "Designing Injective and
Low-Entropic Transformer for Short-Long Range Encoding" (TJ); Abnar & Zuidema, "Quantifying
attention flow in transformers", ACL 2020.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.analysis.observation import LayerRecord, Observation, observe
from models.layers.routing import Routes
from models.layers.tokens import masked_mean

_FEWEST = 5
"""Activations of a token that the estimate of its entropy needs: more than twice its window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How a mixture spread the real tokens of S sequences over its E experts.

    Attributes:
        load: (S, E) share of the choices that each expert had, whether or not it had room.
        entropy: (S,) of the router's probabilities, in nats, the mean over tokens: log E where it
            prefers none.
        dropped: (S,) share of the choices that found no room; of "switch", of the tokens.
    """

    load: Tensor
    entropy: Tensor
    dropped: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostics:
    """Figures of one run for each of S sequences and L layers, in order.

    S is the batch size B, or 2 B for two towers, where the sequences of a sample are neighbors.
    Layers are those that mix tokens; the class-attention blocks of a FAN count in `rollout` alone.

    Attributes:
        logits: (B, K), of a segmenter (B, K, H, W).
        activation_factor: (S, L) how much each layer stretches the distances between the tokens of
            a sequence: the mean over pairs i < j of real tokens of ||f(x)_i - f(x)_j|| /
            ||x_i - x_j|| (TJ eq. 9; the mean over the pairs of one sequence is our reading). Equal
            tokens have no ratio and are left out; a sample without a pair counts as unstretched, 1.
        total_factor: (S, L) the same from what the first layer took, or the first one behind a
            pooling of tokens. TransJect's bounds hold for it: the product over layers of
            (1 -+ |alpha| / L)^2.
        entropy: (S, L) see `differential_entropy`, of what a layer gave.
        cosine_similarity: (S, L) see `cosine_similarity`, of what a layer gave.
        head_redundancy: (S, L) see `head_redundancy`; None without attention.
        head_entropy: (S, L) entropy of the tokens that each head gave, before they are projected
            together, the mean over heads: what stands beside the experts' in TJ figure 4b [our
            reading]; None without attention, or where a head has fewer than 5 activations.
        key_perturbations: one per layer, (S,) how much its keys differ from those of the layer
            before: the mean of |k - k'| over real tokens, heads and axes (EA figure 5, whose text
            takes it for a constant; the mean is our reading). None in the first layer, and where
            the tokens are other ones or there are no keys.
        metrics: one per layer, m (S, H, D) as the layer used it; None where m is not estimated.
        expert_weights: (S, L, E) shares of TransJect's experts; None in other models.
        expert_entropy: (S, L, E) entropy of the tokens that each expert gave; None likewise.
        routing: one per layer, of its mixture of experts; None where it has a dense feed-forward.
        rollout: what the head's tokens draw from the input: (S, h, w) shares of an image's patches
            or (S, N) of tokens, at most 1 in sum, the rest stays with the class tokens. Per layer
            A = (mean_h A_h + I) / 2, with the identity for the residual path, and the layers are
            multiplied, A_L ... A_2 A_1 (Abnar & Zuidema 2020, section 3). The head reads the class
            tokens or, in models that pool, all real tokens alike; a segmenter's decoder reads all
            patches alike. What RVT's pooled tokens get is
            shared evenly by those that they were made from [ours]. None without attention: no map
            stands in for it.
    """

    logits: Tensor
    activation_factor: Tensor
    total_factor: Tensor
    entropy: Tensor
    cosine_similarity: Tensor
    head_redundancy: Tensor | None
    head_entropy: Tensor | None
    key_perturbations: tuple[Tensor | None, ...]
    metrics: tuple[Tensor | None, ...]
    expert_weights: Tensor | None
    expert_entropy: Tensor | None
    routing: tuple[Routing | None, ...]
    rollout: Tensor | None


@torch.no_grad()
def diagnose(model: nn.Module, inputs: Tensor, mask: Tensor | None = None) -> Diagnostics:
    """Run a model of the catalog once and compute all its figures.

    Attention maps are computed layer by layer, one at a time. Distances take time and memory
    quadratic in the tokens.

    Args:
        model: any model of `models.names()`; its modes, hooks and gradients are left as they were.
        inputs: what the model takes, images or token ids.
        mask: bool, True for real tokens; None if all are.

    Raises:
        ValueError: the model has no layer that can be observed, or fewer than 5 activations.
    """
    seen = observe(model, inputs, mask)
    step, total = _factors(seen.layers)
    redundancy, flow = _attention_figures(seen)
    weights, expert_entropy = _expert_figures(seen.layers)
    return Diagnostics(
        logits=seen.logits,
        activation_factor=step,
        total_factor=total,
        entropy=_stack(differential_entropy(layer.outputs, layer.mask) for layer in seen.layers),
        cosine_similarity=_stack(
            cosine_similarity(layer.outputs, layer.mask) for layer in seen.layers
        ),
        head_redundancy=redundancy,
        head_entropy=_head_entropy(seen.layers),
        key_perturbations=tuple(_key_perturbations(seen.layers)),
        metrics=tuple(layer.metric() for layer in seen.layers),
        expert_weights=weights,
        expert_entropy=expert_entropy,
        routing=tuple(routing(layer.routes, layer.mask) for layer in seen.layers),
        rollout=flow,
    )


def differential_entropy(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean over real tokens of the Vasicek estimate over each token's C activations.

    With the activations sorted, w = floor(sqrt(C) + 1/2) and indices held inside 1..C, the estimate
    is the mean over i of log(C / 2w * (x_(i + w) - x_(i - w))). It is -inf where a token has more
    than 2w equal activations, as the positions of a TransJect have before its layers move them.

    Args:
        x: (B, N, C) tokens, C at least 5.
        mask: (B, N) bool, True for real tokens; None if all are.

    Returns:
        (B,) in nats.

    Raises:
        ValueError: fewer activations than the estimate needs.

    Source: Vasicek, "A test for normality based on sample entropy", 1976; TJ eq. 10 takes the
    logarithm of negative numbers, the estimate is our reading.
    """
    C = x.shape[-1]
    window = math.floor(math.sqrt(C) + 0.5)
    if C < _FEWEST:
        raise ValueError(f"x must have at least {_FEWEST} activations per token, got {C}")
    ordered = _exact(x).sort(-1).values
    index = torch.arange(C, device=x.device)
    above, below = (index + window).clamp(max=C - 1), (index - window).clamp(min=0)
    spacing = ordered[..., above] - ordered[..., below]
    entropy = (C / (2 * window) * spacing).log().mean(-1)  # (B, N)
    return masked_mean(entropy[:, :, None], mask)[:, 0]


def cosine_similarity(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean cosine of the angle between two tokens over pairs i < j: 1 means collapse.

    With unit tokens u_i it is (||sum u_i||^2 - sum ||u_i||^2) / (n (n - 1)), so that no N x N
    matrix is needed. A zero token is orthogonal to all; a single token counts as collapsed, 1.

    Args:
        x: (B, N, C) tokens.
        mask: (B, N) bool, True for real tokens; None if all are.

    Returns:
        (B,) in [-1, 1].

    Source: EA, "representation collapse"; the closed form is ours.
    """
    unit = F.normalize(_exact(x), dim=-1)
    count = unit.new_full((len(x),), x.shape[1])
    if mask is not None:
        unit = unit.masked_fill(~mask[:, :, None], 0.0)
        count = mask.sum(1).to(unit.dtype)
    together = unit.sum(1).square().sum(-1) - unit.square().sum((1, 2))
    return torch.where(count > 1, together / (count * (count - 1)).clamp_min(1), 1.0)


def head_redundancy(attn: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean over pairs of heads h < h' of ||vec(A_h) - vec(A_h')||: small means redundant heads.

    Args:
        attn: (B, H, Q, N) attention maps.
        mask: (B, Q) bool, True for real queries; None if all are.

    Returns:
        (B,), zero for a single head. The papers' figure is its mean over layers.

    Source: EA, "head redundancy".
    """
    B, H = attn.shape[:2]
    if mask is not None:
        attn = attn.masked_fill(~mask[:, None, :, None], 0.0)
    maps = _exact(attn).flatten(2)
    # The product form of the distance cancels between similar heads.
    between = torch.cdist(maps, maps, compute_mode="donot_use_mm_for_euclid_dist")  # (B, H, H)
    return between.sum((1, 2)) / max(H * (H - 1), 1)


def routing(routes: Routes | None, mask: Tensor | None = None) -> Routing | None:
    """The figures of a mixture's routes and their mask (S, N); None of none."""
    if routes is None:
        return None
    k, E = routes.experts.shape[2], routes.probs.shape[2]
    chosen = F.one_hot(routes.experts, E).sum(2).to(routes.probs.dtype) / k
    dropped = (~routes.kept).to(chosen.dtype).mean(2, keepdim=True)
    entropy = torch.special.entr(routes.probs).sum(2, keepdim=True)
    return Routing(
        load=masked_mean(chosen, mask),
        entropy=masked_mean(entropy, mask)[:, 0],
        dropped=masked_mean(dropped, mask)[:, 0],
    )


def _exact(x: Tensor) -> Tensor:
    """At least float32: distances and sums of half-precision numbers would be noise."""
    return x if x.dtype == torch.float64 else x.float()


def _distances(x: Tensor, mask: Tensor | None, sample: int) -> Tensor:
    """Distances between the real tokens of one sample, one entry per pair i < j."""
    rows = _exact(x[sample])
    return F.pdist(rows if mask is None else rows[mask[sample]])


def _mean_ratio(before: Tensor, after: Tensor) -> Tensor:
    """Mean of after / before over the pairs with before > 0, a scalar."""
    apart = before > 0
    ratio = after[apart] / before[apart]
    return ratio.mean() if len(ratio) else before.new_ones(())


def _stack(figures: Iterable[Tensor]) -> Tensor:
    return torch.stack(tuple(figures), dim=1)


def _factors(layers: Sequence[LayerRecord]) -> tuple[Tensor, Tensor]:
    """Activation factors (S, L) of each layer alone and of all layers up to it."""
    step, total = [], []
    # One sample at a time, because its distances are quadratic in the tokens.
    for sample in range(len(layers[0].inputs)):
        tokens, first, before = 0, torch.empty(0), torch.empty(0)
        for layer in layers:
            if layer.inputs.shape[1] != tokens:
                tokens = layer.inputs.shape[1]
                first = before = _distances(layer.inputs, layer.mask, sample)
            after = _distances(layer.outputs, layer.mask, sample)
            step.append(_mean_ratio(before, after))
            total.append(_mean_ratio(first, after))
            before = after
    shape = (-1, len(layers))
    return torch.stack(step).view(shape), torch.stack(total).view(shape)


def _attention_figures(seen: Observation) -> tuple[Tensor | None, Tensor | None]:
    """Head redundancy (S, L) and the rollout to the input; None without attention."""
    redundancy, weights = [], _readers(seen)
    for layer in reversed(seen.layers):
        attn = layer.attention_map()
        if attn is None:
            return None, None
        redundancy.append(head_redundancy(attn, layer.mask))
        if weights.shape[2] != attn.shape[2]:
            weights = _unpooled(weights, math.isqrt(attn.shape[2]))
        # With one reader no product of two N x N matrices is made.
        weights = (weights + weights @ _exact(attn).mean(1)) / 2
    flow = weights[:, 0, seen.class_tokens :]
    side = math.isqrt(flow.shape[1])
    return _stack(reversed(redundancy)), flow.unflatten(1, (side, side)) if seen.images else flow


def _head_entropy(layers: Sequence[LayerRecord]) -> Tensor | None:
    """Entropies (S, L) of what the heads gave; None where there are none to measure."""
    entropies = []
    for layer in layers:
        given = layer.heads()
        if given is None or given.shape[-1] < _FEWEST:
            return None
        heads = _stack(differential_entropy(x, layer.mask) for x in given.unbind(1))
        entropies.append(heads.mean(1))
    return _stack(entropies)


def _key_perturbations(layers: Sequence[LayerRecord]) -> Iterator[Tensor | None]:
    """How much the keys of each layer differ from those of the layer before, (S,)."""
    before = None
    for layer in layers:
        keys = layer.keys()
        if keys is None or before is None or keys.shape != before.shape:
            yield None
        else:
            change = _exact(keys - before).abs().mean((1, 3))  # (S, N)
            yield masked_mean(change[:, :, None], layer.mask)[:, 0]
        before = keys


def _unpooled(weights: Tensor, grid_size: int) -> Tensor:
    """Weights (S, 1, n) of tokens pooled by 3 x 3 windows of stride 2, evenly on what they saw."""
    side = math.isqrt(weights.shape[2])
    window = weights.new_ones(1, 1, 3, 3)
    seen = F.conv2d(weights.new_ones(1, 1, grid_size, grid_size), window, stride=2, padding=1)
    shares = weights.unflatten(2, (side, side)) / seen
    more = grid_size - (2 * side - 1)
    grid = F.conv_transpose2d(shares, window, stride=2, padding=1, output_padding=more)
    return grid.flatten(2)


def _readers(seen: Observation) -> Tensor:
    """How much the head reads of each token that the last layer gave, (S, 1, N)."""
    last = seen.layers[-1]
    x = _exact(last.outputs)
    if seen.class_maps:
        return _class_rollout(seen.class_maps)
    if seen.class_tokens:
        read = torch.arange(x.shape[1], device=x.device) < seen.class_tokens
        read = read if seen.logits.ndim == 2 else ~read
        read = read.expand(len(x), -1)
    else:
        read = x.new_ones(x.shape[:2], dtype=torch.bool) if last.mask is None else last.mask
    weights = read.to(x.dtype)
    return (weights / weights.sum(1, keepdim=True))[:, None]


def _class_rollout(maps: Sequence[Tensor]) -> Tensor:
    """Rollout of class attention, whose other tokens stay: maps (S, H, 1, 1 + N) to (S, 1, N)."""
    first = torch.zeros_like(_exact(maps[0]).mean(1))
    first[..., 0] = 1
    weights = first
    for attn in reversed(maps):
        own = weights[..., :1]  # what still sits on the class token
        weights = weights + own * (_exact(attn).mean(1) - first) / 2
    return weights[..., 1:]


def _expert_figures(layers: Sequence[LayerRecord]) -> tuple[Tensor | None, Tensor | None]:
    """Weights and entropies (S, L, E) of the experts; None in models without them."""
    weights, entropies = [], []
    for layer in layers:
        experts = layer.experts()
        if experts is None:
            return None, None
        share, given = experts
        weights.append(share)
        entropies.append(_stack(differential_entropy(x, layer.mask) for x in given.unbind(1)))
    return _stack(weights), _stack(entropies)
