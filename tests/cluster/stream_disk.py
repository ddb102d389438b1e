"""The disk of a node with streams, as of the end of each turn, and a node that begins with it.

A node that is killed and one that serves its data under its name are the same here: ``cluster.copies`` gives the second
one the disk of the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tests.cluster.stream_fleet import StreamFleet, StreamNode
from tests.core.streams.test_sequenced_stream import Log

from starlingmq.core.context.ready import FACT_DELETE, FACT_PUT, STREAM_PUT, Deliveries
from starlingmq.core.jetstream.bound_consumer import FACT as CONSUMER_FACT
from starlingmq.core.streams.policies import StreamPolicy
from starlingmq.core.streams.sequenced_stream import SequencedStream

LOOP = asyncio.new_event_loop()  # for the tasks that delete files


@dataclass
class Definition:
    name: str
    number: int
    topics: list[bytes]
    settings: bytes
    created: float
    first: int
    log: Log


@dataclass
class Disk:
    facts: dict[bytes, bytes] = field(default_factory=dict)
    streams: dict[int, Definition] = field(default_factory=dict)
    highest: dict[int, int] = field(default_factory=dict)
    numbers: int = 0


class DiskAdmin:
    """In place of storage.streams.stream_admin."""

    def __init__(self, node: DiskNode) -> None:
        self._node = node
        self.store = SimpleNamespace(copies=None)
        self.delete_sequenced: Callable[[SequencedStream], Awaitable[None]] | None = None
        self.files_wait: list[str] = []  # streams whose files are never deleted

    def create_sequenced(
        self, name: str, topics: list[bytes], settings: bytes, size: int, first: int
    ) -> SequencedStream:
        disk = self._node.disk
        disk.numbers += 1
        found = Definition(name, disk.numbers, topics, settings, self._node.now, first, Log())
        disk.streams[found.number] = found
        return self._node.stream_of(found)

    def change_sequenced(self, stream: SequencedStream, topics: list[bytes], settings: bytes, size: int) -> None:
        found = self._node.disk.streams[stream.number]
        found.topics, found.settings = topics, settings

    async def delete(self, name: str) -> None:
        stream, disk = self._node.state.jetstream.streams.get(name), self._node.disk
        if stream is not None and self.delete_sequenced is not None:
            await self.delete_sequenced(stream)
            return
        if name in self.files_wait:
            await LOOP.create_future()
        for number in [number for number, found in disk.streams.items() if found.name == name]:
            del disk.streams[number]
            head = CONSUMER_FACT + b"%d/" % number
            for fact in [fact for fact in disk.facts if fact.startswith(head)]:
                del disk.facts[fact]


class DiskNode(StreamNode):
    fleet: DiskFleet

    def make_admin(self) -> Any:
        self.admin = DiskAdmin(self)
        return self.admin

    def recover(self) -> dict[bytes, bytes]:
        disk = self.disk = self.fleet.disks.setdefault(self.name, Disk())
        self.state.ctx.record(True)
        facts = dict(disk.facts)
        for definition in disk.streams.values():
            stream = self.stream_of(definition)
            for message in definition.log.messages:
                stream.restore(message)
            self.state.jetstream.restore(stream, facts)
        self.state.jetstream.restored(facts)
        self.state.peers.restore(dict(disk.highest), facts)
        return self.state.peers.facts

    def stream_of(self, definition: Definition) -> SequencedStream:
        policy = StreamPolicy()
        policy.subjects = definition.topics
        ctx, log = self.state.ctx, definition.log
        return SequencedStream(
            ctx, definition.name, definition.number, policy, definition.settings, definition.created, log, 1
        )

    def turn(self) -> bool:
        busy = super().turn()
        self._keep()
        for _ in range(3 if asyncio.all_tasks(LOOP) else 0):  # and their callbacks
            LOOP.call_soon(LOOP.stop)
            LOOP.run_forever()
        return busy or self.state.pending()

    def _keep(self) -> None:
        disk = self.disk
        for write in self.writes:
            if write.kind == FACT_PUT:
                disk.facts[write.topic] = write.value
            elif write.kind == FACT_DELETE:
                disk.facts.pop(write.topic, None)
            elif isinstance(write, Deliveries):
                for kind, session, outgoing in zip(write.kinds, write.sessions, write.outgoings, strict=True):
                    message = outgoing.message
                    if kind == STREAM_PUT and session.number in disk.streams:
                        log = disk.streams[session.number].log.messages
                        log += [None] * outgoing.packet_id
                        log.append(message)
                        if message.origin not in (0, self.state.ctx.node):
                            before = disk.highest.get(message.origin, 0)
                            disk.highest[message.origin] = max(before, message.sequence)
        self.writes.clear()


class DiskFleet(StreamFleet):
    kind = DiskNode

    def __init__(self, count: int) -> None:
        self.disks: dict[str, Disk] = {}
        asyncio.set_event_loop(LOOP)
        super().__init__(count)

    def named(self, name: str) -> DiskNode | None:
        """None: it is not there."""
        for node in self.nodes:
            if node.name == name:
                assert isinstance(node, DiskNode)
                return node
        return None

    def kill(self, name: str) -> None:
        node = self.named(name)
        assert node is not None
        self.nodes.remove(node)

    def serve(self, name: str) -> None:
        """From the disk of a node that was killed."""
        node = self.kind(self, name)
        self.nodes.append(node)
        node.cluster.start(self.now)
