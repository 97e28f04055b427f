"""What a trained model makes of tokens, drawn in two dimensions (TransJect's figure 7).

Source: Tenenbaum et al., "A global geometric framework for nonlinear dimensionality reduction",
2000; scikit-learn's Isomap.
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from models.analysis.observation import LayerRecord
from results.layer_chart import COLORS, text

SAMPLES, TOKENS = 15, 8
"""Samples whose tokens are shown, and how many of each."""
_NEIGHBORS = 6
_COLUMNS, _SIDE, _TOP, _ROOM = 3, 320, 30, 12
_LEGEND_ROW = 18


def tokens_of(layer: LayerRecord) -> np.ndarray:
    """Some of the real tokens that a layer gave one sample, evenly spread: (at most 8, C)."""
    given = layer.outputs if layer.mask is None else layer.outputs[layer.mask]
    given = given.reshape(-1, given.shape[-1])
    chosen = np.linspace(0, len(given) - 1, min(TOKENS, len(given))).round()
    return given[torch.from_numpy(chosen).long()].double().numpy()


def embed(tokens: np.ndarray) -> dict[str, list[float]] | None:
    """Isomap of tokens (T, C): places `x`, `y` in the plane; None where they are nearly all alike.

    Where the graph of neighbors falls into parts, scikit-learn ties these at their nearest tokens.
    """
    from sklearn.manifold import Isomap  # takes a second to import

    if len(np.unique(tokens, axis=0)) <= _NEIGHBORS:
        return None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The number of connected components")
        warnings.filterwarnings("ignore", "Changing the sparsity structure")
        found = Isomap(n_neighbors=_NEIGHBORS, n_components=2).fit_transform(tokens)
    return {name: [float(f"{v:.3g}") for v in found[:, i]] for i, name in enumerate("xy")}


def picture_name(source: str) -> str:
    """The file of a task's picture, in the folder `images` beside the page."""
    return f"isomap-{source}.svg"


def picture(records: Sequence[dict[str, Any]]) -> str:
    """The tokens of each analysis of a data set, in the colors of their samples' labels, as SVG."""
    labels = list(records[0]["recipe"]["labels"])
    rows = math.ceil(len(records) / _COLUMNS)
    width, height = _SIDE * min(_COLUMNS, len(records)), rows * _SIDE + _LEGEND_ROW * len(labels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="11" fill="#222">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for number, record in enumerate(records):
        row, column = divmod(number, _COLUMNS)
        parts.append(f'<g transform="translate({column * _SIDE},{row * _SIDE})">')
        title = text(_ROOM, 18, record["run"], "start", bold=True)
        parts += [title, *_panel(record["isomap"]), "</g>"]
    for number, label in enumerate(labels):
        y = rows * _SIDE + _LEGEND_ROW * number + 6
        parts.append(f'<circle cx="{_ROOM + 6}" cy="{y}" r="4" fill="{_color(number)}"/>')
        parts.append(text(_ROOM + 18, y + 4, label, "start"))
    return "\n".join([*parts, "</svg>", ""])


def _panel(found: dict[str, Any]) -> Iterator[str]:
    points = np.array([found["x"], found["y"]]).T
    low, span = points.min(0), float(np.ptp(points, axis=0).max()) or 1.0
    shown = (points - low) / span * (_SIDE - _TOP - _ROOM - 6)
    for (x, y), label in zip(shown, found["labels"], strict=True):
        place = f'cx="{x + _ROOM:.1f}" cy="{y + _TOP:.1f}"'
        yield f'<circle {place} r="2.5" fill="{_color(label)}" fill-opacity="0.7"/>'


def _color(label: int) -> str:
    return COLORS[label % len(COLORS)]
