"""`python -m export RUN_DIR --output DIR`: from a run to an artifact."""

import argparse
import sys
from pathlib import Path
from typing import get_args

from tqdm import tqdm

from export.artifact import Artifact
from export.error_plot import plot_errors
from export.layer_errors import error_table
from export.manifest import Precision, Quantization
from export.parity import ParityError
from export.run import open_run
from export.samples import open_samples
from export.write import PARITY_SAMPLES, samples_needed, write_artifact


def main(argv: list[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0, or 1 when nothing could be exported; then no artifact is left behind.
    """
    arguments = _parser().parse_args(argv)
    try:
        artifact = _export(arguments)
        print(summary(artifact))
        if arguments.store:
            from export.store import store_artifact

            print(f"stored as {store_artifact(artifact)}")
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        if isinstance(error, ParityError) and error.layers:
            _explain(error.layers, arguments.output)
        return 1
    return 0


def _export(arguments: argparse.Namespace) -> Artifact:
    run = open_run(arguments.run)
    needed = samples_needed(arguments.precision)
    samples = open_samples(run, arguments.data, limit=needed)
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


def summary(artifact: Artifact) -> str:
    """A table of the files, their sizes and their parity."""
    parity = artifact.manifest.parity
    lines = [f"{'file':22} {'kB':>7}  {'max |Δ logit|':>13}  {'top-1 changes':>13}"]
    for name in artifact.manifest.files:
        size = artifact.file(name).stat().st_size / 1000
        figures = parity.formats.get(name)
        measured = f"{figures.max_abs_diff:13.1e}  {figures.top1_mismatches:13d}" if figures else ""
        lines.append(f"{name:22} {size:7.0f}  {measured}".rstrip())
    lines.append(f"parity against eager on {parity.samples} samples ({parity.data})")
    lines.append(f"{artifact.name} {artifact.version}  digest {artifact.digest}")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m export", description="Export a trained run.")
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
        help="scales of int8: by calibration, or of each input (default: static)",
    )
    parser.add_argument("--store", action="store_true", help="save to BentoML's model store too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
