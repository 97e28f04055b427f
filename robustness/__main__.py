"""Command line: python -m robustness evaluate."""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np
from pydantic import ValidationError
from tqdm import tqdm

from robustness.report.schema import FILE, ModelFigures, Report
from robustness.spec import AttackName, EvaluationSpec

if TYPE_CHECKING:
    from data.sources import ImageSet
    from export.artifact import Artifact
    from robustness.progress import Progress

HELD, FAILED, BAD_REQUEST, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 gate held or none, 1 gate failed, 2 bad request.

    Args:
        argv: arguments; those of the process when not given.
    """
    arguments = _parser().parse_args(argv)
    try:
        return _evaluate(arguments)
    except ValidationError as error:
        for problem in error.errors():
            where = ".".join(str(part) for part in problem["loc"]) or "spec"
            message = problem["msg"].removeprefix("Value error, ")
            print(f"error: {where}: {message}", file=sys.stderr)
        return BAD_REQUEST
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_REQUEST
    except KeyboardInterrupt:
        again = "the same command continues" if arguments.output else "nothing was kept"
        print(f"interrupted; {again}", file=sys.stderr)
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m robustness", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    evaluate = commands.add_parser("evaluate", help="put an artifact on trial")
    add = evaluate.add_argument
    add("--artifact", type=Path, required=True, metavar="DIR", help="the model on trial")
    add("--compare", type=Path, metavar="DIR", help="a second model, judged on the same images")
    add("--data", required=True, metavar="PATH", help="image folder, zip, parquet, idx, hf:NAME")
    many = {"required": True, "nargs": "+", "action": "extend"}
    names = get_args(AttackName)
    add("--attack", **many, choices=names, metavar="NAME", help=" or ".join(names))
    add("--eps", **many, metavar="EPS", help="radii such as 8/255 or 0.03")
    add("--steps", type=int, metavar="N", help="gradient steps of pgd (default 20)")
    add("--seed", type=int, default=0, metavar="N", help="seed of every random start (default 0)")
    add("--limit", type=int, metavar="N", help="judge N images, drawn at random by the seed")
    add("--output", type=Path, metavar="DIR", help="keep report and shards; a stopped run goes on")
    add("--gate", metavar="RULE", help='such as "robust_accuracy>=0.40"; exit 1 when it fails')
    add("--card", action="store_true", help="write the figures onto the artifacts' cards")
    add("--threads", type=int, default=1, metavar="N", help="threads (default 1)")
    return parser


def _evaluate(arguments: argparse.Namespace) -> int:
    spec = _spec(arguments)
    # torch takes seconds to import: a bad request is answered before.
    from data.sources import open_images
    from export.artifact import open_artifact
    from robustness.engine import evaluate

    folders = [arguments.artifact] + ([arguments.compare] if arguments.compare else [])
    artifacts = [open_artifact(folder) for folder in folders]
    images = open_images(arguments.data, label_names=artifacts[0].labels)
    images = _limit(images, arguments.limit, spec.seed)
    with _output(arguments.output) as folder, _bar() as on_progress:
        report = evaluate(
            spec, artifacts, images, folder, on_progress=on_progress, threads=arguments.threads
        )
    print(render(report))
    if arguments.card:
        _write_cards(report, artifacts, arguments.data)
    if arguments.output:
        print(f"\nreport: {arguments.output / FILE}")
    gate = report.summary.gate
    return HELD if gate is None or gate.passed else FAILED


def _write_cards(report: Report, artifacts: Sequence["Artifact"], data: str) -> None:
    """Put each model's figures onto the card beside its manifest, with the doubts about them."""
    from export.card import make_card, write_card

    source = data if data.startswith("hf:") else Path(data).name
    for artifact, model in zip(artifacts, report.summary.models, strict=True):
        warnings = [w.message for w in report.summary.warnings if w.model == model.name]
        about = {"metric": report.summary.metric, "data": source, "warnings": warnings}
        figures = model.model_dump(mode="json") | about
        write_card(artifact.folder, make_card(artifact, robustness=figures))


def _spec(arguments: argparse.Namespace) -> EvaluationSpec:
    for name in ("threads", "limit"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")
    steps = {"pgd": {"steps": arguments.steps}} if arguments.steps is not None else {}
    if steps and "pgd" not in arguments.attack:
        raise ValueError("--steps has a meaning for pgd only")
    return EvaluationSpec.model_validate(
        {
            "seed": arguments.seed,
            "gate": arguments.gate,
            "attacks": [
                {"name": name, "eps": arguments.eps, **steps.get(name, {})}
                for name in arguments.attack
            ],
        }
    )


def _limit(images: "ImageSet", limit: int | None, seed: int) -> "ImageSet":
    """A random part of the images: the first ones of a folder would all be of one class."""
    if limit is None or limit >= len(images):
        return images
    chosen = np.random.default_rng(seed).choice(len(images), limit, replace=False)
    return images.take(sorted(chosen.tolist()))


@contextmanager
def _output(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory() as temporary:
        yield Path(temporary)


@contextmanager
def _bar() -> Iterator[Callable[["Progress"], None]]:
    # disable=None: no bar where nobody watches, such as the log of a build.
    with tqdm(
        unit=" evaluations", unit_scale=True, smoothing=0.05, leave=False, disable=None
    ) as bar:

        def show(progress: "Progress") -> None:
            bar.total = progress.total
            bar.set_description(progress.stage, refresh=False)
            bar.update(progress.done - bar.n)

        yield show


def render(report: Report) -> str:
    """A report as text for a terminal, with all figures, intervals and warnings."""
    summary = report.summary
    lines = [f"{summary.metric} on {report.data.samples} images, seed {report.seed}"]
    for model in summary.models:
        lines += ["", f"{model.name} {model.version} ({model.runtime}, {model.precision})"]
        lines += _table(model)
    if summary.comparison is not None:
        other = summary.comparison
        lines += ["", f"{other.first} minus {other.second}, exact McNemar"]
        for where, pair in [("clean", other.clean), *other.worst.items()]:
            lines.append(
                f"  {where:14} {100 * pair.difference:+6.1f} points, p = {pair.p_value:.3g}"
            )
    lines += ["", *(f"note: {note}" for note in report.notes)]
    lines += [f"WARNING ({w.model}): {w.message}" for w in summary.warnings]
    if not summary.reliable:
        lines.append("UNRELIABLE: do not quote these figures before the warnings are resolved.")
    if summary.gate is not None:
        held = "held" if summary.gate.passed else "FAILED"
        lines.append(f"gate {summary.gate.text}: {held} ({summary.gate.reason})")
    return "\n".join(lines)


def _table(model: ModelFigures) -> list[str]:
    header = f"  {'attack':8}{'eps':>9}  {'robust':>6}  {'95 % interval':^15}{'confirmed':>10}"
    lines = [header + f"{'8 bit':>8}{'gap':>7}"]
    rows = [("clean", "-", model.clean, "")]
    for attack in model.attacks:
        served = f"{_percent(attack.confirmed):>10}{_percent(attack.confirmed_8bit):>8}"
        gap = f"{100 * attack.transfer_gap:>7.1f}"
        rows.append((attack.name, attack.eps, attack.robust, served + gap))
    rows += [("worst", eps, figure, "") for eps, figure in model.worst.items()]
    for name, eps, figure, rest in rows:
        interval = f"{_percent(figure.ci[0])} - {_percent(figure.ci[1])}"
        lines.append(
            f"  {name:8}{eps:>9}  {_percent(figure.top1):>6}  {interval:^15}{rest}".rstrip()
        )
    return lines


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


if __name__ == "__main__":
    sys.exit(main())
