"""MQTT sessions that read streams of other nodes: ``$stream/NAME`` and ``$queue/NAME`` in a cluster.

::

    node of the session                                 home of the stream (core.jetstream.stream_readers)
    room in the window --ReadAsked: from ``next``-----> messages that match, and those that come later,
    given to the client <--ReadTold, one by one-------- until there are as many as asked for
    PUBACK of a queue --acknowledgement---------------> its consumer

The law of ``$stream``:

- The position is the session's: it is stored here, with the message that it follows, and moves with the session. A home
  keeps nothing that could be lost.
- ``ReadTold`` says what it follows (``after``). If that is not ``next``, some are missing, and are asked for again.
- A request replaces the one before, whose answers are ignored. So each frame may be lost, doubled or late: a request
  that is not heard of is repeated after ``AGAIN_SECONDS``, then less often, and at once when the way to the home is
  new.

A queue is a consumer at the home, which delivers again what is not acknowledged. A session of it has no position. A
shared group is one, too (core.jetstream.work_queues): this node renews what its connected members have, and says of
which groups it has members, also of those that are away, until the home has answered (``announced``). When the way to
a home is new, members that it was not told to have left are none (``ALL``).
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.context.context import Context
from starlingmq.core.context.ready import FACT_WITH, Write
from starlingmq.core.delivery.delivery import Delivery
from starlingmq.core.groups.member_selection import accepts
from starlingmq.core.jetstream.far_streams import ALL, LOST, STAYS, UNSUBSCRIBED, FarStreams
from starlingmq.core.jetstream.work_queues import (
    DELIVERIES,
    NAK_SECONDS,
    RENEW_SECONDS,
    is_held,
    is_unsubscribed,
    octets,
    room,
)
from starlingmq.core.limits.access import Rights
from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import Outgoing
from starlingmq.core.session.session import Session, Subscription
from starlingmq.core.streams.acknowledgements import ack_subject
from starlingmq.core.streams.far_read import FarRead, ReadTold
from starlingmq.core.streams.feeder import POSITION_FACT, Reading, numbered
from starlingmq.core.streams.sequenced_stream import drop_fact, put_fact
from starlingmq.core.streams.stream_filters import NEW, Start, StreamFilter
from starlingmq.core.subscribe.subscribing import Subscribing
from starlingmq.wire.primitives import encode_two

AGAIN_SECONDS: Final = 10.0
AGAIN_SECONDS_MAX: Final = 60.0  # when nothing was heard several times: most likely there is nothing
LATER_SECONDS: Final = 5.0  # until messages of a queue for which there is no room are for others
LOOK_SECONDS: Final = 1.0  # between looks whether a home is reached again
HELD_MAX: Final = 65_536  # messages of a queue that wait for acknowledgements here
ACK: Final = b"+ACK"
RENEWED: Final = b"+WPI"
NAK: Final = b'-NAK {"delay": %d}' % int(NAK_SECONDS * 1e9)


class FarReading(Reading):
    """``next`` 0: it begins at ``start``. ``left``: messages that the open request may still bring; 0: none is open."""

    session: Session
    subscription: Subscription
    whole: bytes
    parsed: StreamFilter
    start: Start
    fact: bytes
    next: int
    made: float  # when the stream was made that ``next`` is of; 0.0: it is not known
    number: int  # of the reading
    home: int  # the node of its last request; 0: that was not reached
    announced: bool  # that node has answered, so it knows this member of a group
    asked: int  # number of its last request
    left: int
    heard_at: float
    vain: int  # requests without an answer since then
    stored: bool  # the store has ``fact``
    moved: bool  # ``next`` is to be stored
    topics: list[bytes]  # of the stream, if it is a queue
    held: dict[int, bytes]  # of a queue: by ticket, where a message is acknowledged
    having: dict[int, Outgoing]  # of a group: the same messages, by sequence
    later: list[ReadTold]  # of a queue: those that the session has no room for ...
    later_until: float  # ... and when others get them
    ready: dict[FarReading, None]

    def __init__(
        self,
        number: int,
        session: Session,
        subscription: Subscription,
        whole: bytes,
        parsed: StreamFilter,
        start: Start,
        ready: dict[FarReading, None],
    ) -> None:
        self.waits = False
        self.number = number
        self.session = session
        self.subscription = subscription
        self.whole = whole
        self.parsed = parsed
        self.start = start
        self.fact = POSITION_FACT + b"%d/%b" % (session.number, whole)
        self.next = 0
        self.made = 0.0
        self.home = 0
        self.announced = False
        self.asked = 0
        self.left = 0
        self.heard_at = 0.0
        self.vain = 0
        self.stored = False
        self.moved = False
        self.topics = []
        self.held = {}
        self.having = {}
        self.later = []
        self.later_until = 0.0
        self.ready = ready

    def wake(self) -> None:
        self.ready[self] = None

    def is_unheard(self) -> bool:
        """Whether its home is to say something: there is an open request, or it is a member of a group."""
        return self.left != 0 or (self.parsed.group != b"" and self.home != 0 and not self.announced)

    def asks_at(self) -> float:
        """When a request that is not heard of counts as lost."""
        return self.heard_at + min(AGAIN_SECONDS * max(1, self.vain), AGAIN_SECONDS_MAX)

    def value(self) -> bytes:
        return position(self.next, self.start, self.made)

    def begin_at(self, position: bytes) -> None:
        self.next, self.start, self.made = read_position(position)


class FarReaders:
    """``due_at``: of the next turn; 0.0: never."""

    ctx: Context
    delivery: Delivery
    subscribing: Subscribing
    far: FarStreams | None
    due_at: float
    _renew_at: float  # when messages of groups are renewed; 0.0: never
    _readings: dict[int, FarReading]
    _ready: dict[FarReading, None]
    _tickets: int
    _numbers: int

    def __init__(self, ctx: Context, delivery: Delivery, subscribing: Subscribing) -> None:
        self.ctx = ctx
        self.delivery = delivery
        self.subscribing = subscribing
        self.far = None
        self.due_at = 0.0
        self._renew_at = 0.0
        self._readings = {}
        self._ready = {}
        self._tickets = 0
        self._numbers = 0

    # Subscriptions

    def add(
        self, session: Session, whole: bytes, subscription: Subscription, parsed: StreamFilter, start: Start | None
    ) -> None:
        """``start`` None: a subscription that was made before, whose position ``begin_at`` says."""
        found = None if session.reads is None else session.reads.get(whole)
        if isinstance(found, FarReading):
            found.subscription = subscription
            found.wake()
            return
        self._numbers += 1
        reading = FarReading(self._numbers, session, subscription, whole, parsed, start or Start(NEW), self._ready)
        if session.reads is None:
            session.reads = {}
        session.reads[whole] = self._readings[reading.number] = reading
        if start is None:
            reading.wake()
        else:
            self.note(reading)

    def knows(self, number: int) -> bool:
        return number in self._readings

    def begin_at(self, reading: FarReading, position: bytes) -> None:
        """Its session has arrived."""
        reading.begin_at(position)
        reading.left = 0
        self.note(reading)

    def end(self, reading: FarReading) -> None:
        """It is subscribed no more. Its name is out of ``session.reads``."""
        self._readings.pop(reading.number, None)
        self._ready.pop(reading, None)
        if reading.parsed.group and reading.home != 0 and self.far is not None:
            reading.left = 0
            self.far.end_read(reading.home, reading.number, UNSUBSCRIBED if is_unsubscribed(reading.session) else LOST)
        self.close(reading)
        if reading.stored:
            drop_fact(self.ctx, reading.fact)

    def close(self, reading: FarReading) -> None:
        """Nothing more is wanted for now."""
        far = self.far
        self._give_back(reading)
        if reading.left != 0 and far is not None:
            reading.left = 0
            far.end_read(reading.home, reading.number, STAYS)
        if reading.number in self._readings:
            reading.wake()  # its home may not know it yet

    def look(self, node: int) -> None:
        """The way to that node is new, or, with 0, the homes of streams may be others."""
        far = self.far
        if far is None:
            return
        if node != 0 and self._numbers != 0:
            far.end_read(node, ALL, LOST)
        sessions: dict[Session, None] = {}
        for reading in list(self._readings.values()):
            if reading.parsed.competes() and node == 0:
                topics = far.subjects(reading.parsed.name)
                if topics != reading.topics:
                    reading.topics = topics
                    sessions[reading.session] = None
            if not far.is_elsewhere(reading.parsed.name):  # the stream was deleted
                self.subscribing.unsubscribe(reading.session, reading.whole)
                continue
            if node == reading.home or far.home_of(reading.parsed.name) != reading.home:
                reading.left = 0
                reading.asked += 1  # answers to what was asked before are void
                reading.announced = False
            if reading.left == 0:
                self._ask_again(reading)
        for session in sessions:  # it may not be allowed to have all of them
            self.subscribing.revoke(session)

    # Turns

    def pending(self) -> bool:
        return len(self._ready) != 0

    def turn(self) -> None:
        now = self.ctx.now
        if self.due_at != 0.0 and now >= self.due_at:
            self.due_at = 0.0
            for reading in self._readings.values():
                if reading.later and now >= reading.later_until:
                    self._give_back(reading)
                    reading.wake()
                elif reading.later:
                    self._plan(reading.later_until)
                if reading.is_unheard() and now >= reading.asks_at():
                    reading.vain += 1
                    self._ask_again(reading)
                elif reading.is_unheard():
                    self._plan(reading.asks_at())
                elif reading.home == 0:
                    reading.wake()
            self._renew()
        if self._ready:
            ready = list(self._ready)
            self._ready.clear()
            for reading in ready:
                if reading.moved:
                    self._store(reading)
                while reading.later and self._has_room(reading):
                    self._give_of_queue(reading, reading.later.pop(0))
                if reading.later:
                    reading.waits = True
                elif reading.left == 0:
                    self._ask(reading)

    def _renew(self) -> None:
        """Messages that members of groups have stay with them."""
        if self._renew_at != 0.0 and self.ctx.now >= self._renew_at:
            self._renew_at = 0.0
            for reading in self._readings.values():
                if reading.parsed.group and reading.held:
                    self._renew_at = self.ctx.now + RENEW_SECONDS
                    self._renew_held(reading)
        if self._renew_at != 0.0:
            self._plan(self._renew_at)

    def _renew_held(self, reading: FarReading) -> None:
        window, far = reading.session.window, self.far
        if window is None or far is None:
            return
        self.ctx.spend(len(window.entries))
        for outgoing in window.entries.values():
            reply = reading.held.get(outgoing.ticket, b"") if outgoing.source is reading else b""
            if reply and is_held(reading.session, outgoing):
                far.acknowledge_read(reply, RENEWED)

    def _plan(self, when: float) -> None:
        """No turn looks at all readings sooner than ``LOOK_SECONDS`` after the one before."""
        when = max(when, self.ctx.now + LOOK_SECONDS)
        if self.due_at == 0.0 or when < self.due_at:
            self.due_at = when

    def _ask(self, reading: FarReading) -> None:
        session, far = reading.session, self.far
        parsed, qos = reading.parsed, reading.subscription.qos
        if far is None or session.moving is not None or session.ended:
            return  # ``session_connected`` follows
        count = room(self.ctx, self.delivery, session, qos, not parsed.competes())
        reading.waits = count == 0
        if count == 0 and (not parsed.group or reading.announced):
            return  # the same, or ``relieve``
        reading.asked += 1
        reading.left = count
        reading.heard_at = self.ctx.now
        read = FarRead(
            reading.number,
            reading.asked,
            parsed.name,
            parsed.filter,
            parsed.queue,
            reading.next,
            reading.start,
            count,
            octets(self.ctx, session, qos),
        )
        read.made = reading.made
        read.group = parsed.group
        home = far.ask_read(read)
        if home != reading.home:
            reading.home = home
            reading.announced = False
        if home == 0:
            reading.left = 0
            self._plan(self.ctx.now + LOOK_SECONDS)
        elif reading.is_unheard():
            self._plan(reading.asks_at())

    # From the home

    def told(self, told: ReadTold) -> bool:
        """Returns False if there is no request any more."""
        reading = self._readings.get(told.reader)
        if reading is None:
            self._refuse(told)
            return False
        if reading.parsed.competes():  # messages of an earlier request are as good
            reading.made = told.made
            self._take_of_queue(reading, told)
        if told.number != reading.asked:
            return reading.left != 0
        if told.left < 0:
            self.subscribing.unsubscribe(reading.session, reading.whole)
            return False
        reading.announced = True
        reading.heard_at = self.ctx.now
        reading.vain = 0
        if reading.left == 0:
            return told.left <= 0
        follows = told.after == reading.next or (told.after == 0 and told.left == reading.left)  # the first answer
        reading.left = told.left
        if follows and not reading.parsed.competes():
            self._take(reading, told)
        elif not reading.parsed.competes():
            reading.left = 0  # some are missing
        if reading.left == 0:
            self._ask_again(reading)
        return True

    def _take(self, reading: FarReading, told: ReadTold) -> None:
        session = reading.session
        if told.message is not None and not self._has_room(reading):
            reading.left = 0
            return
        reading.next = told.next
        reading.made = told.made
        if told.skipped != 0:
            session.dropped += told.skipped
            self.ctx.drop("stream_removed", session.client_id, told.skipped)
        if told.message is None or not self._give(reading, told.message, told.sequence):
            self.note(reading)

    def _has_room(self, reading: FarReading) -> bool:
        stored = not reading.parsed.competes()
        return room(self.ctx, self.delivery, reading.session, reading.subscription.qos, stored) != 0

    def _ask_again(self, reading: FarReading) -> None:
        reading.left = 0
        reading.wake()

    def _give(self, reading: FarReading, message: Message, seq: int) -> bool:
        """Returns whether the position is stored with it."""
        ctx, session, subscription = self.ctx, reading.session, reading.subscription
        client = session.client
        assert client is not None
        if message.expired(ctx.now):
            session.dropped += 1
            ctx.drop("expired", session.client_id, 1, message.topic)
            return False
        if client.rights is not None and not may_have(client.rights, reading.parsed.name, message.topic):
            return False
        if subscription.no_local and message.publisher == session.client_id:
            return False
        outgoing = Outgoing(numbered(message, seq, ctx.now), subscription.qos, False, subscription.ids, None)
        if subscription.qos == 0:
            self.delivery.transmit(client, outgoing, 0, False)
            return False
        self.delivery.transmit_acknowledged(session, client, self.delivery.window(session, client), outgoing)
        if not ctx.recording or session.expiry == 0:
            return False
        reading.stored = True
        ctx.write(Write(FACT_WITH, topic=reading.fact, message=outgoing.message, value=reading.value()))
        return True

    def note(self, reading: FarReading) -> None:
        """The position has changed without a message that is stored."""
        reading.moved = self.ctx.recording and reading.session.expiry != 0 and not reading.parsed.competes()
        reading.wake()

    def _store(self, reading: FarReading) -> None:
        reading.moved = False
        reading.stored = True
        put_fact(self.ctx, reading.fact, reading.value())

    # Queues

    def _refuse(self, told: ReadTold) -> None:
        """It is for another member."""
        if told.reply and self.far is not None:
            self.far.acknowledge_read(told.reply, NAK)

    def _give_back(self, reading: FarReading) -> None:
        """Messages that the session had no room for belong to others."""
        later, reading.later = reading.later, []
        for told in later:
            self._refuse(told)

    def _take_of_queue(self, reading: FarReading, told: ReadTold) -> None:
        if told.message is None or self._has(reading, told):
            return
        if reading.session.client is None or len(reading.held) >= HELD_MAX:
            self._refuse(told)
        elif reading.later or not self._has_room(reading):
            if not reading.later:
                reading.later_until = self.ctx.now + LATER_SECONDS
                self._plan(reading.later_until)
            reading.later.append(told)
            reading.waits = True
        else:
            self._give_of_queue(reading, told)

    def _has(self, reading: FarReading, told: ReadTold) -> bool:
        """Whether the session has this message of a group. Its acknowledgement counts for the last delivery."""
        outgoing = reading.having.get(told.sequence)
        if outgoing is None or not is_held(reading.session, outgoing):
            return False
        known, found = ack_subject(reading.held.get(outgoing.ticket, b"")), ack_subject(told.reply)
        if known is None or found is None or known.time != found.time:
            return False  # of an earlier stream of that name
        reading.held[outgoing.ticket] = told.reply
        return True

    def _give_of_queue(self, reading: FarReading, told: ReadTold) -> None:
        ctx, session, subscription, message = self.ctx, reading.session, reading.subscription, told.message
        client, far, found = session.client, self.far, ack_subject(told.reply)
        if message is None or found is None or far is None or client is None:
            return
        more = b""
        if found.deliveries > 1:
            digits = b"%d" % found.deliveries
            more = DELIVERIES + encode_two(len(digits)) + digits
        shown = numbered(message, found.sequence, ctx.now, more)
        shown.qos = subscription.qos
        if reading.parsed.group and shown.expired(ctx.now):
            ctx.drop("expired", session.client_id, 1, shown.topic)
            far.acknowledge_read(told.reply, ACK)
            return
        rights = client.rights
        if rights is not None and not rights.may_receive(message.topic):  # the stream has other topics since just now
            far.acknowledge_read(told.reply, NAK)
            return
        if client.max_packet != 0 and not accepts(client, subscription, shown):
            far.acknowledge_read(told.reply, NAK)
            return
        outgoing = Outgoing(shown, subscription.qos, False, subscription.ids, reading)
        if subscription.qos == 0:
            self.delivery.transmit(client, outgoing, 0, False)
            far.acknowledge_read(told.reply, ACK)
            return
        self._tickets += 1
        outgoing.ticket = self._tickets
        reading.held[self._tickets] = told.reply
        if reading.parsed.group:
            reading.having[told.sequence] = outgoing
            if self._renew_at == 0.0:
                self._renew_at = ctx.now + RENEW_SECONDS
                self._plan(self._renew_at)
        self.delivery.transmit_acknowledged(session, client, self.delivery.window(session, client), outgoing)

    def settle(self, outgoing: Outgoing, refused: bool) -> None:
        reading = outgoing.source
        if isinstance(reading, FarReading) and self.far is not None:
            reply = reading.held.pop(outgoing.ticket, b"")
            found = ack_subject(reply)
            if found is not None:
                if reading.having.get(found.sequence) is outgoing:
                    del reading.having[found.sequence]
                self.far.acknowledge_read(reply, NAK if refused else ACK)


def may_have(rights: Rights, stream: str, topic: bytes) -> bool:
    """Whether rules let a client have a message of a stream."""
    return rights.may_receive(topic) and rights.may_receive(b"$stream/%b/%b" % (stream.encode(), topic))


def position(next: int, start: Start | None, made: float) -> bytes:
    """Of a reading of another node's stream, which was ``made`` then; ``start``: if ``next`` is 0. The number of a
    stream, with which positions at its home begin, is known only there."""
    if next != 0 or start is None:
        return b"0 %d" % next if made == 0.0 else b"0 %d %b" % (next, repr(made).encode())
    return b"0 0 %d %d %.6f" % (start.kind, start.offset, start.time)


def read_position(value: bytes) -> tuple[int, Start, float]:
    """The sequence, or 0 and where it begins: with new messages, if that is no position; and when the stream was made,
    or 0.0."""
    parts = value.split(b" ")
    try:
        if len(parts) == 5:
            return 0, Start(int(parts[2]), int(parts[3]), float(parts[4])), 0.0
        return max(0, int(parts[1])), Start(NEW), float(parts[2]) if len(parts) == 3 else 0.0
    except (ValueError, IndexError):
        return 0, Start(NEW), 0.0
