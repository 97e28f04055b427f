import pytest

from service.http.errors import ApiError
from service.http.forms import form_of
from service.http.multipart import Part, boundary_of, parts

_HEAD = b'Content-Disposition: form-data; name="a"; filename="x.png"\r\n\r\n'


def _body(*contents: bytes, end: bytes = b"--B--\r\n") -> bytes:
    return b"".join(b"--B\r\n" + _HEAD + content + b"\r\n" for content in contents) + end


def _parts(body: bytes, boundary: bytes = b"B") -> list[Part]:
    return list(parts(body, boundary))


def test_contents_come_as_they_are() -> None:
    contents = [
        b"",
        b"\r\n",
        b"--B-",
        b"\r\n-B\r\n",
        b"\r\n--",
        b"\r\n--Bx",
        bytes(range(256)) * 300,
    ]
    assert [part.content for part in _parts(_body(*contents))] == contents


def test_what_follows_the_last_boundary_is_passed_over() -> None:
    body = _body(b"x") + b"bye\r\n--B\r\nnothing"
    assert _parts(body) == [Part("a", "x.png", b"x")]
    assert _parts(b"--B--") == _parts(b"\r\n--B--\r\n") == []


def test_a_part_may_be_longer_than_what_is_read_at_once() -> None:
    contents = [b"\r\n--" * 50_000, b"y", bytes(300_000)]
    assert [part.content for part in _parts(_body(*contents))] == contents


@pytest.mark.parametrize(
    ("disposition", "name", "filename"),
    [
        (b'form-data; name="a"', "a", None),
        (b"form-data; name=a; filename=b", "a", "b"),
        (b'form-data; name="a;b"; filename=""', "a;b", ""),
        (b'FORM-DATA; name="a"; filename="q\\"uo.png"', "a", 'q"uo.png'),
        (b'form-data; name="\xc3\xa4"; filename="\xff"', "ä", "�"),
        (b'form-data; name="a"; filename="x"; filename*=UTF-8\'\'y', "a", "x"),
    ],
)
def test_names_of_a_part(disposition: bytes, name: str, filename: str | None) -> None:
    head = b"--B\r\nX-Other: 1\r\ncontent-disposition: " + disposition
    body = head + b"\r\nContent-Type: image/png\r\n\r\nx\r\n--B--\r\n"
    assert _parts(body) == [Part(name, filename, b"x")]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--",
        b"--B",
        b"--BB\r\n" + _HEAD + b"x\r\n--B--",
        b"--B\n" + _HEAD + b"x\n--B--",
        _body(b"x", end=b""),
        _body(b"x", end=b"--"),
        b"hello\r\n" + _body(b"x"),
        _body(b"x")[:-8],
        b"--B\r\nContent-Disposition: form-data\r\n\r\nx\r\n--B--",
        b'--B\r\nContent-Disposition: attachment; name="a"\r\n\r\nx\r\n--B--',
        b"--B\r\n\r\nx\r\n--B--",
        b"--B\r\nX: " + b"x" * 9000 + b"\r\n" + _HEAD + b"x\r\n--B--",
    ],
)
def test_what_is_no_form_is_400(body: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        _parts(body)
    assert (refused.value.status, refused.value.code) == (400, "malformed_multipart")


@pytest.mark.parametrize("given", ["", "boundary=", "boundary=" + "x" * 71, 'boundary="a b "'])
def test_a_boundary_is_needed(given: str) -> None:
    assert boundary_of("multipart/form-data; boundary=x-Y_9") == b"x-Y_9"
    assert boundary_of('multipart/form-data; boundary="a b"') == b"a b"
    with pytest.raises(ApiError):
        boundary_of(f"multipart/form-data; {given}")


def test_a_form_of_many_small_parts_ends_at_its_limits() -> None:
    body = _body(*[b"x"] * 100_000)
    with pytest.raises(ApiError) as refused:
        form_of("multipart/form-data; boundary=B", body, files=["a"], fields=["model"], max_files=3)
    assert refused.value.code == "too_many_images"
