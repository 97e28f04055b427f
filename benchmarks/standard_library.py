"""Real text that every installation has: the sources of Python's standard library, as bytes.

The task: which package does a window of bytes come from? Files of the training and of the test
windows are different ones.
"""

import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

PACKAGES = ("asyncio", "email", "multiprocessing", "unittest")


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
