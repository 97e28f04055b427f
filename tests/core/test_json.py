import pytest

from core.json import JsonError, TooManyItems, read_json


def test_json_is_read() -> None:
    assert read_json(b'{"a": [1, 2.5, null, {"a": "\xc3\xa9"}]}') == {
        "a": [1, 2.5, None, {"a": "é"}]
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[NaN]", "NaN is not JSON"),
        ("[-Infinity]", "-Infinity is not JSON"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' must not appear twice"),
        (r'{"\ud800": 1, "\ud800": 2}', r"the key '\\ud800' must not"),
        ("{", "Expecting property name"),
        (b"\xff\xfe\xfa", "not JSON text"),
        ("[]".encode("utf-16"), "not JSON text"),
        ("[" * 100_000, "too many levels"),
        ("1" * 5000, "not JSON text"),
    ],
)
def test_what_is_not_json_is_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(JsonError, match=message):
        read_json(text)


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("[" + "1," * 98 + "1]", 102),
        ("[" * 25 + "]" * 25, 100),
        ('{"a": {"b": {"c": {"d": 1}}}}', 96),
        ('["' + "[,:{" * 50 + '"]', 4),
        (r'["\\", "\"[[[[[[[[[[[[[[[[[[[[[[[[[", "\\\"[[[", ""]', 7),
    ],
)
def test_items_outside_of_strings_are_counted_before_reading(text: str, items: int) -> None:
    assert read_json(text, most=items) == read_json(text.encode())
    with pytest.raises(TooManyItems, match=f"more than {items - 1} items"):
        read_json(text, most=items - 1)


def test_levels_are_counted() -> None:
    deep = '{"a": [{"b": []}, 1]}'
    assert read_json(deep, levels=4) == read_json(deep)
    assert read_json("1", levels=0) == 1
    with pytest.raises(TooManyItems, match="more than 3 levels"):
        read_json(deep, levels=3)


def test_a_document_of_quotes_alone_is_not_cut_up() -> None:
    with pytest.raises(TooManyItems):
        read_json('"' * 1000 + "," * 101, most=100)
