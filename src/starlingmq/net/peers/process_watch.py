"""Detects the end of another node's process as soon as its operating system shows it.

A missing heartbeat may be late for many reasons, so silence is tolerated for ``cluster.member_timeout``. The end of a
process is different: its operating system closes its connections and refuses new ones. A firewall that rejects packets
(it answers RST, while the process is alive) has to be told apart from that. So each node holds a *quiet connection* to
each other one, with the usual handshake (net/peers/peer_handshake.py), on which the dialler sends nothing, and the
listener nothing but signs of life. A process counts as ended when all of these hold:

1. The quiet connection is closed by FIN. The operating system sends FIN for a process that has ended, because the
   connection has no unread data. A firewall cannot: an RST, a timeout, and every other end prove nothing here. A live
   process that gives the connection up, after it stood still for example, resets it.
2. The stream that the peer dialled has ended and was read completely, so nothing of it is still unread.
3. A new connection to its address is refused (ECONNREFUSED). A stopped process does not count as ended: its operating
   system keeps its connections and accepts new ones.

A proxy on the path may end and show all of this while the process is alive. So all nodes have to agree
(cluster/membership/quorum.py), and ``cluster.watch_processes`` switches the watch off where all connections to a node
pass through one proxy.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlingmq.cluster.links.control_frames import MemberInfo
from starlingmq.config.cluster_section import split_address
from starlingmq.net.peers.peer_connection import PeerConnection
from starlingmq.net.peers.peer_dialling import DialError
from starlingmq.net.peers.peer_handshake import RefusedError
from starlingmq.net.peers.peer_stream import BACK_OFF_FIRST, BACK_OFF_MAX

log = logging.getLogger("starlingmq")

PROBES_SECONDS: Final = 1.0  # how long a process that has ended may take to refuse connections, with its stream ended
PROBE_PAUSE_FIRST: Final = 0.01  # doubled each time
PROBE_SECONDS: Final = 0.5


class ProcessWatch:
    """``dial`` opens a quiet connection and returns it with the incarnation that answered. ``hears`` tells whether a
    stream of that incarnation is open. ``gone`` is called when its process has ended."""

    def __init__(
        self,
        member: MemberInfo,
        dial: Callable[[MemberInfo], Awaitable[tuple[PeerConnection, int]]],
        hears: Callable[[int, int], bool],
        gone: Callable[[int, int], None],
    ) -> None:
        self.member = member
        self._dial = dial
        self._hears = hears
        self._gone = gone
        self._connection: PeerConnection | None = None
        self._again = asyncio.Event()
        self._closing = False
        self._task = asyncio.ensure_future(self._run())

    def hurry(self) -> None:
        """The peer seems to be available again."""
        self._again.set()

    def renew(self) -> None:
        """The process has another incarnation."""
        self._again.set()
        if self._connection is not None:
            self._connection.end("")

    @property
    def stands(self) -> bool:
        return self._connection is not None

    async def close(self) -> None:
        self._closing = True
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        pause = BACK_OFF_FIRST
        while not self._closing:
            self._again.clear()
            try:
                stood, incarnation = await self._hold()
                if incarnation and await self._is_gone(incarnation):
                    self._gone(self.member.number, incarnation)
            except Exception:
                log.exception("internal error while watching node %s", self.member.name)
                stood = False
            pause = BACK_OFF_FIRST if stood else min(BACK_OFF_MAX, 2 * pause)
            try:
                async with asyncio.timeout(pause):
                    await self._again.wait()
            except TimeoutError:
                continue

    async def _hold(self) -> tuple[bool, int]:
        """One quiet connection until its end. Returns whether it was open, and the incarnation whose system closed it,
        or 0."""
        try:
            connection, incarnation = await self._dial(self.member)
        except (RefusedError, DialError):
            return False, 0  # the stream to that node logs the reason
        self._connection = connection
        connection.only_hear()
        try:
            await connection.until_ended()
        finally:
            self._connection = None
            connection.end("")
        return True, incarnation if connection.by_fin else 0

    async def _is_gone(self, incarnation: int) -> bool:
        loop = asyncio.get_running_loop()
        until = loop.time() + PROBES_SECONDS
        pause = PROBE_PAUSE_FIRST
        self._again.clear()  # earlier events do not tell whether the process runs now
        while loop.time() < until and not self._again.is_set():
            if not self._hears(self.member.number, incarnation) and await refuses(self.member.address):
                return True
            await asyncio.sleep(pause)
            pause *= 2
        return False


async def refuses(address: str) -> bool:
    """Whether the systems at all addresses of that name are up and refuse connections to that port."""
    loop = asyncio.get_running_loop()
    host, port = split_address(address, "address")
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            refused = [await _refuses(family, where) for family, _, _, _, where in found]
    except (TimeoutError, OSError):
        return False
    return bool(refused) and all(refused)


async def _refuses(family: int, where: Any) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as attempt:
        attempt.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(attempt, where)
        except ConnectionRefusedError:
            return True
    return False
