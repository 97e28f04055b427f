from xml.etree import ElementTree

import pytest

from results.layer_chart import Line, Panel, draw

SVG = "{http://www.w3.org/2000/svg}"


def panel(*lines: Line) -> Panel:
    return Panel(title="a < b", x_title="layer", x=[1, 2, 3], lines=lines)


def places(points: str | None) -> list[tuple[float, float]]:
    pairs = (point.split(",") for point in (points or "").split())
    return [(float(x), float(y)) for x, y in pairs]


def test_higher_values_lie_higher_and_names_are_escaped() -> None:
    first = Line(group="one & two", values=[-1, 5, 20], band=([-2, 4, 19], [0, 6, 21]))
    chart = panel(first, Line(group="other", values=[2, None, 1]))
    root = ElementTree.fromstring(draw([chart], groups=["one & two", "other"]))
    drawn, gap = (places(found.get("points")) for found in root.iter(f"{SVG}polyline"))
    (shade,) = (places(found.get("points")) for found in root.iter(f"{SVG}polygon"))
    assert [x for x, _ in drawn] == sorted(x for x, _ in drawn) and len(gap) == 2
    assert [y for _, y in drawn] == sorted((y for _, y in drawn), reverse=True)
    assert len(shade) == 6 and all(0 < x < 320 and 0 < y < 220 for x, y in shade + drawn)
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"a < b", "layer", "one & two", "other", "0", "10", "20"} <= set(texts)
    assert len(list(root.iter(f"{SVG}circle"))) == 5


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0])
def test_line_without_change_can_be_drawn(value: float) -> None:
    bound = Line(group="a", values=[value] * 3, dashed=True)
    root = ElementTree.fromstring(draw([panel(bound)] * 4, groups=["a"]))
    assert len(list(root.iter(f"{SVG}polyline"))) == 4 and not list(root.iter(f"{SVG}circle"))
    single = Panel(title="t", x_title="layer", x=[1], lines=[Line(group="a", values=[value])])
    assert "nan" not in draw([single], groups=["a"])


def test_powers_are_straight_lines_on_logarithmic_axes() -> None:
    line = Line(group="a", values=[3, 12, 48, 192])
    chart = Panel(title="t", x_title="tokens", x=[1, 2, 4, 8], lines=[line], log=True)
    root = ElementTree.fromstring(draw([chart], groups=["a"]))
    [points] = (places(found.get("points")) for found in root.iter(f"{SVG}polyline"))
    for axis in zip(*points, strict=True):
        steps = [later - before for before, later in zip(axis, axis[1:], strict=False)]
        assert max(steps) - min(steps) < 0.11 and abs(steps[0]) > 20
    texts = {text.text for text in root.iter(f"{SVG}text")}
    assert {"1", "2", "4", "8", "10", "100"} <= texts and "1000" not in texts
