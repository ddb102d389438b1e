"""What one client, one user may take: how many connections, how fast they come, how fast they publish. Connections by
address are counted where they are accepted (``net/listeners/connection_counts.py``).

Who publishes too fast is not told so and loses nothing: it is not read for a while, and TCP holds it back.
"""

from __future__ import annotations

from starlingmq.config.settings import LimitsConfig
from starlingmq.core.limits.meter import Bucket, Meter
from starlingmq.core.session.session import Client


class Quotas:
    """Counts always, so that limits can be set while clients are connected."""

    limits: LimitsConfig
    short_of_memory: bool  # the process has more than ``limits.memory``
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
        """A CONNECT has come: whether there were not too many of late."""
        bucket = self._connects
        if bucket is None:
            return True
        if bucket.refill(now) < 1.0:
            return False
        bucket.tokens -= 1.0
        return True

    def sign_in(self, client: Client, earlier: Client | None) -> bool:
        """A client is who it is: whether this user has fewer connections than it may have. Then it counts.

        ``earlier`` is the connection that it takes the place of.
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
        """For a client that is let in."""
        limits = self.limits
        return Meter(limits, now) if limits.message_rate or limits.byte_rate else None


def _less(counts: dict[str, int], name: str) -> None:
    count = counts.get(name, 0) - 1
    if count > 0:
        counts[name] = count
    else:
        counts.pop(name, None)
