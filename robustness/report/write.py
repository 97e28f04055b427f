"""Everything that is written from a report, beside `report.json`."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from torch import nn

from robustness.report import junit, markdown, page, sample_table
from robustness.report.attention import attention_maps
from robustness.report.examples import Example, Pixels, Texts, choose
from robustness.report.schema import Report
from robustness.report.stored import InputLost, adversarial_input, cell_of, clean_input
from robustness.shards import write_whole


def write_companions(
    folder: Path, report: Report, *, twins: Mapping[str, nn.Module] | None = None
) -> None:
    """Write `report.html`, `report.junit.xml`, `card.md` and `samples.parquet`.

    Args:
        folder: of the evaluation, with its shards.
        report: what was found.
        twins: by the digest of a model its differentiable twin, whose attention is shown.
    """
    digest = report.summary.models[0].digest
    twin = (twins or {}).get(digest)
    shown = _with_attention(list(_exhibits(folder, report)), twin)
    write_whole(folder / page.FILE, page.render(report, shown).encode())
    write_whole(folder / junit.FILE, junit.render(report))
    write_whole(folder / markdown.FILE, markdown.render(report).encode())
    write_whole(folder / sample_table.FILE, sample_table.render(report))


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
    shown: Sequence[tuple[Example, Pixels | Texts | None]], twin: nn.Module | None
) -> list[tuple[Example, Pixels | Texts | None]]:
    pictures = [(i, views) for i, (_, views) in enumerate(shown) if isinstance(views, Pixels)]
    if twin is None or not pictures:
        return list(shown)
    both = np.concatenate(
        [
            np.stack([views.clean for _, views in pictures]),
            np.stack([views.adversarial for _, views in pictures]),
        ]
    )
    maps = attention_maps(twin, both)
    if maps is None:
        return list(shown)
    changed = list(shown)
    for place, (i, views) in enumerate(pictures):
        pair = maps[place], maps[len(pictures) + place]
        seen = Pixels(clean=views.clean, adversarial=views.adversarial, attention=pair)
        changed[i] = shown[i][0], seen
    return changed
