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
_TOLERANCE = 1e-4
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
    kernel = tried_kernel(q.device)
    if kernel is None or any(each.stride(-1) != 1 for each in (q, v, v_prev)):
        return False
    kernel(q, v, v_prev, mean=scaling == "mean")
    return True


@cache
def tried_kernel(device: torch.device) -> ScaleQueries | None:
    """The kernel, once it has given the right answer on a device; None where it cannot run."""
    if device.type != "cuda":
        return None
    generator = torch.Generator().manual_seed(0)
    q, v, v_prev = torch.randn(3, 2, 2, 70, 40, generator=generator).to(device)
    expected = q * estimate_metric(v, v_prev)
    try:
        kernel: ScaleQueries = importlib.import_module(
            "models.attention.fused_kernel"
        ).scale_queries
        kernel(q, v, v_prev, mean=False)
        difference = float((q - expected).abs().max())
    except Exception as error:  # no Triton, no compiler, a device that it does not know
        logger.info("m is computed by torch's operators: %s: %s", type(error).__name__, error)
        return None
    if not difference <= _TOLERANCE:
        logger.warning("m is computed by torch's operators: the kernel errs by %g", difference)
        return None
    return kernel
