"""Requests to one endpoint: its address fixed, its key kept, its wishes to be left alone obeyed."""

import email.utils
import json
import random
import re
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from robustness.progress import Cancelled

_RETRIED = {408, 425, 429, 500, 502, 503, 504}
_FIRST_S, _LONGEST_S = 0.5, 30.0  # of the pauses between tries
_GREETING_S = 10.0  # how long the first request is tried: a wrong address is told soon
_CONNECT_S = 5.0
_MOST = 64 * 2**20  # bytes of an answer
_SHOWN = 160  # characters of an answer in a message
_BEARER = ("authorization", "Bearer ")
_LEAST = 6  # characters of a key that no answer holds by chance
_KEY = re.compile(r"[\x21-\x7e]{1,4096}")


class EndpointError(OSError):
    """An endpoint is not there, refuses, or answers what cannot be used; the message says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manners:
    """How an endpoint is treated.

    Attributes:
        per_second: inputs at most; None sends them as fast as they are answered.
        concurrency: requests at a time.
        batch: inputs of a request at most.
        timeout: seconds that an answer may take.
        patience: seconds that a request is repeated after refusals and failures.
    """

    per_second: float | None = None
    concurrency: int = 2
    batch: int = 64
    timeout: float = 60.0
    patience: float = 300.0

    def __post_init__(self) -> None:
        """Refuse what makes no sense.

        Raises:
            ValueError: a number is not above 0.
        """
        for name in ("per_second", "concurrency", "batch", "timeout", "patience"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"--{name.replace('_', '-')} must be above 0, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back, and after how many tries."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    tries: int = 1

    def json(self, what: str) -> Any:
        """The JSON that it holds; NaN and Infinity are read, too.

        Raises:
            EndpointError: it holds none; `what` is named.
        """
        try:
            return json.loads(self.content)
        except (ValueError, RecursionError) as error:
            kind = self.headers.get("content-type", "no type").split(";")[0]
            told = f"{what} answers with {kind} in the place of JSON: {shown(self.content)}"
            raise EndpointError(told) from error


class Connection:
    """Sends requests to one address, which is looked up once; safe among threads.

    Redirects are not followed, proxies and other settings of the environment not used, certificates
    checked against the name in the URL.

    Args:
        url: of the server, with the path before the protocol's own if there is any.
        manners: how it is treated.
        key: sent in a header; appears in no message.
        key_header: that header, and what stands before the key.

    Raises:
        ValueError: no such URL, or a key that would travel unencrypted.
        EndpointError: its name has no address.
    """

    def __init__(
        self,
        url: str,
        manners: Manners,
        *,
        key: str | None = None,
        key_header: tuple[str, str] = _BEARER,
    ) -> None:
        self.url, self.manners = checked_url(url), manners
        self.stopped = threading.Event()
        parts = urlsplit(self.url)
        host, secure = parts.hostname or "", parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        address = _address(host, port)
        if key is not None:
            _check_key(key, secure=secure or _is_loopback(address))
        self._address = address, port
        self._base = f"{parts.scheme}://{_bracketed(address)}:{port}"
        self._context = httpx.create_ssl_context() if secure else None
        self._path = parts.path.rstrip("/")
        self._extensions: dict[str, Any] = {"sni_hostname": host}
        headers = {"host": parts.netloc, "user-agent": "assay", "accept-encoding": "identity"}
        if key is not None:
            headers[key_header[0]] = f"{key_header[1]}{key}"
        self._key = key if key is not None and len(key) >= _LEAST else None
        self._client = httpx.Client(
            headers=headers,
            verify=self._context or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            trust_env=False,
            timeout=httpx.Timeout(manners.timeout, connect=_CONNECT_S),
            limits=httpx.Limits(max_connections=manners.concurrency + 1),
        )
        self._lock = threading.Lock()
        self._free_at = 0.0  # when the next input may be sent
        self._greeted = False

    def close(self) -> None:
        """Close all sockets."""
        self.stopped.set()
        self._client.close()

    def __enter__(self) -> Self:
        """The connection itself, closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """See `close`."""
        self.close()

    def get(self, path: str) -> Any:
        """The JSON at a path.

        Raises:
            EndpointError: there is none.
        """
        return self.send("GET", path).json(f"{self.url}{path}")

    def once(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str]
    ) -> Answer:
        """Send a request a single time; whatever status it is answered with.

        A kept connection that the server has closed in the meantime is opened anew.

        Raises:
            EndpointError: it is not answered.
        """
        try:
            try:
                return self._receive(method, path, content, headers)
            except (httpx.NetworkError, httpx.RemoteProtocolError):
                return self._receive(method, path, content, headers)
        except httpx.RequestError as error:
            why = str(error) or type(error).__name__
            raise EndpointError(f"{self.url}{path} does not answer: {why}") from error

    def raw(self, path: str, content: bytes, headers: Mapping[str, str]) -> bytes:
        """A POST as bytes, for whoever sends them otherwise than they should be."""
        sent = httpx.Request("POST", f"{self._base}{self._path}{path}", content=content)
        whole = {**self._client.headers, **headers, "content-length": str(len(content))}
        lines = [f"{name}: {value}" for name, value in whole.items()]
        return "\r\n".join([f"POST {sent.url.path} HTTP/1.1", *lines, "", ""]).encode() + content

    def socket(self) -> socket.socket:
        """A new connection, below HTTP.

        Raises:
            OSError: there is none.
        """
        bare = socket.create_connection(self._address, timeout=_CONNECT_S)
        if self._context is None:
            return bare
        return self._context.wrap_socket(bare, server_hostname=self._extensions["sni_hostname"])

    def send(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        inputs: int = 0,
    ) -> Answer:
        """Send a request until it is answered with 200, as long as patience lasts.

        Args:
            method: of the request.
            path: after the URL of the server.
            content: the body.
            headers: beside those of every request.
            inputs: how many inputs it carries, for the rate.

        Raises:
            EndpointError: it is refused for good, or patience is over.
            Cancelled: `stopped` was set.
        """
        patience = self.manners.patience
        patience = patience if self._greeted else min(_GREETING_S, patience)
        gives_up, pause, tries = time.monotonic() + patience, _FIRST_S, 0
        while True:
            self._take_turn(inputs)
            tries += 1
            status, wait, told = self._try(method, path, content, headers or {})
            if isinstance(told, Answer):
                self._greeted = True
                return replace(told, tries=tries)
            if status is not None and status not in _RETRIED:
                raise EndpointError(f"{self.url}{path} {told}")
            wait = wait if wait is not None else pause * random.uniform(0.5, 1.0)
            if time.monotonic() + wait > gives_up:
                times = f"; tried {tries} times in {patience:g} s" if tries > 1 else ""
                raise EndpointError(f"{self.url}{path} {told}{times}")
            self._hold(wait, everyone=status in (429, 503))
            pause = min(2 * pause, _LONGEST_S)

    def _try(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int | None, float | None, Answer | str]:
        """Status if any, the pause that is asked for, and the answer or what is wrong."""
        try:
            answer = self._receive(method, path, content, headers)
        except httpx.TimeoutException:
            return None, None, f"did not answer within {self.manners.timeout:g} s"
        except httpx.RequestError as error:
            if "CERTIFICATE" in str(error):
                return 0, None, f"has no certificate that can be trusted: {error}"
            return None, None, f"cannot be reached: {error or type(error).__name__}"
        if answer.status == 200:
            return 200, None, answer
        return answer.status, _wish(answer.headers), _refusal(answer)

    def _receive(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str]
    ) -> Answer:
        """One answer, read whole within time and size."""
        ends, parts, size = time.monotonic() + self.manners.timeout, list[bytes](), 0
        with self._client.stream(
            method,
            f"{self._base}{self._path}{path}",
            content=content,
            headers=dict(headers),
            extensions=self._extensions,
        ) as response:
            for part in response.iter_bytes():
                parts.append(part)
                size += len(part)
                if size > _MOST:
                    raise EndpointError(f"{self.url}{path} answers with more than 64 MiB")
                if time.monotonic() > ends:
                    raise httpx.ReadTimeout("too slow")
        status, content = response.status_code, b"".join(parts)
        answer = Answer(status=status, headers=response.headers, content=content)
        return answer if self._key is None else _masked(answer, self._key)

    def _take_turn(self, inputs: int) -> None:
        """Wait until so many inputs may be sent."""
        with self._lock:
            now = time.monotonic()
            at = max(now, self._free_at)
            if self.manners.per_second is not None:
                self._free_at = at + inputs / self.manners.per_second
        self._pause(at - now)

    def _hold(self, seconds: float, *, everyone: bool) -> None:
        """Wait, and let all threads wait where the endpoint has too much to do."""
        if everyone:
            with self._lock:
                self._free_at = max(self._free_at, time.monotonic() + seconds)
        self._pause(seconds)

    def _pause(self, seconds: float) -> None:
        if self.stopped.wait(seconds) if seconds > 0 else self.stopped.is_set():
            raise Cancelled("stopped")


def encode_form(
    field: str, values: Sequence[str | bytes], beside: Mapping[str, str]
) -> tuple[bytes, dict[str, str]]:
    """A form of texts, or of PNG files, as a body with its headers.

    Args:
        field: the name of every value.
        values: texts, or the bytes of PNG files.
        beside: other fields, by name.
    """
    parts: list[Any] = [(name, (None, value)) for name, value in beside.items()]
    for place, value in enumerate(values):
        png = (f"{place}.png", value, "image/png")
        parts.append((field, (None, value) if isinstance(value, str) else png))
    request = httpx.Request("POST", "http://form", files=parts)
    return request.read(), {"content-type": request.headers["content-type"]}


def checked_url(url: str, what: str = "--target") -> str:
    """A URL without what must not be in it.

    Raises:
        ValueError: it is not http or https, has no host, or a user, query or fragment; `what` is
            named.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{what} must be a URL, got {url[:80]!r}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError(f"{what} must read http(s)://HOST[:PORT][/PATH], got {url[:80]!r}")
    if parts.username is not None or parts.query or parts.fragment:
        keys = "--key-env or --key-file" if what == "--target" else "key_env or key_file"
        raise ValueError(
            f"{what} must hold neither user, query nor fragment; a key comes from {keys}"
        )
    return url.rstrip("/")


def _refusal(answer: Answer) -> str:
    """What a status other than 200 says."""
    status, said = answer.status, shown(answer.content)
    if 300 <= status < 400:
        to = shown(answer.headers.get("location", "").encode())
        return f"answers with a redirect ({status}) to {to}, which is not followed"
    if status in (401, 403):
        return f"refuses the key, or the lack of one ({status}): {said}"
    return f"answers with status {status}: {said}"


def printable(text: str) -> str:
    """A text of a stranger without what could move a cursor or end a line."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def shown(content: bytes) -> str:
    """The beginning of an answer, on one line and without what could move a cursor."""
    text = printable(" ".join(content[: 4 * _SHOWN].decode("utf-8", "replace").split()))
    return repr(text[:_SHOWN] + ("…" if len(text) > _SHOWN else ""))


def _wish(headers: Mapping[str, str]) -> float | None:
    """Seconds that an answer asks to wait, from Retry-After as seconds or as a date."""
    wish = headers.get("retry-after", "").strip()
    if wish.isascii() and wish.isdigit() and len(wish) < 10:
        return float(wish)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(wish).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def _address(host: str, port: int) -> str:
    """The address that is asked from now on: the first that takes a connection, else the first."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise EndpointError(f"the host {host[:80]!r} has no address: {error}") from error
    addresses = [str(each[4][0]) for each in found]
    for address in addresses if len(addresses) > 1 else ():
        try:
            socket.create_connection((address, port), timeout=_CONNECT_S).close()
        except OSError:
            continue
        return address
    return addresses[0]


def _bracketed(address: str) -> str:
    return f"[{address.partition('%')[0]}]" if ":" in address else address


def _is_loopback(address: str) -> bool:
    return address == "::1" or address.startswith("127.")


def _masked(answer: Answer, key: str) -> Answer:
    """An answer without the key: some endpoints repeat what they refuse."""
    stars = "*" * len(key)
    headers = [(name, value.replace(key, stars)) for name, value in answer.headers.items()]
    content = answer.content.replace(key.encode(), stars.encode())
    return replace(answer, headers=httpx.Headers(headers), content=content)


def _check_key(key: str, *, secure: bool) -> None:
    if not _KEY.fullmatch(key):
        raise ValueError("the key must be one line of printable ASCII without blanks")
    if not secure:
        raise ValueError("a key is sent to https:// addresses only, and to this machine")
