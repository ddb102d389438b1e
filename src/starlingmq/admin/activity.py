"""The most active clients of this node: rates, from the difference between two counts of each client.

A count looks at all clients, ``PIECE`` per turn, and is reused for a second: requests within that second get the same
reply. Nothing is counted while there are no requests.
"""

from __future__ import annotations

import asyncio
import heapq
from operator import attrgetter
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from starlingmq.admin.declared_actions import ALL, action
from starlingmq.admin.node_rpc import Answers, Missing, NodeRpc
from starlingmq.admin.paging import PIECE
from starlingmq.admin.sessions import inflight, queued
from starlingmq.admin.typed_actions import PAGE, Limit
from starlingmq.core.reports.session_totals import subscription_count
from starlingmq.core.session.session import Client
from starlingmq.net.driver import Driver

FRESH: Final = 1.0  # seconds between two counts
FORGOTTEN_SECONDS: Final = 30.0  # after the last request


class Active(Struct, frozen=True):
    """The activity of one client; rates are per second. ``node`` is set in lists of several nodes."""

    client_id: str
    peer: str
    messages_in: float
    bytes_in: int
    bytes_out: int
    queued: int
    dropped: int
    subscriptions: int
    slow: bool
    node: str = ""
    inflight: int = 0


class ActivityRequest(Struct, frozen=True):
    sort: Annotated[
        Literal["messages_in", "bytes_in", "bytes_out", "queued", "inflight", "dropped", "subscriptions"],
        Meta(description="Sort order: clients with the highest value first."),
    ] = "messages_in"
    limit: Limit = PAGE


class NodeActivityReply(Struct, frozen=True):
    """``seconds``: the time that the rates cover. 0: this is the first count, and there are no rates yet."""

    clients: list[Active]
    seconds: float
    connected: int


class Activity(Struct, frozen=True):
    """``seconds``: the time that the rates of each node cover. 0: no rates yet, because there was no recent request."""

    node: str
    clients: list[Active]
    seconds: dict[str, float]
    missing: list[Missing]


def most_active(rpc: NodeRpc, answers: Answers[NodeActivityReply], request: ActivityRequest) -> Activity:
    clients = [replace(client, node=node) for node, one in answers.results.items() for client in one.clients]
    clients.sort(key=attrgetter(request.sort), reverse=True)
    seconds = {node: one.seconds for node, one in answers.results.items()}
    return Activity(rpc.name, clients[: request.limit], seconds, answers.missing)


class NodeActivity:
    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._before: dict[Client, tuple[int, int, int]] = {}
        self._looked_at = 0.0
        self._rows: list[Active] = []
        self._seconds = 0.0  # the time that the rates cover
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @action("activity", "GET /activity", ALL, merge=most_active)
    async def activity(self, request: ActivityRequest) -> NodeActivityReply:
        """List the most active clients."""
        key = attrgetter(request.sort)
        if self._driver.loop.time() >= self._looked_at + FRESH:
            if self._task is None or self._task.done():
                self._task = asyncio.ensure_future(self._look())
            await asyncio.shield(self._task)
        self.stop()
        self._timer = self._driver.loop.call_later(FORGOTTEN_SECONDS, self._forget)
        return NodeActivityReply(heapq.nlargest(request.limit, self._rows, key=key), self._seconds, len(self._rows))

    def _forget(self) -> None:
        self._before, self._rows = {}, []

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def _look(self) -> None:
        now = self._driver.loop.time()
        seconds = now - self._looked_at if self._before else 0.0
        before, after, rows = self._before, {}, []
        for index, client in enumerate(list(self._driver.clients)):
            if index % PIECE == PIECE - 1:
                await asyncio.sleep(0)
            session = client.session
            if session is None or client.link:
                continue
            counted = after[client] = client.published, client.bytes_in, client.bytes_out
            last = before.get(client, (0, 0, 0) if seconds else counted)
            rates = [(new - old) / seconds if seconds else 0.0 for new, old in zip(counted, last, strict=True)]
            rows.append(
                Active(
                    client_id=session.client_id,
                    peer=client.peer,
                    messages_in=round(rates[0], 1),
                    bytes_in=round(rates[1]),
                    bytes_out=round(rates[2]),
                    queued=queued(session),
                    dropped=session.dropped,
                    subscriptions=subscription_count(session),
                    slow=client.blocked or session.stalled,
                    inflight=inflight(session),
                )
            )
        self._before, self._rows, self._seconds, self._looked_at = after, rows, round(seconds, 3), now
