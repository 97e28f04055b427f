"""Weights in and out of models: our own as safetensors, public ones by their names."""

import argparse
import pickle
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from core.files import replacing
from models import fan, rvt
from models.deit import DeiTEncoder, resize_positions
from models.fan import FAN
from models.language_classifier import LanguageClassifier
from models.rvt import RVT
from models.segmenter import Segmenter

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_WRAPPERS = ("model", "state_dict")  # of DeiT's and Elliptical Attention's training, of timm's
_PREFIXES = ("module.", "_orig_mod.")  # of every name, by data parallelism and torch.compile
_COUNTER = "num_batches_tracked"  # the only integers among the weights
_HEADS = ("head.", "head_dist.")
_NAMES_SHOWN = 8


def save_weights(model: nn.Module, path: Path) -> None:
    """Write the model's parameters and persistent buffers, replacing the file in one step."""
    with replacing(path) as partial:
        save_file({key: value.contiguous() for key, value in model.state_dict().items()}, partial)


def load_weights(model: nn.Module, path: Path | str) -> None:
    """Read weights into the model; names and shapes must match exactly.

    Args:
        model: left as it is after an error.
        path: a safetensors file.

    Raises:
        ValueError: the file is no safetensors file, its tensors are not the model's, or a value is
            not finite.
    """
    path = Path(path)
    state, own = _read_safetensors(path), _own_tensors(model)
    try:
        _check_names(state, own)
        _check_shapes(state, own)
        _load(model, state, own)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"{path.name} does not fit the model: {error}") from error


def load_first_weights(model: nn.Module, path: Path | str) -> None:
    """Read weights that training starts from: the model's own, or those it may be made from.

    A segmenter takes those of a classifier, a classifier of causal texts those of a language model.

    Raises:
        ValueError: see `load_weights`; of others' weights, `load_public`.
    """
    path = Path(path)
    if isinstance(model, Segmenter) and not _has(path, "decoder."):
        load_public(model.encoder, path, skip_head=True)
    elif isinstance(model, LanguageClassifier) and not _has(path, "head.bias"):
        load_public(model, path, skip_head=True)
    else:
        load_weights(model, path)


def _has(path: Path, prefix: str) -> bool:
    is_safetensors = path.suffix.lower() == ".safetensors"
    return is_safetensors and any(key.startswith(prefix) for key in _read_safetensors(path))


def load_public(model: nn.Module, path: Path | str, *, skip_head: bool = False) -> None:
    """Read the weights of a public DeiT, FAN-ViT, RVT or elliptical model, by name.

    Both attentions take the same file. Position embeddings are interpolated where the model has
    another number of patches. No tensor is passed over in silence: those that the model
    does not have, such as a normalization of its own (`mean`, `std`), would change its predictions.
    Of several state dicts in a file the one under "model" is read, and not a "model_ema" beside it.

    Args:
        model: its class decides how public names are translated; left as it is after an error. The
            encoder of a Segmenter reads a classifier's with `skip_head`.
        path: safetensors (by its suffix), or a file of `torch.save` that holds a state dict, alone
            or under "model" or "state_dict", with or without "module." or "_orig_mod." before the
            names.
        skip_head: keep the model's own classification heads, e.g. for another number of classes.

    Raises:
        ValueError: the file holds anything but weights, cannot be read, has tensors too many or too
            few, of another shape, or with values that are not finite; the message names them.
    """
    path = Path(path)
    is_safetensors = path.suffix.lower() == ".safetensors"
    state = _unwrap(_read_safetensors(path) if is_safetensors else _read_pickle(path), path.name)
    own = _own_tensors(model)
    if skip_head:
        state = {key: value for key, value in state.items() if not key.startswith(_HEADS)}
        own = {key: value for key, value in own.items() if not key.startswith(_HEADS)}
    try:
        _check_kinds(state)
        if isinstance(model, FAN):
            state = fan.from_public(state)
        elif isinstance(model, RVT):
            state = rvt.from_public(state)
        _check_names(state, own)
        if isinstance(model, DeiTEncoder):
            size, prefix = model.config.grid_size, model.config.num_prefix_tokens
            state["pos_embed"] = resize_positions(state["pos_embed"], size, prefix)
        _check_shapes(state, own, hint="; skip_head=True keeps the model's own head")
        _load(model, state, own)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"{path.name} does not fit the model: {error}") from error


def _own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that a file replaces."""
    own = model.state_dict()
    for key, value in own.items():
        if value.is_meta:
            raise ValueError(f"model must be in memory, got {key} on the device meta")
    return own


def _load(model: nn.Module, state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Load what `own` names or, after an error, nothing: what could fail is done before."""
    _check_kinds(state)
    converted = {key: state[key].to(value.dtype) for key, value in own.items()}
    for key, value in converted.items():
        if not value.isfinite().all():
            raise ValueError(f"{key} must be finite in {value.dtype}")
    model.load_state_dict(converted, strict=False)  # not all where heads are skipped


def _check_kinds(state: Mapping[str, Tensor]) -> None:
    """Refuse tensors that cannot be computed with like any other, or that hold no weights."""
    for key, value in state.items():
        plain = value.layout == torch.strided and value.device.type == "cpu"
        if not plain or value.is_quantized or value.is_nested:
            got = f"{value.layout} on {value.device} with {value.dtype}"
            raise ValueError(f"{key} must be a dense tensor on the CPU, got {got}")
        counts = key.endswith(_COUNTER)
        if not (value.dtype in _INTEGERS if counts else value.is_floating_point()):
            kind = "integers" if counts else "floating point numbers"
            raise ValueError(f"{key} must hold {kind}, got {value.dtype}")


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except Exception as error:  # a type that torch lacks leads to errors of other kinds
        raise ValueError(f"{path.name} is not a readable safetensors file: {error}") from error


def _read_pickle(path: Path) -> Any:
    """Open a file of `torch.save` with torch's unpickler for weights, which runs no code."""
    try:
        # The scripts of DeiT and of Elliptical Attention save their command line with the weights.
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old formats; what was read is checked afterwards
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path.name} must hold weights alone; it asks for other objects, which could run code "
            "when opened, so it was not read"
        ) from error
    except Exception as error:  # a damaged byte leads torch's reader to errors of every kind
        raise ValueError(f"{path.name} is not a readable checkpoint of torch: {error}") from error


def _unwrap(content: Any, name: str) -> dict[str, Tensor]:
    for wrapper in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    if not isinstance(content, Mapping) or not content:
        raise ValueError(f"{name} must hold a state dict, got {type(content).__name__}")
    for key, value in content.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise ValueError(f"{name} must map names to tensors, got {key!r}: {type(value)}")
    state = {key: value.detach() for key, value in content.items()}
    while prefix := _shared_prefix(state):
        state = {key.removeprefix(prefix): value for key, value in state.items()}
    return state


def _shared_prefix(names: Iterable[str]) -> str | None:
    return next((p for p in _PREFIXES if all(name.startswith(p) for name in names)), None)


def _check_names(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    found = []
    for what, names in (("unexpected", state.keys() - own.keys()), ("missing", own.keys() - state)):
        if names:
            more = " …" if len(names) > _NAMES_SHOWN else ""
            found.append(f"{what} tensors: {', '.join(sorted(names)[:_NAMES_SHOWN])}{more}")
    if found:
        raise ValueError("; ".join(found))


def _check_shapes(
    state: Mapping[str, Tensor], own: Mapping[str, Tensor], *, hint: str = ""
) -> None:
    for key, value in own.items():
        shape = state[key].shape
        if shape == value.shape:
            continue
        if key.startswith(_HEADS) and shape[1:] == value.shape[1:]:
            has = f"the model has {value.shape[0]}{hint}"
            raise ValueError(f"{key} is for {shape[0]} classes, {has}")
        raise ValueError(f"{key} must be {tuple(value.shape)}, got {tuple(shape)}")
