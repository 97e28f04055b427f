"""Everything that is written from a report, beside `report.json`."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import nn

from core.files import write_whole
from models.analysis.diagnostics import diagnose
from models.analysis.observation import has_observable_layers
from robustness.report import exports, html
from robustness.report.exhibits import Example, Pixels, Texts, choose
from robustness.report.lookup import InputLost, adversarial_input, cell_of, clean_input
from robustness.report.schema import Report

_BATCH = 4  # diagnostics keep every layer of every image
_LOG = logging.getLogger(__name__)


def write_companions(
    folder: Path, report: Report, *, torch_models: Mapping[str, nn.Module] | None = None
) -> None:
    """Write `report.html`, `report.junit.xml`, `card.md` and `samples.parquet`.

    Args:
        folder: of the evaluation, with its shards.
        report: what was found.
        torch_models: by a model's digest its PyTorch model, whose attention is shown.
    """
    digest = report.summary.models[0].digest
    torch_model = (torch_models or {}).get(digest)
    shown, note = _with_attention(list(_exhibits(folder, report)), torch_model)
    noted = report if note is None else report.model_copy(update={"notes": [*report.notes, note]})
    write_whole(folder / html.FILE, html.render(noted, shown).encode())
    write_whole(folder / exports.JUNIT, exports.junit(report))
    write_whole(folder / exports.CARD, exports.card(report).encode())
    write_whole(folder / exports.TABLE, exports.sample_table(report))


def _exhibits(folder: Path, report: Report) -> Iterator[tuple[Example, Pixels | Texts | None]]:
    for example in choose(report.samples, pixel_bytes=_pixel_bytes(folder, report)):
        try:
            yield example, _views(folder, report, example)
        except InputLost:
            yield example, None


def _pixel_bytes(folder: Path, report: Report) -> int:
    try:
        first = clean_input(folder, report.summary.models[0].digest, 0)
    except InputLost:
        return 0
    return first.size if isinstance(first, np.ndarray) else 0


def _views(folder: Path, report: Report, example: Example) -> Pixels | Texts:
    digest, index, attack = report.summary.models[0].digest, example.sample.index, example.attack
    clean = clean_input(folder, digest, index)
    changed = adversarial_input(
        folder,
        digest,
        index,
        cell=cell_of(report.spec, attack),
        part=attack.part,
        variant=attack.variant,
    )
    if isinstance(clean, str) or isinstance(changed, str):
        return Texts(clean=str(clean), adversarial=str(changed))
    return Pixels(clean=clean, adversarial=changed)


def _with_attention(
    shown: list[tuple[Example, Pixels | Texts | None]], torch_model: nn.Module | None
) -> tuple[list[tuple[Example, Pixels | Texts | None]], str | None]:
    """Add attention maps to pictures, or say in a note why there are none.

    The maps are optional and the evaluation is complete: nothing that they raise may end it.
    """
    pictures = [(i, views) for i, (_, views) in enumerate(shown) if isinstance(views, Pixels)]
    if torch_model is None or not pictures:
        return shown, None
    both = [views.clean for _, views in pictures] + [views.adversarial for _, views in pictures]
    try:
        maps = _attention_maps(torch_model, np.stack(both))
    except Exception as error:
        _LOG.warning("no attention maps in the report: %s", error, exc_info=True)
        return shown, f"Attention maps are not shown: {error}."
    if maps is None:
        return shown, None
    changed = list(shown)
    for place, (i, views) in enumerate(pictures):
        pair = maps[place], maps[len(pictures) + place]
        seen = Pixels(clean=views.clean, adversarial=views.adversarial, attention=pair)
        changed[i] = shown[i][0], seen
    return changed, None


def _attention_maps(torch_model: nn.Module, images: np.ndarray) -> np.ndarray | None:
    """Attention of the head on the patches of images, through all layers (rollout).

    Args:
        torch_model: the model under attack as a module; its state is left as it was.
        images: (N, C, H, W) float32 in [0, 1].

    Returns:
        (N, h, w) shares of the patches, or None where the model has no attention to show.

    Raises:
        ValueError: the model cannot be observed.
    """
    if not has_observable_layers(torch_model):
        return None
    parameter = next(torch_model.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    found = []
    for batch in np.array_split(images, max(1, len(images) // _BATCH)):
        flow = diagnose(torch_model, torch.from_numpy(batch).to(device)).rollout
        if flow is None:
            return None
        if flow.ndim != 3 or len(flow) != len(batch):
            raise ValueError(f"expected one map per image, got {tuple(flow.shape)}")
        found.append(flow.float().cpu().numpy())
    return np.concatenate(found)
