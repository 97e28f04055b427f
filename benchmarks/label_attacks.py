"""How near do attacks by classes alone come, against ART's HopSkipJump at equal queries?

Shipped images that the shipped models classify correctly, the same queries for each image, each
seed anew. ART runs in its own environment on the same ONNX file, one thread; it is credited with
the nearest misclassified input that it asked about, which can be nearer than what it returns. A
ratio below 1 says that ours is nearer. Its interval is Student's over images, whose logarithms are
averaged over seeds. Images for which ART finds no start are counted, and left out of the ratio.
Times are processor time on one thread, ART's of its attack alone. At equal queries both have the
model compute the same, so that its share is told, what is left without it, and how often it is
called: that is what time depends on where a call costs more than what it computes.
"""

import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy import stats

from benchmarks.attack_agreement import samples
from benchmarks.peers.running import environment
from benchmarks.support.rows import Row, figure
from benchmarks.support.server import ROOT
from robustness.attacks.base import LinfOrL2, input_seed
from robustness.attacks.labels import LabelAttack
from robustness.attacks.queries import Oracle
from robustness.spec import ATTACKS
from robustness.target import open_scorer
from runtimes.artifact import open_artifact
from runtimes.base import Runtime

_NEAR, _QUICK = 1.10, 0.2  # distance and time over ART's
_FAR = 1e9  # the distance of what was not found


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One model under attack in one norm.

    Attributes:
        name: of the model.
        graph: its ONNX file.
        runtime: the same, opened.
        images: (N, C, H, W) float32, classified correctly.
        labels: (N,) int64.
        norm: of the distances.
        queries: of each image.
    """

    name: str
    graph: Path
    runtime: Runtime
    images: np.ndarray
    labels: np.ndarray
    norm: LinfOrL2
    queries: int


@dataclass(frozen=True, slots=True)
class Found:
    """Distances (N,); and of an image its seconds, those of the model among them, and its calls."""

    distances: np.ndarray
    seconds: float
    inside: float
    calls: float


def run(
    *,
    models: tuple[str, ...] = ("fashion-dot", "fashion-elliptical-adv"),
    norms: tuple[str, ...] = ("Linf", "L2"),
    attacks: tuple[str, ...] = ("hopskipjump", "rays"),
    queries: int = 1000,
    images: int = 50,
    seeds: int = 3,
) -> Iterable[Row]:
    """Compare the attacks with ART's, on each model in each norm that the attack knows.

    Args:
        models: shipped artifacts of images.
        norms: Linf, L2 or both.
        attacks: names of attacks that see classes alone.
        queries: model evaluations of one image.
        images: how many are attacked.
        seeds: how often, with other draws.
    """
    for name in models:
        for norm in norms:
            case = _open(name, norm, queries=queries, count=images)
            theirs = [_art(case, seed) for seed in range(seeds)]
            for attack in attacks:
                if norm in ATTACKS[attack].info.norms:
                    ours = [_ours(case, attack, seed) for seed in range(seeds)]
                    yield from compare(f"{name}, {attack} {norm}, {queries} queries", ours, theirs)


def compare(case: str, ours: list[Found], theirs: list[Found]) -> Iterator[Row]:
    """Distances and times of ours over theirs, one entry a seed; and what either did not find."""
    known = np.isfinite([one.distances for one in theirs])
    reached, other = (np.clip([one.distances for one in way], 0, _FAR) for way in (ours, theirs))
    logs = np.log(reached / other)
    means = np.array([row[on].mean() for row, on in zip(logs.T, known.T, strict=True) if on.any()])
    low, high = np.exp(stats.t.interval(0.95, len(means) - 1, means.mean(), stats.sem(means)))
    ratio = float(np.exp(means.mean()))
    about = f"{case}, distance, ours / ART (geometric mean)"
    row = figure(about, ratio, "ratio", target=_NEAR, samples=int(known.sum()), spread=(low, high))
    yield replace(row, met=bool(high <= _NEAR))  # the interval's upper end
    quick = [o.seconds / t.seconds for o, t in zip(ours, theirs, strict=True)]
    yield figure(f"{case}, CPU time, ours / ART", quick, "ratio", target=_QUICK)
    apart = [
        (o.seconds - o.inside) / (t.seconds - t.inside) for o, t in zip(ours, theirs, strict=True)
    ]
    yield figure(f"{case}, CPU time without the model's, ours / ART", apart, "ratio")
    calls = [o.calls / t.calls for o, t in zip(ours, theirs, strict=True)]
    yield figure(f"{case}, calls of the model, ours / ART", calls, "ratio")
    for name, found in (("ours", ours), ("ART", theirs)):
        yield figure(f"{case}, CPU time, {name}", [one.seconds for one in found], "s/image")
        share = [one.inside / one.seconds for one in found]
        yield figure(f"{case}, the model's share of it, {name}", share, "share")
        lost = sum(int(np.isinf(one.distances).sum()) for one in found)
        count = sum(len(one.distances) for one in found)
        yield figure(f"{case}, images without a start, {name}", lost, "images", samples=count)
        median = [float(np.median(one.distances)) for one in found]
        yield figure(f"{case}, median distance, {name}", median, norm_of(case))


def norm_of(case: str) -> str:
    """The unit of its distances."""
    return "l∞" if "Linf" in case else "l2"


def _open(name: str, norm: str, *, queries: int, count: int) -> Case:
    """So many images of all classes that the model classifies correctly."""
    artifact = open_artifact(ROOT / "artifacts" / name)
    runtime = open_scorer(artifact, 1)
    images, labels = (array.numpy() for array in samples(artifact))
    right = np.flatnonzero(runtime.predict(images).argmax(1) == labels)
    rows = right[np.linspace(0, len(right) - 1, count).round().astype(int)]
    return Case(
        name=name, graph=artifact.folder / "model.onnx", runtime=runtime, images=images[rows],
        labels=labels[rows], norm="Linf" if norm == "Linf" else "L2", queries=queries,
    )  # fmt: skip


def _ours(case: Case, name: str, seed: int) -> Found:
    attack = ATTACKS[name].model_validate(
        {"name": name, "norm": case.norm, "eps": ["1/255"], "queries": case.queries}
    )
    if not isinstance(attack, LabelAttack):
        raise ValueError(f"attacks must name some that see classes alone, got {name!r}")
    seeds = [input_seed(seed, name, image.tobytes()) for image in case.images]
    spent: list[float] = []

    def predict(images: np.ndarray) -> np.ndarray:
        start = time.process_time()
        logits = np.asarray(case.runtime.predict(images))
        spent.append(time.process_time() - start)
        return logits

    start = time.process_time()
    _, distances = attack.nearest(Oracle(predict), case.images, case.labels, seeds)
    seconds, count = time.process_time() - start, len(seeds)
    return Found(distances, seconds / count, sum(spent) / count, len(spent) / count)


def _art(case: Case, seed: int) -> Found:
    python = environment("art")
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder) / "case.npz", Path(folder) / "found.npz"
        np.savez(
            given, images=case.images, labels=case.labels, graph=str(case.graph), norm=case.norm,
            queries=case.queries, seed=seed,
        )  # fmt: skip
        script = ROOT / "benchmarks" / "peers" / "art_hopskipjump.py"
        subprocess.run([python, script, given, made], check=True, stderr=subprocess.DEVNULL)
        found = np.load(made)
        means = (float(found[name].mean()) for name in ("seconds", "inside", "calls"))
        return Found(found["distances"], *means)
