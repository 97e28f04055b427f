"""Make an artifact out of a run."""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save
from torch import nn

from data.sources import ImageSet, load_inputs
from export import parity
from export.artifact import Artifact, open_artifact
from export.card import make_card, write_card
from export.manifest import (
    MANIFEST,
    ONNX,
    PROBE,
    TORCHSCRIPT,
    WEIGHTS,
    InputSpec,
    Manifest,
    OutputSpec,
    Parity,
    config_digest,
)
from export.run import Run, load_model
from export.runtime import METADATA_CONFIG, METADATA_WEIGHTS, open_session
from export.threads import available_cores
from export.to_onnx import to_onnx
from export.to_torchscript import load_torchscript, to_torchscript

PARITY_SAMPLES = 2000
_PROBE_SAMPLES = 8


def write_artifact(
    run: Run,
    images: ImageSet,
    output: Path,
    *,
    data_name: str,
    on_progress: Callable[[int], object] = lambda done: None,
) -> Artifact:
    """Export a run, measure the parity of every format, and only then move the artifact in place.

    Args:
        run: a finished run.
        images: images to measure parity on, of which the first 2,000 are used.
        output: the artifact's folder; an artifact that lies there is replaced.
        data_name: what the manifest calls these images.
        on_progress: called with the number of images just compared.

    Raises:
        ParityError: a graph differs from the model; nothing is left behind.
        ValueError: the run or the output cannot be used.
    """
    _check_output(output)
    with _folder_beside(output) as partial:
        weights = run.weights.read_bytes()  # once: a run that goes on may replace the file
        model = load_model(run, weights)
        inputs = load_inputs(images.take(range(min(len(images), PARITY_SAMPLES))), run.image_spec)
        files = _export(run, model, weights, inputs[:_PROBE_SAMPLES])
        figures = Parity(
            samples=len(inputs),
            data=data_name,
            tolerance=parity.TOLERANCE,
            formats=_measure(model, files, inputs, on_progress),
        )
        parity.require(figures)
        for name, content in files.items():
            (partial / name).write_bytes(content)
        (partial / MANIFEST).write_text(_manifest(run, files, figures).to_json(), encoding="utf-8")
        write_card(partial, make_card(open_artifact(partial)))
        _replace(output, partial)
    return open_artifact(output)


def _export(run: Run, model: nn.Module, weights: bytes, probe: np.ndarray) -> dict[str, bytes]:
    spec = run.image_spec
    # Zeros, not images: the example may end up in a trace, and two exports must be equal.
    example = torch.zeros(2, spec.channels, spec.height, spec.width)
    metadata = {
        METADATA_WEIGHTS: _sha256(weights),
        METADATA_CONFIG: config_digest(run.config),
    }
    logits = parity.eager(model)(probe)
    return {
        ONNX: to_onnx(model, example, metadata),
        TORCHSCRIPT: to_torchscript(model, example),
        WEIGHTS: weights,
        PROBE: save({"images": np.ascontiguousarray(probe), "logits": logits}),
    }


def _measure(
    model: nn.Module,
    files: dict[str, bytes],
    inputs: np.ndarray,
    on_progress: Callable[[int], object],
) -> dict[str, parity.FormatParity]:
    session = open_session(files[ONNX], threads=available_cores())
    candidates: dict[str, parity.Predict] = {
        ONNX: lambda batch: np.asarray(session.run(["logits"], {"images": batch})[0]),
        TORCHSCRIPT: parity.eager(load_torchscript(files[TORCHSCRIPT])),
    }
    return parity.measure(parity.eager(model), candidates, inputs, on_progress=on_progress)


def _manifest(run: Run, files: dict[str, bytes], figures: Parity) -> Manifest:
    spec = run.image_spec
    recipe = run.recipe | {"data": run.recipe["data"] | {"source": run.source}}
    return Manifest(
        name=run.name,
        version=run.version,
        architecture=run.architecture,
        config=run.config,
        input=InputSpec(shape=[-1, spec.channels, spec.height, spec.width]),
        output=OutputSpec(shape=[-1, len(run.labels)]),
        labels=run.labels,
        preprocessing=spec.to_dict(),
        files={name: _sha256(content) for name, content in files.items()},
        parity=figures,
        metrics={key: value for key, value in run.metrics.items() if key != "environment"},
        training={
            "recipe": recipe,
            "seed": run.seed,
            "weights_sha256": _sha256(files[WEIGHTS]),
            "environment": run.metrics.get("environment", {}),
        },
    )


def _check_output(output: Path) -> None:
    if not output.exists() and not output.is_symlink():
        return
    if not output.is_dir() or output.is_symlink():
        raise ValueError(f"output must be a folder, got {output}")
    if any(output.iterdir()) and not (output / MANIFEST).is_file():
        raise ValueError(f"output must be new, empty or an artifact, got {output}")


@contextmanager
def _folder_beside(output: Path) -> Iterator[Path]:
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    try:
        partial.chmod(0o755)  # mkdtemp's 0700 would hide the artifact from the service's user
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _replace(output: Path, partial: Path) -> None:
    """Put the finished folder in place; an old artifact stays until the new one is complete."""
    if output.exists():
        old = partial.with_name(f"{partial.name}.old")
        output.rename(old)
        partial.rename(output)
        shutil.rmtree(old)
    else:
        partial.rename(output)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
