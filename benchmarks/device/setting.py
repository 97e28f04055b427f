"""What is measured on which device, and how much of it."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.device.timing import default_device
from benchmarks.support.pairs import Pairs, pair_rows
from benchmarks.support.rows import Row

LABELS = ("dot-product", "elliptical")
RATIO_TARGET = 0.99
"""Of what elliptical attention does in a second, over dot-product attention."""
Cell = tuple[str, Callable[[], Iterable[Row]]]
"""A figure: its case, and what measures it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is measured where.

    The first entries of each tuple matter most: they are measured first.

    Attributes:
        device: "cuda" or "cpu".
        sizes: of DeiT.
        changes: of its config.
        img_size: side of its images.
        batches: images of a call.
        precisions: of weights and inputs, or of products.
        lengths: tokens of TransJect.
        trained: images of a step of training.
        cell_s: seconds for the pairs of one figure.
    """

    device: str = field(default_factory=default_device)
    sizes: tuple[str, ...] = ("tiny", "small", "base")
    changes: dict[str, Any] = field(default_factory=dict)
    img_size: int = 224
    batches: tuple[int, ...] = (64, 512, 1, 8)
    precisions: tuple[str, ...] = ("bf16", "fp16", "tf32", "fp32")
    lengths: tuple[int, ...] = (1024, 4096, 2048, 16384, 8192)
    trained: int = 256
    cell_s: float = 0.5

    def cells(self) -> list[tuple[str, int, str]]:
        """Size, batch and precision of DeiT, by how much they matter."""
        return product(self.sizes, self.batches, self.precisions)


def product(
    sizes: Sequence[str], batches: Sequence[int], precisions: Sequence[str]
) -> list[tuple[str, int, str]]:
    """All combinations, those first whose parts stand first."""
    axes = (sizes, batches, precisions)
    ranks = sorted(itertools.product(*(range(len(axis)) for axis in axes)), key=sum)
    return [(sizes[i], batches[j], precisions[k]) for i, j, k in ranks]


FORMS: dict[str, Callable[[], Setting]] = {
    "full": Setting,
    "tiny": lambda: Setting(
        sizes=("tiny",),
        changes={"patch_size": 8, "depth": 2, "embed_dim": 192, "num_classes": 10},
        img_size=32,
        batches=(2,),
        precisions=("bf16",),
        lengths=(64,),
        trained=16,
        cell_s=0.01,
    ),
}


def rate_rows(case: str, pairs: Pairs, count: int, unit: str) -> Iterator[Row]:
    """The ratio of both attentions' rates, and the rates.

    Args:
        case: what was measured.
        pairs: seconds of a call with dot-product and with elliptical attention.
        count: of what a call does.
        unit: of the rate.
    """
    rates = [[count / each for each in pair] for pair in pairs]
    target = RATIO_TARGET
    yield from pair_rows(case, LABELS, rates, target=target, better="higher", rate=unit)
