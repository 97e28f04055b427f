"""Draw the error of every layer, so that the reader sees where a graph begins to differ."""

import io
import math

from PIL import Image, ImageDraw, ImageFont

_WIDTH, _HEIGHT, _MARGIN, _TOP = 900, 420, 70, 50
_INK, _GRID, _BAR = (30, 30, 30), (215, 215, 215), (196, 78, 82)
_LOWEST = 1e-9


def plot_errors(errors: dict[str, float], *, title: str) -> bytes:
    """A PNG with one bar a layer on a logarithmic scale.

    Args:
        errors: relative error by name of the layer, in order; at least one. What is not finite has
            a bar of full height.
        title: written above the bars.
    """
    image = Image.new("RGB", (_WIDTH, _HEIGHT), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(14)
    finite = [math.log10(max(each, _LOWEST)) for each in errors.values() if math.isfinite(each)]
    low = math.floor(min(finite, default=0.0))
    high = max(math.ceil(max(finite, default=0.0)), low + 1)
    logs = [math.log10(max(min(each, 10.0**high), _LOWEST)) for each in errors.values()]
    bottom = _HEIGHT - _MARGIN

    def height(log: float) -> float:
        return bottom - (log - low) / (high - low) * (bottom - _TOP)

    draw.text((_MARGIN, 15), title, fill=_INK, font=font)
    for power in range(low, high + 1):
        draw.line([(_MARGIN, height(power)), (_WIDTH - 20, height(power))], fill=_GRID)
        draw.text((10, height(power) - 9), f"1e{power}", fill=_INK, font=font)
    step = (_WIDTH - 20 - _MARGIN) / len(errors)
    for index, (name, log) in enumerate(zip(errors, logs, strict=True)):
        left = _MARGIN + index * step
        box = [(left + 0.15 * step, height(max(log, low + 0.02))), (left + 0.85 * step, bottom)]
        draw.rectangle(box, fill=_BAR)
        label = name.removeprefix("layer_")
        draw.text((left + 0.5 * step, bottom + 8), label, fill=_INK, font=font, anchor="ma")
    caption = "layer: ||graph - model|| / ||model|| of its tokens; last: of the logits"
    draw.text((_MARGIN, _HEIGHT - 30), caption, fill=_INK, font=font)
    stream = io.BytesIO()
    image.save(stream, format="PNG")
    return stream.getvalue()
