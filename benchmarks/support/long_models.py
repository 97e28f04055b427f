"""The two models that are compared on long sequences of bytes, and the bytes.

The models have L = 2, d = 512 and random weights. The bytes are the sources of Python's standard
library, which every installation has. The task: which package does a window come from? Files of
the training and of the test windows are different ones.
"""

import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

import models
from models.transject import Layer, TransJect

PACKAGES = ("asyncio", "email", "multiprocessing", "unittest")
_SIZE = {"embed_dim": 512, "depth": 2, "vocab_size": 256, "num_classes": len(PACKAGES)}


def transject(
    name: str, length: int, experts: int = 4, *, weights: nn.Module | None = None
) -> TransJect:
    """A TransJect that is not trained, unless it is given weights.

    Args:
        name: in the catalog.
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


def windows(
    length: int, batch_size: int, *, train: bool, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches of (batch_size, length) int64 bytes and (batch_size,) labels.

    Args:
        length: bytes in a window.
        batch_size: windows in a batch.
        train: from the training files, else from the others.
        seed: of the choice of windows.
    """
    texts = [_text(package, train=train) for package in PACKAGES]
    chooser = random.Random(seed)
    while True:
        labels = [chooser.randrange(len(PACKAGES)) for _ in range(batch_size)]
        starts = [chooser.randrange(len(texts[label]) - length) for label in labels]
        pairs = zip(labels, starts, strict=True)
        rows = [texts[label][start : start + length] for label, start in pairs]
        yield torch.stack(rows).long(), torch.tensor(labels)


def disjoint_windows(length: int, count: int) -> Iterator[Tensor]:
    """Windows (1, length) of int64 bytes from all of the library, no byte in two of them.

    Args:
        length: bytes in a window.
        count: number of windows; fewer come where the library is too small.
    """
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")) + sorted(
        Path(sysconfig.get_path("stdlib")).glob("[a-z]*/**/*.py")
    ):
        if "site-packages" in path.parts:
            continue
        content = torch.frombuffer(bytearray(path.read_bytes() or b" "), dtype=torch.uint8)
        for window in content.unfold(0, length, length) if len(content) >= length else ():
            yield window[None].long()
            count -= 1
            if count == 0:
                return


def _text(package: str, *, train: bool) -> Tensor:
    files = sorted((Path(sysconfig.get_path("stdlib")) / package).rglob("*.py"))
    chosen = [path for index, path in enumerate(files) if (index % 4 != 0) == train]
    content = b"".join(path.read_bytes() for path in chosen)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
