"""Weights in and out of models, as safetensors."""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn


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
        state = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path.name} is not a readable safetensors file: {error}") from error
    try:
        model.load_state_dict(state, strict=True)
    except RuntimeError as error:
        raise ValueError(f"{path.name} does not fit the model: {error}") from error
