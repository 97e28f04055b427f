"""Does a server answer right? One input asked in many ways, and what must be refused is sent.

The rules are those of the Open Inference Protocol V2, and what every user of a server relies on:
an answer belongs to its own input, whatever else is asked at the same time.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal
from xml.etree import ElementTree

import numpy as np

from robustness.remote.connection import Answer, Connection, EndpointError
from robustness.remote.v2 import LENGTH, V2Model

Outcome = Literal["held", "broken", "not tried"]
_SAME = 1e-3  # of the largest score: batches round otherwise
_COUNT = 8  # different inputs
_AT_ONCE = 24  # requests
_LEFT = 8  # requests whose sender goes before the answer
_SOON_S = 10.0  # within which a server that was treated badly must answer
_WORDS = "a good film and a very long story about people who say that it is not so bad".split()
_JSON = {"content-type": "application/json"}
_LONG = 60  # words of a text that others are padded to


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check found.

    Attributes:
        name: of the check.
        outcome: whether the server keeps the rule; a check that has no meaning is not tried.
        evidence: what was seen, in words.
    """

    name: str
    outcome: Outcome
    evidence: str


class _Broken(Exception):
    """A rule that is not kept; the message is the evidence."""


class _Meaningless(Exception):
    """A check that has no meaning for this model; the message says why."""


@dataclass(frozen=True, slots=True)
class _Server:
    """One model of a server, its inputs, and their answers when each is asked alone."""

    model: V2Model
    inputs: np.ndarray | list[str]
    alone: np.ndarray

    def take(self, rows: Sequence[int]) -> np.ndarray | list[str]:
        """Some of the inputs."""
        if isinstance(self.inputs, np.ndarray):
            return self.inputs[list(rows)]
        return [self.inputs[row] for row in rows]

    def ask(self, rows: Sequence[int]) -> np.ndarray:
        """The answers (N, K) to some inputs together."""
        return self.model.ask(self.take(rows))[0]

    def post(self, content: bytes, headers: Mapping[str, str]) -> Answer:
        """The answer to a body, whatever its status."""
        return self.model.connection.once("POST", f"{self.model.path}/infer", content, headers)

    def tell(self, rows: Sequence[int], beside: Mapping[str, Any]) -> tuple[Answer, Any]:
        """The answer to some inputs as JSON, with other keys beside them, and what it holds."""
        content, headers = self.model.request(self.take(rows), binary=False, beside=beside)
        answer = self.post(content, headers)
        head = answer.json(self.model.path) if answer.status == 200 else {}
        return answer, head if isinstance(head, dict) else {}

    def compare(self, found: np.ndarray, rows: Sequence[int], where: str) -> float:
        """How far answers are from those to the inputs alone, as a share of the largest score.

        Raises:
            _Broken: further than rounding explains, or of other shapes.
        """
        expected = self.alone[list(rows)]
        if found.shape != expected.shape:
            raise _Broken(f"{where}: the shape {found.shape} in the place of {expected.shape}")
        largest = float(np.abs(expected).max()) or 1.0
        moved = np.abs(found - expected).max(axis=1) / largest
        worst = int(np.nan_to_num(moved, nan=np.inf).argmax())
        if not moved[worst] <= (_SAME if not self.model.names_class else 0):
            raise _Broken(
                f"{where}: input {rows[worst]} is answered with {_shown(found[worst])}, and with "
                f"{_shown(expected[worst])} alone"
            )
        return float(moved.max())


def listed(connection: Connection) -> list[str]:
    """The models that a server says are ready, by its index.

    Raises:
        EndpointError: it has no index.
    """
    answer = connection.send("POST", "/v2/repository/index", content=b"{}", headers=_JSON)
    try:
        rows = answer.json(f"{connection.url}/v2/repository/index")
        ready = [row for row in rows if row.get("state", "READY") == "READY"]
        return list(dict.fromkeys(row["name"] for row in ready))
    except (AttributeError, KeyError, TypeError) as error:
        raise EndpointError(f"{connection.url} has no index of models; name one") from error


def check_serving(model: V2Model, *, seed: int = 0) -> Iterator[Finding]:
    """Try every rule on one model; what it finds, one after the other.

    Args:
        model: of the server.
        seed: of the inputs, which are noise, or drawn words.

    Raises:
        EndpointError: it does not answer a plain question, so nothing can be tried.
    """
    inputs = _inputs(model, np.random.default_rng(seed))
    alone = [model.ask(inputs[row : row + 1])[0] for row in range(len(inputs))]
    if any(each.shape != alone[0].shape for each in alone):
        shapes = sorted({str(each.shape) for each in alone})
        raise EndpointError(f"single inputs are answered with different shapes: {shapes}")
    server = _Server(model, inputs, np.concatenate(alone))
    for name, check in _CHECKS.items():
        try:
            yield Finding(name=name, outcome="held", evidence=check(server))
        except _Broken as broken:
            yield Finding(name=name, outcome="broken", evidence=str(broken))
        except _Meaningless as why:
            yield Finding(name=name, outcome="not tried", evidence=str(why))
        except EndpointError as error:
            yield Finding(name=name, outcome="broken", evidence=str(error))


def junit(found: Sequence[tuple[str, Finding]], url: str) -> bytes:
    """Findings about models, by name, as a file of JUnit's: a case for each check."""
    root = ElementTree.Element("testsuites", name="check-serving")
    suite = ElementTree.SubElement(root, "testsuite", name=url)
    findings = [one for _, one in found]
    for model, one in found:
        case = ElementTree.SubElement(suite, "testcase", classname=model, name=one.name)
        if one.outcome == "broken":
            ElementTree.SubElement(case, "failure", message=one.evidence).text = one.evidence
        elif one.outcome == "not tried":
            ElementTree.SubElement(case, "skipped", message=one.evidence)
        ElementTree.SubElement(case, "system-out").text = one.evidence
    for element in (root, suite):
        element.set("tests", str(len(findings)))
        element.set("failures", str(sum(one.outcome == "broken" for one in findings)))
        element.set("skipped", str(sum(one.outcome == "not tried" for one in findings)))
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)


def _twice(server: _Server) -> str:
    rows = range(len(server.alone))
    again = np.concatenate([server.ask([row]) for row in rows])
    largest = server.compare(again, rows, "asked again")
    return f"{len(rows)} inputs, the second answers within {largest:.1g} of the first"


def _in_batches(server: _Server) -> str:
    largest, sizes = 0.0, (2, 3, 5, _COUNT)
    for size in sizes:
        rows = [row % _COUNT for row in range(size)]
        for order in (rows, rows[::-1], [0] * size):
            found = server.ask(order)
            largest = max(largest, server.compare(found, order, f"in a batch of {size}"))
    return f"batches of {', '.join(map(str, sizes))} in three orders, within {largest:.1g}"


def _padded(server: _Server) -> str:
    if isinstance(server.inputs, np.ndarray):
        raise _Meaningless("images have one size")
    texts = [*server.inputs, " ".join(_WORDS * (_LONG // len(_WORDS) + 1))]
    found = server.model.ask(texts)[0][:-1]
    largest = server.compare(found, range(_COUNT), "beside a long text")
    return (
        f"{_COUNT} short texts beside one of {len(texts[-1].split())} words, within {largest:.1g}"
    )


def _among_others(server: _Server) -> str:
    orders = [
        [(start + step) % _COUNT for step in range(1 + start % 3)] for start in range(_AT_ONCE)
    ]
    with ThreadPoolExecutor(_COUNT) as pool:
        answers = list(pool.map(server.ask, orders))
    largest = max(
        server.compare(found, order, "among other requests")
        for found, order in zip(answers, orders, strict=True)
    )
    return f"{_AT_ONCE} requests, {_COUNT} at a time, within {largest:.1g}"


def _outputs(server: _Server) -> str:
    for name in server.model.outputs:
        answer, head = server.tell([0], {"outputs": [{"name": name}]})
        given = [one.get("name") for one in head.get("outputs", [])]
        if given != [name]:
            raise _Broken(f"asked for {name!r} alone, it answers {answer.status} with {given}")
    unknown, _ = server.tell([0], {"outputs": [{"name": "no-such-output"}]})
    _refused(unknown, "an output that does not exist")
    return f"{', '.join(server.model.outputs)}, each alone; an unknown one gets {unknown.status}"


def _named(server: _Server) -> str:
    _, head = server.tell([0], {"id": "question-7"})
    for key, value in (("id", "question-7"), ("model_name", server.model.name)):
        if head.get(key) != value:
            raise _Broken(f"{key} is {head.get(key)!r} in the place of {value!r}")
    return "id and model_name come back"


def _both_forms(server: _Server) -> str:
    if not server.model.binary:
        raise _Meaningless("the server does not know binary tensors")
    content, headers = server.model.request(server.inputs, binary=False)
    found = _rows(server.model.read(server.post(content, headers)), _COUNT)
    largest = server.compare(found, range(_COUNT), "as JSON")
    return f"{_COUNT} inputs as JSON and as binary tensors, within {largest:.1g}"


def _bad_among_good(server: _Server) -> str:
    """A bad input is refused, or answered; good ones of the same time are answered as ever."""
    good = server.take(range(3))
    if isinstance(good, np.ndarray):
        wrong = np.nan if server.model.binary else np.finfo(np.float32).max
        bad: np.ndarray | list[str] = np.concatenate([good, np.full_like(good[:1], wrong)])
    else:
        bad = [*good, ""]
    content, headers = server.model.request(bad, binary=server.model.binary)

    def ask(turn: int) -> tuple[Sequence[int], np.ndarray | int]:
        """Every third request is the bad one."""
        if turn % 3:
            return [turn % _COUNT], server.ask([turn % _COUNT])
        answer = server.post(content, headers)
        if answer.status != 200:
            return [], answer.status
        return range(3), _rows(server.model.read(answer), 4)[:3]

    with ThreadPoolExecutor(_COUNT) as pool:
        answers = list(pool.map(ask, range(_AT_ONCE)))
    statuses = sorted({found for _, found in answers if isinstance(found, int)})
    for rows, found in answers:
        if not isinstance(found, int):
            server.compare(found, rows, "beside a bad input")
        elif not 400 <= found < 500:
            raise _Broken(f"an input that makes no sense is answered with {found}")
    told = f"refused with {statuses[0]}" if statuses else "answered"
    return f"{_AT_ONCE} requests; those with a bad input {told}, good ones answered as alone"


def _left_alone(server: _Server) -> str:
    """Who leaves before the answer, or stops amid the question, costs nobody else anything."""
    content, headers = server.model.request(server.inputs, binary=server.model.binary)
    whole = server.model.connection.raw(f"{server.model.path}/infer", content, headers)
    with ExitStack() as stalled:
        for turn in range(_LEFT):
            sender = server.model.connection.socket()
            sender.sendall(whole if turn % 2 else whole[: -len(content) // 2])
            if turn % 4:
                sender.close()
            else:
                stalled.enter_context(sender)
        began = time.monotonic()
        server.compare(server.ask([0]), [0], "after senders left")
        seconds = time.monotonic() - began
    if seconds > _SOON_S:
        raise _Broken(f"an answer took {seconds:.1f} s after {_LEFT} senders left or stalled")
    return f"{_LEFT} senders left or stalled; the next answer took {seconds:.2f} s"


def _malformed(server: _Server) -> str:
    """What is no question gets a status from 400 to 499, and does no harm."""
    wrong = dict(_wrong_bodies(server))
    for what, (content, headers) in wrong.items():
        try:
            _refused(server.post(content, headers), what)
        except EndpointError as error:
            raise _Broken(f"{what}: {error}") from error
    server.compare(server.ask([1]), [1], "after malformed requests")
    return f"refused with 4xx: {', '.join(wrong)}"


def _wrong_bodies(server: _Server) -> Iterator[tuple[str, tuple[bytes, Mapping[str, str]]]]:
    content, headers = server.model.request(server.take([0, 1]), binary=False)
    tensor = json.loads(content)["inputs"][0]
    shape, other = tensor["shape"], [1] if isinstance(tensor["data"][0], str) else ["a"]
    yield "JSON cut short", (content[:-7], headers)
    yield "no JSON", (b"\x00\xff" * 20, headers)
    for what, inputs in (
        ("no input", []),
        ("an unknown input", [tensor | {"name": "no-such-input"}]),
        ("an unknown type", [tensor | {"datatype": "FP31"}]),
        ("a shape of more rows than data", [tensor | {"shape": [3, *shape[1:]]}]),
        ("a negative shape", [tensor | {"shape": [-2, *shape[1:]]}]),
        ("another number of axes", [tensor | {"shape": [*shape, 1, 2]}]),
        ("data of another kind", [tensor | {"data": other * len(tensor["data"])}]),
        ("no data", [{key: value for key, value in tensor.items() if key != "data"}]),
    ):
        yield what, (json.dumps({"inputs": inputs}).encode(), headers)
    if server.model.binary:
        whole, own = server.model.request(server.take([0, 1]), binary=True)
        yield "bytes cut short", (whole[:-3], own)
        yield "bytes left over", (whole + b"abc", own)
        yield "a header that is longer than the body", (whole, {**own, LENGTH: "99999999"})


def _unknown(server: _Server) -> str:
    answer = server.model.connection.once("GET", "/v2/models/no-such-model", None, {})
    _refused(answer, "a model that does not exist")
    return f"a model that does not exist gets {answer.status}"


def _rows(values: Any, count: int) -> np.ndarray:
    """An output as a row for each of so many inputs."""
    found = np.asarray(values)
    if found.ndim < 1 or len(found) != count:
        raise _Broken(f"{count} inputs are answered with the shape {found.shape}")
    return found.reshape(count, -1)


def _refused(answer: Answer, what: str) -> None:
    """Raise _Broken unless an answer is a refusal."""
    if not 400 <= answer.status < 500:
        raise _Broken(f"{what}: answered with status {answer.status}")


def _inputs(model: V2Model, draw: np.random.Generator) -> np.ndarray | list[str]:
    """Different inputs: noise, or a few drawn words."""
    spec = model.image_spec
    if spec is None:
        return [" ".join(draw.choice(_WORDS, 3 + row)) for row in range(_COUNT)]
    shape = (_COUNT, spec.channels, spec.height, spec.width)
    return (draw.integers(0, 256, shape) / 255).astype(np.float32)


def _shown(scores: np.ndarray) -> str:
    return "[" + ", ".join(f"{value:.4g}" for value in scores[:6]) + "]"


_CHECKS: dict[str, Callable[[_Server], str]] = {
    "the same question twice": _twice,
    "alone and in batches": _in_batches,
    "beside longer texts": _padded,
    "among concurrent requests": _among_others,
    "requested outputs only": _outputs,
    "names come back": _named,
    "JSON and binary tensors": _both_forms,
    "a bad input among good ones": _bad_among_good,
    "senders that leave or stall": _left_alone,
    "malformed tensors": _malformed,
    "an unknown model": _unknown,
}
