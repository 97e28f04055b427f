"""Is elliptical attention robust, or was the attack weak? The papers' protocol and ours, in pairs.

The papers' public code attacks the normalized tensor: eps is one of its units, FGSM and PGD clip
nothing, and AutoAttack clips the normalized tensor to [0, 1]. Those figures are replications, not
claims about pixels; beside them stand the same attacks on pixels, and APGD-CE, AutoAttack's first
part, in the place of all of it, which takes a minute for each image that holds. Both models get
the same images and draws. The model with elliptical attention is attacked with gradients stopped
at its metric m, as in that code, with gradients through m, and counted under the worse of both.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.support.rows import Row, figure
from core.stats import paired_interval, wilson
from data.sources import open_images
from robustness.attacks.space import REPLICATION
from robustness.evaluation import evaluate
from robustness.report.schema import AttackFlags, Report
from robustness.spec import EvaluationSpec
from runtimes.artifact import open_artifact

_EPS = ("1/255", "2/255", "4/255")
_BOX, _OURS = f"papers' box ({REPLICATION})", "pixels"
_WAYS: dict[str, Callable[[AttackFlags], bool]] = {
    "gradients stopped": lambda flags: (flags.gradients or {}).get("stopped", flags.robust),
    "gradients through m": lambda flags: (flags.gradients or {}).get("full", flags.robust),
    "the worse of both": lambda flags: flags.robust,
}


def run(
    images: int = 100,
    elliptical: str = "artifacts/fashion-elliptical",
    dot: str = "artifacts/fashion-dot",
    data: str = "fashion-mnist",
    boxed: tuple[str, ...] = ("fgsm", "pgd", "autoattack"),
    radii: tuple[str, ...] = _EPS,
) -> Iterable[Row]:
    """Attack both models of a pair.

    Args:
        images: of the test set.
        elliptical: artifact with elliptical attention.
        dot: its dot-product counterpart.
        data: where the images come from.
        boxed: attacks on the normalized tensor; AutoAttack at 1/255 alone.
        radii: of the attacks on pixels.
    """
    attacks = [
        {"name": name, "eps": [*_EPS][: 1 if name == "autoattack" else 3], "space": "normalised"}
        for name in boxed
    ]
    attacks += [{"name": name, "eps": [*radii]} for name in ("fgsm", "pgd", "apgd-ce")]
    pair = [open_artifact(Path(elliptical)), open_artifact(Path(dot))]
    source = open_images(data, label_names=pair[0].labels)
    chosen = np.random.default_rng(0).choice(len(source), images, replace=False)
    with tempfile.TemporaryDirectory() as folder:
        spec = EvaluationSpec.model_validate({"attacks": attacks})
        report = evaluate(spec, pair, source.take(sorted(chosen.tolist())), Path(folder))
    yield from _rows(report)


def _rows(report: Report) -> Iterator[Row]:
    first, second = (model.name for model in report.summary.models)
    clean = [[sample.models[m].clean.correct for sample in report.samples] for m in (0, 1)]
    yield _accuracy(f"{first}: clean accuracy", clean[0])
    yield _accuracy(f"{second}: clean accuracy", clean[1])
    yield _difference(f"{first} minus {second}: clean accuracy", *clean)
    for place, cell in enumerate(report.spec.cells):
        box = _BOX if cell.attack.replication else _OURS
        about = f"{cell.attack.info.title} {cell.budget.text}, {box}"
        mine, theirs = (
            [sample.models[m].attacks[place] for sample in report.samples] for m in (0, 1)
        )
        other = [flags.robust for flags in theirs]
        yield _accuracy(f"{about}: {second}", other)
        for way, held in _WAYS.items():
            own = [held(flags) for flags in mine]
            yield _accuracy(f"{about}: {first}, {way}", own)
            yield _difference(f"{about}: {first} minus {second}, {way}", own, other)


def _accuracy(about: str, held: list[bool]) -> Row:
    hits, count = sum(held), len(held)
    share, ends = hits / count, wilson(hits, count)
    return figure(about, share, "share", better="higher", samples=count, spread=ends)


def _difference(about: str, first: list[bool], second: list[bool]) -> Row:
    pairs = list(zip(first, second, strict=True))
    only = pairs.count((True, False)), pairs.count((False, True))
    ends = paired_interval(*only, len(pairs))
    share = (only[0] - only[1]) / len(pairs)
    return figure(about, share, "share", better="higher", samples=len(pairs), spread=ends)
