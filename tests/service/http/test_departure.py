"""Clients that leave, as the application sees it."""

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from service.http.departure import while_connected
from service.http.refusal import ApiError

pytestmark = pytest.mark.anyio


def request(left: asyncio.Event) -> Request:
    async def receive() -> dict[str, Any]:
        """The body was read before."""
        await left.wait()
        return {"type": "http.disconnect"}

    return Request({"type": "http"}, receive)


async def test_work_for_a_client_who_left_is_cancelled() -> None:
    left = asyncio.Event()
    with pytest.raises(ApiError) as caught:
        async with while_connected(request(left)):
            left.set()
            await asyncio.sleep(60)
    assert (caught.value.status, caught.value.code) == (499, "client_left")


async def test_a_client_who_stays_notices_nothing() -> None:
    left = asyncio.Event()
    async with while_connected(request(left)):
        await asyncio.sleep(0.1)
    left.set()
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError, match="of another kind"):
        async with while_connected(request(asyncio.Event())):
            raise TimeoutError("of another kind")
