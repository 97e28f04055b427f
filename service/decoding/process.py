"""One process that reads images and archives, as its parent sees it: started, asked, ended."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, BinaryIO, Literal

import numpy as np
from pydantic import BaseModel, Field, NonNegativeInt

from data.images import BROKEN, ImageError, ImageSpec
from data.labels import Classes
from service.decoding.archives import Limits, too_costly
from service.decoding.child import ANSWER, CODES, READY, UNPACKED
from service.http.refusal import ApiError, What
from service.settings import ROOT, Settings

_START_S = 60.0  # on a host whose cores are taken
_PATIENCE = 10  # seconds of waiting for each second of processor time
_BYTES_PER_PIXEL = 24  # of the largest image: what libraries take to decode, turn and flatten it
_BYTES_PER_BYTE = 4  # of the largest archive, unpacked: rows, texts, and what is sent back
_ROOM = 320_000_000  # bytes that do not depend on the file, of which pyarrow takes 190 MB
_MOST_CLASSES = 30_000  # as many as a parquet file may name
_MAX_DOCUMENT = 64_000_000  # bytes: thousands of names, as long as a zip file may have them
_KEPT = 64_000_000  # bytes of freed memory: to get them anew doubles the time of an ordinary photo
_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": str(_KEPT),
    "MALLOC_MMAP_THRESHOLD_": str(_KEPT),
}
_PART = 1_000_000  # bytes that are received at a time
_COSTLY = "decoding takes more processor time or memory than an image may"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """An image at the sizes that were asked for.

    Attributes:
        pixels: by size, (C, H, W) uint8.
        size: width times height of the image itself.
        seconds: processor time that it took.
    """

    pixels: list[np.ndarray]
    size: int
    seconds: float


class Unpacked(BaseModel):
    """The samples of an archive, whose bytes were written one after another.

    Attributes:
        names: of the samples.
        labels: by index of the class, or None.
        classes: what the archive calls them; see `Origin`.
        sizes: bytes of each.
    """

    names: list[str]
    labels: list[NonNegativeInt] | None
    classes: Annotated[list[str], Field(max_length=_MOST_CLASSES)] | None
    sizes: list[NonNegativeInt]


class _Refused(BaseModel):
    status: Literal[413, 415, 422]
    code: str
    message: str
    details: Any


class Decoder:
    """A running `python -m service.decoding.child`, used by one thread at a time.

    Args:
        settings: limits of images and archives.
        memory: bytes for one file; None takes what the largest allowed needs.

    Raises:
        OSError: it did not start.
    """

    def __init__(self, settings: Settings, *, memory: int | None = None) -> None:
        self._settings = settings
        self.files = 0
        if memory is None:
            unpacked = int(settings.archive_max_mb * 1_000_000)
            largest = max(_BYTES_PER_PIXEL * settings.max_pixels, _BYTES_PER_BYTE * unpacked)
            memory = largest + 2 * settings.max_body_bytes + _ROOM
        # It needs no keys and no passwords.
        given = {k: v for k, v in os.environ.items() if not k.startswith("ASSAY_")}
        given |= _ENVIRONMENT
        command = [sys.executable, "-m", "service.decoding.child", str(memory)]
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=given, stdin=theirs.fileno(), stdout=subprocess.DEVNULL
            )
        self.pid = self._process.pid
        self._until = time.monotonic() + _START_S
        try:
            self._receive(len(READY))
        except OSError as error:
            self.end()
            raise OSError("a decoding process did not start") from error

    def decode(
        self,
        content: bytes,
        specs: Sequence[ImageSpec],
        *,
        max_pixels: int,
        seconds: float,
        pixel_seconds: float = 0,
    ) -> Decoded:
        """Decode an image file.

        Args:
            content: of the file.
            specs: the sizes that are wanted.
            max_pixels: width times height at most.
            seconds: processor time at most, if it has no lower limit of its own.
            pixel_seconds: processor time that each pixel adds to that.

        Raises:
            ImageError: it cannot be read, or costs too much.
        """
        asked = {
            "specs": [spec.to_dict() for spec in specs],
            "max_pixels": max_pixels,
            "largest": self._settings.max_pixels,
            "seconds": self._settings.decode_cpu_s,
            "left": seconds,
            "pixel_seconds": pixel_seconds,
        }
        try:
            self._ask(asked, content)
            code, width, height, used = ANSWER.unpack(self._receive(ANSWER.size))
            if CODES[code] == "ok":
                return Decoded(
                    pixels=[self._pixels(spec) for spec in specs], size=width * height, seconds=used
                )
        except (OSError, IndexError) as error:
            if self._ended_by_limits(error):
                raise ImageError("image_too_costly", _COSTLY) from error
            raise ImageError("broken_image", BROKEN) from error
        raise _refusal(CODES[code], width, height, max_pixels)

    def unpack(
        self,
        content: bytes,
        what: What,
        classes: Classes,
        file: BinaryIO,
        specs: Sequence[ImageSpec] = (),
    ) -> Unpacked:
        """Read an archive.

        Args:
            content: of the archive.
            what: it should hold.
            classes: of the model.
            file: where the image files, each behind its mask at all sizes, or the texts in UTF-8
                are written one after another.
            specs: these sizes.

        Raises:
            ApiError: it is refused, or costs too much.
            OSError: the file cannot be written.
        """
        settings = self._settings
        limits = Limits(
            samples=settings.evaluation_max_samples,
            text_chars=settings.max_text_chars,
            unpacked_mb=settings.archive_max_mb,
            pixels=settings.max_pixels,
        )
        asked = {
            "what": what,
            "specs": [spec.to_dict() for spec in specs],
            "classes": dataclasses.asdict(classes),
            "limits": dataclasses.asdict(limits),
            "seconds": settings.decode_cpu_s,
        }
        try:
            self._ask(asked, content)
            found = self._receive_unpacked()
            unpacked = int(settings.archive_max_mb * 1_000_000) * (2 if specs else 1)
            most = unpacked + settings.max_body_bytes
            _check(
                found, samples=limits.samples, size=most, num_classes=len(classes.label_names or ())
            )
            self._copy(sum(found.sizes), file)
            return found
        except ApiError:
            raise
        except (ConnectionError, TimeoutError, ValueError) as error:
            if self._ended_by_limits(error):
                raise too_costly() from error
            raise ApiError(422, "broken_archive", "The archive cannot be read.") from error
        except BaseException:
            self.end()  # what it still sends is not wanted
            raise

    def _receive_unpacked(self) -> Unpacked:
        refused, size = UNPACKED.unpack(self._receive(UNPACKED.size))
        if size > _MAX_DOCUMENT:
            raise ValueError("the document is too long")
        document = bytes(self._receive(size))
        if refused:
            told = _Refused.model_validate_json(document)
            raise ApiError(told.status, told.code, told.message, told.details)
        return Unpacked.model_validate_json(document)

    def alive(self) -> bool:
        """Whether it can be asked again."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Have it end at once; whoever waits for it sees that. From any thread."""
        self._process.kill()

    def end(self) -> None:
        """End it, and wait for that."""
        self._process.kill()
        self._process.wait()
        self._socket.close()

    def _pixels(self, spec: ImageSpec) -> np.ndarray:
        shape = (spec.channels, spec.height, spec.width)
        content = self._receive(spec.channels * spec.height * spec.width)
        return np.frombuffer(content, np.uint8).reshape(shape)

    def _ask(self, asked: dict[str, Any], content: bytes) -> None:
        self.files += 1
        self._until = time.monotonic() + _PATIENCE * self._settings.decode_cpu_s
        line = json.dumps(asked | {"size": len(content)}).encode() + b"\n"
        for part in (line, content):  # by themselves: a copy would hold the interpreter
            self._socket.settimeout(self._left())
            self._socket.sendall(part)

    def _copy(self, count: int, file: BinaryIO) -> None:
        """Write so many bytes as they come."""
        while count:
            part = self._receive(min(count, _PART))
            file.write(part)
            count -= len(part)

    def _receive(self, count: int) -> bytearray:
        """Exactly so many bytes, or an OSError when they do not come in time."""
        content = bytearray(count)
        view = memoryview(content)
        while view:
            self._socket.settimeout(self._left())
            received = self._socket.recv_into(view)
            if not received:
                raise ConnectionResetError("the process has ended")
            view = view[received:]
        return content

    def _left(self) -> float:
        return max(0.001, self._until - time.monotonic())

    def _ended_by_limits(self, error: Exception) -> bool:
        """What its end says of the file; it has ended, or is ended."""
        ended = isinstance(error, ConnectionError)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0 if ended else 0)
        status = self._process.poll()
        self.end()
        return isinstance(error, TimeoutError) or status in (-signal.SIGPROF, -signal.SIGKILL)


def _check(found: Unpacked, *, samples: int, size: int, num_classes: int) -> None:
    """Raise ValueError where a process tells what no archive within the limits can hold."""
    count, labels = len(found.names), found.labels
    whole = len(found.sizes) == count <= samples and sum(found.sizes) <= size
    if labels is not None:
        whole = whole and len(labels) == count and max(labels, default=0) < num_classes
    if not whole:
        raise ValueError("the process tells of more than there can be")


def _refusal(code: str, width: int, height: int, max_pixels: int) -> ImageError:
    if code == "too_many_parts":
        message = "it has more scans, chunks, strips or runs than images have"
        return ImageError("image_too_costly", message)
    if code == "image_too_costly":
        return ImageError(code, _COSTLY)
    if code == "too_many_pixels":
        rule = "is more than" if width * height > max_pixels else "cannot be resized within"
        return ImageError(code, f"{width} x {height} {rule} {max_pixels} pixels")
    return ImageError("broken_image", BROKEN)
