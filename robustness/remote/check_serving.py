"""Does a server answer right? One input asked in many ways, and what must be refused is sent.

The rules are what every user of a server relies on: an answer belongs to its own input, whatever
else is asked at the same time. Those of the protocol V2 alone are tried where it is spoken.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal
from xml.etree import ElementTree

import numpy as np

from robustness.remote.connection import Answer, Connection, EndpointError, shown
from robustness.remote.malformed import wrong_bodies
from robustness.remote.model import RemoteModel
from robustness.remote.v2 import V2Model

Outcome = Literal["held", "broken", "not tried"]
_SAME = 1e-3  # of the largest score: batches round otherwise
_COUNT = 8  # different inputs
_AT_ONCE = 24  # requests
_LEFT = 8  # requests whose sender goes before the answer
_SOON_S = 10.0  # within which a server that was treated badly must answer
_WORDS = "a good film and a very long story about people who say that it is not so bad".split()
_JSON = {"content-type": "application/json"}
_SENSELESS = "an input that makes no sense"
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

    model: RemoteModel
    inputs: np.ndarray | list[str]
    alone: np.ndarray

    def take(self, rows: Sequence[int]) -> np.ndarray | list[str]:
        """Some of the inputs."""
        if isinstance(self.inputs, np.ndarray):
            return self.inputs[list(rows)]
        return [self.inputs[row] for row in rows]

    def ask(self, rows: Sequence[int]) -> np.ndarray:
        """The answers (N, K) to some inputs, together where a request carries several."""
        parts = [self.take([row]) for row in rows] if self.one_by_one else [self.take(rows)]
        return np.concatenate([self.answer(part) for part in parts])

    def answer(self, inputs: np.ndarray | list[str]) -> np.ndarray:
        """The answers (N, K) to a request, which is repeated where the server has too much to do.

        Raises:
            _Broken: it is refused.
        """
        answer = self.post(*self.model.question(inputs))
        if answer.status in (429, 503):
            return self.model.ask(inputs)[0]
        if answer.status != 200:
            said = f"status {answer.status}: {shown(answer.content)}"
            raise _Broken(f"a sound request of {len(inputs)} is answered with {said}")
        return self.model.scores(answer, len(inputs))

    @property
    def one_by_one(self) -> bool:
        """Whether a request carries a single input."""
        return self.model.together == 1

    @property
    def v2(self) -> V2Model:
        """The model as one of the protocol V2.

        Raises:
            _Meaningless: it speaks another one.
        """
        if not isinstance(self.model, V2Model):
            raise _Meaningless("of the protocol V2 alone")
        return self.model

    def post(self, content: bytes, headers: Mapping[str, str]) -> Answer:
        """The answer to a body, whatever its status."""
        return self.model.connection.once("POST", self.model.asked_at, content, headers)

    def tell(self, rows: Sequence[int], beside: Mapping[str, Any]) -> tuple[Answer, Any]:
        """The answer to some inputs as JSON, with other keys beside them, and what it holds."""
        content, headers = self.v2.request(self.take(rows), binary=False, beside=beside)
        answer = self.post(content, headers)
        head = answer.json(self.model.asked_at) if answer.status == 200 else {}
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


def check_serving(model: RemoteModel, *, seed: int = 0) -> Iterator[Finding]:
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
    if server.one_by_one:
        raise _Meaningless("a request carries one input")
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
    long = " ".join(_WORDS * (_LONG // len(_WORDS) + 1))
    if server.one_by_one:
        with ThreadPoolExecutor(2 * _COUNT) as pool:
            asked = [each for text in server.inputs for each in (long, text)]
            answers = list(pool.map(lambda text: server.answer([text]), asked))
        found = np.concatenate(answers[1::2])
    else:
        found = server.answer([*server.inputs, long])[:-1]
    largest = server.compare(found, range(_COUNT), "beside a long text")
    return f"{_COUNT} short texts beside one of {len(long.split())} words, within {largest:.1g}"


def _among_others(server: _Server) -> str:
    most = 1 if server.one_by_one else 3
    orders = [
        [(start + step) % _COUNT for step in range(1 + start % most)] for start in range(_AT_ONCE)
    ]
    with ThreadPoolExecutor(_COUNT) as pool:
        answers = list(pool.map(server.ask, orders))
    largest = max(
        server.compare(found, order, "among other requests")
        for found, order in zip(answers, orders, strict=True)
    )
    return f"{_AT_ONCE} requests, {_COUNT} at a time, within {largest:.1g}"


def _outputs(server: _Server) -> str:
    outputs = server.v2.outputs
    for name in outputs:
        answer, head = server.tell([0], {"outputs": [{"name": name}]})
        given = [one.get("name") for one in head.get("outputs", [])]
        if given != [name]:
            raise _Broken(f"asked for {name!r} alone, it answers {answer.status} with {given}")
    unknown, _ = server.tell([0], {"outputs": [{"name": "no-such-output"}]})
    _refused(unknown, "an output that does not exist")
    return f"{', '.join(outputs)}, each alone; an unknown one gets {unknown.status}"


def _named(server: _Server) -> str:
    _, head = server.tell([0], {"id": "question-7"})
    for key, value in (("id", "question-7"), ("model_name", server.model.name)):
        if head.get(key) != value:
            raise _Broken(f"{key} is {head.get(key)!r} in the place of {value!r}")
    return "id and model_name come back"


def _both_forms(server: _Server) -> str:
    if not server.v2.binary:
        raise _Meaningless("the server does not know binary tensors")
    content, headers = server.v2.request(server.inputs, binary=False)
    found = server.model.scores(server.post(content, headers), _COUNT)
    largest = server.compare(found, range(_COUNT), "as JSON")
    return f"{_COUNT} inputs as JSON and as binary tensors, within {largest:.1g}"


def _bad_among_good(server: _Server) -> str:
    """A bad input is refused, or answered; good ones of the same time are answered as ever."""
    rows = [] if server.one_by_one else [0, 1, 2]
    bad = [(what, server.model.question(inputs)) for what, inputs in _bad_ones(server, rows)]

    def ask(turn: int) -> tuple[str, int] | None:
        """Every fourth request is a bad one."""
        if turn % 4:
            server.compare(server.ask([turn % _COUNT]), [turn % _COUNT], "beside bad inputs")
            return None
        what, body = bad[turn // 4 % len(bad)]
        answer = server.post(*body)
        if answer.status == 200 and rows and what == _SENSELESS:
            found = server.model.scores(answer, len(rows) + 1)[: len(rows)]
            server.compare(found, rows, f"in a request with {what}")
        return what, answer.status

    with ThreadPoolExecutor(_COUNT) as pool:
        statuses = sorted({one for one in pool.map(ask, range(_AT_ONCE)) if one is not None})
    told = ", ".join(f"{what} gets {status}" for what, status in statuses)
    if any(status != 200 and not 400 <= status < 500 for _, status in statuses):
        raise _Broken(told)
    return f"{_AT_ONCE} requests; {told}; good ones are answered as alone"


def _bad_ones(
    server: _Server, beside: Sequence[int]
) -> Iterator[tuple[str, np.ndarray | list[str]]]:
    """Inputs that make no sense, behind good ones of these rows, and inputs of another size."""
    good, one, model = server.take(beside), server.take([0]), server.model
    if not isinstance(good, np.ndarray) or not isinstance(one, np.ndarray):
        yield _SENSELESS, [*good, ""]
        return
    if not model.as_files:
        binary = isinstance(model, V2Model) and model.binary
        wrong = np.nan if binary else np.finfo(np.float32).max
        yield _SENSELESS, np.concatenate([good, np.full_like(one, wrong)])
    yield "an input of another size", one[..., :-1]


def _left_alone(server: _Server) -> str:
    """Who leaves before the answer, or stops amid the question, costs nobody else anything."""
    some = server.take([0]) if server.one_by_one else server.inputs
    content, headers = server.model.question(some)
    whole = server.model.connection.raw(server.model.asked_at, content, headers)
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
    some = server.take([0] if server.one_by_one else [0, 1])
    refused, taken = list[str](), list[str]()
    for what, (content, headers) in wrong_bodies(server.model, some):
        try:
            status = server.post(content, headers).status
        except EndpointError:
            status = "no answer"
        well = isinstance(status, int) and 400 <= status < 500
        (refused if well else taken).append(what if well else f"{what} ({status})")
    server.compare(server.ask([0]), [0], "after malformed requests")
    if taken:
        raise _Broken(f"not refused with 4xx: {', '.join(taken)}")
    return f"refused with 4xx: {', '.join(refused)}"


def _unknown(server: _Server) -> str:
    answer = server.v2.connection.once("GET", "/v2/models/no-such-model", None, {})
    _refused(answer, "a model that does not exist")
    return f"a model that does not exist gets {answer.status}"


def _refused(answer: Answer, what: str) -> None:
    """Raise _Broken unless an answer is a refusal."""
    if not 400 <= answer.status < 500:
        raise _Broken(f"{what}: answered with status {answer.status}")


def _inputs(model: RemoteModel, draw: np.random.Generator) -> np.ndarray | list[str]:
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
