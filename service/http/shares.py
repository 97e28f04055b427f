"""Fair shares of what is limited: nobody takes more than is left."""

import ipaddress
from collections import Counter
from functools import lru_cache

from starlette.requests import HTTPConnection

from service.http.keys import caller_of

_NETWORK = 64  # bits of an IPv6 address; one host has all addresses of such a network


def sharer_of(request: HTTPConnection) -> str:
    """Who shares with others: the name of the key, or where none are in use, the address."""
    return caller_of(request).name or address_of(request)


def address_of(request: HTTPConnection) -> str:
    """Where a request comes from.

    This host is one address, and so is a network of 64 bits of IPv6. uvicorn takes the address from
    `X-Forwarded-For` where the peer is a proxy that ``FORWARDED_ALLOW_IPS`` names.
    """
    return _network(request.client.host if request.client else "")


@lru_cache
def _network(host: str) -> str:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a Unix socket, or what a proxy made up
        return "unknown"
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    if address.is_loopback:
        return "localhost"
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((int(address), _NETWORK), strict=False))


def fits(amount: int, *, own: int, free: int) -> bool:
    """Whether a sharer who holds `own` may take an amount more: it holds no more than is left.

    So one sharer alone gets half of everything, two get a third each, and whoever comes next finds
    room. Source: Choudhury and Hahne 1998, "Dynamic queue length thresholds for shared-memory
    packet switches", with the factor 1.
    """
    return own + amount <= free


class Shares:
    """What sharers hold of something limited; belongs to one event loop."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held = Counter[str]()
        self._total = 0

    def held(self, sharer: str) -> int:
        """What somebody holds."""
        return self._held[sharer]

    def take(self, sharer: str, amount: int = 1) -> bool:
        """Take an amount, or nothing and return False when that is more than a share."""
        if not fits(amount, own=self._held[sharer], free=self.limit - self._total):
            return False
        self._held[sharer] += amount
        self._total += amount
        return True

    def give_back(self, sharer: str, amount: int = 1) -> None:
        """Hold so much less."""
        self._held[sharer] -= amount
        self._total -= amount
        if not self._held[sharer]:
            del self._held[sharer]
