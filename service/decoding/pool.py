"""The processes that read untrusted files for one server process, shared fairly by its requests."""

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np

from data.images import ImageError, ImageSpec, decode_image, format_of, to_pixels
from data.labels import Classes
from runtimes.threads import available_cores
from service.decoding.headers import cheap_size
from service.decoding.process import Decoded, Decoder, Unpacked
from service.http.refusal import ApiError, What
from service.settings import Settings

logger = logging.getLogger(__name__)

_FILES = 1000  # that one process reads, lest what a library leaks adds up
_IDLE_S = 20.0  # after which a process ends; the next file starts another one
# Of a file, and of pixels, that are read in less time than it takes to wake a thread for them.
_TINY_BYTES, _TINY_PIXELS = 4096, 4096
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
    """A file to read: `work` in a process, or `here` in a thread where that is cheap."""

    request: "Request"
    work: Callable[[Decoder], Any]
    here: Callable[[], Any] | None = None
    future: Future[Any] = field(default_factory=Future)

    def run(self, work: Callable[[], Any]) -> None:
        """Hand what comes of it, or the error, to whoever waits."""
        with suppress(InvalidStateError):  # it was cancelled
            try:
                found = work()
            except Exception as error:
                self.future.set_exception(error)
            else:
                self.future.set_result(found)


class Request:
    """The files of one request; those that are not finished when the block ends are given up.

    Args:
        decoders: where they are read.
        sharer: whose requests share one turn.
        pixels: of all images together at most.
        seconds: processor time of all images together at most, beyond that of their pixels.
        pixel_seconds: processor time that each pixel may take and that is not counted.
        at_once: files that are read at a time; what those cost is known before the next ones.
    """

    def __init__(
        self,
        decoders: "Decoders",
        sharer: str,
        *,
        pixels: int,
        seconds: float,
        pixel_seconds: float = 0,
        at_once: int = 2,
    ) -> None:
        self._decoders, self.sharer, self.at_once = decoders, sharer, at_once
        self._pixels_limit = self.pixels = pixels
        self.seconds, self._pixel_seconds = seconds, pixel_seconds
        self._futures: set[Future[Any]] = set()
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

        def work(decoder: Decoder) -> list[np.ndarray]:
            """Have a process do it."""
            return self._finish(self._decode(decoder, content, specs), convert)

        def here() -> list[np.ndarray]:
            """Do it."""
            return self._finish(self._decoders.decode(content, specs), convert)

        try:
            self._decoders.check_format(content)
        except ImageError as error:
            refused: Future[list[np.ndarray]] = Future()
            refused.set_exception(error.with_traceback(None))  # which would keep the file
            return refused
        cheap = cheap_size(content) is not None
        return self._put(_Task(request=self, work=work, here=here if cheap else None))

    def decode_tiny(
        self,
        content: bytes,
        specs: Sequence[ImageSpec],
        convert: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> list[np.ndarray] | None:
        """Decode an image file at once, in this thread, if it is cheap and tiny; None otherwise.

        For the only file of a request: many of them would hold the event loop.

        Raises:
            ImageError: see `decode`.
        """
        if not _is_tiny(content, specs):
            return None
        self._decoders.check_format(content)
        return self._finish(self._decoders.decode(content, specs), convert)

    def unpack(
        self,
        content: bytes,
        what: What,
        classes: Classes,
        file: BinaryIO,
        specs: Sequence[ImageSpec] = (),
    ) -> "Future[Unpacked]":
        """Read an archive; see `Decoder.unpack`, and cancelling as in `decode`.

        Its time is limited by itself: reading the first parquet file imports a large library.
        """

        def work(decoder: Decoder) -> Unpacked:
            """Have a process do it."""
            return decoder.unpack(content, what, classes, file, specs)

        return self._put(_Task(request=self, work=work))

    def _put(self, task: _Task) -> Future[Any]:
        with self._lock:
            given_up = self._given_up
            self._futures.add(task.future)
        task.future.add_done_callback(self._forget)
        if given_up:
            task.future.cancel()
        else:
            self._decoders.put(task)
        return task.future

    def _decode(self, decoder: Decoder, content: bytes, specs: Sequence[ImageSpec]) -> Decoded:
        largest = self._decoders.settings.max_pixels
        limit = min(largest, max(0, self.pixels))
        try:
            return decoder.decode(
                content,
                specs,
                max_pixels=limit,
                seconds=max(0, self.seconds),
                pixel_seconds=self._pixel_seconds,
            )
        except ImageError as error:
            if error.code == "too_many_pixels" and limit < largest:
                raise self._too_many_pixels() from error
            raise

    def _finish(
        self, decoded: Decoded, convert: Callable[[np.ndarray], np.ndarray] | None
    ) -> list[np.ndarray]:
        """Count what an image took, and convert it."""
        self._spend(decoded.size, decoded.seconds)
        return decoded.pixels if convert is None else [convert(each) for each in decoded.pixels]

    def _spend(self, pixels: int, seconds: float) -> None:
        """Count what a file took; raise ImageError when it is more than is left."""
        with self._lock:
            self.pixels -= pixels
            self.seconds -= max(0, seconds - pixels * self._pixel_seconds)
            if self.pixels < 0:
                raise self._too_many_pixels()
            if self.seconds < 0:
                message = "decoding it and the images before it takes too much processor time"
                raise ImageError("image_too_costly", message)

    def _too_many_pixels(self) -> ImageError:
        message = f"with the images before it more than {self._pixels_limit} pixels"
        return ImageError("too_many_pixels", message)

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._futures.discard(future)


def _is_tiny(content: bytes, specs: Sequence[ImageSpec]) -> bool:
    """Whether a file is provably cheap, and its image and what is made of that are tiny.

    A compressed profile of colors would come to a thousand times its bytes.
    """
    if len(content) > _TINY_BYTES or b"iCCP" in content:
        return False
    sizes = [cheap_size(content), *((spec.width, spec.height) for spec in specs)]
    return all(size and size[0] * size[1] <= _TINY_PIXELS for size in sizes)


@dataclass(slots=True, eq=False)
class _Line:
    """What one request waits for; `turn` is when it was served last."""

    turn: int
    tasks: deque[_Task] = field(default_factory=deque)
    running: list[_Task] = field(default_factory=list)


class Turns:
    """Waiting files. Turns go by file: from sharer to sharer, and among the requests of each."""

    def __init__(self) -> None:
        self._lines: dict[Request, _Line] = {}
        self._served: dict[str, int] = {}  # by sharer, when
        self._turn = 0
        self._closed = False
        self._changed = threading.Condition()

    def put(self, task: _Task) -> None:
        """Have a file wait for its turn."""
        with self._changed:
            if self._closed:
                task.future.cancel()
                return
            line = self._lines.setdefault(task.request, _Line(self._turn))
            line.tasks.append(task)
            self._served.setdefault(task.request.sharer, self._turn)
            self._changed.notify()

    def take(self, timeout: float | None) -> _Task | None:
        """The next file, for a caller that calls `done` with it; None after so many seconds."""
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
        """Take notice that a file is finished."""
        with self._changed:
            line = self._lines[task.request]
            line.running.remove(task)
            # Whoever waits has it; an error in it would keep itself and the file by its traceback.
            task.future = Future()
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
    """Reads untrusted files: images that are provably cheap in threads, all others in processes.

    There are as many of each as this process has cores. Threads and processes start when they are
    needed; a process ends when it is idle, has read many files, or a file takes too long.

    Attributes:
        settings: limits of files.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._cheap, self._costly = Turns(), Turns()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._kept: list[tuple[float, Decoder]] = []  # processes without work, and since when

    def request(self, sharer: str, **limits: Any) -> Request:
        """The files of a request, as a context; see `Request`."""
        return Request(self, sharer, **limits)

    def put(self, task: _Task) -> None:
        """Have a file read in its turn."""
        self._start()
        (self._costly if task.here is None else self._cheap).put(task)

    def check_format(self, content: bytes) -> None:
        """Refuse what is no image, or in no format that is taken.

        Raises:
            ImageError: not_an_image or format_not_taken.
        """
        kind = format_of(content[:32])
        taken = self.settings.image_formats
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

    def decode(self, content: bytes, specs: Sequence[ImageSpec]) -> Decoded:
        """Decode an image in this process; raises as `decode_image` and `to_pixels`."""
        began = time.thread_time()
        image = decode_image(content, max_pixels=self.settings.max_pixels)
        pixels = [to_pixels(image, spec) for spec in specs]
        seconds = time.thread_time() - began
        return Decoded(pixels=pixels, size=image.width * image.height, seconds=seconds)

    def close(self) -> None:
        """Stop reading."""
        for turns in (self._cheap, self._costly):
            turns.close()
        for thread in self._threads:
            thread.join()
        self._end_kept(idle=0)

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

    def _work_here(self) -> None:
        """A thread that decodes cheap images itself."""
        while task := self._cheap.take(None):
            if task.here is not None and not task.future.cancelled():
                task.run(task.here)
            self._cheap.done(task)
            del task  # and with it the file, while the thread waits for the next one

    def _work_in_process(self) -> None:
        """A thread that hands files to processes, to the one that was used last if it is free."""
        while not self._costly.closed:
            task = self._costly.take(_IDLE_S if self._kept else None)
            if task is None:
                self._end_kept(idle=_IDLE_S)
                continue
            if not task.future.cancelled():
                self._read_in_process(task)
            self._costly.done(task)
            del task

    def _end_kept(self, *, idle: float) -> None:
        """End processes that have had no work for so many seconds."""
        until = time.monotonic() - idle
        with self._lock:
            ended = [decoder for since, decoder in self._kept if since <= until]
            self._kept = [kept for kept in self._kept if kept[0] > until]
        for decoder in ended:
            decoder.end()

    def _read_in_process(self, task: _Task) -> None:
        try:
            decoder = self._kept_decoder() or Decoder(self.settings)
        except OSError as error:
            logger.error("Files cannot be read: %s", error)
            with suppress(InvalidStateError):
                task.future.set_exception(error)
            return
        kill = decoder.kill
        task.future.add_done_callback(lambda future: future.cancelled() and kill())
        task.run(partial(task.work, decoder))
        if task.future.cancelled() or not decoder.alive() or decoder.files >= _FILES:
            decoder.end()
            return
        with self._lock:
            self._kept.append((time.monotonic(), decoder))

    def _kept_decoder(self) -> Decoder | None:
        while True:
            with self._lock:
                if not self._kept:
                    return None
                _, decoder = self._kept.pop()
            if decoder.alive():
                return decoder
            decoder.end()
