"""Connections for copies between simulated machines: in order, late, cut with the ways of ``tests.sim.network``.

A cut holds messages back. When it lasts, both sides learn that the connection has ended, each at its own time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.sim.copies.ports import Life, Ports

from starlingmq.cluster.links.control_frames import MemberInfo
from starlingmq.net.peers.peer_handshake import COPY, VERSION_MAX, Proved
from starlingmq.net.peers.peer_protocol import PeerConnectionLost

HOLD = 0.05  # seconds between two tries to get through a cut
DIAL_SECONDS = 1.0


class SimPipe:
    """One end. ``fails``: what ``read`` raises at the end; None: the other side closed it."""

    def __init__(self, life: Life) -> None:
        self.life = life
        self.other: SimPipe
        self.ended = False
        self._inbox: deque[bytes] = deque()
        self._under_way: deque[bytes | None] = deque()  # to the other end; None: this end is closed
        self._arrives = 0.0
        self._cut_since = 0.0
        self._more = asyncio.Event()

    # The interface of ``starlingmq.net.peers.pipe``

    async def read(self) -> bytes | None:
        while not self._inbox:
            if self.ended:
                return None
            self._more.clear()
            await self._more.wait()
        return self._inbox.popleft()

    def arrived(self) -> list[bytes]:
        messages = list(self._inbox)
        self._inbox.clear()
        return messages

    async def write(self, message: bytes) -> None:
        if self.ended:
            raise PeerConnectionLost("the connection has ended")
        self._send(message)
        await asyncio.sleep(0)

    def close(self) -> None:
        if not self.ended:
            self.end()
            self._send(None)

    # The network

    def end(self) -> None:
        self.ended = True
        self._more.set()

    def _send(self, message: bytes | None) -> None:
        schedule, network = self.life.schedule, self.life.world.network
        self._under_way.append(message)
        self._arrives = max(self._arrives, schedule.now + network.delay * (0.5 + 2.5 * self.life.random.random()))
        schedule.at(self._arrives, self._arrive)

    def _arrive(self) -> None:
        schedule, network = self.life.schedule, self.life.world.network
        if network.is_cut(self.life.host, self.other.life.host):
            self._cut_since = self._cut_since or schedule.now
            if schedule.now < self._cut_since + network.patience:
                schedule.after(HOLD, self._arrive)
                return
            self.break_off()
            return
        self._cut_since = 0.0
        if self._under_way:
            message = self._under_way.popleft()
            self.other.life.enter(lambda: self.other.receive(message))

    def break_off(self) -> None:
        """Both sides learn that the connection has ended, each behind the messages that have arrived there."""
        self._under_way.clear()
        self.life.enter(self.end)
        self.other.life.enter(self.other.end)

    def receive(self, message: bytes | None) -> None:
        if message is None:
            self.end()
        elif not self.ended:
            self._inbox.append(message)
            self._more.set()


class SimPeers:
    """The port for copies of one life of a machine, in place of ``net.peers.peer_server``."""

    def __init__(self, life: Life, ports: Ports) -> None:
        self.address = f"{life.host}:2"
        self._life = life
        self._ports = ports
        self._pipes: list[SimPipe] = []

    @asynccontextmanager
    async def open_copy(self, member: MemberInfo) -> AsyncIterator[SimPipe]:
        """Raises PeerConnectionLost."""
        life = self._life
        here, there = life.host, member.name
        await asyncio.sleep(life.world.network.delay * (0.5 + 2.5 * life.random.random()))
        network = life.world.network
        if network.is_cut(here, there) or network.is_cut(there, here) or network.is_frozen(there):
            await asyncio.sleep(DIAL_SECONDS)
            raise PeerConnectionLost("no answer")
        target = self._ports.lives.get(there)
        if target is None or not target.alive or target.roles.me.incarnation != member.incarnation:
            raise PeerConnectionLost("refused")
        pipe, other = SimPipe(life), SimPipe(target)
        pipe.other, other.other = other, pipe
        self._pipes.append(pipe)
        life.schedule.after(0.0, target.enter, lambda: target.serve_copy(other, life.host))
        try:
            yield pipe
        finally:
            pipe.close()
            self._pipes.remove(pipe)

    def accepted(self, pipe: SimPipe) -> None:
        self._pipes.append(pipe)

    def removed(self, pipe: SimPipe) -> None:
        self._pipes.remove(pipe)

    def given_up(self) -> None:
        """The other sides have heard nothing for too long."""
        for pipe in list(self._pipes):
            pipe.break_off()

    def died(self) -> None:
        """The machine is dead: what it has sent still arrives, and the other sides see the end."""
        for pipe in self._pipes:
            pipe.close()


def proved(name: str, incarnation: int) -> Proved:
    return Proved(name, 1, incarnation, VERSION_MAX, COPY, b"")
