"""The decoders of one server process, shared fairly by its requests."""

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np

from data.images import ImageError, ImageSpec, decode_image, format_of, to_pixels
from runtimes.threads import available_cores
from service.decoding.headers import cheap_size
from service.decoding.process import Decoded, Decoder
from service.http.errors import ApiError
from service.settings import Settings

logger = logging.getLogger(__name__)

_IMAGES = 1000  # that one process decodes, lest what a library leaks adds up
_IDLE_S = 20.0  # after which a process ends; the next image starts another one
_HEIC = re.compile(rb".{4}ftyp.{0,20}(hei[cmsx]|hev[cmsx])", re.DOTALL)  # or among its kin
STATUS = {
    "not_an_image": 415,
    "format_not_taken": 415,
    "broken_image": 422,
    "image_too_costly": 422,
    "too_many_pixels": 413,
}


def refusal(error: ImageError, what: str, details: dict[str, Any]) -> ApiError:
    """The answer for whoever sent an image that cannot be read; `what` begins its sentence."""
    return ApiError(STATUS[error.code], error.code, f"{what}: {error}.", details)


@dataclass(slots=True, eq=False, kw_only=True)
class _Task:
    request: "Request"
    content: bytes
    specs: Sequence[ImageSpec]
    convert: Callable[[np.ndarray], np.ndarray] | None
    future: Future[list[np.ndarray]] = field(default_factory=Future)

    def deliver(self, result: Decoded | Exception) -> None:
        """Count what it took, and hand the pixels or the error to whoever waits."""
        with suppress(InvalidStateError):  # it was cancelled
            try:
                if isinstance(result, Exception):
                    raise result
                self.request.spend(result)
                pixels = result.pixels
                if self.convert is not None:
                    pixels = [self.convert(each) for each in pixels]
            except Exception as error:
                self.future.set_exception(error)
            else:
                self.future.set_result(pixels)


class Request:
    """The images of one request; those that are not finished when the block ends are given up.

    Args:
        decoders: where they are decoded.
        sharer: whose requests share one turn.
        pixels: of all images together at most.
        seconds: processor time of all images together at most.
        at_once: images that are decoded at a time; what those cost is known before the next ones.
    """

    def __init__(
        self,
        decoders: "Decoders",
        sharer: str,
        *,
        pixels: int,
        seconds: float,
        at_once: int = 2,
    ) -> None:
        self._decoders, self.sharer, self.at_once = decoders, sharer, at_once
        self._pixels_limit = self.pixels = pixels
        self.seconds = seconds
        self._futures: set[Future[list[np.ndarray]]] = set()
        self._lock = threading.Lock()
        self._given_up = False

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give up what is not finished."""
        self.give_up()

    def give_up(self) -> None:
        """Cancel what is not finished, and what comes later; from any thread."""
        with self._lock:
            self._given_up = True
            futures = list(self._futures)
        for future in futures:
            future.cancel()

    def check(self) -> None:
        """Raise CancelledError when it was given up."""
        if self._given_up:
            raise CancelledError("the request was given up")

    def decode(
        self,
        content: bytes,
        specs: Sequence[ImageSpec],
        convert: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> "Future[list[np.ndarray]]":
        """Decode an image file; cancelling the future ends it even when it has begun.

        Args:
            content: of the file.
            specs: the sizes that are wanted.
            convert: applied to each of them, outside the event loop.

        Returns:
            By size, (C, H, W) uint8, or what `convert` makes of it; or an ImageError.
        """
        task = _Task(request=self, content=content, specs=specs, convert=convert)
        with self._lock:
            given_up = self._given_up
            self._futures.add(task.future)
        task.future.add_done_callback(self._forget)
        if given_up:
            task.future.cancel()
        else:
            self._decoders.put(task)
        return task.future

    def spend(self, decoded: Decoded) -> None:
        """Count what an image took.

        Raises:
            ImageError: it is more than the request has left.
        """
        with self._lock:
            self.pixels -= decoded.size
            self.seconds -= decoded.seconds
            if self.pixels < 0:
                raise self.too_many_pixels()
            if self.seconds < 0:
                message = "decoding it and the images before it takes too much processor time"
                raise ImageError("image_too_costly", message)

    def too_many_pixels(self) -> ImageError:
        """The refusal of an image for which too few pixels are left."""
        message = f"with the images before it more than {self._pixels_limit} pixels"
        return ImageError("too_many_pixels", message)

    def _forget(self, future: Future[list[np.ndarray]]) -> None:
        with self._lock:
            self._futures.discard(future)


@dataclass(slots=True, eq=False)
class _Line:
    """What one request waits for; `turn` is when it was served last."""

    turn: int
    tasks: deque[_Task] = field(default_factory=deque)
    running: list[_Task] = field(default_factory=list)


class Turns:
    """Waiting images. Turns go by image: from sharer to sharer, and among the requests of each."""

    def __init__(self) -> None:
        self._lines: dict[Request, _Line] = {}
        self._served: dict[str, int] = {}  # by sharer, when
        self._turn = 0
        self._closed = False
        self._changed = threading.Condition()

    def put(self, task: _Task) -> None:
        """Have an image wait for its turn."""
        with self._changed:
            if self._closed:
                task.future.cancel()
                return
            line = self._lines.setdefault(task.request, _Line(self._turn))
            line.tasks.append(task)
            self._served.setdefault(task.request.sharer, self._turn)
            self._changed.notify()

    def take(self, timeout: float | None) -> _Task | None:
        """The next image, for a caller that calls `done` with it; None after so many seconds."""
        with self._changed:
            request = self._changed.wait_for(lambda: self._next() or self._closed, timeout)
            if not isinstance(request, Request):
                return None
            self._turn += 1
            line = self._lines[request]
            line.turn = self._served[request.sharer] = self._turn
            task = line.tasks.popleft()
            line.running.append(task)
            return task

    def done(self, task: _Task) -> None:
        """Take notice that an image is finished."""
        with self._changed:
            line = self._lines[task.request]
            line.running.remove(task)
            if line.tasks:
                self._changed.notify()
            elif not line.running:
                del self._lines[task.request]
                if all(request.sharer != task.request.sharer for request in self._lines):
                    del self._served[task.request.sharer]

    def close(self) -> None:
        """Cancel everything; `take` returns None from now on."""
        with self._changed:
            self._closed = True
            lines = list(self._lines.values())
            tasks = [task for line in lines for task in (*line.tasks, *line.running)]
            self._changed.notify_all()
        for task in tasks:
            task.future.cancel()

    @property
    def closed(self) -> bool:
        """Whether nothing will come any more."""
        return self._closed

    def _next(self) -> Request | None:
        if self._closed:
            return None
        ready = (
            (self._served[request.sharer], line.turn, index, request)
            for index, (request, line) in enumerate(self._lines.items())
            if line.tasks and len(line.running) < request.at_once
        )
        return min(ready, default=(None,))[-1]


class Decoders:
    """Decodes untrusted images: what is provably cheap in threads, all others in processes.

    There are as many of each as this process has cores. Threads and processes start when they are
    needed; a process ends when it is idle, has decoded many images, or an image takes too long.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._cheap, self._costly = Turns(), Turns()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def request(self, sharer: str, **limits: Any) -> Request:
        """The images of a request, as a context; see `Request`."""
        return Request(self, sharer, **limits)

    def put(self, task: _Task) -> None:
        """Have an image decoded in its turn."""
        self._start()
        try:
            self._check_format(task.content)
        except ImageError as error:
            task.deliver(error)
            return
        size = cheap_size(task.content)
        (self._costly if size is None else self._cheap).put(task)

    def close(self) -> None:
        """Stop decoding."""
        for turns in (self._cheap, self._costly):
            turns.close()
        for thread in self._threads:
            thread.join()

    def _start(self) -> None:
        with self._lock:
            if self._threads:
                return
            for work in (self._work_here, self._work_in_process):
                for index in range(available_cores()):
                    name = f"decode{work.__name__.removeprefix('_work')}-{index}"
                    thread = threading.Thread(target=work, name=name, daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _check_format(self, content: bytes) -> None:
        kind = format_of(content[:32])
        taken = self._settings.image_formats
        names = ", ".join(taken)
        if _HEIC.match(content[:32]):
            advice = "save it as JPEG first (iPhone: Settings, Camera, Formats, Most Compatible)"
            message = f"HEIC is not read; {advice}; taken are {names}"
            raise ImageError("format_not_taken", message)
        if kind is None:
            message = f"not an image in a known format; taken are {names}"
            raise ImageError("not_an_image", message)
        # Its numbers are plain text, which Pillow reads in Python.
        if kind not in taken or content[:2] in (b"P1", b"P2", b"P3"):
            message = f"this image format is not taken here; taken are {names}"
            raise ImageError("format_not_taken", message)

    def _work_here(self) -> None:
        """A thread that decodes cheap images itself."""
        while task := self._cheap.take(None):
            if not task.future.cancelled():
                task.deliver(self._decode_here(task))
            self._cheap.done(task)

    def _decode_here(self, task: _Task) -> Decoded | Exception:
        limit = self._settings.max_pixels
        began = time.thread_time()
        try:
            image = decode_image(task.content, max_pixels=limit)
            pixels = [to_pixels(image, spec) for spec in task.specs]
            seconds = time.thread_time() - began
            return Decoded(pixels=pixels, size=image.width * image.height, seconds=seconds)
        except Exception as error:
            return error

    def _work_in_process(self) -> None:
        """A thread with a process of its own, which ends with the thread."""
        decoder: Decoder | None = None
        while not self._costly.closed:
            task = self._costly.take(None if decoder is None else _IDLE_S)
            if task is not None and not task.future.cancelled():
                decoder = self._decode_in(decoder, task)
            if task is not None:
                self._costly.done(task)
            if decoder is not None and (task is None or decoder.images >= _IMAGES):
                decoder.end()
                decoder = None
        if decoder is not None:
            decoder.end()

    def _decode_in(self, decoder: Decoder | None, task: _Task) -> Decoder | None:
        """Have a process decode an image; which one there is afterwards."""
        try:
            decoder = decoder if decoder and decoder.alive() else Decoder(self._settings)
        except OSError as error:
            logger.error("Images cannot be decoded: %s", error)
            task.deliver(error)
            return None
        kill = decoder.kill
        task.future.add_done_callback(lambda future: future.cancelled() and kill())
        limit = min(self._settings.max_pixels, max(0, task.request.pixels))
        try:
            result = decoder.decode(
                task.content, task.specs, max_pixels=limit, seconds=max(0, task.request.seconds)
            )
        except ImageError as error:
            too_many = error.code == "too_many_pixels" and limit < self._settings.max_pixels
            result = task.request.too_many_pixels() if too_many else error
        task.deliver(result)
        if task.future.cancelled() or not decoder.alive():
            decoder.end()
            return None
        return decoder
