"""Judge the stored inputs of a report again, on the served models and their twins."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from core.environment import code_digest
from core.files import find_by_digest
from robustness import store as shards
from robustness.progress import Meter, Progress
from robustness.report.markup import plain
from robustness.report.schema import FILE, Report, parse_report
from robustness.spec import Cell
from robustness.target import Target, open_target, torch_threads
from robustness.text_target import open_text_target
from robustness.verify.evidence import Inputs, check_digest, check_same, clean_inputs
from robustness.verify.figures import wrong_figures
from robustness.verify.outcome import Outcome, Refuted
from robustness.verify.rejudge import Bench, judge_range
from robustness.verify.shape import check_shape
from robustness.verify.source import check_source
from robustness.verify.stored import stored_verdict
from runtimes.artifact import MANIFEST, Artifact, open_artifact

ARTIFACTS = Path("artifacts")


def verify(
    path: Path,
    *,
    folders: Sequence[Path] | None = None,
    data: str | None = None,
    limit: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Outcome:
    """Check a report against the files beside it and the models that it names.

    Its figures must follow from its flags; its stored inputs must be those that its digests name;
    every stored adversarial input must lie within bounds; and every flag must be what the runtime
    of verdicts (ONNX Runtime on the CPU) and the twin say to the stored inputs.

    Args:
        path: `report.json`, or its folder.
        folders: artifacts, or folders of them; `artifacts` when not given.
        data: where the inputs came from, to be compared with the stored ones.
        limit: judge so many inputs, drawn anew every time; all when not given.
        on_progress: called after every batch.

    Raises:
        OSError: there is no such report.
        ValueError: it is no report, or a model is not among the folders.
    """
    path = path / FILE if path.is_dir() else path
    report = parse_report(path.read_bytes())
    artifacts = [_find(folders, model.digest, model.name) for model in report.summary.models]
    outcome = Outcome()
    try:
        check_shape(report)
        _check_names(report, artifacts)
        _replay(report, path.parent, artifacts, outcome, data, limit, on_progress)
    except Refuted as problem:
        outcome.refuted.append(str(problem))
    return outcome


def _replay(
    report: Report,
    folder: Path,
    artifacts: Sequence[Artifact],
    outcome: Outcome,
    data: str | None,
    limit: int | None,
    on_progress: Callable[[Progress], None] | None,
) -> None:
    rows = _sample(len(report.samples), limit)
    outcome.inputs = len(rows)
    _note(report, outcome, len(rows))
    threads = _threads(report)
    meter = Meter(_cost(report, len(rows)), on_progress=on_progress)
    first: tuple[Inputs, Target] | None = None
    with torch_threads(threads):
        targets = [_open(report, artifact, threads) for artifact in artifacts]
        try:
            verdicts = [stored_verdict(folder, report, target) for target in targets]
            outcome.refuted += wrong_figures(report, verdicts)
        except (LookupError, OverflowError, TypeError, ValueError) as error:
            raise Refuted("the stored verdicts do not hold what they should") from error
        for position, target in enumerate(targets):
            clean = clean_inputs(folder, report, target.digest)
            if first is None:
                check_digest(report, clean)
            else:
                check_same(*first, clean, target)
            if data is not None:
                check_source(report, target, clean, data)
            first = first or (clean, target)
            bench = Bench(
                report=report,
                position=position,
                folder=folder,
                target=target,
                meter=meter,
                outcome=outcome,
            )
            runtime = target.runtime
            judge = f"{target.name} {target.version} ({runtime.name}, {runtime.precision})"
            outcome.judges.append(judge)
            for start, inputs, own in _ranges(clean, rows):
                meter.stage = f"{target.name}: input {start + len(inputs)}"
                judge_range(bench, start, inputs, own)


def _threads(report: Report) -> int:
    told = report.environment.get("threads", "1")
    # Torch ends the process when it is told to start more than there can be.
    if not re.fullmatch("[1-9][0-9]{0,2}", told, re.ASCII):
        raise Refuted("the report speaks of an impossible number of threads")
    return int(told)


def _ranges(clean: Inputs, rows: np.ndarray) -> Iterator[tuple[int, Inputs, np.ndarray]]:
    """Every range that has chosen rows: its start, its inputs, and the rows within it."""
    for chosen in shards.ranges(len(clean)):
        own = rows[(rows >= chosen.start) & (rows < chosen.stop)] - chosen.start
        if len(own):
            yield chosen.start, clean[chosen.start : chosen.stop], own


def _check_names(report: Report, artifacts: Sequence[Artifact]) -> None:
    """Check that models and classes are called what the artifacts call them."""
    for model, artifact in zip(report.summary.models, artifacts, strict=True):
        if model.name not in (artifact.name, f"{artifact.name}:{artifact.version}"):
            raise Refuted(f"the artifact of {model.name} is called {artifact.name}")
        if model.version != artifact.version:
            raise Refuted(f"{model.name} has the version {artifact.version}")
        if report.data.labels != [plain(label) for label in artifact.labels]:
            raise Refuted(f"the classes of {model.name} are not those that the report names")


def _open(report: Report, artifact: Artifact, threads: int) -> Target:
    opened = open_text_target if report.data.kind == "text" else open_target
    target = opened(artifact, threads=threads)
    name = next(m.name for m in report.summary.models if m.digest == target.digest)
    return replace(target, name=name)


def _find(folders: Sequence[Path] | None, digest: str, name: str) -> Artifact:
    """The artifact with a digest."""
    roots = list(folders) if folders else [ARTIFACTS]
    if manifest := find_by_digest(roots, MANIFEST, digest):
        return open_artifact(manifest.parent)
    places = ", ".join(str(root) for root in roots)
    raise ValueError(
        f"no artifact in {places} has the digest {digest[:16]} of {name!r}; name its folder with "
        "--artifact"
    )


def _sample(count: int, limit: int | None) -> np.ndarray:
    """Rows to judge: nobody who makes a report can know which."""
    if limit is None or limit >= count:
        return np.arange(count)
    return np.sort(np.random.default_rng().choice(count, limit, replace=False))


def _note(report: Report, outcome: Outcome, judged: int) -> None:
    if report.summary.top_k != [1]:
        outcome.notes.append("ranks below the first were read, and not judged again")
    if judged < len(report.samples):
        outcome.notes.append(f"a sample of {judged} of {len(report.samples)} inputs")
    if report.code != code_digest():
        outcome.notes.append("the report was made by another version of the code")
    if any(model.certificates for model in report.summary.models):
        outcome.notes.append(
            "certificates were not judged again: nothing is stored of them; their draws follow "
            "from the seed, so that the same evaluation repeats them"
        )


def _cost(report: Report, samples: int) -> int:
    """Model evaluations at most: elliptical models have twice the parts."""

    def each(cell: Cell) -> int:
        if cell.attack.info.role == "certificate":
            return 0
        if not cell.attack.info.norms:
            return 2 if report.spec.on_texts else 1
        return 6 * len(cell.attack.parts(len(report.data.labels)))

    per_sample = 1 + sum(each(cell) for cell in report.spec.cells)
    return samples * per_sample * len(report.summary.models)
