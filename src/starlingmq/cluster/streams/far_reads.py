"""Frames of the MQTT sessions that read streams of other nodes (core.jetstream.far_readers), at both ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from starlingmq.cluster.streams.frame_outbox import FrameOutbox
from starlingmq.cluster.streams.stream_frames import ReadAsked, ReadEnded, ReadShown
from starlingmq.core.jetstream.bound_consumer import BoundConsumer
from starlingmq.core.jetstream.far_streams import ALL, LOST, STAYS, UNSUBSCRIBED
from starlingmq.core.jetstream.hub import JetStream
from starlingmq.core.jetstream.requesters import Requester
from starlingmq.core.jetstream.work_queues import WorkQueue, consumer_name
from starlingmq.core.messages.message import Message
from starlingmq.core.streams.acknowledgements import NAK, ack_subject, kind_of
from starlingmq.core.streams.effects import DELETED
from starlingmq.core.streams.far_read import FarRead, ReadTold
from starlingmq.core.streams.feeder import Feeder
from starlingmq.core.streams.sequenced_stream import SequencedStream
from starlingmq.core.streams.stream_filters import Start, StreamFilter


class QueueReader(Requester):
    """A member of a work queue at another node, at the home of the stream."""

    def __init__(self, read: FarRead, node: int, reads: FarReads) -> None:
        super().__init__("")
        self.read = read
        self.node = node
        self.ended = False
        self._reads = reads

    def is_gone(self) -> bool:
        return self.ended

    def listens(self, topic: bytes) -> bool:
        return not self.ended and self._reads.outbox.reaches(self.node)

    def give(self, topic: bytes, message: Message, reply: bytes) -> None:
        self.read.count -= 1
        told = ReadTold(self.read, 0, 0)
        found = ack_subject(reply)
        told.message, told.reply, told.sequence = message, reply, 0 if found is None else found.sequence
        self._reads.tell(self.read, told)

    def tell(self, topic: bytes, block: bytes, reply: bytes) -> None:
        """A status: the request is over, or with its consumer the queue is."""
        self.read.count = -1 if DELETED in block else 0
        self._reads.tell(self.read, ReadTold(self.read, 0, 0))

    def leave(self) -> None:
        self.ended = True
        super().leave()


class FarReads:
    """``is_here``: whether this node is the home of a stream."""

    def __init__(self, outbox: FrameOutbox, hub: JetStream, is_here: Callable[[str], bool]) -> None:
        self.outbox = outbox
        self._hub = hub
        self._is_here = is_here
        self._open: dict[tuple[int, int], Feeder | QueueReader] = {}
        self._groups: dict[tuple[int, int], WorkQueue] = {}  # of members at other nodes

    # The node of the session

    def ask(self, home: int, read: FarRead) -> None:
        start = (read.start.kind, read.start.offset, read.start.time)
        self.outbox.add(
            home,
            ReadAsked(
                read.reader,
                read.number,
                read.stream,
                read.filter,
                read.queue,
                read.next,
                start,
                read.count,
                read.octets,
                read.made,
                read.group,
            ),
        )

    def shown(self, node: int, shown: ReadShown, now: float) -> None:
        read = FarRead(shown.reader, shown.number, "", b"", False, 0, Start(0), shown.left, 0)
        read.made = shown.made
        told = ReadTold(read, shown.after, shown.next)
        told.skipped, told.sequence, told.reply = shown.skipped, shown.sequence, shown.reply
        told.published, told.waiting = shown.published, shown.waiting
        if shown.sequence != 0:
            until = now + shown.seconds if shown.seconds >= 0.0 else 0.0
            told.message = Message(
                shown.topic, shown.payload, shown.qos, False, shown.properties, until, shown.publisher, now
            )
        if not self._hub.told(told):
            is_known = self._hub.reads.far_readers.knows(shown.reader)
            self.outbox.add(node, ReadEnded(shown.reader, STAYS if is_known else LOST))

    # The home

    def asked(self, node: int, asked: ReadAsked, now: float) -> None:
        self.ended(node, asked.reader, STAYS)
        start = Start(*asked.start)
        read = FarRead(
            asked.reader,
            asked.number,
            asked.stream,
            asked.filter,
            asked.queue,
            asked.next,
            start,
            asked.count,
            asked.octets,
        )
        read.made = asked.made
        read.node = node
        stream = self._hub.streams.get(asked.stream)
        if stream is None or not self._is_here(asked.stream):
            return  # the other node learns the home from the registry, and asks there
        parsed = StreamFilter(asked.queue, asked.stream, asked.filter, None)
        parsed.group = asked.group
        if not parsed.competes():
            self._open[node, asked.reader] = self._hub.reads.read_for(read, stream)
            return
        self._compete(read, parsed, stream, now)

    def _compete(self, read: FarRead, parsed: StreamFilter, stream: SequencedStream, now: float) -> None:
        name, queues = consumer_name(parsed), self._hub.reads.queues
        known = read.made == stream.created
        gone = known and name not in stream.consumers  # the queue was deleted
        if gone or queues.provide(parsed, stream, read.start):
            read.count = -1
            self.tell(read, ReadTold(read, 0, 0))
            return
        read.made = stream.created
        if not known or read.count <= 0:
            self.tell(read, ReadTold(read, 0, 0))
        reader = cast(BoundConsumer, stream.consumers[name])
        if parsed.group:
            queue = self._groups[read.node, read.reader] = queues.queue_of(parsed)
            queue.elsewhere[read.node, read.reader] = None
        if read.count <= 0:  # the member is away, or full
            return
        requester = self._open[read.node, read.reader] = QueueReader(read, read.node, self)
        reader.source.look()
        reader.consumer.pull_for_queue(read.count, read.octets, requester, now)
        requester.waits_for(reader.consumer)
        reader.wake()

    def tell(self, read: FarRead, told: ReadTold) -> None:
        shown = ReadShown(
            told.reader, told.number, told.after, told.next, told.left, told.skipped, told.sequence, told.reply
        )
        shown.made, shown.waiting = told.made, told.waiting
        message = told.message
        if message is not None:
            shown.published = message.published_at
            shown.topic, shown.payload, shown.properties = message.topic, message.payload, message.properties
            shown.publisher, shown.qos = message.publisher, message.qos
            if message.expires_at != 0.0:
                shown.seconds = max(message.expires_at - self._hub.ctx.now, 0.0)
        self.outbox.add(read.node, shown)
        if told.left <= 0:
            self._open.pop((read.node, read.reader), None)

    def is_current(self, subject: bytes, payload: bytes) -> bool:
        """Whether an acknowledgement of a queue's member is for the message that has its sequence now, and not for one
        of an earlier stream of that name; a refusal: also for the last delivery."""
        found = ack_subject(subject)
        if found is None:
            return False
        name, _, consumer = found.name.decode(errors="replace").partition(".")
        stream, seq = self._hub.streams.get(name), found.sequence
        if stream is None or consumer not in stream.consumers or not stream.index.has(seq):
            return True  # it changes nothing
        if found.time != b"%d" % int(stream.index.time_of(seq) * 1e9):
            return False
        again = cast(BoundConsumer, stream.consumers[consumer]).consumer.pending.redelivered.get(seq, 0)
        return kind_of(payload) != NAK or found.deliveries == again + 1

    def ended(self, node: int, reader: int, left: int) -> None:
        if reader == ALL:
            for key in [key for key in self._groups if key[0] == node]:
                self.ended(*key, LOST)
            return
        queue = None if left == STAYS else self._groups.pop((node, reader), None)
        if queue is not None:
            queue.elsewhere.pop((node, reader), None)
            self._hub.reads.queues.end_if_left(queue, left == UNSUBSCRIBED)
        found = self._open.pop((node, reader), None)
        if isinstance(found, Feeder):
            self._hub.reads.end_for(found)
        elif found is not None:
            found.leave()

    def nodes(self) -> set[int]:
        return {node for node, _ in [*self._open, *self._groups]}

    def let_go(self, node: int) -> None:
        """It has restarted, or is no member any more."""
        for key in [key for key in [*self._open, *self._groups] if key[0] == node]:
            self.ended(*key, LOST)
