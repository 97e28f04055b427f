"""`./assay evaluate`, `verify`, `convert` …, or `python -m robustness evaluate` …"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import ValidationError

from core.command import run_command
from core.files import write_whole
from core.names import broken_rules
from core.progress import Bar
from robustness.arguments import check_numbers, default_workers, read_spec, settle_rate
from robustness.options import parser
from robustness.progress import Cancelled, Progress, Spent
from robustness.spec import EvaluationSpec, cost, queries

if TYPE_CHECKING:
    from robustness.evaluation import Executor, Inputs
    from robustness.report.schema import Report
    from robustness.target import Target
    from runtimes.artifact import Artifact

HELD, FAILED, CONTRADICTED = 0, 1, 3
_WRITTEN = (
    "report.json",
    "report.html",
    "report.junit.xml",
    "card.md",
    "samples.parquet",
    "samples.csv",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0: the gate held, or there is none; the report was confirmed; the server keeps every rule.
    1: the gate failed; the report was refuted; a rule is broken. 2: a bad request. 3: an attack
    or a counterexample contradicts a proof. 130: stopped by Ctrl-C or the deadline.

    Args:
        argv: arguments; those of the process when not given.
    """
    arguments = parser().parse_args(argv)
    commands = {
        "evaluate": _evaluate,
        "verify": _verify,
        "convert": _convert,
        "replay": _replay,
        "check-serving": _check_serving,
    }
    command = commands[arguments.command]
    return run_command(lambda: _explained(command, arguments))


def _explained(command: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    """Run a command; a broken rule of the spec and a stop are said in words."""
    try:
        return command(arguments)
    except ValidationError as error:
        found = broken_rules(error)
        rules = (f"{at or 'spec'}: {rule}" for at, rule in found)
        raise ValueError("\nerror: ".join(rules)) from None
    except (KeyboardInterrupt, Cancelled) as stop:
        why = "interrupted" if isinstance(stop, KeyboardInterrupt) else f"deadline reached: {stop}"
        why = str(stop) if isinstance(stop, Spent) else why
        kept = arguments.command == "evaluate" and arguments.output
        then = "the same command continues" if kept else "nothing was kept"
        raise KeyboardInterrupt(f"{why}; {then}") from None


def _evaluate(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    check_numbers(arguments, ("threads", "limit", "workers"))
    if (arguments.artifact is None) == (arguments.target is None):
        raise ValueError("name what is scored: --artifact DIR, or --target URL with --model NAME")
    if arguments.surrogate is not None and arguments.target is None:
        raise ValueError("--surrogate has a meaning for --target only")
    should_stop = _deadline(began, arguments.deadline)
    if arguments.address and arguments.engine != "ray":
        raise ValueError("--address has a meaning for --engine ray only")
    settle_rate(arguments)
    spec = read_spec(arguments)
    # torch takes seconds to import: a bad request is answered before.
    from robustness.console import render
    from robustness.evaluation import evaluate

    with ExitStack() as opened:
        own = arguments.target is None
        models, executor = _artifacts(arguments) if own else _endpoint(arguments, opened)
        inputs = _limited(_open(spec, arguments.data, models), arguments.limit, spec.seed)
        print(_announcement(spec, models, len(inputs), arguments.price), file=sys.stderr)
        folder = opened.enter_context(_output(arguments.output))
        on_progress = opened.enter_context(_bar())
        report = evaluate(
            spec,
            models,
            inputs,
            folder,
            on_progress=on_progress,
            should_stop=should_stop,
            threads=arguments.threads,
            executor=executor,
        )
    print(render(report))
    if arguments.card:
        _write_cards(report, models, arguments.data)
    if arguments.output:
        print()
        for path in (arguments.output / name for name in _WRITTEN):
            if path.exists():
                print(f"{'report' if path.name == _WRITTEN[0] else 'also'}: {path}")
    return _exit_code(report)


def _exit_code(report: "Report") -> int:
    gate, models = report.summary.gate, report.summary.models
    if any(one.contradictions for model in models for one in model.brackets):
        return CONTRADICTED
    return HELD if gate is None or gate.passed else FAILED


def _verify(arguments: argparse.Namespace) -> int:
    check_numbers(arguments, ("limit",))
    from robustness.verify import lines, verify

    with ExitStack() as opened:
        outcome = verify(
            arguments.report,
            folders=arguments.artifact,
            reach=None if arguments.target is None else partial(_reach, arguments, opened),
            data=arguments.data,
            limit=arguments.limit,
            on_progress=opened.enter_context(_bar()),
        )
    print("\n".join(lines(outcome)))
    return HELD if outcome.confirmed else FAILED


def _convert(arguments: argparse.Namespace) -> int:
    check_numbers(arguments, ("timeout",))
    from robustness.verifiers.properties import INSTANCES, write_properties

    found = write_properties(
        arguments.report,
        arguments.output,
        folders=arguments.artifact,
        eps=arguments.eps,
        timeout=arguments.timeout,
        frozen=arguments.frozen_metric,
    )
    print(
        f"{len(found.properties):,} properties; logits of the graphs differ from the served ones "
        f"by {found.difference:.1e} of the largest at most"
    )
    print(f"instances: {arguments.output / INSTANCES}")
    return HELD


def _replay(arguments: argparse.Namespace) -> int:
    from robustness.verifiers.replay import OUTCOMES, lines, replay

    found = replay(
        arguments.report,
        arguments.properties,
        arguments.results,
        verifier=arguments.verifier,
        folders=arguments.artifact,
    )
    write_whole(arguments.properties / OUTCOMES, found.model_dump_json(indent=1))
    print("\n".join(lines(found)))
    return CONTRADICTED if found.contradictions else HELD


def _check_serving(arguments: argparse.Namespace) -> int:
    from robustness.remote.arguments import model_of, server
    from robustness.remote.check_serving import check_serving, junit, listed
    from robustness.remote.mapping import read_mapping

    mapping = None if arguments.mapping is None else read_mapping(arguments.mapping)
    if mapping is not None and arguments.model is None:
        raise ValueError("--mapping needs --model, the name of the model on the server")
    beside = None if arguments.mapping is None else arguments.mapping.parent
    found = []
    with server(arguments, mapping) as connection:
        for name in [arguments.model] if arguments.model else listed(connection):
            model = model_of(
                connection, name, mapping, beside=beside, output=arguments.output_tensor
            )
            for one in check_serving(model, seed=arguments.seed):
                print(f"{model.name}: {one.name:28} {one.outcome:10} {one.evidence}", flush=True)
                found.append((model.name, one))
    if arguments.junit is not None:
        write_whole(arguments.junit, junit(found, arguments.target))
    return FAILED if any(one.outcome == "broken" for _, one in found) else HELD


def _artifacts(arguments: argparse.Namespace) -> "tuple[list[Artifact | Target], Executor]":
    """The artifacts that the options name, and who does the work."""
    from runtimes.artifact import open_artifact

    folders = [arguments.artifact] + ([arguments.compare] if arguments.compare else [])
    return [open_artifact(folder) for folder in folders], _executor(arguments, folders)


def _endpoint(
    arguments: argparse.Namespace, opened: ExitStack
) -> "tuple[list[Artifact | Target], Executor]":
    """The endpoint that the options name, closed by `opened`, and threads that ask it."""
    for name in ("workers", "card"):
        if getattr(arguments, name):
            raise ValueError(f"--{name} has a meaning for --artifact only")
    if arguments.engine != "process":
        raise ValueError("--engine has a meaning for --artifact only")
    from robustness.executors import ThreadExecutor, run_inline
    from robustness.remote.target import runtime_of
    from runtimes.artifact import open_artifact

    folder = arguments.surrogate
    copy = None if folder is None else open_artifact(folder)
    other = None if arguments.compare is None else open_artifact(arguments.compare)
    target = _reach(arguments, opened, arguments.shows, copy)
    if other is not None:
        return [replace(target, name=f"{target.name} (endpoint)"), other], run_inline
    if copy is not None:  # whose gradients one thread takes at a time
        return [target], run_inline
    connection = runtime_of(target).model.connection
    return [target], ThreadExecutor(connection.manners.concurrency, connection.stopped)


def _reach(
    arguments: argparse.Namespace,
    opened: ExitStack,
    shows: str | None,
    surrogate: "Artifact | None",
) -> "Target":
    """The endpoint that the options name; `opened` closes it, and tells what was asked."""
    from robustness.remote.arguments import reach
    from robustness.remote.target import runtime_of

    folder = opened.enter_context(_output(getattr(arguments, "output", None)))
    target = reach(arguments, folder, shows, surrogate)
    runtime = runtime_of(target)
    opened.callback(runtime.close)
    opened.callback(lambda: print(runtime.spent(), file=sys.stderr))
    return target


def _executor(arguments: argparse.Namespace, folders: Sequence[Path]) -> "Executor":
    if arguments.engine == "ray":
        from robustness.executors import RayExecutor

        return RayExecutor(folders, workers=arguments.workers, address=arguments.address)
    from robustness.executors import ProcessExecutor

    return ProcessExecutor(folders, workers=arguments.workers or default_workers(arguments.threads))


def _open(spec: EvaluationSpec, data: str, models: "Sequence[Artifact | Target]") -> "Inputs":
    from data.errors import MAP_CLASSES, ClassMismatch
    from data.sources import open_images, open_texts

    first, *others = models
    for other in others:
        if _reads(other) != _reads(first):
            raise ValueError(
                f"--compare must name a model that reads {_reads(first)}, as {first.name!r} does; "
                f"{other.name!r} reads {_reads(other)}"
            )
    wanted = "texts" if spec.on_texts else "images"
    if _segments(first):
        from data.masks import open_masks

        return open_masks(data, label_names=first.labels)
    if _reads(first) != wanted:
        works = f"attack {spec.attacks[0].name!r} works on {wanted}"
        raise ValueError(f"{works}, and {first.name!r} reads {_reads(first)}")
    opened = open_texts if spec.on_texts else open_images
    try:
        return opened(data, label_names=first.labels or None, class_map=spec.class_map)
    except ClassMismatch as error:
        raise ValueError(f"{error}. {MAP_CLASSES.format(option='--class-map')}") from error


def _segments(model: "Artifact | Target") -> bool:
    from robustness.target import Target
    from runtimes.tasks import MASKS

    if isinstance(model, Target):
        return model.task.answer == "pixels"
    return model.manifest.task == MASKS


def _reads(model: "Artifact | Target") -> str:
    from robustness.target import Target
    from runtimes.tasks import TASKS

    if isinstance(model, Target):
        return f"{model.reads}s"
    return TASKS[model.manifest.task].reads


def _announcement(
    spec: EvaluationSpec,
    models: "Sequence[Artifact | Target]",
    samples: int,
    price: float | None,
) -> str:
    """What the evaluation costs at most, before anything is computed.

    Args:
        spec: the evaluation.
        models: that are scored.
        samples: number of inputs.
        price: of a thousand inputs sent to an endpoint, if there is one.
    """
    from runtimes.artifact import Artifact

    what = f"{samples:,} {'texts' if spec.on_texts else 'images'}"
    num_classes = len(models[0].labels)
    artifacts = [model for model in models if isinstance(model, Artifact)]
    for model in models:
        if isinstance(model, Artifact):
            continue
        copy = None if model.torch_model is None else model.elliptical
        asked = queries(spec, samples, num_classes, elliptical=copy)
        money = "" if price is None else f", which cost at most {asked * price / 1000:,.2f}"
        return f"at most {asked:,} inputs are sent to the endpoint: {what}{money}"
    elliptical = [artifact.elliptical for artifact in artifacts]
    total = cost(spec, samples, elliptical, num_classes=num_classes)
    several = f", {len(artifacts)} models" if len(artifacts) > 1 else ""
    return f"at most {total:,} model evaluations: {what}{several}"


def _deadline(began: float, seconds: float | None) -> Callable[[], bool] | None:
    if seconds is None:
        return None
    if not seconds > 0:
        raise ValueError(f"--deadline must be above 0, got {seconds:g}")
    return lambda: time.monotonic() - began > seconds


def _write_cards(report: "Report", models: "Sequence[Artifact | Target]", data: str) -> None:
    """Put each model's figures onto the card beside its manifest, with the warnings about them."""
    from export.card import make_card, write_card
    from runtimes.artifact import Artifact

    source = data if data.startswith("hf:") else Path(data).name
    artifacts = [model for model in models if isinstance(model, Artifact)]
    for artifact, model in zip(artifacts, report.summary.models, strict=True):
        warnings = [w.message for w in report.summary.warnings if w.model == model.name]
        about = {"metric": report.summary.metric, "data": source, "warnings": warnings}
        figures = model.model_dump(mode="json") | about
        write_card(artifact.folder, make_card(artifact, robustness=figures))


def _limited(inputs: "Inputs", limit: int | None, seed: int) -> "Inputs":
    """A random part of the inputs: the first ones of a folder would all be of one class."""
    if limit is None or limit >= len(inputs):
        return inputs
    chosen = np.random.default_rng(seed).choice(len(inputs), limit, replace=False)
    return inputs.take(sorted(chosen.tolist()))


@contextmanager
def _output(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory() as temporary:
        yield Path(temporary)


@contextmanager
def _bar() -> Iterator[Callable[[Progress], None]]:
    # No rate: what was stored before, or is spared by an early success, counts as done at once.
    shape = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} {unit}s [{elapsed}{left}]"
    scaled = {"unit": "evaluation", "unit_scale": True, "smoothing": 0.05}
    with Bar(**scaled, bar_format=shape, leave=False) as bar:

        def show(progress: Progress) -> None:
            """Move the bar."""
            bar.total = progress.total
            bar.set_description_str(progress.stage, refresh=False)
            bar.update(progress.done - bar.n)

        yield show


if __name__ == "__main__":
    sys.exit(main())
