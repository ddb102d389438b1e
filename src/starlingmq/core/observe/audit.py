"""Events of each message, published to ``$events/KIND`` (docs/STREAMS.md, The broker's own events).

Kinds: *began* (events are published from here on), *accepted*, *refused*, *due* (a receiver is to get the message),
*delivered* (its PUBLISH was written to that receiver), *acknowledged*, *dropped*, *waiting* (the number of messages
that wait for a receiver: a census every ``CENSUS_SECONDS``).

Invariants:

- A message has an ``id`` from its entry until it is nowhere any more: in queues, in the journal, on the way to other
  nodes. Messages without an id have no events. Events themselves have none, so there are no events about events.
- The events of a turn are published at its end, and committed together with what they report: if a commit is stored, so
  are the events about everything that clients were sent or told before it.
- Events of consecutive messages that differ in nothing else share a line (a run) within a turn. Any other event ends
  all runs, and so does the beginning of a census: so events of one message have the order of their lines, and each is
  before or after a census as a whole line.
- Each *due* is followed by one *delivered* without ``dup``, by a *dropped*, or by being counted in *waiting*.
"""

from __future__ import annotations

from typing import Final

import msgspec

from starlingmq.core.groups.group import Group
from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import Outgoing
from starlingmq.core.observe.event_lines import EventLine
from starlingmq.core.observe.message_watch import MessageWatch
from starlingmq.core.observe.sampling import Sampler
from starlingmq.core.session.queue import MessageQueue
from starlingmq.core.session.session import GROUP_PREFIX, NODE_PREFIX, Session
from starlingmq.core.turn.base_context import BaseContext

UNNAMED_PER_TURN: Final = 1000  # dropped messages that are read back per turn to learn what they were
NAME_BYTES_MAX: Final = (
    64  # bytes of a node's name in an id, which has less than 128 bytes (core.observe.sampling uses up to 34)
)

BEGAN: Final = 0
ACCEPTED: Final = 1
REFUSED: Final = 2
DUE: Final = 3
DELIVERED: Final = 4
ACKNOWLEDGED: Final = 5
DROPPED: Final = 6
WAITING: Final = 7
KINDS: Final = ("began", "accepted", "refused", "due", "delivered", "acknowledged", "dropped", "waiting")

KEPT: Final = b',"kept":true'
NOT_KEPT: Final = b',"kept":false'
FIRST: Final = b',"dup":false'
AGAIN: Final = b',"dup":true'


class Unnamed:
    """A dropped message of which only the offset is known."""

    offset: int
    client_id: str
    qos: int
    reason: str

    def __init__(self, offset: int, client_id: str, qos: int, reason: str) -> None:
        self.offset = offset
        self.client_id = client_id
        self.qos = qos
        self.reason = reason


class Audit:
    """``ctx.audit`` is this object while events are wanted, else None. ``node`` is the name of this node; ``asked``:
    events are wanted although no stream keeps them. If only ``watches`` want events, only messages that one of them
    wants have an id, and nothing is published. ``sampler`` is one of them; it marks the ids of traced messages."""

    base: BaseContext
    node: str
    asked: bool
    publishing: bool  # events are published
    watches: list[MessageWatch]
    sampler: Sampler | None
    life: int  # the time of its creation in microseconds: ids and numbers rise from there, also over restarts
    prefix: bytes  # of ids that this process gives
    _sampling: int  # 1: ``sampler`` is one of ``watches``; it needs no single events, because it marks its ids
    _number: int  # of the last line or census
    _message: int  # of the last message that was given an id
    _lines: list[list[EventLine]]  # by kind
    _runs: list[dict[str, EventLine]]  # by kind, then by client: the lines that the next message may continue
    _running: bool  # whether there are any
    _any: bool  # whether there are lines
    _unnamed: list[Unnamed]
    _named: str  # ``node`` when ``prefix`` was made
    _size: int  # of the last accepted message, ...
    _retain: bool
    _accepted: bytes  # ... and its fields

    def __init__(self, base: BaseContext) -> None:
        self.base = base
        self.node = ""
        self.asked = False
        self.publishing = False
        self.watches = []
        self.sampler = None
        self.life = int(base.now * 1e6)
        self._sampling = 0
        self._number = self.life
        self._message = self.life
        self._lines = [[] for _ in KINDS]
        self._runs = [{} for _ in KINDS]
        self._running = False
        self._any = False
        self._unnamed = []
        self._named = ""
        self.prefix = b":"
        self._size = -1
        self._retain = False
        self._accepted = b""

    # Switching events on and off

    def sample(self, sampler: Sampler | None) -> None:
        """Trace other messages than before; None traces none."""
        if self.sampler is not None:
            self.watches.remove(self.sampler)
        self.sampler = sampler
        self._sampling = 0
        if sampler is not None:
            self.watches.append(sampler)
            self._sampling = 1

    def set_publishing(self, publishing: bool) -> None:
        """Set whether events are published."""
        self.publishing = publishing
        self.take()
        self._unnamed = []

    def next_number(self) -> int:
        """The number of a census. Later events are after it."""
        self._end_runs()
        self._number += 1
        return self._number

    def take(self) -> list[list[EventLine]] | None:
        """The lines since the last call, by kind; None if there are none."""
        if not self._any:
            return None
        lines = self._lines
        self._lines = [[] for _ in KINDS]
        self._any = False
        self._end_runs()
        return lines

    def _end_runs(self) -> None:
        if self._running:
            self._running = False
            for runs in self._runs:
                runs.clear()

    def identify(self, message: Message) -> None:
        """Give a new message an id, if it is to have events: one that no other message of any node ever has. Called
        once, where the message enters."""
        wanted = self.publishing
        for watch in self.watches:
            wanted = watch.wants(message, self.base.now) or wanted
        mark = b"" if self.sampler is None else self.sampler.mark(message, self.base.now)
        if not wanted and len(mark) == 0:
            return
        if self._named is not self.node:
            self._named = self.node
            self.prefix = self.node.encode()[:NAME_BYTES_MAX] + b":"
        self._message += 1
        id = self.prefix + str(self._message).encode()
        if len(mark) == 0:
            message.id = id
            message.number = self._message
        else:
            message.id = id + mark

    # Events

    def event(self, kind: int, client_id: str, topic: bytes, id: bytes, qos: int, fields: bytes) -> None:
        """An event that is not part of a run."""
        self._end_runs()
        self._add(kind, client_id, topic, id, 0, qos, fields)

    def _add(
        self, kind: int, client_id: str, topic: bytes, id: bytes, number: int, qos: int, fields: bytes
    ) -> EventLine:
        self._number += 1
        line = EventLine(self._number, self.base.now, id, number, client_id, topic, qos, fields)
        self._lines[kind].append(line)
        self._any = True
        return line

    def _tell(self, kind: int, client_id: str, message: Message, qos: int, fields: bytes) -> None:
        """An event that may be part of a run."""
        number = message.number
        if number == 0 or len(self.watches) > self._sampling:
            self._add(kind, client_id, message.topic, message.id, number, qos, fields)
            return
        runs = self._runs[kind]
        line = runs.get(client_id)
        if (
            line is not None
            and line.number + line.run == number
            and line.qos == qos
            and line.topic == message.topic
            and line.fields == fields
        ):
            line.run += 1
            return
        if kind == ACCEPTED:  # the due and delivered events of this message must be on later lines
            self._runs[DUE].clear()
            self._runs[DELIVERED].clear()
        elif kind == DUE:
            self._runs[DELIVERED].pop(client_id, None)
        self._running = True
        runs[client_id] = self._add(kind, client_id, message.topic, message.id, number, qos, fields)

    def accepted(self, message: Message, publisher: Session | None) -> bool:
        """The message is accepted. It has an id from here on, unless no events about it are wanted, or it is already
        stored without one. Returns whether it has one."""
        if publisher is not None and publisher.node != 0:
            return len(message.id) != 0  # it comes from another node
        if len(message.id) == 0:
            if message.offset < 0:
                self.identify(message)
            if len(message.id) == 0:
                return False
        for watch in self.watches:
            watch.entered(message)
        size = len(message.payload)
        if size != self._size or message.retain != self._retain:
            self._size = size
            self._retain = message.retain
            self._accepted = b',"size":%d,"retain":%b' % (size, b"true" if message.retain else b"false")
        self._tell(ACCEPTED, message.publisher, message, message.qos, self._accepted)
        return True

    def refused(self, client_id: str, topic: bytes, id: bytes, qos: int, reason: str) -> None:
        self.event(REFUSED, client_id, topic, id, qos, _reason(reason))

    def due(self, session: Session, message: Message, qos: int) -> None:
        """A session is to get the message. ``kept``: even if this process ends before."""
        if len(message.id) != 0:
            kept = self.base.recording and session.expiry != 0
            self._tell(DUE, name_of(session), message, qos, KEPT if kept else NOT_KEPT)

    def due_to_group(self, group: Group, message: Message) -> None:
        """A group is to get the message; once a member is chosen, it is due to that member."""
        if len(message.id) != 0:
            kept = self.base.recording and self.base.groups.storage == "journal"
            self._tell(DUE, group_name(group), message, message.qos, KEPT if kept else NOT_KEPT)

    def given(self, group: Group, session: Session, message: Message, qos: int) -> None:
        """A member of the group is to get the message."""
        if len(message.id) != 0:
            self.delivered(group_name(group), message, message.qos, False)
            if session.node == 0:  # else the event is reported when the message goes to that node
                self.due(session, message, qos)

    def delivered(self, client_id: str, message: Message, qos: int, dup: bool) -> None:
        if len(message.id) == 0:
            return
        if dup:
            self.event(DELIVERED, client_id, message.topic, message.id, qos, AGAIN)
        else:
            self._tell(DELIVERED, client_id, message, qos, FIRST)

    def passed(self, session: Session, message: Message, qos: int) -> None:
        """A message with an id was due to a session here, and is written to its connection now."""
        kept = self.base.recording and session.expiry != 0
        self._tell(DUE, session.client_id, message, qos, KEPT if kept else NOT_KEPT)
        self._tell(DELIVERED, session.client_id, message, qos, FIRST)

    def arrived(self, message: Message) -> None:
        """The message arrived here from another node."""
        if len(message.id) != 0:
            for watch in self.watches:
                watch.entered(message)
        self.delivered(NODE_PREFIX + str(self.base.node), message, message.qos, False)

    def acknowledged(self, client_id: str, outgoing: Outgoing) -> None:
        message = outgoing.message
        if len(message.id) != 0:
            self._tell(ACKNOWLEDGED, client_id, message, outgoing.qos, b"")

    def dropped(self, client_id: str, message: Message, qos: int, reason: str) -> None:
        """The message is dropped for this receiver. If it is not in memory, it is read back first, to know what it
        was."""
        if message.loaded:
            if len(message.id) != 0:
                self.event(DROPPED, client_id, message.topic, message.id, qos, _reason(reason))
        elif self.publishing:
            self._unnamed.append(Unnamed(message.offset, client_id, qos, reason))

    def dropped_on_its_way(self, client_id: str, topic: bytes, id: bytes, qos: int, reason: str) -> None:
        """The message came from another node for a session that has ended or moved."""
        if len(id) != 0:
            self.event(DROPPED, client_id, topic, id, qos, _reason(reason))

    def dropped_all(self, session: Session, reason: str) -> None:
        """All messages of a session that ends."""
        if session.queue is not None:
            self._drop_queue(name_of(session), session.queue, reason)
        if session.window is not None and session.is_group_queue:
            for packet_id in session.window.owed:
                lent = session.window.entries.get(packet_id)
                if lent is not None:
                    self.dropped(session.client_id, lent.message, lent.qos, reason)

    def _drop_queue(self, client_id: str, queue: MessageQueue, reason: str) -> None:
        for outgoing in queue.items:
            self.dropped(client_id, outgoing.message, outgoing.qos, reason)
        if queue.stored is not None:
            for offset in queue.stored.offsets():
                self.dropped(client_id, Message.at(offset), 0, reason)
        if queue.fresh is not None:
            for outgoing in queue.fresh:
                self.dropped(client_id, outgoing.message, outgoing.qos, reason)

    # Messages that are not in memory

    def unnamed(self) -> list[int]:
        """The offsets of the next dropped messages of which nothing else is known."""
        return [told.offset for told in self._unnamed[:UNNAMED_PER_TURN]]

    def named(self, messages: dict[int, Message]) -> None:
        """The messages of ``unnamed`` were read back. The others are lost, and were reported as such."""
        told = self._unnamed[:UNNAMED_PER_TURN]
        self._unnamed = self._unnamed[UNNAMED_PER_TURN:]
        for found in told:
            message = messages.get(found.offset)
            if message is not None:
                self.dropped(found.client_id, message, found.qos, found.reason)

    # The census

    def count(self, session: Session, census: int) -> None:
        waiting = 0 if session.queue is None else len(session.queue)
        window = session.window
        if window is not None:
            if session.node != 0:
                waiting += len(window.entries)
            elif session.is_group_queue:
                waiting += len(window.owed)
        if session.moving is not None:
            waiting += len(session.moving.held)
        if waiting != 0:
            self.event(WAITING, name_of(session), b"", b"", 0, b',"count":%d,"census":%d' % (waiting, census))

    def counted(self, since: float, census: int) -> None:
        """A census that began then is complete. It is not published if events of dropped messages are still missing."""
        if not self._unnamed:
            fields = b',"since":%b,"census":%d' % (msgspec.json.encode(since), census)
            self.event(WAITING, "", b"", b"", 0, fields)

    def began(self, reason: str) -> None:
        """Events are published from here on."""
        self.event(BEGAN, "", b"", b"", 0, _reason(reason))


def _reason(reason: str) -> bytes:
    return b',"reason":' + msgspec.json.encode(reason)


def name_of(session: Session) -> str:
    """The client id of a session, also while it migrates."""
    return session.client_id if session.moving is None else session.moving.client_id


def group_name(group: Group) -> str:
    """The name of a group as a receiver: that of its group queue, which need not exist."""
    return GROUP_PREFIX + group.name.decode() + "/" + group.filter.decode()
