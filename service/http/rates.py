"""How often callers may ask and addresses send wrong keys, counted by all workers together."""

import fcntl
import math
import os
import struct
import time
from collections.abc import Callable, Iterable
from hashlib import blake2b
from pathlib import Path

from core.files import allocate
from service.http.keys import Caller
from service.http.refusal import ApiError

_BUCKET = struct.Struct("<dd")  # tokens that are gone; the moment to which they were counted
_WRONG_KEYS = 5  # at once; each comes back after 12 s
_ADDRESSES = 4096


class Rates:
    """Buckets of a minute's requests of callers, and of a minute's wrong keys of addresses.

    The buckets lie in one small file, so that several workers together allow what one would.

    Addresses have a fixed number of buckets by their digest: those that share one slow each other
    down, and all together can try no more than 5 keys a minute for each bucket.

    Args:
        path: the file; made when missing.
        callers: everybody, in an order that is the same in all workers.
        clock: seconds, the same in all processes of a host.
    """

    def __init__(
        self, path: Path, callers: Iterable[Caller], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        limited = [caller.name for caller in callers if caller.requests_per_minute]
        self._indices = {name: 2 * _ADDRESSES + index for index, name in enumerate(limited)}
        self._clock = clock
        allocate(path, (2 * _ADDRESSES + len(limited)) * _BUCKET.size)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self, caller: Caller) -> None:
        """Count one request.

        Raises:
            ApiError: 429 rate_limited, with the seconds until the next request is allowed.
        """
        limit = caller.requests_per_minute
        if limit is None:
            return
        if wait := self._take(self._indices[caller.name], limit):
            message = f"This key allows {limit} requests per minute."
            raise ApiError(429, "rate_limited", message, {"limit": limit}, _retry_after(wait))

    def take_key(self, address: str, caller: Caller | None) -> None:
        """Count a key if it is wrong; refuse it, right or wrong, after too many wrong ones.

        A caller who has used its key from this address before is not refused, so that neighbors
        behind one address cannot lock it out. Nobody learns from that whether a guess was right,
        except of keys in use at its own address; against those only their length helps.

        Args:
            address: where the key came from.
            caller: the owner of the key; None when it is wrong.

        Raises:
            ApiError: 429 too_many_wrong_keys, with the seconds until the next key is looked at.
        """
        if caller is not None and self._is_known(address, caller):
            return
        index = _index(_digest(address))
        if wait := self._take(index, _WRONG_KEYS, amount=0 if caller else 1):
            message = "Too many wrong keys have come from this address; try again later."
            raise ApiError(429, "too_many_wrong_keys", message, headers=_retry_after(wait))
        if caller is not None:
            self._remember(address, caller)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _is_known(self, address: str, caller: Caller) -> bool:
        digest = _digest(address, caller.name)
        return os.pread(self._file, _BUCKET.size, _place(digest)) == digest

    def _remember(self, address: str, caller: Caller) -> None:
        """In the place of whoever had the same one."""
        digest = _digest(address, caller.name)
        os.pwrite(self._file, digest, _place(digest))

    def _take(self, index: int, limit: int, *, amount: int = 1) -> float:
        """Seconds to wait for one more; 0 when an amount was counted."""
        offset, per_second = index * _BUCKET.size, limit / 60
        fcntl.lockf(self._file, fcntl.LOCK_EX, _BUCKET.size, offset)
        try:
            now = self._clock()
            stored = os.pread(self._file, _BUCKET.size, offset)
            gone, counted = _BUCKET.unpack(stored)
            # A file of an earlier boot may hold a moment that has not come yet.
            elapsed = max(0.0, now - counted)
            gone = min(limit, max(0.0, gone - elapsed * per_second))
            if gone + 1 > limit:
                return (gone + 1 - limit) / per_second
            if amount:
                os.pwrite(self._file, _BUCKET.pack(gone + amount, now), offset)
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, _BUCKET.size, offset)
        return 0.0


def _retry_after(seconds: float) -> dict[str, str]:
    return {"retry-after": str(math.ceil(seconds))}


def _digest(*words: str) -> bytes:
    return blake2b("\0".join(words).encode(), digest_size=_BUCKET.size).digest()


def _index(digest: bytes) -> int:
    return int.from_bytes(digest[:4], "little") % _ADDRESSES


def _place(digest: bytes) -> int:
    """Offset of what is known of an address and a caller, behind the buckets of addresses."""
    return (_ADDRESSES + _index(digest)) * _BUCKET.size
