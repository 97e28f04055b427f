from xml.etree import ElementTree

import pytest

from results.layer_chart import Line, Panel, draw

SVG = "{http://www.w3.org/2000/svg}"


def panel(*lines: Line) -> Panel:
    return Panel(title="a < b", x_title="layer", x=[1, 2, 3], lines=lines)


def places(points: str | None) -> list[tuple[float, float]]:
    pairs = (point.split(",") for point in (points or "").split())
    return [(float(x), float(y)) for x, y in pairs]


def test_picture_is_xml_with_every_line_and_its_name() -> None:
    lines = (Line(group="one & two", values=[0, 1, 2]), Line(group="other", values=[2, None, 1]))
    root = ElementTree.fromstring(draw([panel(*lines)], groups=["one & two", "other"]))
    drawn = [places(line.get("points")) for line in root.iter(f"{SVG}polyline")]
    assert [len(points) for points in drawn] == [3, 2]
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"a < b", "layer", "one & two", "other"} <= set(texts)
    assert len(list(root.iter(f"{SVG}circle"))) == 5


def test_higher_values_lie_higher_and_inside_of_the_picture() -> None:
    line = Line(group="a", values=[-1, 5, 20], band=([-2, 4, 19], [0, 6, 21]))
    root = ElementTree.fromstring(draw([panel(line)], groups=["a"]))
    (drawn,) = (places(found.get("points")) for found in root.iter(f"{SVG}polyline"))
    (band,) = (places(found.get("points")) for found in root.iter(f"{SVG}polygon"))
    assert [x for x, _ in drawn] == sorted(x for x, _ in drawn)
    assert [y for _, y in drawn] == sorted((y for _, y in drawn), reverse=True)
    assert len(band) == 6 and all(0 < x < 320 and 0 < y < 220 for x, y in band + drawn)


def test_ticks_are_round_numbers() -> None:
    line = Line(group="a", values=[0.1312, 0.2, 0.3])
    root = ElementTree.fromstring(draw([panel(line)], groups=["a"]))
    ticks = [text.text for text in root.iter(f"{SVG}text") if text.get("text-anchor") == "end"]
    assert ticks == ["0.15", "0.2", "0.25", "0.3"]


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0])
def test_line_without_change_can_be_drawn(value: float) -> None:
    bound = Line(group="a", values=[value] * 3, dashed=True)
    root = ElementTree.fromstring(draw([panel(bound)] * 4, groups=["a"]))
    assert len(list(root.iter(f"{SVG}polyline"))) == 4 and not list(root.iter(f"{SVG}circle"))
    single = Panel(title="t", x_title="layer", x=[1], lines=[Line(group="a", values=[value])])
    assert "nan" not in draw([single], groups=["a"])
