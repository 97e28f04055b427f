"""Whether code runs to be recorded as a graph, where checks of values have no place."""

import torch


def is_traced() -> bool:
    """Whether torch compiles, exports or traces the caller at this moment."""
    return torch.compiler.is_compiling() or bool(torch._C._get_tracing_state())
