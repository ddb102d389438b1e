"""Retained messages and wills in a long run: keepers update topics, mourners die with a will, witnesses subscribe.

In the end every node keeps the value that was last acknowledged to a keeper. A will reaches every witness once when its
client was cut off, and never when the client sent DISCONNECT or returned before the delay was over. Where the client
cannot know which of these happened (no answer came, the node was killed meanwhile), the will may come or not, but never
twice.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import TYPE_CHECKING, Final

from tests.cluster.load import AGAIN_SECONDS, EXPIRY, FAILED, LOST, Person
from tests.cluster.real import Node
from tests.cluster.roamer import Roamer, RoamingReader
from tests.peer import Peer

from starlingmq.wire.mqtt import Ack, Connack, Connect, Disconnect, Publish, Subscribe, SubscribeRequest, Will
from starlingmq.wire.packets import PUBACK
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL, WILL_DELAY_INTERVAL, Properties

if TYPE_CHECKING:
    from tests.cluster.roaming import RoamingLoad

KEEPER_SECONDS: Final = 0.2  # between two values of a topic
DELAY: Final = 4  # seconds of a will, where it has one
BACK_SECONDS: Final = 2.0  # in which a client that cancels its will has to be back
REGISTERED_SECONDS: Final = 1.0  # until etcd, or the leader of its share, has a will that was accepted
UNSETTLED_SECONDS: Final = 5.0  # the same where etcd was away or another node was killed before
BACK_AGAIN_SECONDS: Final = 40.0  # until a node that was killed, or etcd, has found its place again
KILLS_SECONDS: Final = 30.0  # kills of a node further away are not shown
LARGE: Final = 3000  # bytes, of every fourth value: more than fits beside its key
LISTEN_SECONDS: Final = 0.5  # for retained messages, after the last one
EXPLAIN_SECONDS: Final = 15.0  # in which a node that keeps something else tells what it has: longer than a replay waits
FIGURES: Final = b"$SYS/broker/cluster/retained/"
ONCE: Final = "once"
NEVER: Final = "never"
EITHER: Final = "at most once"


class Keeper(Roamer):
    """Says a number on its topic, retained, and the next one when that is taken."""

    def __init__(self, load: RoamingLoad, name: str, node: Node, version: int) -> None:
        super().__init__(load, name, node, version, 1)
        self.topic = b"kept/" + name.encode()
        self.said = 0
        self.taken = 0
        self.idle = asyncio.Event()
        self.idle.set()

    async def go_on(self, peer: Peer) -> None:
        while not self.load.over:
            if self.said == self.taken:
                self.idle.set()
                await self.load.talking.wait()
                self.idle.clear()
                self.said += 1
            payload = b"%d" % self.said + (b" " * LARGE if self.said % 4 == 0 else b"")
            peer.send(Publish(self.topic, payload, 1, retain=True, packet_id=self.said % 65535 + 1))
            packet = await self.next(peer)
            assert isinstance(packet, Ack) and packet.type == PUBACK, packet
            if packet.reason < FAILED and packet.packet_id == self.said % 65535 + 1:
                self.taken = self.said
            await asyncio.sleep(KEEPER_SECONDS)


def clock(at: float) -> str:
    """Of the monotonic clock, as the nodes' logs have it."""
    moment = datetime.fromtimestamp(time.time() - time.monotonic() + at)
    return moment.strftime("%H:%M:%S.%f")[:-3]


@dataclass
class WillLife:
    """A will that ``node`` has accepted; times are seconds by the monotonic clock. ``asked``: its client sent CONNECT,
    ``since``: it read CONNACK. ``nodes``: all nodes."""

    node: Node
    since: float
    asked: float
    nodes: Sequence[Node]
    end: str = "its client is there"
    ended_at: float = inf
    cancelled_by: Node | None = None

    def ended(self, how: str, at: float, by: Node | None = None) -> None:
        self.end, self.ended_at, self.cancelled_by = how, at, by

    def may_be_missed(self) -> bool:
        """Its node was killed before etcd, or the leader of its share, may have had it: CONNACK does not wait for that.
        The client may have read CONNACK after the node was killed."""
        unsettled = self._are_owners_unsettled()
        seconds = UNSETTLED_SECONDS if unsettled else REGISTERED_SECONDS
        return self.node.trouble.was_killed(self.asked, self.since + seconds)

    def _are_owners_unsettled(self) -> bool:
        """Whether etcd was away or another node was killed: leaders of shares are replaced."""
        begin, end = self.asked - BACK_AGAIN_SECONDS, self.since + REGISTERED_SECONDS
        others = [node for node in self.nodes if node is not self.node]
        return self.node.no_etcd.met(begin, end) or any(node.trouble.met(begin, end) for node in others)

    def may_come_although_cancelled(self) -> bool:
        """Its node could not tell etcd at once. Only another node tells etcd before it answers."""
        return self.cancelled_by is self.node and self.is_troubled()

    def is_troubled(self) -> bool:
        """Whether the node may have noticed the end late or not at all, or could not tell etcd at once."""
        return self.node.trouble.met(self.since, self.ended_at + REGISTERED_SECONDS)

    def __str__(self) -> str:
        kills = [clock(at) for at in self.node.trouble.kills if self.since - KILLS_SECONDS < at]
        ended = "" if self.ended_at == inf else f" {clock(self.ended_at)}"
        by = "" if self.cancelled_by is None else f" at {self.cancelled_by.name}"
        return f"accepted {clock(self.since)} by {self.node.name}, killed {kills}; {self.end}{by}{ended}"


class Mourner(Person):
    """Connects with a will, again and again, and goes in one way or another."""

    load: RoamingLoad

    def __init__(self, load: RoamingLoad, name: str, node: Node, version: int) -> None:
        super().__init__(load, name, node, version, 1)
        self.number = 0
        self.expected: dict[int, str] = {}
        self.lives: dict[int, WillLife] = {}
        self.open: tuple[int, float] = (0, 0.0)  # a will that is to be taken back by coming, and until when
        self.idle = asyncio.Event()

    async def live(self) -> None:
        while not self.load.over:
            if not self.load.talking.is_set():
                self.idle.set()
                await self.load.talking.wait()
            self.idle.clear()
            peer = None
            try:
                node = self.load.draw.choice(self.load.nodes)
                peer = await Peer.open(node.url, self.version)
                await self._visit(peer, node)
            except LOST:
                pass
            finally:
                if peer is not None:
                    peer.abort()
            await asyncio.sleep(AGAIN_SECONDS * self.load.draw.random())

    async def _visit(self, peer: Peer, node: Node) -> None:
        self.number += 1
        number = self.number
        delay = DELAY if self.version == 5 and self.load.draw.random() < 0.5 else 0
        self.expected[number] = EITHER  # until it is known that it was taken
        properties: Properties = {SESSION_EXPIRY_INTERVAL: EXPIRY} if self.version == 5 else {}
        later: Properties = {WILL_DELAY_INTERVAL: delay} if delay else {}
        payload = b"%s 2 %d" % (self.name.encode(), number)
        will = Will(b"will/" + self.name.encode(), payload, 2, properties=later)
        asked = time.monotonic()
        peer.send(Connect(self.version, self.name, False, will=will, properties=properties))
        connack = await self.next(peer)
        assert isinstance(connack, Connack), connack
        if connack.reason:
            del self.expected[number]
            return
        life = self.lives[number] = WillLife(node, time.monotonic(), asked, self.load.nodes)
        earlier, until = self.open
        self.open = (0, 0.0)
        if earlier:
            in_time = time.monotonic() < until
            self.expected[earlier] = NEVER if in_time else EITHER
            self.lives[earlier].ended("its client came back", time.monotonic(), node if in_time else None)
        await self._leave(peer, life, number, delay)

    async def _leave(self, peer: Peer, life: WillLife, number: int, delay: int) -> None:
        draw = self.load.draw
        try:
            async with asyncio.timeout(draw.uniform(0.1, 1.5)):
                await self.next(peer)
        except TimeoutError:
            pass
        except LOST:  # the node ended it: whether the delay or the return came first is unknown
            self.expected[number] = EITHER if delay else ONCE
            life.ended("the node ended the connection", time.monotonic())
            return
        if draw.random() < 0.4:
            life.ended("DISCONNECT", time.monotonic(), life.node)
            peer.send(Disconnect(0))
            if await peer.receive() is None and self.version == 5:  # before, the node may have closed it by itself
                self.expected[number] = NEVER
            return
        life.ended(f"reset by its client, delay {delay} s", time.monotonic())
        peer.abort()
        if not delay:
            self.expected[number] = ONCE
        elif draw.random() < 0.5:
            self.open = (number, time.monotonic() + BACK_SECONDS)
        else:
            await asyncio.sleep(delay + BACK_SECONDS)
            self.expected[number] = EITHER if life.is_troubled() else ONCE  # the delay may have begun later


class Witness(RoamingReader):
    """Attends all wills."""

    filter = b"will/#"

    def __init__(self, load: RoamingLoad, name: str, node: Node, version: int, qos: int) -> None:
        super().__init__(load, name, node, version, qos)
        self.seen: Counter[tuple[str, int]] = Counter()

    def note(self, author: str, number: int, qos: int) -> None:
        self.seen[author, number] += 1


class Keepsakes:
    """``people`` belong to a load; ``settle`` waits until all is as it has to be, and says what is not."""

    def __init__(self, load: RoamingLoad, retained: bool, wills: bool) -> None:
        self.load = load
        nodes = load.nodes
        self.keepers = [Keeper(load, f"keeper{n}", nodes[n % len(nodes)], 4 + n % 2) for n in range(4 * retained)]
        self.mourners = [Mourner(load, f"mourner{n}", nodes[n % len(nodes)], 4 + n % 2) for n in range(4 * wills)]
        self.witnesses = [Witness(load, f"witness{n}", nodes[n % len(nodes)], 4 + n % 2, 2) for n in range(2 * wills)]

    @property
    def roamers(self) -> list[Roamer]:
        return [*self.keepers, *self.witnesses]

    async def settle(self, patience: float) -> None:
        until = time.monotonic() + patience
        try:
            async with asyncio.timeout(patience):
                for idle in (*[each.idle for each in self.keepers], *[each.idle for each in self.mourners]):
                    await idle.wait()
        except TimeoutError:
            self.load.wrong("keepers or mourners do not come to rest")
        wrong = ["not looked at yet"]
        while wrong and time.monotonic() < until:
            await asyncio.sleep(AGAIN_SECONDS)
            wrong = [
                *self._wrong_wills(),
                *[each for node in self.load.nodes for each in await self._wrongly_kept(node)],
            ]
        for each in wrong:
            self.load.wrong(each)
        for node in self.load.nodes:
            if any(each.startswith(f"{node.name} keeps") for each in wrong):
                self.load.wrong(await self._explain(node))
        for mourner in self.mourners:
            for expected in mourner.expected.values():
                self.load.counts[f"wills that had to come {expected}"] += 1
            for number, life in mourner.lives.items():
                seen = sum(witness.seen[mourner.name, number] for witness in self.witnesses)
                if mourner.expected[number] == NEVER and seen and life.may_come_although_cancelled():
                    self.load.counts["cancelled wills that came: their node could not tell etcd at once"] += 1
                if mourner.expected[number] == ONCE and not seen and life.may_be_missed():
                    self.load.counts["wills that were missed: their node was killed before etcd had them"] += 1
            last = {number: what for number, what in mourner.expected.items() if number == mourner.open[0]}
            mourner.expected = last
            mourner.lives = {number: mourner.lives[number] for number in last}
        self.load.counts["retained values that were taken"] = sum(keeper.taken for keeper in self.keepers)
        for witness in self.witnesses:
            witness.seen.clear()

    def _wrong_wills(self) -> list[str]:
        found = []
        for witness in self.witnesses:
            for mourner in self.mourners:
                for number, expected in mourner.expected.items():
                    count = witness.seen[mourner.name, number]
                    life = mourner.lives.get(number)  # none: no CONNACK came, so it may come or not
                    missing = count == 0 and expected == ONCE and not witness.gaps
                    missing = missing and life is not None and not life.may_be_missed()
                    unwanted = count != 0 and expected == NEVER
                    unwanted = unwanted and life is not None and not life.may_come_although_cancelled()
                    if missing or unwanted or (count > 1 and not witness.lost_sessions):
                        found.append(
                            f"{witness.name} had will {number} of {mourner.name} {count} times, not {expected}: {life}"
                        )
        return found

    async def _wrongly_kept(self, node: Node) -> list[str]:
        if not self.keepers:
            return []
        found: dict[bytes, int] = {}
        try:
            peer = await Peer.connect(node.url, f"visitor-{node.name}")
            try:
                peer.send(Subscribe(1, [SubscribeRequest(b"kept/#", 0)]))
                while True:
                    async with asyncio.timeout(LISTEN_SECONDS):
                        packet = await peer.receive()
                    if isinstance(packet, Publish):
                        found[packet.topic] = int(packet.payload)
            finally:
                peer.abort()
        except LOST:
            pass
        return [
            f"{node.name} keeps {found.get(keeper.topic, 'nothing')} of {keeper.name}, and {keeper.taken} was taken"
            for keeper in self.keepers
            if not keeper.taken <= found.get(keeper.topic, 0) <= keeper.said
        ]

    async def _explain(self, node: Node) -> str:
        """When each retained message comes to a client that listens for longer, and the node's own figures."""
        began = time.monotonic()
        came: list[str] = []
        figures: dict[str, str] = {}
        try:
            peer = await Peer.connect(node.url, f"auditor-{node.name}")
            try:
                peer.send(Subscribe(1, [SubscribeRequest(b"kept/#", 0), SubscribeRequest(FIGURES + b"#", 0)]))
                async with asyncio.timeout(EXPLAIN_SECONDS):
                    while True:
                        packet = await peer.receive()
                        if not isinstance(packet, Publish):
                            continue
                        if packet.topic.startswith(FIGURES):
                            figures[packet.topic.removeprefix(FIGURES).decode()] = packet.payload.decode()
                        else:
                            seconds = time.monotonic() - began
                            came.append(f"{packet.topic.decode()} = {int(packet.payload)} after {seconds:.1f} s")
            finally:
                peer.abort()
        except LOST:
            pass
        return f"{node.name}, asked for {EXPLAIN_SECONDS:.0f} s: {came or 'nothing came'}; its figures: {figures}"

    @staticmethod
    def _visits(roamer: Roamer) -> str:
        return f"it was {', '.join(roamer.history)}"
