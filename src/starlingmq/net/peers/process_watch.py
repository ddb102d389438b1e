"""Whether the process of another node has ended, as soon as its system shows it.

A heartbeat that does not come may be late for many reasons, so silence is given ``cluster.member_timeout``. The end of
a process is different: its system closes its connections and refuses new ones. To tell that from a firewall that
rejects packets (it answers RST, while the process lives), each node holds a *quiet connection* to each other one: the
call ``Hold``, with the handshake of the others (net/peers/peer_handshake.py), on which neither side sends anything.

1. The quiet connection is closed by FIN. A system sends that for a process that has ended, since there is nothing
   unread on the connection. A firewall cannot: an RST, a time-out, and all else that ends the call, prove nothing here.
2. Then the stream that the peer had dialled has ended too, so nothing of it is still to be read.
3. Then a new connection to its address is refused (ECONNREFUSED). A process that stands still is not found ended: its
   system holds its connections and accepts new ones.

A proxy on the way may end and show all of this while the process lives. So all nodes have to agree
(cluster/membership/quorum.py), and ``cluster.watch_processes`` switches the watch off where all connections to a node
lead through one proxy.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, Final

from starlingmq.cluster.links.peer_frames import MemberInfo
from starlingmq.config.cluster_section import split_address
from starlingmq.net.grpc_extra import grpc
from starlingmq.net.peers.peer_handshake import RefusedError
from starlingmq.net.peers.peer_stream import BACK_OFF_FIRST, BACK_OFF_MAX, HANDSHAKE_SECONDS, SERVICE, explain

log = logging.getLogger("starlingmq")

HOLD_METHOD: Final = f"/{SERVICE}/Hold"
CLOSED: Final = "Socket closed"  # how gRPC says that the other system has closed a connection by FIN
PROBES_SECONDS: Final = 1.0  # in which a process that has ended refuses connections, and its stream has ended
PROBE_PAUSE_FIRST: Final = 0.01  # then twice as long each time
PROBE_SECONDS: Final = 0.5


class ProcessWatch:
    """``shake_hands`` opens the call ``Hold`` on a channel and gives the incarnation that answered; ``hears`` tells
    whether a stream of that incarnation stands, ``gone`` is told of its end."""

    def __init__(
        self,
        member: MemberInfo,
        open_channel: Callable[[str], Any],
        shake_hands: Callable[[Any], Any],
        hears: Callable[[int, int], bool],
        gone: Callable[[int, int], None],
    ) -> None:
        self.member = member
        self._open_channel = open_channel
        self._shake_hands = shake_hands
        self._hears = hears
        self._gone = gone
        self._call: Any = None
        self._again = asyncio.Event()
        self._closing = False
        self._task = asyncio.ensure_future(self._run())

    def hurry(self) -> None:
        """The peer seems to be there again."""
        self._again.set()

    def renew(self) -> None:
        """The process has another incarnation."""
        self._again.set()
        if self._call is not None:
            self._call.cancel()

    @property
    def stands(self) -> bool:
        return self._call is not None

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
                await asyncio.wait_for(self._again.wait(), pause)
            except TimeoutError:
                continue

    async def _hold(self) -> tuple[bool, int]:
        """One quiet connection to its end: whether it stood, and the incarnation whose system closed it, or 0."""
        channel = self._open_channel(self.member.address)
        try:
            try:
                async with asyncio.timeout(HANDSHAKE_SECONDS):
                    self._call, incarnation = await self._shake_hands(channel)
            except (TimeoutError, RefusedError, grpc.RpcError, asyncio.InvalidStateError):
                return False, 0  # why, the stream to it says
            try:
                while isinstance(await self._call.read(), bytes):
                    pass
            except (grpc.RpcError, asyncio.InvalidStateError) as error:
                return True, incarnation if CLOSED in explain(error) else 0
            return True, 0
        finally:
            self._call = None
            await channel.close()

    async def _is_gone(self, incarnation: int) -> bool:
        loop = asyncio.get_running_loop()
        until = loop.time() + PROBES_SECONDS
        pause = PROBE_PAUSE_FIRST
        self._again.clear()  # what came before the end says nothing of what is there now
        while loop.time() < until and not self._again.is_set():
            if not self._hears(self.member.number, incarnation) and await refuses(self.member.address):
                return True
            await asyncio.sleep(pause)
            pause *= 2
        return False


async def refuses(address: str) -> bool:
    """Whether the system at all addresses of that name is there and refuses connections to that port."""
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
