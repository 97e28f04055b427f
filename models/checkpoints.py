"""Weights in and out of models: our own as safetensors, public ones by their names."""

import argparse
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from models import fan
from models.deit import DeiT, resize_positions
from models.fan import FAN

_WRAPPERS = ("model", "state_dict")  # of DeiT's and Elliptical Attention's training, of timm's
_PARALLEL = "module."  # what torch's data parallelism puts before every name
_HEADS = ("head.", "head_dist.")
_NAMES_SHOWN = 8


def save_weights(model: nn.Module, path: Path) -> None:
    """Write the model's parameters and persistent buffers, replacing the file in one step."""
    partial = path.with_name(path.name + ".partial")
    save_file({key: value.contiguous() for key, value in model.state_dict().items()}, partial)
    partial.replace(path)


def load_weights(model: nn.Module, path: Path) -> None:
    """Read weights into the model; names and shapes must match exactly.

    Raises:
        ValueError: the file is no safetensors file, or its tensors are not the model's.
    """
    try:
        model.load_state_dict(_read_safetensors(path), strict=True)
    except RuntimeError as error:
        raise ValueError(f"{path.name} does not fit the model: {error}") from error


def load_public(model: nn.Module, path: Path, *, skip_head: bool = False) -> None:
    """Read the weights of a public DeiT, FAN-ViT or elliptical checkpoint into a model, by name.

    Both twins take the same file. Position embeddings are interpolated where the model has another
    number of patches. Nothing in the file is passed over in silence: tensors that the model does
    not have, such as a normalisation of its own (`mean`, `std`), would change its predictions.

    Args:
        model: its class decides how public names are translated; left as it is after an error.
        path: safetensors (by its suffix), or a file of `torch.save` that holds a state dict, alone
            or under "model" or "state_dict", with or without "module." before the names.
        skip_head: keep the model's own classification heads, e.g. for another number of classes.

    Raises:
        ValueError: the file holds anything but weights, cannot be read, has tensors too many or too
            few, or of another shape; the message names them.
    """
    state = _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path)
    state = _unwrap(state, path.name)
    own = model.state_dict()
    if skip_head:
        state = {key: value for key, value in state.items() if not key.startswith(_HEADS)}
        own = {key: value for key, value in own.items() if not key.startswith(_HEADS)}
    try:
        if isinstance(model, FAN):
            state = fan.from_public(state)
        _check_names(state, own)
        if isinstance(model, DeiT):
            size, prefix = model.config.grid_size, model.config.num_prefix_tokens
            state["pos_embed"] = resize_positions(state["pos_embed"], size, prefix)
        _check_shapes(state, own)
    except ValueError as error:
        raise ValueError(f"{path.name} does not fit the model: {error}") from error
    model.load_state_dict(state, strict=not skip_head)


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path.name} is not a readable safetensors file: {error}") from error


def _read_pickle(path: Path) -> Any:
    """Open a file of `torch.save` with torch's unpickler for weights, which runs no code."""
    try:
        # The scripts of DeiT and of Elliptical Attention save their command line with the weights.
        with torch.serialization.safe_globals([argparse.Namespace]):
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
    if all(key.startswith(_PARALLEL) for key in content):
        return {key.removeprefix(_PARALLEL): value for key, value in content.items()}
    return dict(content)


def _check_names(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    unexpected, missing = sorted(state.keys() - own.keys()), sorted(own.keys() - state.keys())
    found = [
        f"{what}: {', '.join(names[:_NAMES_SHOWN])}{' …' if len(names) > _NAMES_SHOWN else ''}"
        for what, names in (("unexpected tensors", unexpected), ("missing tensors", missing))
        if names
    ]
    if found:
        raise ValueError("; ".join(found))


def _check_shapes(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    for key, value in own.items():
        shape = state[key].shape
        if shape == value.shape:
            continue
        if key.startswith(_HEADS) and shape[1:] == value.shape[1:]:
            raise ValueError(
                f"{key} is for {shape[0]} classes, the model has {value.shape[0]}; "
                "skip_head=True keeps the model's own head"
            )
        raise ValueError(f"{key} must be {tuple(value.shape)}, got {tuple(shape)}")
