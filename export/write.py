"""Make an artifact out of a run."""

import dataclasses
import functools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from core.files import sha256
from data.images import ImageSpec
from export import parity
from export.card import make_card, write_card
from export.graphs import layer_errors, open_graph, require_precision
from export.half import to_half
from export.int8 import quantize_dynamic, quantize_static
from export.onnx import to_onnx
from export.run import Run, load_model
from export.samples import Samples, spread
from export.torch_files import load_program, to_program, to_torchscript
from runtimes.artifact import Artifact, open_artifact
from runtimes.manifest import (
    IMAGES,
    MANIFEST,
    ONNX,
    PROBE,
    PROGRAM,
    TOKENIZER,
    TORCHSCRIPT,
    WEIGHTS,
    InputSpec,
    Manifest,
    OutputSpec,
    Parity,
    Precision,
    Quantization,
    Task,
    TokensSpec,
    config_digest,
)
from runtimes.onnx import METADATA_CONFIG, METADATA_WEIGHTS
from runtimes.probe import Probe, write_probe
from runtimes.tasks import TASKS
from runtimes.torchscript import load_torchscript

CALIBRATION_SAMPLES = 256
Progress = Callable[[str, int], object]
_OBSERVED_SAMPLES = 64
_EXAMPLE_TOKENS = 8


def samples_needed(
    precision: Precision, quantization: Quantization = "static", *, task: Task = IMAGES
) -> int:
    """How many samples an export can use, calibration included."""
    return TASKS[task].compared + _held_out(precision, quantization)


def _held_out(precision: Precision, quantization: Quantization) -> int:
    return CALIBRATION_SAMPLES if (precision, quantization) == ("int8", "static") else 0


def write_artifact(
    run: Run,
    samples: Samples,
    output: Path,
    *,
    precision: Precision = "fp32",
    quantization: Quantization = "static",
    program: bool = True,
    on_progress: Progress = lambda stage, done: None,
    before_placing: Callable[[Artifact], object] = lambda artifact: None,
) -> Artifact:
    """Export a run, measure the parity of every format, and only then move the artifact in place.

    Args:
        run: a finished run.
        samples: real inputs to measure parity on, see `samples_needed`; int8 is calibrated on some
            of them, which are then left out.
        output: the artifact's folder; an artifact that lies there is replaced.
        precision: arithmetic of the ONNX graph.
        quantization: see `Manifest`; it matters for int8 alone.
        program: write a program of `torch.export` too.
        on_progress: called when a stage begins and as it goes on, with the stage and the number of
            samples just used.
        before_placing: called with the finished artifact while it still lies beside `output`; what
            it raises leaves `output` as it was.

    Raises:
        ParityError: a graph differs from the model; nothing is left behind.
        ValueError: the run, the samples or the output cannot be used, or the precision cannot be
            measured here.
    """
    check_output(output)
    require_precision(precision)
    parity.require_labels(precision, samples.labels)
    calibration, samples = _divide(samples, _held_out(precision, quantization))
    parity.require_enough(len(samples), calibration=len(calibration))
    with folder_beside(output) as partial:
        weights = run.weights.read_bytes()  # once: a run that goes on may replace the file
        model = load_model(run, weights)
        on_progress("graphs", 0)
        files = _export(run, model, weights, program=program)
        calibrated = functools.partial(on_progress, "calibration")
        files[ONNX] = _lower(files[ONNX], precision, quantization, calibration, calibrated)
        on_progress("parity", 0)
        with parametrize.cached():
            files[PROBE] = _probe(model, samples)
            compared = functools.partial(on_progress, "parity")
            figures = _measured(model, files, samples, precision, compared)
        for name, content in files.items():
            (partial / name).write_bytes(content)
        manifest = _manifest(run, files, figures, precision, quantization)
        (partial / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
        write_card(partial, make_card(open_artifact(partial)))
        before_placing(open_artifact(partial))
        replace_folder(output, partial)
    return open_artifact(output)


def _divide(samples: Samples, held_out: int) -> tuple[Samples, Samples]:
    """Some samples for calibration, evenly spread, and of the others enough for parity."""
    chosen = spread(len(samples), held_out)
    others = np.setdiff1d(np.arange(len(samples)), chosen)
    return samples.take(chosen), samples.take(others[spread(len(others), samples.task.compared)])


def _export(run: Run, model: nn.Module, weights: bytes, *, program: bool) -> dict[str, bytes]:
    metadata = {METADATA_WEIGHTS: sha256(weights), METADATA_CONFIG: config_digest(run.config)}
    example = _example(run)
    files = {
        ONNX: to_onnx(model, example, metadata),
        TORCHSCRIPT: to_torchscript(model, example),
        WEIGHTS: weights,
    }
    if program:
        files[PROGRAM] = to_program(model, example)
    if not isinstance(run.spec, ImageSpec):
        files[TOKENIZER] = (run.folder / TOKENIZER).read_bytes()
    return files


def _lower(
    content: bytes,
    precision: Precision,
    quantization: Quantization,
    calibration: Samples,
    on_progress: Callable[[int], object],
) -> bytes:
    """Bring an fp32 graph to another precision; its inputs and logits keep their types."""
    if precision == "fp32":
        return content
    if precision != "int8":
        return to_half(content, precision)
    if quantization == "dynamic":
        return quantize_dynamic(content)
    return quantize_static(content, calibration, on_progress)


def _example(run: Run) -> Tensor | tuple[Tensor, Tensor]:
    # Constants, not samples: the example may end up in a trace, and two exports must be equal.
    if isinstance(run.spec, ImageSpec):
        return torch.zeros(2, run.spec.channels, run.spec.height, run.spec.width)
    tokens = torch.zeros(2, min(_EXAMPLE_TOKENS, run.spec.max_len), dtype=torch.int64)
    return tokens, torch.ones_like(tokens, dtype=torch.bool)


def _probe(model: nn.Module, samples: Samples) -> bytes:
    # Whoever has the artifact has its tokenizer: texts may not be the trainer's to give away.
    chosen = samples.take(spread(len(samples), samples.task.stored)).in_disorder(seed=0)
    chosen = chosen.first(samples.task.stored_tokens)
    pixels, feed = chosen.inputs, chosen.feed()
    predict = parity.eager(model)
    parts = np.array_split(np.arange(len(chosen)), 8)
    batches = [predict({name: values[part] for name, values in feed.items()}) for part in parts]
    inputs = {"images": pixels} if isinstance(pixels, np.ndarray) else feed
    return write_probe(Probe(inputs=inputs, logits=np.concatenate(batches)))


def _measured(
    model: nn.Module,
    files: dict[str, bytes],
    samples: Samples,
    precision: Precision,
    on_progress: Callable[[int], object],
) -> Parity:
    """Figures that suffice; a failing ONNX graph's error says in which layer it begins."""
    graph, eager = open_graph(files[ONNX], precision), parity.eager
    candidates = {
        ONNX: parity.Candidate(predict=graph, precision=precision, runtime=graph.name),
        TORCHSCRIPT: parity.Candidate(
            predict=eager(load_torchscript(files[TORCHSCRIPT])), runtime="torchscript"
        ),
    }
    if PROGRAM in files:
        candidates[PROGRAM] = parity.Candidate(
            predict=eager(load_program(files[PROGRAM])), runtime="torch.export"
        )
    try:
        figures = parity.measure(eager(model), candidates, samples, on_progress=on_progress)
        parity.require(figures)
    except parity.ParityError as error:
        if error.name == ONNX:
            feed = samples.feed(spread(len(samples), _OBSERVED_SAMPLES))
            error.layers = layer_errors(model, files[ONNX], precision, feed)
        raise
    return figures


def _manifest(
    run: Run,
    files: dict[str, bytes],
    figures: Parity,
    precision: Precision,
    quantization: Quantization,
) -> Manifest:
    recipe = run.recipe | {"data": run.recipe["data"] | {"source": run.source}}
    tokens = run.config.get("vocab_size", 0)
    if isinstance(run.spec, ImageSpec):
        shape = [-1, run.spec.channels, run.spec.height, run.spec.width]
        reads = InputSpec(shape=shape)
    else:
        reads = TokensSpec(range=(0, tokens - 1))
    return Manifest(
        name=run.name,
        version=run.version,
        architecture=run.architecture,
        config=run.config,
        task=run.task,
        input=reads,
        output=OutputSpec(shape=TASKS[run.task].output_shape(len(run.labels), reads.shape, tokens)),
        labels=run.labels,
        preprocessing=dataclasses.asdict(run.spec),
        precision=precision,
        quantization=quantization if precision == "int8" else None,
        files={name: sha256(content) for name, content in files.items()},
        parity=figures,
        metrics={key: value for key, value in run.metrics.items() if key != "environment"},
        training={
            "recipe": recipe,
            "seed": run.seed,
            "weights_sha256": sha256(files[WEIGHTS]),
            "environment": run.metrics.get("environment", {}),
        },
    )


def check_output(output: Path) -> None:
    """Raise ValueError for a place where no artifact may be written."""
    if not output.exists() and not output.is_symlink():
        return
    if not output.is_dir() or output.is_symlink():
        raise ValueError(f"output must be a folder, got {output}")
    if any(output.iterdir()) and not (output / MANIFEST).is_file():
        raise ValueError(f"output must be new, empty or an artifact, got {output}")


@contextmanager
def folder_beside(output: Path) -> Iterator[Path]:
    """A folder to fill, on the disk of `output`; removed unless it was moved away."""
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    try:
        partial.chmod(0o755)  # mkdtemp's 0700 would hide the artifact from the service's user
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def replace_folder(output: Path, partial: Path) -> None:
    """Put the finished folder in place; an old artifact stays until the new one is complete."""
    if not output.exists():
        partial.rename(output)
        return
    old = partial.with_name(f"{partial.name}.old")
    output.rename(old)
    try:
        partial.rename(output)
    except BaseException:  # an interrupt is none of Exception's
        old.rename(output)
        raise
    shutil.rmtree(old)
