"""An endpoint as a target: what is asked of it, and what an attacker sees of its answers."""

import hashlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from robustness.kinds import NotPossible, Shows
from robustness.progress import Spent
from robustness.remote.connection import EndpointError
from robustness.remote.ledger import FILE, Ledger
from robustness.remote.model import RemoteModel
from robustness.target import ImageTarget, Target
from robustness.text_target import TextTarget
from runtimes.base import Inputs

_PRECISIONS = ("fp32", "fp16", "bf16", "int8")
_SAME = 1e-4  # of the spread of scores: a second answer may differ by it through rounding alone
_LEAST = np.float32(np.finfo(np.float32).tiny)
_UNSEEN = 1.0  # by how much a class that is not shown comes after the last one that is


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked of an endpoint.

    Attributes:
        shows: what an attacker sees: all scores, the best few, or the class alone.
        best: how many are shown, for "top-k".
        labels: names of the classes; None to ask for them, and else to count them.
        max_queries: inputs that may be answered in all, second answers included.
    """

    shows: Shows = "scores"
    best: int = 0
    labels: list[str] | None = None
    max_queries: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Learned:
    """What a first question told, kept in the ledger."""

    labels: list[str]
    probabilities: bool


class RemoteRuntime:
    """A model behind an address, asked through a ledger; safe among threads.

    An input that was answered is not sent again: the same question gets the answer of the ledger.

    Args:
        model: what is asked.
        folder: of the evaluation; the ledger lies in it.
        asked: how.

    Raises:
        EndpointError: it does not answer one blank input as it should.
        ValueError: the labels do not fit, or the ledger is another target's.
    """

    def __init__(self, model: RemoteModel, folder: Path, asked: Asked) -> None:
        self.model, self.asked = model, asked
        self.surrogate: dict[str, str] | None = None
        whole = {"url": model.connection.url, **model.identity, "shows": self.shown}
        self._ledger = Ledger(folder / FILE, whole)
        counts = self._ledger.counts()
        self._lock, self._used = threading.Lock(), counts.asked + counts.again
        self._pool = ThreadPoolExecutor(model.connection.manners.concurrency)
        try:
            self.learned = self._learn()
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """See `runtimes.base.Runtime`."""
        return "endpoint"

    @property
    def precision(self) -> str:
        """What the endpoint tells of it, or "unknown"."""
        told = self.model.told.get("precision", "")
        return told if told in _PRECISIONS else "unknown"

    @property
    def shows(self) -> Shows:
        """What an attacker sees of an answer."""
        if self.model.names_class or self.model.best is None:
            return "label" if self.model.names_class else self.asked.shows
        return "label" if self.asked.shows == "label" else "top-k"

    @property
    def best(self) -> int | None:
        """How many classes are seen at most; None for all."""
        if self.shows != "top-k":
            return 1 if self.shows == "label" else None
        return min(each for each in (self.asked.best, self.model.best) if each)

    @property
    def shown(self) -> str:
        """The same in words, "scores", "top-5" or "label"."""
        return f"top-{self.best}" if self.shows == "top-k" else self.shows

    @property
    def digest(self) -> str:
        """sha256 of all that says what is asked."""
        whole = {"url": self.model.connection.url, **self.model.identity, "shows": self.shown}
        text = json.dumps(whole | asdict(self.learned), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def facts(self) -> dict[str, Any]:
        """What a report says of the endpoint; see `robustness.report.schema.EndpointFigures`."""
        counts = self._ledger.counts()
        return {
            "url": self.model.connection.url,
            "protocol": self.model.protocol,
            "model": self.model.name,
            "shows": self.shown,
            "told": self.model.told,
            "surrogate": self.surrogate,
            "asked": counts.asked,
            "asked_again": counts.again,
        }

    def spent(self) -> str:
        """What the ledger says was asked, in words."""
        counts = self._ledger.counts()
        lost = f", {counts.open:,} sent and never answered" if counts.open else ""
        return (
            f"the ledger holds answers to {counts.asked:,} inputs, and second answers to "
            f"{counts.again:,}, from {counts.tries:,} requests{lost}"
        )

    def close(self) -> None:
        """Wait for answers that are under way, keep them, and close everything."""
        self.model.connection.stopped.set()
        self._pool.shutdown(cancel_futures=True)
        self.model.connection.close()
        self._ledger.close()

    def predict(self, inputs: Inputs) -> np.ndarray:
        """Logits (B, K) float32, as far as an attacker sees them.

        Probabilities become their logarithms. Of classes that are not shown nothing is known but
        that they come after those that are; of a class alone, that it comes first.

        Args:
            inputs: images (B, C, H, W) float32, of which pixels outside [0, 1] are clipped, for
                nobody can send them; or B "texts".

        Raises:
            EndpointError: the endpoint does not answer as it should.
            Spent: the queries are used up.
        """
        return self._as_seen(self._answers(inputs))

    def predict_again(self, inputs: Inputs, first: np.ndarray) -> np.ndarray:
        """Logits (B, K) of a second answer, asked for on purpose; as the first where both agree.

        They agree where the class is the same, and the scores are to a ten-thousandth of what
        separates the classes. The inputs are sent in the opposite order, so among other ones.

        Args:
            inputs: see `predict`.
            first: (B, K) what `predict` gave for them.
        """
        turned = (
            inputs[::-1] if isinstance(inputs, np.ndarray) else {"texts": inputs["texts"][::-1]}
        )
        second = self._as_seen(self._answers(turned, again=True))[::-1]
        spread = float(np.median(np.ptp(first, axis=1)))
        with np.errstate(invalid="ignore"):
            near = np.abs(second - first).max(axis=1) <= _SAME * spread
        same = near & (second.argmax(axis=1) == first.argmax(axis=1))
        return np.where(same[:, None], first, second)

    def _learn(self) -> _Learned:
        """Ask one blank input to learn the classes, unless the ledger knows."""
        kept = self._ledger.fact("learned")
        if kept is not None:
            learned = _Learned(**json.loads(kept))
            named = self.asked.labels or self.model.class_names(len(learned.labels))
            if named is not None and named != learned.labels:
                was, now = (", ".join(names)[:200] for names in (learned.labels, named))
                raise ValueError(f"the classes were {was}, and are {now}; take another --output")
            return learned
        blank = self.model.blank()
        digest = hashlib.sha256(_content(blank[0])).digest()
        self._reserve(1)
        number = self._ledger.ask([digest])
        values, tries = self.model.ask(blank)
        scores = not self.model.names_class
        labels = self._labels(values.shape[1] if scores else len(self.asked.labels or []))
        sums_to_one = float(values.min()) >= 0 and abs(float(values.sum()) - 1) < 1e-3
        kind = self.model.kind or ("probabilities" if sums_to_one else "logits")
        self.learned = _Learned(labels=labels, probabilities=scores and kind == "probabilities")
        answer = self._scores(values)
        self._ledger.answer(number, [digest], answer, again=False, tries=tries)
        self._ledger.note("learned", json.dumps(asdict(self.learned)))
        return self.learned

    def _labels(self, count: int) -> list[str]:
        """The classes: as given, as the endpoint names them, or their indices."""
        given = self.asked.labels
        if given is not None and len(given) != count:
            raise ValueError(f"--labels must name {count} classes, got {len(given)}")
        if count < 2:
            raise NotPossible(
                f"{self.model.connection.url} answers with {count or 1} number for one input: a "
                "classifier has at least 2 scores; where it answers with a class, --labels names "
                "them all"
            )
        return given or self.model.class_names(count) or [str(index) for index in range(count)]

    def _answers(self, inputs: Inputs, *, again: bool = False) -> np.ndarray:
        """Answers (N, K), from the ledger or from the endpoint."""
        rows = _rows(inputs)
        digests = [hashlib.sha256(content).digest() for content in map(_content, rows)]
        known = self._ledger.known(list(dict.fromkeys(digests)), again=again)
        places = {digest: index for index, digest in enumerate(digests) if digest not in known}
        missing = list(places)
        batch = self.model.together or self.model.connection.manners.batch
        parts = [missing[start : start + batch] for start in range(0, len(missing), batch)]
        self._reserve(len(missing))

        def asked(part: list[bytes]) -> np.ndarray:
            """The answers to a part."""
            chosen = [places[digest] for digest in part]
            own = rows[chosen] if isinstance(rows, np.ndarray) else [rows[i] for i in chosen]
            return self._question(part, own, again=again)

        for part, found in zip(parts, self._pool.map(asked, parts), strict=True):
            known |= dict(zip(part, found, strict=True))
        return np.stack([known[digest] for digest in digests])

    def _question(
        self, digests: list[bytes], inputs: np.ndarray | list[str], *, again: bool
    ) -> np.ndarray:
        """Send a question; the answer (N, K) is in the ledger before it is returned."""
        number = self._ledger.ask(digests, again=again)
        values, tries = self.model.ask(inputs)
        found = self._scores(values)
        self._ledger.answer(number, digests, found, again=again, tries=tries)
        return found

    def _scores(self, values: np.ndarray) -> np.ndarray:
        """An answer as scores (N, K); a class as 0, and -1 for the others."""
        num_classes = len(self.learned.labels)
        if not self.model.names_class:
            if values.shape[1] != num_classes:
                raise EndpointError(
                    f"{self.model.connection.url} answers with {values.shape[1]} scores an input, "
                    f"and answered with {num_classes} before"
                )
            return values.astype(np.float32)
        index = values[:, 0].astype(np.int64)
        if values.shape[1] != 1 or ((index < 0) | (index >= num_classes)).any():
            raise EndpointError(
                f"{self.model.connection.url} answers with a class that is not one of the "
                f"{num_classes} in --labels: {values.ravel()[:5].tolist()}"
            )
        return (np.arange(num_classes) == index[:, None]).astype(np.float32) - 1

    def _as_seen(self, scores: np.ndarray) -> np.ndarray:
        """Scores (N, K) as logits, without what an attacker does not see."""
        logits = np.log(np.maximum(scores, _LEAST)) if self.learned.probabilities else scores
        if self.best is None or self.best >= logits.shape[1]:
            return logits
        order = np.argsort(-logits, axis=1, kind="stable")
        if self.shows == "label":
            return (np.arange(logits.shape[1]) == order[:, :1]).astype(np.float32) - 1
        last = np.take_along_axis(logits, order[:, self.best - 1 : self.best], axis=1)
        seen = logits.copy()
        np.put_along_axis(seen, order[:, self.best :], last - _UNSEEN, axis=1)
        return seen

    def _reserve(self, count: int) -> None:
        """Count inputs that are about to be sent.

        Raises:
            Spent: they would be more than are allowed.
        """
        most = self.asked.max_queries
        with self._lock:
            if most is not None and self._used + count > most:
                raise Spent(f"--max-queries {most:,} is used up")
            self._used += count


@dataclass(frozen=True, slots=True)
class Reported:
    """An endpoint as a report knows it, for whoever asks it again; see `robustness.kinds`."""

    runtime: RemoteRuntime
    reported: dict[str, Any]

    @property
    def shows(self) -> Shows:
        """See `RemoteRuntime.shows`."""
        return self.runtime.shows

    @property
    def best(self) -> int | None:
        """See `RemoteRuntime.best`."""
        return self.runtime.best

    def facts(self) -> dict[str, Any]:
        """What the report says."""
        return self.reported

    def predict_again(self, inputs: Inputs, first: np.ndarray) -> np.ndarray:
        """See `RemoteRuntime.predict_again`."""
        return self.runtime.predict_again(inputs, first)


def _rows(inputs: Inputs) -> np.ndarray | list[str]:
    """Inputs as they are sent, one after the other."""
    if isinstance(inputs, np.ndarray):
        return np.clip(inputs, 0, 1)
    return [str(text) for text in inputs["texts"]]


def _content(row: np.ndarray | str) -> bytes:
    return row.encode() if isinstance(row, str) else row.tobytes()


def runtime_of(target: Target) -> RemoteRuntime:
    """The endpoint of a target that has one."""
    if not isinstance(target.runtime, RemoteRuntime):
        raise TypeError(f"{target.name!r} lies behind no address")
    return target.runtime


def open_endpoint(
    model: RemoteModel, folder: Path, asked: Asked, surrogate: Target | None = None
) -> Target:
    """An endpoint's model as a target; `close` its runtime when done.

    Args:
        model: of the endpoint.
        folder: of the evaluation; the ledger lies in it.
        asked: how it is asked.
        surrogate: a local copy, whose gradients attacks follow.

    Raises:
        EndpointError, ValueError: see `RemoteRuntime`; the copy reads or knows something else.
    """
    runtime = RemoteRuntime(model, folder, asked)
    labels, digest = runtime.learned.labels, runtime.digest
    if surrogate is not None:
        try:
            labels = _labels_of_copy(model, labels, surrogate)
        except ValueError:
            runtime.close()
            raise
        digest = hashlib.sha256(f"{digest} {surrogate.digest}".encode()).hexdigest()
        runtime.surrogate = {"name": surrogate.name, "version": surrogate.version}
        runtime.surrogate["digest"] = surrogate.digest
    common: dict[str, Any] = {
        "name": model.name,
        "version": model.version or model.told.get("versions", ""),
        "digest": digest,
        "labels": labels,
        "runtime": runtime,
        "torch_model": None if surrogate is None else surrogate.require_torch_model(),
        "endpoint": runtime,
    }
    if model.image_spec is not None:
        return ImageTarget(**common, image_spec=model.image_spec)
    if isinstance(surrogate, TextTarget):
        return replace(surrogate, **common)
    return TextTarget(**common, tokenizer=None, max_len=0)


def _labels_of_copy(model: RemoteModel, labels: list[str], surrogate: Target) -> list[str]:
    """The classes, by the copy's names where the endpoint has none.

    Raises:
        NotPossible: the copy reads other inputs, or knows other classes.
    """
    surrogate.require_torch_model()
    spec, own = model.image_spec, getattr(surrogate, "image_spec", None)
    shapes = [(one.channels, one.height, one.width) if one else "texts" for one in (spec, own)]
    if shapes[0] != shapes[1]:
        raise NotPossible(
            f"--surrogate must read what the endpoint reads, {shapes[0]}, and reads {shapes[1]}"
        )
    unnamed = labels == [str(index) for index in range(len(labels))]
    if len(labels) != len(surrogate.labels) or (labels != surrogate.labels and not unnamed):
        raise NotPossible(
            f"--surrogate must know the endpoint's classes, {', '.join(labels)[:200]}, and knows "
            f"{', '.join(surrogate.labels)[:200]}"
        )
    return surrogate.labels
