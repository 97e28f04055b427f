"""Is a layer of ours as fast as the public implementation that it is tested against?

Linformer and Performer of lucidrains' packages, Nyströmformer and Longformer of transformers, as
the papers' tables have them (256 rows or features, 64 landmarks, a window of 512), width 256, 4
heads: 4,096 tokens of float32 in sequences of 1,024 and of 4,096, without padding, on one thread.
Both layers have the same weights and run in one process, in turn and in alternating order: forward
in inference mode, then with the gradients of input and weights. A ratio is the median of theirs /
ours over pairs, its spread the interval of the median at 95 %. How far outputs lie apart shows that
both compute the same; performer-pytorch adds a constant to the features.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from benchmarks.peers.running import packages
from benchmarks.support.pairs import pair_rows
from benchmarks.support.rows import Row, figure
from benchmarks.support.server import ROOT

_NAMES: tuple[str, ...] = ("linformer", "performer", "nystromformer", "longformer")
_LENGTHS: tuple[int, ...] = (1024, 4096)
_TARGET = 1.0
_WORKS = {"forward": "forward", "with_gradient": "with gradient"}


def run(
    names: tuple[str, ...] = _NAMES, lengths: tuple[int, ...] = _LENGTHS, pairs: int = 20
) -> Iterable[Row]:
    """Compare every mechanism at every length.

    Args:
        names: the mechanisms.
        lengths: divisors of 4,096.
        pairs: how many runs of each.
    """
    for name in names:
        for length in lengths:
            found = _measured(name, length, pairs)
            case = f"{name}, {length} tokens"
            apart = 1e6 * float(found["apart"])
            yield figure(f"{case}, outputs apart, relative", apart, "millionths")
            for key, work in _WORKS.items():
                labels, values = ("ours", "theirs"), found[key].tolist()
                about = f"{case}, {work}"
                yield from pair_rows(about, labels, values, target=_TARGET, better="higher")


def _measured(name: str, length: int, pairs: int) -> dict[str, np.ndarray]:
    """What `benchmarks.peers.attention_layers` writes, in a process that sees the packages."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.npz"
        own = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(packages("attentions"))])}
        module = "benchmarks.peers.attention_layers"
        command = [sys.executable, "-m", module, name, str(length), str(pairs), str(found)]
        subprocess.run(command, check=True, env=os.environ | own, cwd=ROOT, stdout=sys.stderr)
        with np.load(found) as file:
            return dict(file)
