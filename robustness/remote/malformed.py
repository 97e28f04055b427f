"""Bodies that are no question, which a server must refuse."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from robustness.remote.model import RemoteModel
from robustness.remote.v2 import LENGTH, V2Model

Body = tuple[bytes, Mapping[str, str]]


def wrong_bodies(
    model: RemoteModel, inputs: np.ndarray | Sequence[str]
) -> Iterator[tuple[str, Body]]:
    """What is wrong, and a body with its headers.

    Args:
        model: that would be asked.
        inputs: sound ones, as in `RemoteModel.ask`.
    """
    if isinstance(model, V2Model):
        content, headers = model.request(inputs, binary=False)
    else:
        content, headers = model.question(inputs)
    yield "a body cut short", (content[: -len(content) // 2], headers)
    yield "bytes of nothing", (b"\x00\xff" * 20, headers)
    if isinstance(model, V2Model):
        yield from _wrong_tensors(model, inputs, json.loads(content)["inputs"], headers)
    elif "json" in headers["content-type"]:
        whole = json.loads(content)
        yield "no input", (b"{}", headers)
        for what, value in (("a text", "a"), ("nothing", None), ("an object", {})):
            body = {key: value for key in whole} if isinstance(whole, dict) else value
            yield f"{what} in the place of every value", (json.dumps(body).encode(), headers)


def _wrong_tensors(
    model: V2Model,
    inputs: np.ndarray | Sequence[str],
    tensors: list[dict[str, Any]],
    headers: Mapping[str, str],
) -> Iterator[tuple[str, Body]]:
    first, *rest = tensors
    shape, other = first["shape"], [1] if isinstance(first["data"][0], str) else ["a"]
    for what, wrong in (
        ("no input", []),
        ("an unknown input", [first | {"name": "no-such-input"}, *rest]),
        ("an unknown type", [first | {"datatype": "FP31"}, *rest]),
        ("a shape of more rows than data", [first | {"shape": [3, *shape[1:]]}, *rest]),
        ("a negative shape", [first | {"shape": [-2, *shape[1:]]}, *rest]),
        ("another number of axes", [first | {"shape": [*shape, 1, 2]}, *rest]),
        ("data of another kind", [first | {"data": other * len(first["data"])}, *rest]),
        ("no data", [{key: value for key, value in first.items() if key != "data"}, *rest]),
    ):
        yield what, (json.dumps({"inputs": wrong}).encode(), headers)
    if model.binary:
        whole, own = model.request(inputs, binary=True)
        yield "bytes cut short", (whole[:-3], own)
        yield "bytes left over", (whole + b"abc", own)
        yield "a header that is longer than the body", (whole, {**own, LENGTH: "99999999"})
