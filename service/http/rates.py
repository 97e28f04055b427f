"""How many requests a caller may send: token buckets, shared by all workers of a server."""

import fcntl
import math
import os
import struct
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from service.http.callers import Caller
from service.http.errors import ApiError

_BUCKET = struct.Struct("<dd")  # tokens that are gone; the moment to which they were counted


class Rates:
    """A bucket of a minute's requests for every caller that has a limit.

    The buckets lie in one small file, so that several workers together allow what one would.

    Args:
        path: the file; made when missing.
        callers: everybody, in an order that is the same in all workers.
        clock: seconds, the same in all processes of a host.
    """

    def __init__(
        self, path: Path, callers: Iterable[Caller], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        limited = [caller.name for caller in callers if caller.requests_per_minute]
        self._offsets = {name: index * _BUCKET.size for index, name in enumerate(limited)}
        self._clock = clock
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self, caller: Caller) -> None:
        """Count one request.

        Raises:
            ApiError: 429 rate_limited, with the seconds until the next request is allowed.
        """
        limit = caller.requests_per_minute
        if limit is None:
            return
        wait = self._take(self._offsets[caller.name], limit)
        if wait > 0:
            message = f"This key allows {limit} requests per minute."
            headers = {"retry-after": str(math.ceil(wait))}
            raise ApiError(429, "rate_limited", message, {"limit": limit}, headers)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _take(self, offset: int, limit: int) -> float:
        """Seconds to wait; 0 when the request was counted."""
        per_second = limit / 60
        fcntl.lockf(self._file, fcntl.LOCK_EX, _BUCKET.size, offset)
        try:
            now = self._clock()
            stored = os.pread(self._file, _BUCKET.size, offset)
            gone, counted = _BUCKET.unpack(stored.ljust(_BUCKET.size, b"\0"))
            # A file of an earlier boot may hold a moment that has not come yet.
            elapsed = max(0.0, now - counted)
            gone = min(limit, max(0.0, gone - elapsed * per_second))
            if gone + 1 > limit:
                return (gone + 1 - limit) / per_second
            os.pwrite(self._file, _BUCKET.pack(gone + 1, now), offset)
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, _BUCKET.size, offset)
        return 0.0
