"""Limits per client and per user: number of connections, rate of connections, publish rate. Connections per address are
counted where they are accepted (``net/listeners/connection_counts.py``).

A client that exceeds its publish rate gets no error and loses nothing: it is not read for a while, and TCP slows it
down.
"""

from __future__ import annotations

from starlingmq.config.settings import LimitsConfig
from starlingmq.core.limits.meter import Bucket, Meter
from starlingmq.core.session.session import Client


class Quotas:
    """Counts always, so that limits can be set while clients are connected."""

    limits: LimitsConfig
    short_of_memory: bool  # the process uses more than ``limits.memory``
    _users: dict[str, int]
    _connects: Bucket | None

    def __init__(self, limits: LimitsConfig, now: float) -> None:
        self.short_of_memory = False
        self._users = {}
        self.configure(limits, now)

    def configure(self, limits: LimitsConfig, now: float) -> None:
        self.limits = limits
        self._connects = Bucket(limits.connect_rate, now) if limits.connect_rate else None

    def may_connect(self, now: float) -> bool:
        """A CONNECT has arrived. Returns whether the rate of CONNECTs allows it."""
        bucket = self._connects
        if bucket is None:
            return True
        if bucket.refill(now) < 1.0:
            return False
        bucket.tokens -= 1.0
        return True

    def sign_in(self, client: Client, earlier: Client | None) -> bool:
        """A client was authenticated. Returns whether its user has room for another connection, which is counted then.

        ``earlier`` is the connection that it replaces.
        """
        if client.counted_as or not client.username:
            return True
        count = self._users.get(client.username, 0)
        limit = self.limits.connections_per_user
        if limit != 0 and count >= limit and (earlier is None or earlier.counted_as != client.username):
            return False
        self._users[client.username] = count + 1
        client.counted_as = client.username
        return True

    def sign_out(self, client: Client) -> None:
        if client.counted_as:
            _less(self._users, client.counted_as)
            client.counted_as = ""

    def meter(self, now: float) -> Meter | None:
        """A meter for an admitted client."""
        limits = self.limits
        return Meter(limits, now) if limits.message_rate or limits.byte_rate else None


def _less(counts: dict[str, int], name: str) -> None:
    count = counts.get(name, 0) - 1
    if count > 0:
        counts[name] = count
    else:
        counts.pop(name, None)
