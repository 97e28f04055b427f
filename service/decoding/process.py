"""One decoding process as its parent sees it: started, asked, ended."""

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

import numpy as np

from data.images import BROKEN, ImageError, ImageSpec
from service.decoding.child import ANSWER, CODES, READY
from service.settings import ROOT, Settings

_START_S = 60.0  # on a host whose cores are taken
_PATIENCE = 10  # seconds of waiting for each second of processor time
_BYTES_PER_PIXEL = 24  # of the largest image: what libraries take to decode, turn and flatten it
_ROOM = 64_000_000  # bytes that do not depend on the image
_KEPT = 64_000_000  # bytes of freed memory: to get them anew doubles the time of an ordinary photo
_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": str(_KEPT),
    "MALLOC_MMAP_THRESHOLD_": str(_KEPT),
}
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


class Decoder:
    """A running `python -m service.decoding.child`, used by the thread that made it.

    Args:
        settings: limits of an image.
        memory: bytes for one image; None takes what the largest allowed needs.

    Raises:
        OSError: it did not start.
    """

    def __init__(self, settings: Settings, *, memory: int | None = None) -> None:
        self._settings = settings
        self.images = 0
        if memory is None:
            memory = _BYTES_PER_PIXEL * settings.max_pixels + 2 * settings.max_body_bytes + _ROOM
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
        self, content: bytes, specs: Sequence[ImageSpec], *, max_pixels: int, seconds: float
    ) -> Decoded:
        """Decode an image file.

        Args:
            content: of the file.
            specs: the sizes that are wanted.
            max_pixels: width times height at most.
            seconds: processor time at most, if it has no lower limit of its own.

        Raises:
            ImageError: it cannot be read, or costs too much.
        """
        self.images += 1
        asked = {
            "size": len(content),
            "specs": [spec.to_dict() for spec in specs],
            "max_pixels": max_pixels,
            "largest": self._settings.max_pixels,
            "seconds": self._settings.decode_cpu_s,
            "left": seconds,
        }
        self._until = time.monotonic() + _PATIENCE * self._settings.decode_cpu_s
        try:
            self._socket.settimeout(self._left())
            self._socket.sendall(json.dumps(asked).encode() + b"\n")
            self._socket.sendall(content)  # by itself: a copy would hold the interpreter
            code, width, height, used = ANSWER.unpack(self._receive(ANSWER.size))
            if CODES[code] == "ok":
                return Decoded(
                    pixels=[self._pixels(spec) for spec in specs], size=width * height, seconds=used
                )
        except (OSError, IndexError) as error:
            raise self._failure(error) from error
        raise _refusal(CODES[code], width, height, max_pixels)

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

    def _failure(self, error: Exception) -> ImageError:
        """What the end of the process says of the image."""
        ended = isinstance(error, ConnectionError)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0 if ended else 0)
        status = self._process.poll()
        self.end()
        if not ended or status in (-signal.SIGPROF, -signal.SIGKILL):
            return ImageError("image_too_costly", _COSTLY)
        return ImageError("broken_image", BROKEN)


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
