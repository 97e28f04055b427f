"""`./assay export`, or `python -m export`: from a run to an artifact; look into one; compare two.

./assay export RUN_DIR --output DIR
./assay export import SOURCE --output DIR --name N --labels FILE --input FILE
./assay export inspect DIR
./assay export compare DIR DIR
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from core.command import Parser, run_command
from core.progress import Bar
from runtimes.manifest import Precision, Quantization

if TYPE_CHECKING:
    from runtimes.artifact import Artifact

# torch takes seconds to import: help and mistakes are answered before.


def main(argv: list[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0; 1 when a graph is not the model; 2 for a bad run, data, folder or option; 130 when
        interrupted. After anything but 0 an export has written no artifact, and one that lay there
        before is as it was.
    """
    given = sys.argv[1:] if argv is None else argv
    if given and given[0] in _COMMANDS:
        command, parser = _COMMANDS[given[0]]
        parser = parser()
        arguments = parser.parse_args(given[1:])
    else:
        command, arguments = _export, _export_parser().parse_args(given)
    return run_command(lambda: command(arguments))


def _export(arguments: argparse.Namespace) -> int:
    from export.graphs import error_table
    from export.inspect import files
    from export.parity import ParityError

    if arguments.quantization and arguments.precision != "int8":
        raise ValueError(
            f"--quantization must come with --precision int8, got {arguments.precision}"
        )
    tags: list[str] = []
    try:
        artifact = _write(arguments, tags)
    except ParityError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.layers:
            print(f"error of each layer:\n{error_table(error.layers)}", file=sys.stderr)
        return 1
    print(files(artifact))
    print(f"{artifact.name} {artifact.version}  digest {artifact.digest}")
    for tag in tags:
        print(f"stored as {tag}")
    return 0


def _write(arguments: argparse.Namespace, tags: list[str]) -> "Artifact":
    """Write the artifact, and add the tag under which it was stored, if it was asked for."""
    from export.run import open_run
    from export.samples import open_samples
    from export.write import samples_needed, write_artifact

    run, precision = open_run(arguments.run), arguments.precision
    quantization = arguments.quantization or "static"

    def store(artifact: "Artifact") -> None:
        """Save to the model store if asked to."""
        if arguments.store:
            from runtimes.store import store_artifact

            tags.append(store_artifact(artifact))

    with Bar(unit="sample", desc=f"{run.name}: reading") as bar:
        limit = samples_needed(precision, quantization, task=run.task)
        samples = open_samples(run, arguments.data, limit=limit)
        bar.reset(total=len(samples))

        def show(stage: str, done: int) -> None:
            """Move the bar on."""
            bar.set_description(f"{run.name}: {stage}")
            bar.update(done)

        return write_artifact(
            run,
            samples,
            arguments.output,
            precision=precision,
            quantization=quantization,
            program=not arguments.no_program,
            on_progress=show,
            before_placing=store,
        )


def _import(arguments: argparse.Namespace) -> int:
    from export.importers.input_file import read_input
    from export.importers.sources import open_source
    from export.importers.write import import_graph, read_labels
    from export.inspect import files, gradients
    from export.parity import ParityError

    source = open_source(arguments.source)
    given = (
        source.told if arguments.input is None else read_input(arguments.input, type(source.told))
    )
    source.complete(given)
    labels = read_labels(arguments.labels, source)
    with Bar(unit="sample", desc=f"{arguments.name}: parity", leave=False) as bar:
        try:
            artifact = import_graph(
                source,
                arguments.output,
                name=arguments.name,
                labels=labels,
                given=given,
                data=arguments.data,
                differentiable=not arguments.no_gradients,
                on_progress=lambda _, done: bar.update(done),
            )
        except ParityError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    print(files(artifact))
    print(gradients(artifact))
    print(f"{artifact.name} {artifact.version}  digest {artifact.digest}")
    return 0


def _inspect(arguments: argparse.Namespace) -> int:
    from export.importers.inspect import inspect_source
    from export.importers.sources import SOURCES
    from export.inspect import inspect_artifact
    from runtimes.artifact import open_artifact

    given = arguments.given
    if any(kind.takes(given) for kind in SOURCES.values()):
        print(inspect_source(given))
    else:
        print(inspect_artifact(open_artifact(Path(given))))
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    from export.inspect import compare_artifacts
    from runtimes.artifact import open_artifact

    first, second = open_artifact(arguments.first), open_artifact(arguments.second)
    with Bar(unit="sample", desc="answers", leave=False) as bar:
        text = compare_artifacts(first, second, on_progress=bar.update)
    print(text)
    return 0


def _export_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="./assay export",
        description="Export a finished run to an artifact. Every graph must answer at least 1,000 "
        "real inputs as the trained model does; otherwise nothing is written.",
        epilog="Other commands: import SOURCE makes an artifact of a model from elsewhere, "
        "inspect DIR shows what an artifact is made of, compare DIR DIR "
        "what differs between two. Exit status: 0, 1 a graph is not the model, 2 a bad request.",
    )
    parser.add_argument("run", type=Path, metavar="RUN_DIR", help="folder of a finished run")
    _add_output(parser)
    parser.add_argument(
        "--data",
        metavar="PATH",
        help="labeled samples to calibrate and score on: a folder, file or name of data "
        "(default: what the run held out of its training data)",
    )
    parser.add_argument(
        "--precision",
        choices=get_args(Precision),
        default="fp32",
        help="of model.onnx; the other formats stay fp32 (default: fp32)",
    )
    parser.add_argument(
        "--quantization",
        choices=get_args(Quantization),
        help="scales of int8: static by calibration, dynamic of each token (default: static)",
    )
    parser.add_argument(
        "--no-program",
        action="store_true",
        help="leave out model.pt2, which no runtime here reads, to save its space",
    )
    parser.add_argument("--store", action="store_true", help="save to BentoML's model store too")
    return parser


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder of the artifact: new, empty, or an artifact, which is replaced",
    )


def _import_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="./assay export import",
        description="Make an artifact of an image or text classifier from elsewhere. The graph of "
        "an ONNX file is served and evaluated unchanged, with graphs around it that prepare inputs "
        "and scores; models in PyTorch are exported first.",
        epilog="inspect SOURCE shows what it tells and what the input file must say. Exit "
        "status: 0, 1 the artifact is not the graph, 2 a bad request.",
    )
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="an ONNX file, a program of torch.export (.pt2), a Hugging Face folder, or "
        "module:function of your own that returns an nn.Module; programs and functions are run",
    )
    _add_output(parser)
    parser.add_argument("--name", required=True, metavar="N", help="name of the model")
    parser.add_argument(
        "--labels",
        type=Path,
        metavar="FILE",
        help="names of the classes in order of the scores: one a line, or a JSON list "
        "(default: those that the source tells)",
    )
    parser.add_argument(
        "--input",
        metavar="FILE",
        help="imagenet, cifar, a preprocessor_config.json, or a YAML file: size, resize, resample, "
        "channels, range, mean, std, layout; of a text classifier tokenizer, max_len, before, "
        "behind, tokens, mask, types",
    )
    parser.add_argument(
        "--data",
        metavar="PATH",
        help="images or texts to compare on, labeled or not (default: random ones)",
    )
    parser.add_argument(
        "--no-gradients",
        action="store_true",
        help="leave out gradient.onnx, which attacks that follow gradients need",
    )
    return parser


def _inspect_parser() -> argparse.ArgumentParser:
    text = "Show what an artifact is made of, or what a model tells before its import."
    parser = Parser(prog="./assay export inspect", description=text)
    parser.add_argument("given", metavar="DIR", help="an artifact, or what can be imported")
    return parser


def _compare_parser() -> argparse.ArgumentParser:
    text = "Show what differs between two artifacts, and how far their answers do."
    parser = Parser(prog="./assay export compare", description=text)
    for name in ("first", "second"):
        parser.add_argument(name, type=Path, metavar="DIR", help="an artifact")
    return parser


_COMMANDS = {
    "import": (_import, _import_parser),
    "inspect": (_inspect, _inspect_parser),
    "compare": (_compare, _compare_parser),
}


if __name__ == "__main__":
    sys.exit(main())
