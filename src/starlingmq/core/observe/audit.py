"""Events of each message, published to ``$events/KIND`` (docs/STREAMS.md, The broker's own events).

Kinds: *began* (events are published from here on), *accepted*, *refused*, *due* (a receiver is to get the message),
*delivered* (its PUBLISH was written to that receiver), *acknowledged*, *dropped*, *waiting* (the number of messages
that wait for a receiver: a census every ``CENSUS_SECONDS``).

Invariants:

- A message has an ``id`` from its entry until it is nowhere any more: in queues, in the journal, on the way to other
  nodes. Messages without an id have no events. Events themselves have none, so there are no events about events.
- The events of a turn are published at its end, and committed together with what they report: if a commit is stored, so
  are the events about everything that clients were sent or told before it.
- Each *due* is followed by one *delivered* without ``dup``, by a *dropped*, or by being counted in *waiting*.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.base_context import BaseContext
from starlingmq.core.groups.group import Group
from starlingmq.core.message import Message
from starlingmq.core.observe.message_watch import MessageWatch
from starlingmq.core.observe.sampling import Sampler
from starlingmq.core.session.outgoing import Outgoing
from starlingmq.core.session.queue import MessageQueue
from starlingmq.core.session.session import GROUP_PREFIX, NODE_PREFIX, Session

UNNAMED_PER_TURN: Final = 1000  # dropped messages that are read back per turn to learn what they were
NAME_BYTES_MAX: Final = (
    64  # bytes of a node's name in an id, which has less than 128 bytes (core.observe.sampling uses up to 34)
)

Event = dict[str, object]


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
    _number: int
    _events: dict[str, list[Event]]  # by kind
    _unnamed: list[Event]  # events of messages of which only the offset is known

    def __init__(self, base: BaseContext) -> None:
        self.base = base
        self.node = ""
        self.asked = False
        self.publishing = False
        self.watches = []
        self.sampler = None
        self.life = int(base.now * 1e6)
        self._number = self.life
        self._events = {}
        self._unnamed = []

    # Switching events on and off

    def sample(self, sampler: Sampler | None) -> None:
        """Trace other messages than before; None traces none."""
        if self.sampler is not None:
            self.watches.remove(self.sampler)
        self.sampler = sampler
        if sampler is not None:
            self.watches.append(sampler)

    def set_publishing(self, publishing: bool) -> None:
        """Set whether events are published."""
        self.publishing = publishing
        self._events = {}
        self._unnamed = []

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def take(self) -> dict[str, list[Event]]:
        """The events since the last call, by kind."""
        events = self._events
        if events:
            self._events = {}
        return events

    def name(self) -> bytes:
        """An id that no other message of any node ever has."""
        self._number += 1
        return b"%b:%d" % (self.node.encode()[:NAME_BYTES_MAX], self._number)

    def identify(self, message: Message) -> None:
        """Give a new message an id, if it is to have events. Called once, where the message enters."""
        wanted = self.publishing
        for watch in self.watches:
            wanted = watch.wants(message, self.base.now) or wanted
        mark = b"" if self.sampler is None else self.sampler.mark(message, self.base.now)
        if wanted or len(mark) != 0:
            message.id = self.name() + mark

    # Events

    def event(self, kind: str, client_id: str, topic: bytes, id: bytes, qos: int) -> Event:
        self._number += 1
        event: Event = {
            "n": self._number,
            "at": self.base.now,
            "id": id.decode(),
            "client": client_id,
            "topic": topic.decode(),
            "qos": qos,
        }
        events = self._events.get(kind)
        if events is None:
            events = self._events[kind] = []
        events.append(event)
        return event

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
        event = self.event("accepted", message.publisher, message.topic, message.id, message.qos)
        event["size"] = len(message.payload)
        event["retain"] = message.retain
        return True

    def refused(self, client_id: str, topic: bytes, id: bytes, qos: int, reason: str) -> None:
        self.event("refused", client_id, topic, id, qos)["reason"] = reason

    def due(self, session: Session, message: Message, qos: int) -> None:
        """A session is to get the message. ``kept``: even if this process ends before."""
        if len(message.id) != 0:
            event = self.event("due", name_of(session), message.topic, message.id, qos)
            event["kept"] = self.base.recording and session.expiry != 0

    def due_to_group(self, group: Group, message: Message) -> None:
        """A group is to get the message; once a member is chosen, it is due to that member."""
        if len(message.id) != 0:
            event = self.event("due", group_name(group), message.topic, message.id, message.qos)
            event["kept"] = self.base.recording and self.base.groups.storage == "journal"

    def given(self, group: Group, session: Session, message: Message, qos: int) -> None:
        """A member of the group is to get the message."""
        if len(message.id) != 0:
            self.delivered(group_name(group), message, message.qos, False)
            if session.node == 0:  # else the event is reported when the message goes to that node
                self.due(session, message, qos)

    def delivered(self, client_id: str, message: Message, qos: int, dup: bool) -> None:
        if len(message.id) != 0:
            event = self.event("delivered", client_id, message.topic, message.id, qos)
            event["dup"] = dup

    def arrived(self, message: Message) -> None:
        """The message arrived here from another node."""
        if len(message.id) != 0:
            for watch in self.watches:
                watch.entered(message)
        self.delivered(NODE_PREFIX + str(self.base.node), message, message.qos, False)

    def acknowledged(self, client_id: str, outgoing: Outgoing) -> None:
        message = outgoing.message
        if len(message.id) != 0:
            self.event("acknowledged", client_id, message.topic, message.id, outgoing.qos)

    def dropped(self, client_id: str, message: Message, qos: int, reason: str) -> None:
        """The message is dropped for this receiver. If it is not in memory, it is read back first, to know what it
        was."""
        if message.loaded:
            if len(message.id) != 0:
                event = self.event("dropped", client_id, message.topic, message.id, qos)
                event["reason"] = reason
            return
        if not self.publishing:
            return
        event = {"offset": message.offset, "client": client_id, "qos": qos, "reason": reason}
        self._unnamed.append(event)

    def dropped_on_its_way(self, client_id: str, topic: bytes, id: bytes, qos: int, reason: str) -> None:
        """The message came from another node for a session that has ended or moved."""
        if len(id) != 0:
            self.event("dropped", client_id, topic, id, qos)["reason"] = reason

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
        found: list[int] = []
        for event in self._unnamed[:UNNAMED_PER_TURN]:
            offset = event["offset"]
            assert isinstance(offset, int)
            found.append(offset)
        return found

    def named(self, messages: dict[int, Message]) -> None:
        """The messages of ``unnamed`` were read back. The others are lost, and were reported as such."""
        told = self._unnamed[:UNNAMED_PER_TURN]
        self._unnamed = self._unnamed[UNNAMED_PER_TURN:]
        for found in told:
            offset, client_id, qos, reason = found["offset"], found["client"], found["qos"], found["reason"]
            assert isinstance(offset, int) and isinstance(client_id, str)
            assert isinstance(qos, int) and isinstance(reason, str)
            message = messages.get(offset)
            if message is not None:
                self.dropped(client_id, message, qos, reason)

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
            event = self.event("waiting", name_of(session), b"", b"", 0)
            event["count"] = waiting
            event["census"] = census

    def counted(self, since: float, census: int) -> None:
        """A census that began then is complete. It is not published if events of dropped messages are still missing."""
        if self._unnamed:
            return
        event = self.event("waiting", "", b"", b"", 0)
        event["since"] = since
        event["census"] = census


def name_of(session: Session) -> str:
    """The client id of a session, also while it migrates."""
    return session.client_id if session.moving is None else session.moving.client_id


def group_name(group: Group) -> str:
    """The name of a group as a receiver: that of its group queue, which need not exist."""
    return GROUP_PREFIX + group.name.decode() + "/" + group.filter.decode()
