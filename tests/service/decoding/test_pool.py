"""Decoders: the same pixels as everywhere, limits of time and memory, turns, and processes."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image

from data.images import ImageError, ImageSpec, decode_image, to_pixels
from service.decoding import pool
from service.decoding.pool import Decoders, Turns
from service.decoding.process import Decoder
from service.settings import ROOT, Settings
from tests.service.conftest import wait_until
from tests.service.decoding.hostile import (
    file_of,
    many_chunks,
    many_scans,
    photo,
    plain_comments,
)

GREY = ImageSpec(channels=1, height=28, width=28)
COLOR = ImageSpec(channels=3, height=32, width=48, resample="bilinear")
WEBP = file_of(photo(60, 40), "WEBP", lossless=True)
TINY = file_of(photo(30, 20), "PNG")
COSTLY = many_scans(95, 10_000)  # some seconds
LIMITS: Any = {"pixels": 200_000_000, "seconds": 60}

Make = Callable[..., Decoders]


@pytest.fixture
def make() -> Iterator[Make]:
    """Decoders with some settings; they end with the test, and their processes with them."""
    made: list[Decoders] = []

    def decoders(**settings: Any) -> Decoders:
        given: dict[str, Any] = {"max_pixels": 100_000_000} | settings
        made.append(Decoders(Settings(**given)))
        return made[-1]

    yield decoders
    for each in made:
        each.close()
    assert processes() == []


def processes() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if "service.decoding.child" in process.cmdline():
                found.append(process)
    return found


def decode(decoders: Decoders, content: bytes, **limits: Any) -> np.ndarray:
    with decoders.request("me", **LIMITS | limits) as images:
        return images.decode(content, [GREY]).result(60)[0]


def refused(decoders: Decoders, content: bytes, **limits: Any) -> tuple[str, str]:
    with pytest.raises(ImageError) as caught:
        decode(decoders, content, **limits)
    return caught.value.code, str(caught.value)


def test_ordinary_images_have_the_same_pixels_both_ways(make: Make) -> None:
    modes = {"PNG": ("RGB", "L", "P", "RGBA", "LA", "1", "I;16"), "JPEG": ("RGB", "L", "CMYK")}
    modes |= {"GIF": ("P",), "WEBP": ("RGB", "RGBA"), "BMP": ("RGB", "1"), "TIFF": ("RGB", "F")}
    with make().request("me", **LIMITS) as images:
        for kind, names in modes.items():
            for mode in names:
                image = photo(90, 70, "L" if mode in ("I;16", "F", "LA") else "RGB").convert(mode)
                options = {"progressive": True} if kind == "JPEG" and mode == "RGB" else {}
                for size in ((90, 70), (1300, 900)):  # the larger one is not cheap
                    content = file_of(image.resize(size), kind, **options)
                    expected = [to_pixels(decode_image(content), each) for each in (GREY, COLOR)]
                    found = images.decode(content, [GREY, COLOR]).result(60)
                    for left, right in zip(found, expected, strict=True):
                        np.testing.assert_array_equal(left, right, err_msg=f"{kind} {mode}")


def test_costly_images_are_refused(make: Make) -> None:
    decoders = make(decode_cpu_s=0.4, image_formats="png,jpeg,ppm")
    assert refused(decoders, COSTLY)[0] == "image_too_costly"
    assert refused(decoders, many_scans(500, 10_000)) == (
        "image_too_costly",
        "it has more scans, chunks, strips or runs than images have",
    )
    assert refused(decoders, many_chunks(20_000))[0] == "image_too_costly"
    taken = "this image format is not taken here; taken are PNG, JPEG, PPM"
    for content in (WEBP, plain_comments(100_000)):
        assert refused(decoders, content) == ("format_not_taken", taken)
    # Between its two passes, resizing would make of each of these rows one of the model's width.
    thin = file_of(Image.new("L", (1, 4_000_000)), "PNG")
    assert refused(decoders, thin)[1] == "1 x 4000000 cannot be resized within 100000000 pixels"
    assert decode(decoders, file_of(photo(60, 40), "JPEG", progressive=True)).shape == (1, 28, 28)


def test_the_images_of_a_request_share_pixels_and_time(make: Make) -> None:
    decoders = make()
    with decoders.request("me", pixels=5000, seconds=60) as images:
        for _ in range(2):
            images.decode(WEBP, [GREY]).result(60)  # 2,400 pixels
        for content in (WEBP, file_of(photo(60, 40), "PNG")):
            with pytest.raises(ImageError, match="before it more than 5000 pixels"):
                images.decode(content, [GREY]).result(60)
    assert refused(decoders, COSTLY, seconds=0.3)[0] == "image_too_costly"
    large = file_of(photo(90, 70).resize((3000, 3000)), "PNG", compress_level=1)
    assert refused(decoders, large, seconds=0.02)[0] == "image_too_costly"
    assert decode(decoders, large, seconds=0.02, pixel_seconds=1e-6).shape == (1, 28, 28)


@pytest.mark.parametrize("made", [lambda: many_scans(500, 10_000), lambda: plain_comments(10)])
def test_a_refused_file_is_not_kept(make: Make, made: Callable[[], bytes]) -> None:
    decoders, content = make(), made()
    gc.disable()  # it would find a cycle, sooner or later
    try:
        before = sys.getrefcount(content)
        with decoders.request("me", **LIMITS) as images, suppress(ImageError):
            images.decode(content, [GREY]).result(60)
        assert wait_until(lambda: sys.getrefcount(content) <= before, seconds=5)
    finally:
        gc.enable()


def test_tiny_images_are_decoded_at_once(make: Make) -> None:
    wide = ImageSpec(channels=3, height=224, width=224)
    profiled = file_of(photo(30, 20), "PNG", icc_profile=bytes(99))
    progressive = file_of(photo(30, 20), "JPEG", progressive=True)
    with make().request("me", pixels=700, seconds=60) as images:
        for content, spec in (
            (file_of(photo(90, 70), "PNG"), GREY),
            (TINY, wide),
            (profiled, GREY),
            (progressive, GREY),
            (b"text", GREY),
        ):
            assert images.decode_tiny(content, [spec]) is None
        (expected,) = images.decode(TINY, [GREY]).result(60)
        with pytest.raises(ImageError, match="before it more than 700 pixels"):
            images.decode_tiny(TINY, [GREY])
    with make(image_formats="jpeg").request("me", **LIMITS) as images:
        with pytest.raises(ImageError, match="not taken"):
            images.decode_tiny(TINY, [GREY])
    with make().request("me", **LIMITS) as images:
        found = images.decode_tiny(TINY, [GREY])
    assert found is not None
    np.testing.assert_array_equal(found[0], expected)


def test_others_are_served_while_a_costly_image_is_decoded(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "available_cores", lambda: 2)
    decoders = make(decode_cpu_s=60)
    with decoders.request("eve", **LIMITS) as images:
        costly = images.decode(COSTLY, [GREY])
        cheap = images.decode(file_of(photo(60, 40), "PNG"), [GREY])
        assert cheap.result(60)[0].shape == (1, 28, 28)  # cheap ones need no process
        assert decode(decoders, WEBP).shape == (1, 28, 28)
        assert len(processes()) == 2
        assert not costly.done()
    assert wait_until(lambda: len(processes()) == 1, seconds=5)  # that of the one who left ended


def test_giving_up_ends_what_waits_and_what_runs(make: Make) -> None:
    decoders = make(decode_cpu_s=60)
    with decoders.request("me", **LIMITS) as images:
        futures = [images.decode(COSTLY, [GREY]) for _ in range(5)]
        assert wait_until(lambda: any(p.cpu_times().user > 0.3 for p in processes()), seconds=30)
        images.give_up()
        assert all(future.cancelled() for future in futures)
        assert wait_until(lambda: not processes(), seconds=5)
        assert images.decode(WEBP, [GREY]).cancelled()
        with pytest.raises(CancelledError):
            images.check()
    assert decode(decoders, WEBP).shape == (1, 28, 28)


def test_a_stuck_process_ends_at_its_deadline() -> None:
    decoder = Decoder(Settings(decode_cpu_s=0.05))
    os.kill(decoder.pid, signal.SIGSTOP)
    with pytest.raises(ImageError) as caught:
        decoder.decode(WEBP, [GREY], max_pixels=10**6, seconds=1)
    assert caught.value.code == "image_too_costly"
    assert not decoder.alive()


def test_memory_of_a_process_is_limited() -> None:
    decoder = Decoder(Settings(), memory=20_000_000)
    large = file_of(Image.new("RGB", (4000, 3000)), "WEBP", quality=1, method=0)
    with pytest.raises(ImageError):
        decoder.decode(large, [GREY], max_pixels=10**8, seconds=60)
    found = decoder.decode(WEBP, [GREY], max_pixels=10**6, seconds=1)
    np.testing.assert_array_equal(found.pixels[0], to_pixels(decode_image(WEBP), GREY))
    decoder.end()


def test_a_process_ends_after_many_images_and_when_it_is_idle(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "available_cores", lambda: 1)
    monkeypatch.setattr(pool, "_FILES", 2)
    decoders = make()
    assert processes() == []  # none before it is needed
    decode(decoders, WEBP)
    first = processes()
    decode(decoders, WEBP)
    assert wait_until(lambda: not processes(), seconds=5)
    monkeypatch.setattr(pool, "_IDLE_S", 0.1)
    decode(decoders, WEBP)
    assert processes() != first
    assert wait_until(lambda: not processes(), seconds=5)


def test_a_process_ends_with_its_parent_and_knows_no_keys() -> None:
    code = """
import os, signal
from service.decoding.process import Decoder
from service.settings import Settings
print(Decoder(Settings()).pid, flush=True)
signal.pause()
"""
    given = os.environ | {"ASSAY_API_KEYS": "[]"}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=ROOT, env=given, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        assert "ASSAY_API_KEYS" not in child.environ()
        parent.kill()
    assert wait_until(lambda: not child.is_running(), seconds=10)


def test_a_decoding_process_imports_little() -> None:
    code = "import sys, service.decoding.child; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    heavy = {"torch", "bentoml", "onnxruntime", "sqlalchemy", "pydantic", "starlette", "asyncio"}
    assert not heavy & set(done.stdout.split())


def test_turns_go_from_sharer_to_sharer_and_among_their_requests_by_image() -> None:
    decoders, turns = Decoders(Settings()), Turns()
    tasks: dict[Any, str] = {}
    for name in ("eve", "eve's second", "ann"):
        request = decoders.request(name[:3], **LIMITS)
        for index in range(3):
            task = pool._Task(request=request, work=print)
            tasks[task] = f"{name} {index}"
            turns.put(task)

    def take() -> str:
        task = turns.take(0)
        assert task is not None
        turns.done(task)
        return tasks[task]

    assert [take() for _ in tasks] == [
        *("eve 0", "ann 0", "eve's second 0", "ann 1", "eve 1", "ann 2"),
        *("eve's second 1", "eve 2", "eve's second 2"),
    ]
    assert turns.take(0) is None


def test_a_request_has_few_images_decoded_at_a_time() -> None:
    decoders, turns = Decoders(Settings()), Turns()
    for at_once, sharer in ((1, "ann"), (2, "me")):
        request = decoders.request(sharer, at_once=at_once, **LIMITS)
        for _ in range(3):
            turns.put(pool._Task(request=request, work=print))
    ann, first, second = turns.take(0), turns.take(0), turns.take(0)
    assert ann and first and second and turns.take(0) is None
    assert [task.request.sharer for task in (ann, first, second)] == ["ann", "me", "me"]
    turns.done(first)
    assert turns.take(0) is not None
    futures: list[Future[Any]] = [first.future, second.future]
    turns.close()
    assert futures[1].cancelled() and turns.closed and turns.take(0) is None
