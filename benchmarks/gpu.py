"""What does a GPU make of the models? Both attentions, both architectures, training and answers.

- "eager", "compiled", "torchscript", "onnx": images per second and peak memory of DeiT at 224 x 224
  with dot-product and with elliptical attention, which share their random weights. In "compiled"
  torch compiles each block on its own; a "CUDA graph" replays everything without the CPU. ONNX
  Runtime is given its tensors on the device and is timed until it returns.
- "transject": a transformer over TransJect at batch 1, as in `transject_speedup`, whose paper
  reports 5.0, 9.6 and 26.3 at 1k, 2k and 4k tokens.
- "profile": which share of a block's time the metric m and the scaling of q take.
- "training": steps of CIFAR-10's full-size DeiT in bf16 (forward, backward, AdamW; random images).
- "logits": answers of an artifact on the device, in every precision, beside the CPU's in fp32.

Times are those of CUDA's events, several calls between two of them, in turn and in alternating
order; a ratio is the median over pairs. "transject" and "profile" come "-compiled", too. On a
machine without CUDA everything runs on the CPU. What cannot be measured, or not in the time that is
left, gives a row that says why.
"""

import copy
import dataclasses
import gc
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

import models
from benchmarks.support.device import (
    Call,
    by_clock,
    captured,
    default_device,
    device_name,
    measure_for,
    peak_memory,
    rounding,
    seconds_on,
    synchronize,
)
from benchmarks.support.pairs import in_turn, pair_rows
from benchmarks.support.rows import Row, figure, skipped
from benchmarks.transject_speedup import Reference, transformer, transject, with_attention
from export.half import to_half
from export.onnx import to_onnx
from export.torch_files import to_torchscript
from models.layers.block import Block
from runtimes import cuda
from runtimes.artifact import open_artifact
from runtimes.onnx import open_session
from runtimes.torch_model import load_torch_model
from runtimes.torchscript import load_torchscript

_LABELS = ("dot-product", "elliptical")
_RATIO_TARGET = 0.99
_PAPER = {1024: 5.0, 2048: 9.6, 4096: 26.3}
"""By tokens: times a transformer is slower than TransJect, in its paper."""
_ARTIFACT = Path(__file__).parents[1] / "artifacts" / "fashion-elliptical"
_INPUTS, _CHUNK = 1000, 250
_PROFILED, _PROFILES = 20, 5
_TRAINED = 256  # images of a step


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is measured where.

    The first entries of each tuple matter most: they are measured first.

    Attributes:
        device: "cuda" or "cpu".
        sizes: of DeiT, by what changes its config.
        img_size: side of its images.
        batches: images of a call.
        precisions: of weights and inputs, or of products.
        lengths: tokens of TransJect.
        cell_s: seconds for the pairs of one figure.
    """

    device: str = field(default_factory=default_device)
    sizes: tuple[str, ...] = ("tiny", "small", "base")
    changes: dict[str, Any] = field(default_factory=dict)
    img_size: int = 224
    batches: tuple[int, ...] = (64, 512, 1, 8)
    precisions: tuple[str, ...] = ("bf16", "fp16", "tf32", "fp32")
    lengths: tuple[int, ...] = (1024, 4096, 2048, 16384, 8192)
    cell_s: float = 0.5

    def cells(self) -> list[tuple[str, int, str]]:
        """Size, batch and precision of DeiT, by how much they matter."""
        return _product(self.sizes, self.batches, self.precisions)


def _product(
    sizes: Sequence[str], batches: Sequence[int], precisions: Sequence[str]
) -> list[tuple[str, int, str]]:
    """All combinations, those first whose parts stand first."""
    axes = (sizes, batches, precisions)
    ranks = sorted(itertools.product(*(range(len(axis)) for axis in axes)), key=sum)
    return [(sizes[i], batches[j], precisions[k]) for i, j, k in ranks]


_SMALLEST: dict[str, Any] = {"patch_size": 8, "depth": 2, "embed_dim": 192, "num_classes": 10}
FORMS: dict[str, Callable[[], Setting]] = {
    "full": Setting,
    "tiny": lambda: Setting(
        sizes=("tiny",),
        changes=_SMALLEST,
        img_size=32,
        batches=(2,),
        precisions=("bf16", "tf32"),
        lengths=(64,),
        cell_s=0.01,
    ),
}
Known = TypeVar("Known")
Cell = tuple[str, Callable[[], Iterable[Row]]]
Form = Callable[[nn.Module, Tensor], nn.Module]


def run(
    seconds: float = 150.0, form: str = "full", parts: tuple[str, ...] = ("all",)
) -> Iterator[Row]:
    """Measure, what matters most first, until the time is over.

    Args:
        seconds: for everything; no figure is begun after them.
        form: "full", or "tiny" models and inputs.
        parts: of the list above, in this order.
    """
    begun = time.perf_counter()
    setting = _known("form", form, FORMS)()
    names = tuple(PARTS) if tuple(parts) == ("all",) else parts
    chosen = {name: _known("parts", name, PARTS) for name in names}
    where = device_name(setting.device)
    whole, passed = sum(share for share, _ in chosen.values()), 0.0
    for name, (share, cells) in chosen.items():
        passed += share / whole
        for row in _measured(name, cells(setting), begun + passed * seconds):
            yield dataclasses.replace(row, machine=where)


def _known(argument: str, name: str, known: dict[str, Known]) -> Known:
    if name not in known:
        raise ValueError(f"{argument} must be of {', '.join(known)}, got {name!r}")
    return known[name]


def _measured(name: str, cells: Iterable[Cell], end: float) -> Iterator[Row]:
    """The rows of all cells that can be begun in time."""
    late: list[str] = []
    for case, measure in cells:
        if time.perf_counter() > end:
            late.append(case)
            continue
        try:
            if "compiled" in name:
                torch.compiler.reset()
            with torch.inference_mode():
                yield from measure()
        except Exception as error:  # one figure less; whatever it was, the others do not need it
            yield skipped(case, f"{type(error).__name__}: {error}"[:300])
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    if late:
        yield skipped(f"{name}, {len(late)} figures from {late[0]!r} on", "the time was over")


@cache
def _pair(size: str, img_size: int, **changes: Any) -> tuple[nn.Module, nn.Module]:
    """DeiT with both attentions and the same weights, on the CPU."""
    torch.manual_seed(0)
    with torch.inference_mode(False):
        dot = models.build(f"deit_{size}", img_size=img_size, **changes)
        elliptical = models.build(f"deit_{size}_elliptical", img_size=img_size, **changes)
    elliptical.load_state_dict(dot.state_dict(), assign=True)
    return dot.eval().requires_grad_(False), elliptical.eval().requires_grad_(False)


def _models(setting: Setting, size: str) -> tuple[nn.Module, nn.Module]:
    return _pair(size, setting.img_size, **setting.changes)


def _images(setting: Setting, batch: int) -> Tensor:
    generator = torch.Generator().manual_seed(batch)
    images = torch.rand(batch, 3, setting.img_size, setting.img_size, generator=generator)
    return images.to(setting.device)


def _compiled(model: nn.Module, _: Tensor) -> nn.Module:
    """A model whose blocks are compiled: all but the first are one program."""
    for part in model.modules():
        if isinstance(part, Block):
            part.compile(fullgraph=True, dynamic=False)
    return model


def _scripted(model: nn.Module, images: Tensor) -> nn.Module:
    with torch.inference_mode(False):
        content = to_torchscript(model, images[:2].clone())
    return load_torchscript(content, device=images.device.type)


_DEIT_FORMS: dict[str, Form] = {
    "eager": lambda model, _: model,
    "compiled": _compiled,
    "torchscript": _scripted,
}


def _deit(form: str, setting: Setting) -> Iterator[Cell]:
    for cell in setting.cells():
        size, batch, precision = cell
        case = f"DeiT-{size} {setting.img_size}, {form}, {precision}, batch {batch}"
        yield case, partial(_deit_rows, case, form, setting, *cell)


def _deit_rows(
    case: str, form: str, setting: Setting, size: str, batch: int, precision: str
) -> Iterator[Row]:
    with rounding(precision) as dtype:
        images = _images(setting, batch).to(dtype)
        calls: list[Call] = []
        peaks: list[int] = []
        for model in _models(setting, size):
            model = copy.deepcopy(model).to(setting.device, dtype)
            calls.append(partial(_DEIT_FORMS[form](model, images), images))
            calls[-1]()
            peaks.append(peak_memory(model, calls[-1], setting.device))
        yield from _rates(case, calls, batch, setting)
        yield figure(f"{case}, peak memory, elliptical / dot-product", peaks[1] / peaks[0], "ratio")
        for label, peak in zip(_LABELS, peaks, strict=True):
            yield figure(f"{case}, peak memory, {label}", peak / 2**20, "MiB")
        if setting.device == "cuda" and form != "torchscript":
            yield from _rates(f"{case}, CUDA graph", map(captured, calls), batch, setting)


def _rates(case: str, calls: Iterable[Call], batch: int, setting: Setting) -> Iterator[Row]:
    first, second = calls
    pairs = measure_for(first, second, setting.cell_s, seconds_on(setting.device))
    rates = [[batch / each for each in pair] for pair in pairs]
    yield from pair_rows(
        case, _LABELS, rates, target=_RATIO_TARGET, better="higher", rate="images/s"
    )


def _onnx(setting: Setting) -> Iterator[Cell]:
    """ONNX Runtime with tensors that stay on the device."""
    for engine, sizes, precisions in {
        "cuda": [
            ("CUDA", setting.sizes, ("fp16", "fp32", "tf32")),
            ("Tensorrt", setting.sizes[:1], ("fp16",)),
        ],
        "cpu": [("CPU", setting.sizes, ("fp32",))],
    }[setting.device]:
        for size, batch, precision in _product(sizes, setting.batches, precisions):
            case = f"DeiT-{size} {setting.img_size}, ONNX Runtime {engine}, {precision}"
            case = f"{case}, batch {batch}"
            yield case, partial(_onnx_rows, case, engine, setting, size, batch, precision)


def _onnx_rows(
    case: str, engine: str, setting: Setting, size: str, batch: int, precision: str
) -> Iterator[Row]:
    NEEDED[engine]()
    graphs = _graphs(size, setting.img_size, half=precision == "fp16", **setting.changes)
    images = _images(setting, batch)
    first, second = (bound(_session(graph, engine, precision), images) for graph in graphs)
    pairs = measure_for(first, second, setting.cell_s, by_clock)
    rates = [[batch / each for each in pair] for pair in pairs]
    yield from pair_rows(
        case, _LABELS, rates, target=_RATIO_TARGET, better="higher", rate="images/s"
    )


@cache
def _graphs(size: str, img_size: int, *, half: bool, **changes: Any) -> list[bytes]:
    if half:
        exact = _graphs(size, img_size, half=False, **changes)
        return [to_half(graph, "fp16") for graph in exact]
    with torch.inference_mode(False):
        images = torch.rand(2, 3, img_size, img_size)
        return [to_onnx(model, images, {}) for model in _pair(size, img_size, **changes)]


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


def _transject(form: str, setting: Setting) -> Iterator[Cell]:
    for length, precision in itertools.product(setting.lengths, ("fp32", "bf16", "tf32")):
        case = f"{length} tokens, batch 1, {form}, {precision}"
        yield case, partial(_transject_rows, case, form, setting, length, precision)


def _transject_rows(
    case: str, form: str, setting: Setting, length: int, precision: str
) -> Iterator[Row]:
    with rounding(precision) as dtype:
        tokens = torch.randint(0, 256, (1, length)).to(setting.device)
        both = [
            copy.deepcopy(model).to(setting.device) for model in _sequence_models(length, dtype)
        ]
        ours, fused = both[0], both[1].to(dtype)
        calls: dict[str, Call] = {}
        for name, model in (
            ("TransJect E=4", ours),
            ("materialised transformer", with_attention(fused, Reference)),
            ("fused transformer", fused),
        ):
            if form == "compiled":
                model.compile(fullgraph=True, dynamic=False)
            calls[name] = partial(model, tokens)
        yield from _transject_ratios(case, length, calls, setting)
        if setting.device == "cuda":
            graphs = {name: captured(call) for name, call in calls.items()}
            yield from _transject_ratios(f"{case}, CUDA graph", length, graphs, setting)


def _transject_ratios(
    case: str, length: int, calls: dict[str, Call], setting: Setting
) -> Iterator[Row]:
    (label, ours), *others = calls.items()
    for target, (name, theirs) in zip((_PAPER.get(length), 1.0), others, strict=True):
        pairs = measure_for(ours, theirs, setting.cell_s, seconds_on(setting.device))
        yield from pair_rows(case, (label, name), pairs, target=target, better="higher")


@cache
def _sequence_models(length: int, dtype: torch.dtype) -> tuple[nn.Module, nn.Module]:
    """A folded TransJect with matrices of this type, and a transformer, on the CPU."""
    with torch.inference_mode(False):
        ours = models.fold(transject("transject", length), dtype=dtype)
        return ours, transformer(length).requires_grad_(False)


def _profile(form: str, setting: Setting) -> Iterator[Cell]:
    batch, precision = setting.batches[0], setting.precisions[0]
    for size in setting.sizes:
        case = f"DeiT-{size} {setting.img_size}, one block, {form}, {precision}, batch {batch}"
        yield case, partial(_profile_rows, case, form, setting, size)


def _profile_rows(case: str, form: str, setting: Setting, size: str) -> Iterator[Row]:
    """Time of what an elliptical block does beside the other's work, as a share of all."""
    calls: list[Call] = []
    with rounding(setting.precisions[0]) as dtype:
        for model in _models(setting, size):
            block = copy.deepcopy(model.get_submodule("blocks.1")).to(setting.device, dtype)
            width = len(block.get_parameter("norm1.weight"))
            x = torch.randn(setting.batches[0], 1 + (setting.img_size // 16) ** 2, width)
            x = x.to(setting.device, dtype)
            v = torch.randn_like(x).unflatten(-1, (-1, 64)).transpose(1, 2)  # (B, H, N, D)
            if form == "compiled":
                block.compile(fullgraph=True, dynamic=False)
            calls.append(partial(block, x, v))
            calls[-1]()
        dot, own = (partial(_spent, call, form, setting.device) for call in calls)
        pairs = list(in_turn(dot, own, _PROFILES))
    more = [_more(*pair) for pair in pairs]
    for name in sorted({name for shares in more for name in shares}):
        shares = [each.get(name, 0.0) for each in more]
        yield figure(f"{case}, m and the scaling of q, {name}", shares, "% of the time")


Spent = dict[str, tuple[int, float]]
"""Calls and microseconds, by operator or kernel."""


def _more(dot: Spent, own: Spent) -> dict[str, float]:
    """Percent of the time that goes to what is called more often than in the other block."""
    whole = sum(us for _, us in own.values()) / 100
    found = {"as a difference": 100 - sum(us for _, us in dot.values()) / whole}
    for name, (count, us) in own.items():
        other_count, other_us = dot.get(name, (0, 0.0))
        if count > other_count:
            found[name] = (us - other_us) / whole
    return found


def _spent(call: Call, form: str, device: str) -> Spent:
    """What the device did in several calls: by operator; by kernel where torch compiled them."""
    kinds = {"cpu": [ProfilerActivity.CPU], "cuda": [ProfilerActivity.CPU, ProfilerActivity.CUDA]}
    with profile(activities=kinds[device], acc_events=True) as profiler:
        for _ in range(_PROFILED):
            call()
        synchronize(device)
    found: Spent = {}
    of_kernels = device == "cuda" and form == "compiled"
    for event in profiler.events() or ():
        if event.is_user_annotation or of_kernels != (event.device_type.name == "CUDA"):
            continue
        us = event.self_device_time_total if device == "cuda" else event.self_cpu_time_total
        if us > 0:
            count, before = found.get(event.name, (0, 0.0))
            found[event.name] = (count + 1, before + us)
    return found


def _training(setting: Setting) -> Iterator[Cell]:
    case = f"CIFAR-10, DeiT-tiny of 4 x 4 patches, bf16 autocast, batch {_TRAINED}, steps"
    yield case, partial(_training_rows, case, setting)


def _training_rows(case: str, setting: Setting) -> Iterator[Row]:
    changes = setting.changes | {"img_size": 32, "patch_size": 4, "num_classes": 10}
    with torch.inference_mode(False):
        first, second = (
            _step(models.build(f"deit_tiny{attention}", drop_path=0.1, **changes), setting.device)
            for attention in ("", "_elliptical")
        )
        pairs = measure_for(first, second, 4 * setting.cell_s, seconds_on(setting.device))
    rates = [[1 / each for each in pair] for pair in pairs]
    target = _RATIO_TARGET
    yield from pair_rows(case, _LABELS, rates, target=target, better="higher", rate="steps/s")


def _step(model: nn.Module, device: str) -> Call:
    """A step of training on the same random images."""
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, fused=True)
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(_TRAINED, 3, 32, 32, generator=generator).to(device)
    labels = torch.randint(0, 10, (_TRAINED,), generator=generator).to(device)

    def step() -> None:
        """Forward, backward, and along the gradient."""
        with torch.autocast(device, torch.bfloat16):
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _logits(setting: Setting) -> Iterator[Cell]:
    for precision in ("fp32", "tf32", "bf16", "fp16"):
        case = f"{_ARTIFACT.name}, {_INPUTS} random inputs, {precision}"
        yield case, partial(_logits_rows, case, setting, precision)


def _logits_rows(case: str, setting: Setting, precision: str) -> Iterator[Row]:
    with torch.inference_mode(False):
        artifact = open_artifact(_ARTIFACT)
        model = load_torch_model(artifact)
    shape = (_INPUTS, *artifact.manifest.input.shape[1:])
    images = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    exact = torch.cat([model(part) for part in images.split(_CHUNK)])
    with rounding(precision) as dtype:
        model = model.to(setting.device, dtype)
        parts = [model(part.to(setting.device, dtype)) for part in images.split(_CHUNK)]
    found = torch.cat(parts).float().cpu()
    largest = 1e6 * (found - exact).abs().max().item()
    flips = int((found.argmax(1) != exact.argmax(1)).sum())
    yield figure(f"{case}, largest difference of logits from the CPU's", largest, "millionths")
    yield figure(f"{case}, other classes than the CPU's", flips, "inputs", samples=_INPUTS)


PARTS: dict[str, tuple[float, Callable[[Setting], Iterable[Cell]]]] = {
    "eager": (0.22, partial(_deit, "eager")),
    "transject": (0.16, partial(_transject, "eager")),
    "profile": (0.04, partial(_profile, "eager")),
    "training": (0.04, _training),
    "logits": (0.04, _logits),
    "onnx": (0.15, _onnx),
    "torchscript": (0.06, partial(_deit, "torchscript")),
    "compiled": (0.17, partial(_deit, "compiled")),
    "profile-compiled": (0.04, partial(_profile, "compiled")),
    "transject-compiled": (0.08, partial(_transject, "compiled")),
}
"""By name: its share of the time, and its figures; what is left over goes to the next."""
