"""Small models of the catalog away from their first weights, and numbers to feed them with."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

import models

SIZES = {"depth": 2, "embed_dim": 16, "num_heads": 2, "num_experts": 3, "mlp_ratio": 2.0}
SIZES |= {"vocab_size": 11, "seq_len": 9, "img_size": 12, "patch_size": 4, "num_classes": 3}
SIZES |= {"pooled_layers": 1, "scaled_layers": 1}


def small(name: str, **overrides: Any) -> Any:
    """A model in float64, its steps off zero and its weights large enough for each to matter."""
    fields = {field.name for field in dataclasses.fields(models.config(name))}
    sizes = {key: value for key, value in SIZES.items() if key in fields}
    if "experts" in fields and "experts" not in overrides:  # a dense model has no experts to count
        del sizes["num_experts"]
    torch.manual_seed(0)
    model = models.build(name, **sizes | overrides)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
            if key.endswith((".r", ".alpha")):
                parameter.fill_(0.8)
    return model.double().eval()


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers of float64, the same at every call."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def padding(lengths: list[int], length: int) -> Tensor:
    """The mask of sequences whose first tokens are real."""
    return torch.arange(length) < torch.tensor(lengths)[:, None]
