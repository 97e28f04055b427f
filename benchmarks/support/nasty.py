"""Requests that may cost more than their size suggests: one row a family, each of any size.

A kind makes content of a size, and a place puts it into a request. A new route is a row of places,
a new format a row of kinds.
"""

import io
import itertools
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from benchmarks.support.nasty_files import (
    LARGE,
    PARQUETS,
    PICTURES,
    ZIPS,
    Kind,
    fill,
    parquet,
    picture,
    zipped,
)  # fmt: skip

Message = tuple[str, bytes]
"""Lines of the head, each with its end, and a body."""
JSON, BINARY = "application/json", "application/octet-stream"
FORM, URLENCODED = "multipart/form-data", "application/x-www-form-urlencoded"
QUERY, HEAD, CHUNKED = "query", "head", "chunked"
"""Instead of a content type: where else the content stands."""
_HEAD_LIMIT = 60_000
_FILES = 16  # large pictures in one request
_BOUNDARY = "nasty-5f3a"
_PART = f"--{_BOUNDARY}\r\nContent-Disposition: form-data; ".encode()
_CLASSIFY, _TEXTS = "POST /classify", "POST /classify_text"
_SCORE, _SEGMENT = "POST /score", "POST /segment"
_EVALUATE, _COST = "POST /v1/evaluations", "POST /v1/evaluations/cost"
_IMAGES = "POST /v2/models/fashion-elliptical/infer"
_IMDB = "POST /v2/models/imdb-transject/infer"
_REPOSITORY = "POST /v2/repository"
_GET = ("/livez", "/v1/models", "/v1/evaluations", "/docs.json", "/v2/models/a", "/metrics")
IMAGE_SPEC = b'{"attacks":[{"name":"fgsm","eps":["1/255"]}]}'
MASK_SPEC = b'{"model":"scenes-segmenter","attacks":[{"name":"fgsm","eps":["1/255"]}]}'
TEXT_SPEC = b'{"model":"imdb-transject","attacks":[{"name":"word-swap","rate":["0.1"]}]}'


class Place(NamedTuple):
    """Where content stands in a request.

    Attributes:
        name: of the field or the part.
        route: method and path.
        content_type: of the body, or which part of the head it is.
        put: from the content to the request.
    """

    name: str
    route: str
    content_type: str
    put: Callable[[bytes], Message]


@dataclass(frozen=True, slots=True)
class Family:
    """Requests of one kind at one place."""

    group: str
    what: str
    kind: Kind
    place: Place

    @property
    def name(self) -> str:
        """What it is, and where."""
        place = self.place
        return f"{self.group}: {self.what}, {place.name} of {place.route} ({place.content_type})"

    def request(self, size: int) -> bytes:
        """A complete HTTP request."""
        method, path = self.place.route.split()
        lines, body = self.place.put(self.kind.make(size))
        if self.place.content_type == QUERY:
            path, body = f"{path}?{body.decode()}", b""
        elif method == "POST" and self.place.content_type != CHUNKED:
            lines += f"Content-Length: {len(body)}\r\n"
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{lines}\r\n"
        return head.encode() + body


def numbered(template: str, size: int, separator: str = ",") -> bytes:
    """Pieces with numbers in them, of about so many bytes."""
    count = max(1, size // (len(template) + len(separator) + 3))
    return separator.join(template % number for number in range(count)).encode()


def form(**fields: bytes | Sequence[bytes]) -> Message:
    """A multipart form; a value in a list is a file."""
    parts = io.BytesIO()
    for name, value in fields.items():
        file = "" if isinstance(value, bytes) else '; filename="f"'
        for content in [value] if isinstance(value, bytes) else value:
            parts.write(_PART + f'name="{name}"{file}\r\n\r\n'.encode() + content + b"\r\n")
    return parts_form(parts.getvalue())


def parts_form(parts: bytes) -> Message:
    """A multipart form of parts that are there already."""
    head = f"Content-Type: {FORM}; boundary={_BOUNDARY}\r\n"
    return head, parts + f"--{_BOUNDARY}--\r\n".encode()


def typed(kind: str, content: bytes) -> Message:
    """A body that is the content."""
    return f"Content-Type: {kind}\r\n", content


def in_binary(text: bytes) -> Message:
    """A text behind the JSON that describes it."""
    size = {"binary_data_size": 4 + len(text)}
    tensor = {"name": "texts", "datatype": "BYTES", "shape": [1], "parameters": size}
    head = json.dumps({"inputs": [tensor]}).encode()
    lines = f"Content-Type: {BINARY}\r\nInference-Header-Content-Length: {len(head)}\r\n"
    return lines, head + struct.pack("<I", len(text)) + text


def in_chunks(content: bytes) -> Message:
    """A body that comes byte by byte."""
    head = f"Content-Type: {JSON}\r\nTransfer-Encoding: chunked\r\n"
    return head, b"".join(b"1\r\n%c\r\n" % byte for byte in content) + b"0\r\n\r\n"


def _in_json(name: str, route: str, template: str) -> Place:
    """A place in a document, marked with a star."""
    before, after = template.encode().split(b"*")
    return Place(name, route, JSON, lambda value: typed(JSON, before + value + after))


def _in_form(
    field: str, spec: bytes, put: Callable[[bytes], Any] = bytes, note: str = "", **more: Any
) -> Place:
    """A field of an evaluation's form: what `put` makes of the content."""

    def whole(content: bytes) -> Message:
        """The form."""
        return form(**{"spec": spec, **more, field: put(content)})

    return Place(f"{field}{note}", _EVALUATE, FORM, whole)


def _csv(text: bytes) -> bytes:
    """A file of texts of at most 30 kB."""
    return b"text\n" + b"\n".join(text[i : i + 30_000] for i in range(0, len(text), 30_000))


def _copies(content: bytes, size: int) -> bytes:
    """A zip file of the same picture again and again, of so many bytes when it is unpacked."""
    return zipped({f"{number}.png": content for number in range(size // len(content) + 1)})


_FILE = Place("images", _CLASSIFY, FORM, lambda content: form(images=[content]))
_SEGMENTED = Place("image", _SEGMENT, FORM, lambda content: form(image=[content]))
_SEVERAL = Place("16 images", _CLASSIFY, FORM, lambda content: form(images=[content] * _FILES))
_UPLOADS = (
    _in_form("images", IMAGE_SPEC, lambda content: [content]),
    _in_form("archive", IMAGE_SPEC, lambda content: [zipped({"a.png": content})], " (zip)"),
    _in_form(
        "archive",
        MASK_SPEC,
        lambda content: [zipped({"images/a.png": picture("PNG"), "masks/a.png": content})],
        " (zip of masks)",
    ),
)
_LABELS = _in_form("labels", IMAGE_SPEC, images=[picture("PNG")])
_TENSOR = '{"inputs":[{"name":"%s","shape":[%s],"datatype":"%s","data":%s}]'
_TEXT = _TENSOR % ("texts", "1", "BYTES", '["*"]') + "}"
_IMAGE = _TENSOR % ("images", "1,1,28,28", "FP32", "[0]")
_TEXT_PLACES = (
    _in_json("texts", _TEXTS, '{"texts":["*"]}'),
    _in_json("text", _SCORE, '{"text":"*"}'),
    _in_json("data", _IMDB, _TEXT),
    Place("data", _IMDB, BINARY, in_binary),
    _in_form("texts", TEXT_SPEC, lambda text: b'["' + text + b'"]'),
    _in_form("archive", TEXT_SPEC, lambda text: [_csv(text)], " (csv)"),
    _in_form("archive", TEXT_SPEC, lambda t: [parquet({"text": [t.decode()]})], " (parquet)"),
)
TEXTS = {
    "words": Kind(partial(fill, b"word ")),
    "one word": Kind(partial(fill, b"a")),
    "Chinese": Kind(partial(fill, "字".encode())),
    "accents": Kind(partial(fill, "e\u0301".encode())),
    "points": Kind(partial(fill, b".")),
    "blanks": Kind(lambda n: b"<br " + fill(b" ", n)),
}
"""Texts, none of which needs an escape in JSON or csv."""
VALUES = {
    "deep": Kind(lambda n: b"[" * (n // 2) + b"]" * (n // 2)),
    "lists": Kind(lambda n: b"[" + fill(b"[],", n) + b"[]]"),
    "objects": Kind(lambda n: b"[" + fill(b"{},", n) + b"{}]"),
    "numbers": Kind(lambda n: b"[" + fill(b"1,", n) + b"1]"),
    "short texts": Kind(lambda n: b"[" + fill(b'"a",', n) + b'"a"]'),
    "names": Kind(lambda n: b"{" + numbered('"n%d":0', n) + b"}"),
    "one name": Kind(lambda n: b"{" + fill(b'"a":0,', n) + b'"a":0}'),
    "long text": Kind(lambda n: b'"' + fill(b"a", n) + b'"'),
    "escapes": Kind(lambda n: b'"' + fill(b"\\ud83d\\ude00", n) + b'"'),
    "digits": Kind(partial(fill, b"1")),
    "white space": Kind(lambda n: fill(b" ", n) + b"0"),
    "tensors": Kind(
        lambda n: b"[" + numbered('{"name":"n%d","shape":[1],"datatype":"FP32"}', n) + b"]"
    ),
    "outputs": Kind(lambda n: b"[" + numbered('{"name":"n%d"}', n) + b"]"),
    "attacks": Kind(lambda n: b"[" + fill(b'{"name":"pgd","eps":[1]},', n) + b'{"name":"pgd"}]'),
    "fractions": Kind(lambda n: b"[" + fill(b'"1/255",', n) + b'"1/255"]'),
}
"""Values in JSON."""
_ANY = "deep, lists, objects, numbers, names, one name, long text, escapes, digits, white space"
_LISTS = "deep, lists, numbers, short texts, names"
_VALUE_PLACES = (
    (_in_json("body", _TEXTS, "*"), _ANY),
    (_in_json("texts", _TEXTS, '{"texts":*}'), _LISTS),
    (_in_json("model", _TEXTS, '{"texts":["a"],"model":*}'), "long text, escapes"),
    (_in_json("top_k", _TEXTS, '{"texts":["a"],"top_k":*}'), "digits"),
    (_in_json("body", _SCORE, "*"), _ANY),
    (_in_json("model", _SCORE, '{"text":"a b","model":*}'), "long text, escapes"),
    (_in_json("body", _COST, "*"), _ANY),
    (_in_json("spec", _COST, '{"spec":*,"samples":1}'), _LISTS),
    (_in_json("attacks", _COST, '{"spec":{"attacks":*},"samples":1}'), _LISTS + ", attacks"),
    (_in_json("eps", _COST, '{"spec":{"attacks":[{"name":"pgd","eps":*}]},"samples":1}'),
     _LISTS + ", fractions, long text"),
    (_in_json("body", _IMAGES, "*"), _ANY),
    (_in_json("inputs", _IMAGES, '{"inputs":*}'), _LISTS + ", tensors"),
    (_in_json("outputs", _IMAGES, _IMAGE + ',"outputs":*}'), _LISTS + ", outputs"),
    (_in_json("parameters", _IMAGES, _IMAGE + ',"parameters":*}'), _LISTS),
    (_in_json("id", _IMAGES, _IMAGE + ',"id":*}'), "long text, escapes"),
    (_in_json("shape", _IMAGES, _IMAGE.replace("[1,1,28,28]", "*") + "}"), _LISTS),
    (_in_json("data", _IMAGES, _IMAGE.replace("[0]", "*") + "}"), _LISTS + ", fractions"),
    (_in_json("input's parameters", _IMAGES, _IMAGE.replace("[0]", '[0],"parameters":*') + "}"),
     _LISTS),
    (_in_json("body", f"{_REPOSITORY}/index", "*"), _ANY),
    (_in_json("body", f"{_REPOSITORY}/models/none/load", "*"), "deep, names"),
    (_in_json("parameters", f"{_REPOSITORY}/models/none/unload", '{"parameters":*}'), "names"),
    (_in_form("spec", IMAGE_SPEC), _ANY),
    (_in_form("texts", TEXT_SPEC), _LISTS),
    (_LABELS, _LISTS + ", digits"),
)  # fmt: skip
_COLUMNS = b"text,label\n"
LINES = {
    "blank lines": Kind(lambda n: _COLUMNS + fill(b"\n", n) + b"a,0\n"),
    "one line": Kind(lambda n: _COLUMNS + fill(b"a", n) + b",0\n"),
    "fields": Kind(lambda n: _COLUMNS + fill(b"a,", n) + b"0\n"),
    "quotes": Kind(lambda n: _COLUMNS + b'"' + fill(b'""', n) + b'",0\n'),
    "rows": Kind(lambda n: _COLUMNS + numbered("f%d,0", n, "\n")),
}
"""Files of csv."""
PARTS = {
    "parts without a name": Kind(partial(fill, f"--{_BOUNDARY}\r\n\r\n\r\n".encode())),
    "empty fields": Kind(partial(fill, _PART + b'name="a"\r\n\r\n\r\n')),
    "empty files": Kind(partial(fill, _PART + b'name="images"; filename="f"\r\n\r\n\r\n')),
    "a long name": Kind(lambda n: _PART + b'name="' + fill(b"a", n) + b'"\r\n\r\n\r\n'),
    "lines of a part": Kind(lambda n: _PART + b'name="a"\r\n' + fill(b"A: b\r\n", n) + b"\r\n\r\n"),
    "options of a part": Kind(lambda n: _PART + fill(b'a="\\";', n) + b"\r\n\r\n\r\n"),
    "line breaks": Kind(partial(fill, b"\r\n")),
    "nearly boundaries": Kind(lambda n: (
        _PART + b'name="images"; filename="f"\r\n\r\n' + fill(b"\r\n--nasty-5f3", n) + b"\r\n")),
}  # fmt: skip
"""Parts of multipart forms."""
HEADS = {
    "lines": Kind(lambda n: numbered("X-%d: 0", n, "\r\n") + b"\r\n", _HEAD_LIMIT),
    "a line": Kind(lambda n: b"X: " + fill(b"a", n) + b"\r\n", _HEAD_LIMIT),
    "cookies": Kind(lambda n: b"Cookie: " + fill(b"a=b; ", n) + b"\r\n", _HEAD_LIMIT),
    "types": Kind(lambda n: b"Accept: " + fill(b"a/b,", n) + b"\r\n", _HEAD_LIMIT),
    "a key": Kind(lambda n: b"Authorization: Bearer " + fill(b"a", n) + b"\r\n", _HEAD_LIMIT),
    "options": Kind(lambda n: b"Content-Type: multipart/form-data" + fill(b'; a="\\"', n) + b"\r\n",
                    _HEAD_LIMIT),
}  # fmt: skip
"""Lines of a request's head."""
QUERIES = {
    "names": Kind(lambda n: numbered("n%d=0", n, "&"), _HEAD_LIMIT),
    "one name": Kind(partial(fill, b"limit=1&"), _HEAD_LIMIT),
    "escapes": Kind(lambda n: b"status=" + fill(b"%61", n), _HEAD_LIMIT),
    "digits": Kind(lambda n: b"cursor=" + fill(b"1", n), _HEAD_LIMIT),
}
_PAIRS = {
    "fields": Kind(partial(fill, b"a=&")),
    "escapes": Kind(lambda n: b"a=" + fill(b"%61", n)),
}
_SCANS = PICTURES["jpeg scans"]
_MANY = {"png chunks": 110_000, "jpeg tables": 450_000, "tiff tags": 80_000}
"""Bytes of pictures that are costly and yet taken."""
_LEAVING = {
    "half of a request": _SCANS._replace(leaves=0.5),
    "a request": _SCANS._replace(leaves=1.0),
}
_FORMS = (_CLASSIFY, _SEGMENT, _EVALUATE)
Rows = tuple[str, Iterable[Place], Mapping[str, Kind]]
_ROWS: Sequence[Rows] = (
    ("pictures", (_FILE, _SEGMENTED, *_UPLOADS), PICTURES),
    ("large pictures", (_FILE, _SEGMENTED, *_UPLOADS), LARGE),
    ("large pictures", (_SEVERAL,), {
        name: kind._replace(make=lambda n, kind=kind: kind.make(n // _FILES),
                            limit=_FILES * kind.limit)
        for name, kind in LARGE.items()
    }),
    ("texts", _TEXT_PLACES, TEXTS),
    *(("json", (place,), {name: VALUES[name] for name in names.split(", ")})
      for place, names in _VALUE_PLACES),
    ("archives", (_in_form("archive", IMAGE_SPEC, lambda c: [c], " (zip)"),), ZIPS | {
        f"zip of {name}": Kind(partial(_copies, PICTURES[name].make(size)), 60_000_000)
        for name, size in _MANY.items()
    }),
    ("archives", (_in_form("archive", MASK_SPEC, lambda c: [c], " (zip of masks)"),), ZIPS),
    ("archives", (_in_form("archive", TEXT_SPEC, lambda c: [c], " (parquet)"),), PARQUETS),
    ("archives", (_in_form("archive", TEXT_SPEC, lambda c: [c], " (csv)"), _LABELS), LINES),
    ("forms", [Place("form", route, FORM, parts_form) for route in _FORMS], PARTS),
    ("forms", [Place("form", route, URLENCODED, partial(typed, URLENCODED))
               for route in _FORMS], _PAIRS),
    ("http", [Place("head", f"GET {path}", HEAD, lambda c: (c.decode(), b"")) for path in _GET],
     HEADS),
    ("http", (Place("head", _CLASSIFY, HEAD, lambda c: (c.decode(), b"")),), HEADS),
    ("http", [Place("query", f"GET {path}", QUERY, lambda c: ("", c)) for path in _GET], QUERIES),
    ("http", [Place("chunks", route, CHUNKED, in_chunks)
              for route in (_CLASSIFY, _TEXTS, _EVALUATE, _IMAGES)],
     {"chunks": Kind(lambda n: fill(b" ", n // 6), 12_000_000)}),
    ("left", (_FILE, _SEGMENTED, *_UPLOADS), _LEAVING),
    ("left", _TEXT_PLACES, {"a request": TEXTS["words"]._replace(leaves=1.0)}),
)  # fmt: skip


def families() -> Iterator[Family]:
    """Every row."""
    for group, places, kinds in _ROWS:
        for place, (what, kind) in itertools.product(places, kinds.items()):
            yield Family(group, what, kind, place)


def ordinary() -> dict[str, bytes]:
    """An ordinary request for each route that answers with predictions."""
    # Not one that the worker may read itself: then the processes that read others are there.
    image, text = Kind(lambda _: picture("WEBP")), Kind(partial(fill, b"word "))
    rows = [(_FILE, image), (_SEGMENTED, image), (_TEXT_PLACES[0], text), (_TEXT_PLACES[1], text)]
    return {place.route: Family("", "", kind, place).request(2500) for place, kind in rows}
