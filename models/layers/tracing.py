"""Whether code runs to be recorded as a graph, where checks of values have no place."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def is_traced() -> bool:
    """Whether torch compiles, exports or traces the caller at this moment."""
    return torch.compiler.is_compiling() or bool(torch._C._get_tracing_state())


def full_precision(x: torch.Tensor) -> AbstractContextManager[object]:
    """Keep autocast, which would round products, off the device of a tensor inside a block."""
    recorded = torch.compiler.is_exporting() or bool(torch._C._get_tracing_state())
    return nullcontext() if recorded else torch.autocast(x.device.type, enabled=False)


def at_most(size: Any, limit: int) -> Any:
    """min(size, limit) of a tensor's size, which stays free in a graph."""
    if isinstance(size, torch.Tensor):  # as torch.jit traces it
        return size.clamp(max=limit)
    return torch.sym_min(size, limit)
