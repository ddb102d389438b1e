"""Limits on the number of HTTP connections from the moment they are accepted, and the choice of the one to close.

Invariant: a new connection is always accepted, and the connection that has waited longest is closed for it. A
connection waits while it has no complete request: in the TLS handshake, with half a head or half a body, idle between
two requests, or with a reply that the client does not read. A connection whose request is being handled is never
closed. ``Slots`` limits those to fewer than there are places, so that a new connection always finds one: a health probe
succeeds however many incomplete requests there are.

An address with ``per_address`` connections loses one of its own. With ``total`` connections, the address with the most
connections loses one. IPv6 addresses count by their /64.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from starlingmq.api.asgi import RequestRefused


class LimitedConnection(Protocol):
    address: str  # its key; "" if it is not limited by address, such as a trusted proxy

    def waits_since(self) -> int | None:
        """A number that grows with time; None while a request is handled."""

    def evict(self) -> None: ...


class ConnectionLimit:
    def __init__(self, total: int, per_address: int) -> None:
        self.total = total
        self.per_address = per_address
        self.evicted = 0
        self._count = 0
        self._by_address: dict[str, list[LimitedConnection]] = {}

    def __len__(self) -> int:
        return self._count

    def enter(self, one: LimitedConnection) -> bool:
        """False if there is no place, since all connections have requests that are being handled."""
        same = self._by_address.get(one.address, ())
        if one.address and len(same) >= self.per_address and not self._evict(same):
            return False
        if self._count >= self.total and not self.evict():
            return False
        self._by_address.setdefault(one.address, []).append(one)
        self._count += 1
        return True

    def leave(self, one: LimitedConnection) -> None:
        """May be called again, and for an evicted connection."""
        same = self._by_address.get(one.address, [])
        if one in same:
            same.remove(one)
            self._count -= 1
            if not same:
                del self._by_address[one.address]

    def evict(self) -> bool:
        """Close one waiting connection; False if there is none."""
        return any(self._evict(same) for same in sorted(self._by_address.values(), key=len, reverse=True))

    def _evict(self, among: Iterable[LimitedConnection]) -> bool:
        waiting = [(since, one) for one in among if (since := one.waits_since()) is not None]
        if not waiting:
            return False
        _, one = min(waiting, key=lambda each: each[0])
        self.leave(one)
        self.evicted += 1
        one.evict()
        return True


class Slots:
    """Limits the number of concurrent ``what`` (a plural): ``total`` in all, ``each`` per key."""

    def __init__(self, total: int, each: int, what: str) -> None:
        self.total = total
        self.each = each
        self._what = what
        self._taken = 0
        self._by_key: dict[str, int] = {}

    def check(self, key: str) -> None:
        """Raises RequestRefused if none is free."""
        if self._by_key.get(key, 0) >= self.each:
            raise RequestRefused(
                429, f"too many {self._what} from this address; try again later", [(b"retry-after", b"1")]
            )
        if self._taken >= self.total:
            raise RequestRefused(503, f"too many {self._what}; try again later", [(b"retry-after", b"1")])

    @contextmanager
    def held(self, key: str) -> Iterator[None]:
        self._taken += 1
        self._by_key[key] = self._by_key.get(key, 0) + 1
        try:
            yield
        finally:
            self._taken -= 1
            self._by_key[key] -= 1
            if not self._by_key[key]:
                del self._by_key[key]

    def taken(self, key: str) -> AbstractContextManager[None]:
        """``check``, then ``held``."""
        self.check(key)
        return self.held(key)
