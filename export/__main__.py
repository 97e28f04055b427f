"""`python -m export RUN_DIR --output DIR`: from a run to an artifact."""

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from data.sources import ImageSet, open_images
from export.artifact import Artifact
from export.run import Run, open_run, validation_images
from export.write import PARITY_SAMPLES, write_artifact


def main(argv: list[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0, or 1 when nothing could be exported; then nothing is left behind.
    """
    arguments = _parser().parse_args(argv)
    try:
        run = open_run(arguments.run)
        images, data_name = _images(run, arguments.data)
        total = min(len(images), PARITY_SAMPLES)
        with tqdm(total=total, unit="image", desc=f"parity of {run.name}") as bar:
            artifact = write_artifact(
                run, images, arguments.output, data_name=data_name, on_progress=bar.update
            )
        print(summary(artifact))
        if arguments.store:
            from export.store import store_artifact

            print(f"stored as {store_artifact(artifact)}")
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def summary(artifact: Artifact) -> str:
    """A table of the files, their sizes and their parity."""
    parity = artifact.manifest.parity
    lines = [f"{'file':22} {'kB':>7}  {'max |Δ logit|':>13}  {'top-1 changes':>13}"]
    for name in artifact.manifest.files:
        size = artifact.file(name).stat().st_size / 1000
        figures = parity.formats.get(name)
        measured = f"{figures.max_abs_diff:13.1e}  {figures.top1_mismatches:13d}" if figures else ""
        lines.append(f"{name:22} {size:7.0f}  {measured}".rstrip())
    lines.append(f"parity against eager on {parity.samples} images ({parity.data})")
    lines.append(f"{artifact.name} {artifact.version}  digest {artifact.digest}")
    return "\n".join(lines)


def _images(run: Run, data: str | None) -> tuple[ImageSet, str]:
    if data is None:
        return validation_images(run), f"{run.source}, held-out validation split"
    name = data if data.startswith("hf:") else Path(data).name
    return open_images(data, label_names=run.labels), name


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m export", description="Export a trained run.")
    parser.add_argument("run", type=Path, metavar="RUN_DIR", help="folder of a finished run")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="the artifact")
    parser.add_argument(
        "--data",
        metavar="PATH",
        help="images to measure parity on (default: the run's own validation split)",
    )
    parser.add_argument("--precision", choices=["fp32"], default="fp32", help="default: fp32")
    parser.add_argument("--store", action="store_true", help="save to BentoML's model store too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
