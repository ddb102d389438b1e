"""The clients of ``tests.cluster.load``, but without a home node: they return at any node, move to another one now and
then
with or without a DISCONNECT, and follow a node's server reference.

They check more than clients that stay, and less where the node with their session cannot be reached: there the session
is reset and the reset is counted, and messages published before they have subscribed again are not expected.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from tests.cluster.load import AGAIN_SECONDS, LOST, UNAVAILABLE, Author, Person, Reader, Sharer, Wanderer
from tests.cluster.losses import Loss, Memory
from tests.cluster.real import Node
from tests.peer import Peer

from starlingmq.wire.mqtt import Packet, Publish
from starlingmq.wire.properties import SERVER_REFERENCE, Properties

if TYPE_CHECKING:
    from tests.cluster.roaming import RoamingLoad

BUSY: Final = 0x89
USE_ANOTHER: Final = 0x9C
VISITS_TOLD: Final = 8  # the last ones, of who complains
SILENT: Final = 0.4  # share of those that leave so


class Roamer(Person):
    """Mixed into a person of the load: where it goes, and how it leaves."""

    refusals = (UNAVAILABLE, BUSY, USE_ANOTHER)
    load: RoamingLoad

    def __init__(self, load: RoamingLoad, name: str, node: Node, *more: object) -> None:
        super().__init__(load, name, node, *more)  # type: ignore[arg-type]
        self.went = 0  # how often it came to another node than before
        self.went_before = 0  # up to the last time that all was settled
        self.hops = 0  # how often it left by itself
        self.lost_sessions = 0
        self.asked_at = 0.0  # its last CONNECT
        self.history: deque[str] = deque(maxlen=VISITS_TOLD)
        self._memory = Memory()
        self._greeted_at = 0.0  # seconds since the epoch, when it read its last CONNACK that was no refusal
        self._found = True
        self._sent_to: Node | None = None
        self._here: asyncio.Task[None] | None = None
        self._silent = False

    async def live(self) -> None:
        while not self.load.over:
            node = self._sent_to or self.load.draw.choice(self.load.nodes)
            self._sent_to = None
            try:
                peer = await Peer.open(node.url, self.version)
            except LOST:
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            self.went += node is not self.node
            self.node = node
            self._silent = False
            self._here = asyncio.create_task(self._visit(peer))
            try:
                await asyncio.wait([self._here])
                if not self._here.cancelled():
                    self._here.result()
            except LOST:
                self.load.lost += 1
            finally:
                self._here.cancel()
                if self._silent and not self.load.over:
                    self.load.leave_open(peer)
                else:
                    peer.abort()
            await asyncio.sleep(0 if self._sent_to else AGAIN_SECONDS * self.load.draw.random())

    async def _visit(self, peer: Peer) -> None:
        self.asked_at = time.monotonic()
        if await self.greet(peer):
            self._listen(peer)
            self.history.append(f"{self.load.clock():.1f} s at {self.node.name}")
            await self.go_on(peer)

    async def greet(self, peer: Peer) -> bool:
        self._found = True
        if not await super().greet(peer):
            return False
        before = self._memory.accepted(self._found)
        since, self._greeted_at = self._greeted_at, time.time()
        if not self._found:
            self.load.losses.append(Loss(self._greeted_at, self.name, self.node.name, before, since))
        return True

    def _listen(self, peer: Peer) -> None:
        """Remember that something was sent since CONNACK."""
        send = peer.send

        def sending(*packets: Packet | bytes) -> None:
            if packets:
                self._memory.sends()
            send(*packets)

        peer.send = sending  # type: ignore[method-assign]

    async def next(self, peer: Peer) -> Packet:
        packet = await super().next(peer)
        self._memory.hears(packet)
        return packet

    def hop(self) -> None:
        """Go elsewhere, now."""
        if self._here is not None and not self._here.done():
            self.hops += 1
            self._silent = self.load.draw.random() < SILENT
            self._here.cancel()

    def told(self, properties: Properties) -> None:
        reference = properties.get(SERVER_REFERENCE)
        if isinstance(reference, str):
            self.load.counts["sent elsewhere"] += 1
            port = int(reference.rpartition(":")[2])
            self._sent_to = next((node for node in self.load.nodes if node.port == port), None)
            if self._sent_to is None:
                self.load.wrong(f"{self.name} was sent to {reference}, where nobody is")

    def session_gone(self) -> None:
        self.lost_sessions += 1
        self._found = False
        self.history.append("no session")
        self.load.counts["sessions that were not found"] += 1
        if self.load.strict:
            super().session_gone()


class RoamingAuthor(Roamer, Author):
    """After a session reset it starts all its handshakes again: messages that were already routed arrive twice."""

    def __init__(self, load: RoamingLoad, name: str, node: Node, version: int, qos: int) -> None:
        super().__init__(load, name, node, version, qos)
        self.packets: dict[int, Publish] = {}
        self.begun_anew: set[int] = set()  # numbers
        self.given_up: set[int] = set()  # numbers whose handshake the broker did not know

    def fill(self, peer: Peer) -> None:
        before = self.count
        super().fill(peer)
        for number in range(before + 1, self.count + 1):
            packet = self.sent[number % 65535 + 1]
            assert isinstance(packet, Publish)
            self.packets[number % 65535 + 1] = packet

    def session_gone(self) -> None:
        super().session_gone()
        for packet_id in self.sent:
            packet = self.packets[packet_id]
            packet.dup = False
            self.sent[packet_id] = packet
            self.begun_anew.add(self.numbers[packet_id])

    def handshake_gone(self, packet_id: int) -> None:
        number = self.numbers.pop(packet_id, 0)
        if self.sent.pop(packet_id, None) is None:
            return
        self.load.counts["handshakes that were not found (0x92)"] += 1
        self.given_up.add(number)
        if self.load.strict:
            self.load.wrong(f"{self.name}: the handshake of {number} is gone")


class RoamingReader(Roamer, Reader):
    """``gaps``: from a CONNECT that found no session to the SUBACK that came of it. ``lost_at``: when it was told so;
    what was in flight to it at QoS 2 then is not sent again (docs/GUARANTEES.md)."""

    def __init__(self, load: RoamingLoad, name: str, node: Node, version: int, qos: int) -> None:
        super().__init__(load, name, node, version, qos)
        self.gaps: list[tuple[float, float]] = []
        self.lost_at: list[float] = []
        self.unsure: set[tuple[str, int]] = set()  # came in a handshake whose end the broker does not know of

    def session_gone(self) -> None:
        super().session_gone()
        if self.subscribed.is_set():
            self.gaps.append((self.asked_at, float("inf")))
            self.lost_at.append(time.monotonic())
        self.subscribed.clear()
        self.unsure.update(self.open.values())
        self.open.clear()

    async def go_on(self, peer: Peer) -> None:
        closing = asyncio.create_task(self._close_gap())
        try:
            await super().go_on(peer)
        finally:
            closing.cancel()

    async def _close_gap(self) -> None:
        await self.subscribed.wait()
        if self.gaps and self.gaps[-1][1] == float("inf"):
            self.gaps[-1] = (self.gaps[-1][0], time.monotonic())

    def in_gap(self, began: float, ended: float) -> bool:
        """Whether a message that was in flight then may have arrived while the client had no subscription."""
        return any(began <= end and ended >= start for start, end in self.gaps)

    def in_flight(self, began: float, qos: int) -> bool:
        """Whether it may have been in flight at QoS 2 in a session that was lost."""
        return min(qos, self.qos) == 2 and any(began <= lost_at for lost_at in self.lost_at)


class RoamingSharer(RoamingReader, Sharer):
    pass


class RoamingWanderer(Roamer, Wanderer):
    def session_gone(self) -> None:
        super().session_gone()
        self.arrived.set()  # its message went to the lost session, and may or may not arrive from there
