"""The two models over bytes that are compared on long sequences: L = 2, d = 512, random weights."""

from typing import cast

import torch
from torch import nn

import models
from benchmarks.standard_library import PACKAGES
from models.transject import Layer, TransJect

_SIZE = {"embed_dim": 512, "depth": 2, "vocab_size": 256, "num_classes": len(PACKAGES)}


def transject(
    name: str, length: int, experts: int = 4, *, weights: nn.Module | None = None
) -> TransJect:
    """A TransJect that is not trained, unless it is given weights.

    Args:
        name: in the catalogue.
        length: of the longest sequence.
        experts: number of experts E.
        weights: a model whose weights to take.
    """
    torch.manual_seed(0)
    model = cast(TransJect, models.build(name, seq_len=length, num_experts=experts, **_SIZE).eval())
    if weights is not None:
        model.load_state_dict(weights.state_dict())
        return model
    with torch.no_grad():
        for layer in model.encoder.layers:
            cast(Layer, layer).r.fill_(0.5)  # at zero, where training begins, it is an identity
    return model


def transformer(length: int) -> nn.Module:
    """A dot-product transformer for sequences of up to `length` tokens: 8 heads, an MLP of 2048."""
    torch.manual_seed(0)
    return models.build("transformer", seq_len=length, num_heads=8, **_SIZE).eval()
