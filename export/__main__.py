"""`python -m export`: from a run to an artifact; look into one; compare two.

python -m export RUN_DIR --output DIR
python -m export inspect DIR
python -m export compare DIR DIR
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from tqdm import tqdm

from export.artifact import Artifact, open_artifact
from export.comparison import compare_artifacts
from export.error_plot import plot_errors
from export.inspection import files, inspect_artifact
from export.layer_errors import error_table
from export.manifest import Precision, Quantization
from export.parity import ParityError
from export.run import open_run
from export.samples import open_samples
from export.write import PARITY_SAMPLES, samples_needed, write_artifact


def main(argv: list[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0, or 1 when nothing could be exported or opened; then no artifact is left behind.
    """
    given = sys.argv[1:] if argv is None else argv
    command, parser = _COMMANDS.get(given[0] if given else "", (_export, _export_parser))
    arguments = parser().parse_args(given if command is _export else given[1:])
    try:
        command(arguments)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        if isinstance(error, ParityError) and error.layers:
            _explain(error.layers, arguments.output)
        return 1
    return 0


def _export(arguments: argparse.Namespace) -> None:
    artifact = _written(arguments)
    print(files(artifact))
    print(f"{artifact.name} {artifact.version}  digest {artifact.digest}")
    if arguments.store:
        from export.store import store_artifact

        print(f"stored as {store_artifact(artifact)}")


def _written(arguments: argparse.Namespace) -> Artifact:
    run = open_run(arguments.run)
    samples = open_samples(run, arguments.data, limit=samples_needed(arguments.precision))
    total = min(len(samples), PARITY_SAMPLES)
    with tqdm(total=total, unit="sample", desc=f"parity of {run.name}") as bar:
        return write_artifact(
            run,
            samples,
            arguments.output,
            precision=arguments.precision,
            quantization=arguments.quantization,
            on_progress=bar.update,
        )


def _explain(layers: dict[str, float], output: Path) -> None:
    """Tell in which layer the difference begins, in words and as a picture beside the output."""
    path = output.with_name(f"{output.name}.parity.png")
    path.write_bytes(plot_errors(layers, title=f"{output.name}: where the graph differs"))
    print(f"{error_table(layers)}\nerror of each layer: {path}", file=sys.stderr)


def _inspect(arguments: argparse.Namespace) -> None:
    print(inspect_artifact(open_artifact(arguments.artifact)))


def _compare(arguments: argparse.Namespace) -> None:
    print(compare_artifacts(open_artifact(arguments.first), open_artifact(arguments.second)))


def _export_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m export",
        description="Export a trained run. Other commands: inspect DIR, compare DIR DIR.",
    )
    parser.add_argument("run", type=Path, metavar="RUN_DIR", help="folder of a finished run")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="the artifact")
    parser.add_argument(
        "--data",
        metavar="PATH",
        help="samples to measure parity on (default: the run's own validation split)",
    )
    parser.add_argument(
        "--precision", choices=get_args(Precision), default="fp32", help="default: fp32"
    )
    parser.add_argument(
        "--quantization",
        choices=get_args(Quantization),
        default="static",
        help="scales of int8: by calibration, or of each token (default: static)",
    )
    parser.add_argument("--store", action="store_true", help="save to BentoML's model store too")
    return parser


def _inspect_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m export inspect", description="Show what an artifact is made of."
    )
    parser.add_argument("artifact", type=Path, metavar="DIR", help="an artifact")
    return parser


def _compare_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m export compare",
        description="Show what differs between two artifacts, and how far their answers do.",
    )
    for name in ("first", "second"):
        parser.add_argument(name, type=Path, metavar="DIR", help="an artifact")
    return parser


_Command = Callable[[argparse.Namespace], None]
_COMMANDS: dict[str, tuple[_Command, Callable[[], argparse.ArgumentParser]]] = {
    "inspect": (_inspect, _inspect_parser),
    "compare": (_compare, _compare_parser),
}


if __name__ == "__main__":
    sys.exit(main())
