"""Whether one kernel can do what elliptical attention does beside dot-product attention."""

import importlib
import logging
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from models.attention.metric import Scaling, estimate_metric

logger = logging.getLogger(__name__)

_MOST_ROWS = 1024  # of one program of the kernel; more would wait for one another
_TOLERANCE = 1e-4  # relative
_KERNEL = "models.attention.fused_kernel"
ScaleQueries = Callable[..., None]


def scale_queries(
    q: Tensor, v: Tensor, v_prev: Tensor, mask: Tensor | None, scaling: Scaling
) -> bool:
    """Overwrite q (B, H, N, D) by q * m of the estimator "difference", where that is one kernel.

    It is on a GPU, in half or single precision, without padding, where torch brings Triton and a
    first try gives what torch's operators give.

    Returns:
        Whether it was done; otherwise q is as it was.
    """
    same = q.dtype == v.dtype == v_prev.dtype and q.dtype.itemsize <= 4
    if not same or mask is not None or scaling == "none" or q.shape[2] > _MOST_ROWS:
        return False
    kernel = tried_kernel(q.device, q.dtype)
    if kernel is None or any(each.stride(-1) != 1 for each in (q, v, v_prev)):
        return False
    kernel(q, v, v_prev, mean=scaling == "mean")
    return True


@cache
def tried_kernel(device: torch.device, dtype: torch.dtype) -> ScaleQueries | None:
    """The kernel, once it has given the right answer on a device; None where it cannot run."""
    if device.type != "cuda":
        return None
    generator = torch.Generator().manual_seed(0)
    # Rows for several rounds, the last one not full, and no power of two in a row.
    q, v, v_prev = torch.randn(3, 2, 2, 300, 40, generator=generator).to(device, dtype)
    expected = q.float() * estimate_metric(v.float(), v_prev.float())
    try:
        kernel: ScaleQueries = importlib.import_module(_KERNEL).scale_queries
        kernel(q, v, v_prev, mean=False)
        error = float(((q.float() - expected).abs() / expected.abs().clamp_min(1e-3)).max())
    except Exception as problem:  # no Triton, no compiler, a device that it does not know
        logger.info("m is computed by torch's operators: %s: %s", type(problem).__name__, problem)
        return None
    if not error <= max(_TOLERANCE, torch.finfo(dtype).eps):
        logger.warning("m is computed by torch's operators: the kernel errs by %g", error)
        return None
    return kernel
