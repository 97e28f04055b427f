"""The process that reads untrusted images and archives: `python -m service.decoding.child`.

It reads requests from its standard input, a socket: a line of JSON, then the bytes of a file. An
image is answered with `ANSWER` and, for the code "ok", the pixels of every size that was asked for;
an archive with `UNPACKED`, a JSON document and, if it is not refused, its files one after another.
The kernel ends this process when a file takes more processor time than it may. It ends with its
parent.
"""

import json
import os
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import AvifImagePlugin, Image

from core.starter import end_with_starter
from data.images import ImageError, ImageSpec, decode_image, image_size, to_pixels
from data.labels import Classes
from service.decoding.archives import Limits, too_costly, unpack
from service.decoding.headers import has_too_many_parts
from service.http.refusal import ApiError

READY = b"r"
ANSWER = struct.Struct("<BIId")
"""Place in `CODES`, width and height (0 where unknown), and processor seconds."""
CODES = ("ok", "broken_image", "too_many_pixels", "too_many_parts", "image_too_costly")

UNPACKED = struct.Struct("<?I")
"""Whether an archive is refused, and the bytes of the document."""

_BYTES_PER_SHARE = 8_000_000
_LEAST_SHARE = 1 / 8
_BUFFER = 200_000  # bytes, about what a socket takes at a time
_NICENESS = 5  # who waits for an answer that needs no decoding goes first
_OOM_SCORE = "600"  # of 1000: when memory runs out, this process goes before all others of ours
_PAGE = resource.getpagesize()


def allowed_seconds(seconds: float, size: int, pixels: int, largest: int) -> float:
    """Processor seconds that one image may take: its share of those of the largest.

    Args:
        seconds: of the largest image.
        size: bytes of the file.
        pixels: as its header says.
        largest: pixels of the largest image.
    """
    return seconds * min(1, _LEAST_SHARE + size / _BYTES_PER_SHARE + pixels / largest)


def main(argv: Sequence[str] | None = None) -> None:
    """Read until the parent has gone; the argument is the memory in bytes for one file."""
    (memory,) = sys.argv[1:] if argv is None else argv
    end_with_starter()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which decides
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    Image.init()  # all plugins, before memory is limited
    _limit(int(memory))
    with (
        socket.socket(fileno=0) as parent,
        parent.makefile("rb") as requests,
        parent.makefile("wb", _BUFFER) as answers,
    ):
        parent.sendall(READY)
        while line := requests.readline():
            asked = json.loads(line)
            content = requests.read(asked["size"])
            if len(content) < asked["size"]:
                return
            answers.writelines((_unpack if "what" in asked else _decode)(asked, content))
            answers.flush()


def _limit(memory: int) -> None:
    with suppress(OSError):  # only Linux has them
        used = int(Path("/proc/self/statm").read_text().split()[0]) * _PAGE
        resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(limit, (0, 0))
    os.nice(_NICENESS)
    # Libraries write about hostile images there.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _decode(asked: dict[str, Any], content: bytes) -> list[bytes]:
    began = time.process_time()
    size, pixels = (0, 0), []
    specs = [ImageSpec(**spec) for spec in asked["specs"]]
    try:
        _end_after(began, asked, len(content), 0)
        if has_too_many_parts(content):
            raise ImageError("too_many_parts", "too many parts")
        size = image_size(content)
        # Between the two passes of resizing, rows have the model's width already.
        widest = max(size[0], *(spec.width for spec in specs))
        _end_after(began, asked, len(content), widest * size[1])
        if widest * size[1] > asked["max_pixels"]:
            raise ImageError("too_many_pixels", "too many pixels")
        image = decode_image(content, max_pixels=asked["max_pixels"])
        pixels = [to_pixels(image, spec) for spec in specs]
        code = "ok"
    except ImageError as error:
        code = error.code
        if isinstance(error.__cause__, MemoryError):
            code = "image_too_costly"
    except MemoryError:
        code = "image_too_costly"
    except Exception:  # whatever Pillow and its libraries raise
        code = "broken_image"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    seconds = time.process_time() - began
    head = ANSWER.pack(CODES.index(code), *(min(side, 2**32 - 1) for side in size), seconds)
    return [head + b"".join(np.ascontiguousarray(each).tobytes() for each in pixels)]


def _unpack(asked: dict[str, Any], content: bytes) -> list[bytes]:
    files: list[bytes] = []
    signal.setitimer(signal.ITIMER_PROF, asked["seconds"])
    try:
        limits = Limits(**asked["limits"])
        specs = [ImageSpec(**spec) for spec in asked["specs"]]
        found = unpack(content, asked["what"], Classes(**asked["classes"]), limits, specs)
        files = found.files
        sizes = list(map(len, files))
        told: dict[str, Any] = {"names": found.names, "labels": found.labels, "sizes": sizes}
        told["classes"] = found.classes
    except (ApiError, MemoryError) as error:
        refusal = too_costly() if isinstance(error, MemoryError) else error
        told = {name: getattr(refusal, name) for name in ("status", "code", "message", "details")}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    document = json.dumps(told).encode()
    return [UNPACKED.pack("code" in told, len(document)) + document, *files]


def _end_after(began: float, asked: dict[str, Any], size: int, pixels: int) -> None:
    """Have the kernel end this process when the image has taken its share of processor time."""
    share = allowed_seconds(asked["seconds"], size, pixels, asked["largest"])
    left = min(share, asked["left"] + pixels * asked["pixel_seconds"]) - (
        time.process_time() - began
    )
    signal.setitimer(signal.ITIMER_PROF, max(left, 0.001))


if __name__ == "__main__":
    main()
