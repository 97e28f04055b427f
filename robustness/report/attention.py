"""What a prediction draws on, before and after an attack. Needs torch."""

import numpy as np
import torch
from torch import nn

from models.diagnostics import diagnose

_BATCH = 4  # diagnostics keep every layer of every image


def attention_maps(twin: nn.Module, images: np.ndarray) -> np.ndarray | None:
    """Attention of the head on the patches of images, through all layers (rollout).

    Args:
        twin: the model on trial as a module; its state is left as it was.
        images: (N, C, H, W) float32 in [0, 1].

    Returns:
        (N, h, w) shares of the patches, or None where the model has no attention to show.
    """
    parameter = next(twin.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    found = []
    for batch in np.array_split(images, max(1, len(images) // _BATCH)):
        try:
            flow = diagnose(twin, torch.from_numpy(batch).to(device)).rollout
        except ValueError:  # a model that cannot be observed, such as one from outside
            return None
        if flow is None or flow.ndim != 3 or len(flow) != len(batch):
            return None
        found.append(flow.float().cpu().numpy())
    return np.concatenate(found)
