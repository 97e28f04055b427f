"""What attentions cost, from the records of `attention_scaling` and `robust_attentions`."""

from collections.abc import Sequence
from typing import Any

import models
from benchmarks.attention_scaling import FORMS, LENGTHS, LINEAR
from benchmarks.robust_attentions import MODELS, WORKS
from core.tables import markdown_table
from results.layer_chart import Line, Panel, draw

ROBUST = ("kde", "mom", "rkde", "spkde", "mgk", "fourier")
_UNITS = {"time": "ms", "peak memory": "MiB"}
_SCALING = (
    "One layer of width 64 with two heads, batch 1, one thread, without padding: time and peak "
    "memory at {most:,} tokens, or at the largest number measured, and the exponent of time over N "
    "between 1,024 and {most:,}; the pictures are in "
    "[the reference](reference/attentions.md#time-and-memory). Times are the processor's, medians "
    "on a shared machine. `exported` is one ONNX graph for every length up to {most:,}, forward; "
    "the last column is its largest difference from the eager layer over the largest number."
)
_PAPER = {
    "dot": (0.347, 2.08),
    "elliptical": (0.342, 2.12),
    "mom": (0.331, 2.24),
    "rkde": (0.271, 3.12),
    "spkde": (0.168, 3.35),
    "rvt_tiny": (0.292, 3.91),
}
"""Iterations/s and memory in GB, EA tables 11 and 12: batch and card are others."""
_ROBUST = (
    "DeiT-tiny with each attention, and RVT-tiny, at 224 x 224, batch 8, one thread: iterations/s "
    "as a share of elliptical attention's, measured in turn, and peak memory over its; beside them "
    "the paper's tables 11 and 12, whose batch and card are others: yardsticks, no results of ours."
)


def pictures(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Time and memory over N as SVG, dot-product attention in each, by name of the file."""
    known = {row["case"]: row["measured"] for row in rows}
    others = [name for name in models.attentions() if name not in ("dot", *LINEAR, *ROBUST)]
    groups = {"linear": LINEAR, "other": others, "robust": ROBUST}
    return {f"images/scaling-{name}.svg": _picture(known, group) for name, group in groups.items()}


def _picture(known: dict[str, float], names: Sequence[str]) -> str:
    first = "forward, 256 tokens, time"
    shown, panels = [name for name in ("dot", *names) if f"{name}, {first}" in known], []
    for what, unit in _UNITS.items():
        for form in FORMS:
            lines = []
            for name in shown:
                values = [known.get(f"{name}, {form}, {n:,} tokens, {what}") for n in LENGTHS]
                if any(values):
                    lines.append(Line(group=name, values=values))
            title = f"{form}: {what} in {unit}"
            panels.append(Panel(title=title, x_title="tokens", x=LENGTHS, lines=lines, log=True))
    return draw(panels, groups=shown)


def scaling_table(rows: Sequence[dict[str, Any]]) -> str:
    """Exponents, and time and memory at the largest N, by mechanism."""
    known = {row["case"]: row for row in rows}
    lines = []
    for name in models.attentions():
        cells = [cell for form in FORMS for cell in _scaling(known, f"{name}, {form}")]
        parity = known.get(f"{name}, exported, largest difference from eager")
        cells.append(f"{1e-6 * parity['measured']:.0e}" if parity else "")
        if any(cells):
            lines.append([f"`{name}`", *cells])
    heads = (head for form in FORMS for head in (form, "exponent"))
    table = markdown_table(("attention", *heads, "graph differs by"), lines)
    return f"{_SCALING.format(most=LENGTHS[-1])}\n\n{table}"


def _scaling(known: dict[str, dict[str, Any]], curve: str) -> tuple[str, str]:
    """Time and memory at the end of a curve, and its exponent; empty where it was not measured."""
    found, most = [], LENGTHS[-1]
    for length in LENGTHS:
        point = f"{curve}, {length:,} tokens"
        if row := known.get(f"{point}, more than"):
            return f"{length:,} tokens: more than {row['measured']:g} {row['unit']}", ""
        if f"{point}, time" in known:
            found, most = [known[f"{point}, {what}"] for what in _UNITS], length
    cell = ", ".join(f"{row['measured']:,.0f} {row['unit']}" for row in found)
    exponent = known.get(f"{curve}, exponent of time over N, 1,024 to 8,192")
    if found and most < LENGTHS[-1]:
        cell += f" (at {most:,})"
    return cell, f"{exponent['measured']:.2f}" if exponent else ""


def robust_table(rows: Sequence[dict[str, Any]]) -> str:
    """Rate and memory over those of elliptical attention, beside the paper's."""
    known = {row["case"]: row["measured"] for row in rows}
    cases, lines = [f"224, {work}, batch 8" for work in WORKS], []
    for name in MODELS:
        if not all(f"{case}, {name} / elliptical" in known for case in cases):
            continue
        rates = [known[f"{case}, {name} / elliptical"] for case in cases]
        peaks = [
            [known[f"{case}, peak memory, {m}"] for m in (name, "elliptical")] for case in cases
        ]
        paper = [own / other for own, other in zip(_PAPER[name], _PAPER["elliptical"], strict=True)]
        cells = [*rates, paper[0], *(own / other for own, other in peaks), paper[1]]
        lines.append([f"`{name}`", *(f"{cell:.2f}" for cell in cells)])
    heads = [f"{what}, {each}" for what in ("rate", "memory") for each in (*WORKS, "paper")]
    return f"{_ROBUST}\n\n{markdown_table(('model', *heads), lines)}"
