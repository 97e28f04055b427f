"""DeiT exported, on ONNX Runtime with tensors that stay on the device."""

from collections.abc import Callable, Iterator
from functools import cache, partial

import numpy as np
import onnxruntime
import torch
from torch import Tensor

from benchmarks.device.images import images_on, pair_for
from benchmarks.device.setting import Cell, Setting, product, rate_rows
from benchmarks.device.timing import Call, by_clock, measure_for, synchronize
from benchmarks.support.rows import Row, skipped
from export.half import to_half
from export.onnx import to_onnx
from models.layers.images import ImageModel
from runtimes import cuda
from runtimes.base import RuntimeUnavailable
from runtimes.onnx import open_session


def cells(setting: Setting) -> Iterator[Cell]:
    """Images per second by provider and precision of the graph."""
    for engine, sizes, precisions in {
        "cuda": [
            ("CUDA", setting.sizes, ("fp16", "fp32", "tf32")),
            ("Tensorrt", setting.sizes[:1], ("fp16",)),
        ],
        "cpu": [("CPU", setting.sizes, ("fp32",))],
    }[setting.device]:
        try:
            NEEDED[engine]()
        except RuntimeUnavailable as error:
            missing = skipped(f"ONNX Runtime {engine}", str(error))
            yield missing.case, partial(list, [missing])  # once for all
            continue
        for size, batch, precision in product(sizes, setting.batches, precisions):
            case = f"DeiT-{size} {setting.img_size}, ONNX Runtime {engine}, {precision}"
            case = f"{case}, batch {batch}"
            yield case, partial(_rows, case, engine, setting, size, batch, precision)


def _rows(
    case: str, engine: str, setting: Setting, size: str, batch: int, precision: str
) -> Iterator[Row]:
    exact = [_exported(model) for model in pair_for(setting, size)]
    graphs = [to_half(each, "fp16") for each in exact] if precision == "fp16" else exact
    images = images_on(setting, batch)
    first, second = (bound(_session(graph, engine, precision), images) for graph in graphs)
    pairs = measure_for(first, second, setting.cell_s, by_clock)
    yield from rate_rows(case, pairs, batch, "images/s")


@cache
def _exported(model: ImageModel) -> bytes:
    side = model.config.img_size
    with torch.inference_mode(False):
        return to_onnx(model, torch.zeros(2, 3, side, side), {})


NEEDED: dict[str, Callable[[], object]] = {
    "CPU": lambda: None,
    "CUDA": cuda.libraries,
    "Tensorrt": cuda.tensorrt,
}
"""By engine, what says in words that it is not here."""


def _session(graph: bytes, engine: str, precision: str) -> onnxruntime.InferenceSession:
    """Open a graph on a provider and nowhere else.

    Raises:
        RuntimeError: the session uses another one.
    """
    provider = f"{engine}ExecutionProvider"
    options: dict[str, dict[str, str]] = {
        "CUDA": {"use_tf32": str(int(precision == "tf32"))},
        "Tensorrt": {"trt_fp16_enable": str(precision == "fp16")},
    }
    providers = [(provider, options.get(engine, {})), "CPUExecutionProvider"]
    session = open_session(graph, threads=1, providers=providers[: 1 + (engine != "CPU")])
    used = session.get_providers()[0]
    if used != provider:
        raise RuntimeError(f"{provider} could not be loaded; the session runs on {used} instead")
    return session


def bound(session: onnxruntime.InferenceSession, images: Tensor) -> Call:
    """Run a session on images where they are, which the caller keeps; the logits stay there too."""
    device, classes = images.device.type, session.get_outputs()[0].shape[1]
    logits = torch.empty(len(images), classes, device=device)
    binding = session.io_binding()
    binding.bind_input("images", device, 0, np.float32, list(images.shape), images.data_ptr())
    binding.bind_output("logits", device, 0, np.float32, list(logits.shape), logits.data_ptr())
    synchronize(device)

    def call() -> Tensor:
        """The logits, once the session has written them."""
        session.run_with_iobinding(binding)
        return logits

    return call
