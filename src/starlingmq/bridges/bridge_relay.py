"""A bridge as pure state: two MQTT clients that lend each other their packet ids.

The *near* client has a session at this broker, the *far* one at the other broker. A PUBLISH that comes from one side
goes to the other with its packet id, and so does every acknowledgement: each handshake is one between the two brokers,
whose sessions keep it. The bridge itself keeps nothing, so nothing is lost or doubled with it, whenever it ends.

::

    GREETING   the far CONNECT is sent
    JOINING    the far broker has answered; the near CONNECT is sent
    SETTLING   both answered; handshakes of a lost far session are ended, subscriptions are made. Messages wait
    RUNNING    messages and acknowledgements pass
    ENDED      ``problem`` says why; the shell closes both connections

The law, which ``BRIDGE_TABLE`` spells for each phase and event:

1. The far side comes first, so that the near session gets its limits (Receive Maximum, Maximum Packet Size, QoS).
2. A near session that has never been through SETTLING (it lacks ``MARKER``) belongs to no far session: the far one
   begins clean. Otherwise its packet ids could be taken for repetitions, and messages be swallowed. So does a far
   session that was there before another far broker had none (``MARKER_AT``, ``MARKER_OLD``): it is of an earlier pair.
3. If the far session is lost although the near one is there, its halves of handshakes are gone. A message from there
   that is held is published now. A message that waits for PUBCOMP from there counts as done. One that waits for its
   acknowledgement is sent again with DUP, and in MQTT 5 with the User Property ``AGAIN``: at least once, and marked.
   While that is done the near session lacks ``MARKER``, and the next attempt asks for a clean start: an interruption
   must not leave a far session that is present and knows nothing.
4. The subscriptions at the far broker are remembered as subscriptions of the near session to ``$bridge/in/...``, which
   match nothing. So that memory moves, survives and ends with the session. After a CONNECT without an answer
   (``renews``) the far session may be another one than before: all subscriptions are made again, and a new message
   with the packet id of one that the near broker holds releases that one.
5. A clean start of 3.1.1 begins a session that ends with its connection, so it is followed by another CONNECT.
6. A refusal that may pass (QUOTA_EXCEEDED) is not passed on: the connections end, and the message is sent again.
7. A link that learns its filters (``learns``) asks each broker for the filters that are wanted there, and subscribes at
   the other one to them while it runs. The packet ids of these SUBSCRIBEs may be in use for messages; both brokers are
   StarlingMQs, which tell the two apart. Subscriptions of earlier connections end when all wanted filters are known.
   A broker that takes no more filters gets those of the entries in their place, so everything that they match travels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Literal

from starlingmq.bridges.learned_filters import LearnedFilters
from starlingmq.bridges.site_mark import goes_round, mark_of, marked
from starlingmq.bridges.topic_maps import TopicMap
from starlingmq.client.errors import explain
from starlingmq.client.events import Completed, Connected, Ended, Event, Refused
from starlingmq.client.options import QOS, Subscription
from starlingmq.client.state import ClientState
from starlingmq.core.publish.bridges import sites_of
from starlingmq.core.subscribe.wanted_filters import COMPLETE, MORE, PATHS, WANTED
from starlingmq.wire.frames import ack_frame, frame_length, publish_frame
from starlingmq.wire.mqtt import Ack, decode, decode_publish
from starlingmq.wire.packets import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL
from starlingmq.wire.partial_frame import PartialFrame
from starlingmq.wire.primitives import BYTE, encode_varint
from starlingmq.wire.properties import (
    MAXIMUM_PACKET_SIZE,
    MAXIMUM_QOS,
    MESSAGE_EXPIRY_INTERVAL,
    RETAIN_AVAILABLE,
    USER_PROPERTY,
    Properties,
    encode_property_bytes,
    has_room,
)
from starlingmq.wire.reasons import MqttError, Reason

GREETING: Final = 0
JOINING: Final = 1
SETTLING: Final = 2
RUNNING: Final = 3
ENDED: Final = 4
PHASES: Final = ("greeting", "joining", "settling", "running", "ended")

FAR_CONNECTED: Final = 0
NEAR_CONNECTED: Final = 1
FAR_ANSWERED: Final = 2  # SUBACK or UNSUBACK
NEAR_ANSWERED: Final = 3
RELEASED_HELD: Final = 4  # PUBCOMP from the near broker for a message of the lost far session
FAR_ENDED: Final = 5
NEAR_ENDED: Final = 6
EVENTS: Final = (
    "far_connected", "near_connected", "far_answered", "near_answered", "released_held", "far_ended", "near_ended"
)  # fmt: skip

JOIN: Final = 0
SETTLE: Final = 1
GO_ON: Final = 2
END: Final = 3
LEARN: Final = 4
WRONG: Final = 5  # the protocol excludes it; it ends the bridge's connections all the same

BRIDGE_TABLE: Final[dict[tuple[int, int], int]] = {
    (GREETING, FAR_CONNECTED): JOIN,
    (GREETING, NEAR_CONNECTED): WRONG,  # CONNECT has not been sent
    (GREETING, FAR_ANSWERED): WRONG,
    (GREETING, NEAR_ANSWERED): WRONG,
    (GREETING, RELEASED_HELD): WRONG,
    (GREETING, FAR_ENDED): END,
    (GREETING, NEAR_ENDED): END,  # the node stops
    (JOINING, FAR_CONNECTED): WRONG,  # a second CONNACK
    (JOINING, NEAR_CONNECTED): SETTLE,
    (JOINING, FAR_ANSWERED): WRONG,
    (JOINING, NEAR_ANSWERED): WRONG,
    (JOINING, RELEASED_HELD): WRONG,
    (JOINING, FAR_ENDED): END,
    (JOINING, NEAR_ENDED): END,
    (SETTLING, FAR_CONNECTED): WRONG,
    (SETTLING, NEAR_CONNECTED): WRONG,
    (SETTLING, FAR_ANSWERED): GO_ON,
    (SETTLING, NEAR_ANSWERED): GO_ON,
    (SETTLING, RELEASED_HELD): GO_ON,
    (SETTLING, FAR_ENDED): END,
    (SETTLING, NEAR_ENDED): END,
    (RUNNING, FAR_CONNECTED): WRONG,
    (RUNNING, NEAR_CONNECTED): WRONG,
    (RUNNING, FAR_ANSWERED): LEARN,
    (RUNNING, NEAR_ANSWERED): LEARN,
    (RUNNING, RELEASED_HELD): WRONG,
    (RUNNING, FAR_ENDED): END,
    (RUNNING, NEAR_ENDED): END,
    **{(ENDED, event): END for event in range(len(EVENTS))},
}

MARKER: Final = "$bridge/settled"  # a subscription of near sessions that have been through SETTLING
MARKER_AT: Final = "$bridge/at/"  # before each site that has had the far session of this pair ...
MARKER_OLD: Final = "$bridge/old/"  # ... or that of an earlier one
MARKER_IN: Final = "$bridge/in/"  # before QoS and filter of each subscription at the far broker
AGAIN: Final = "starlingmq-again"  # a User Property: sent again to a far broker that lost its session
FILTERS_MAX: Final = 8  # of a SUBSCRIBE: AWS IoT Core takes no more
LEARNED_AT_ONCE: Final = 100  # the same for a StarlingMQ
COMPLAINTS_MAX: Final = 20
WAITING_MAX: Final = 10_000  # frames of one side, before RUNNING; beyond them those of QoS 0 are dropped
TRANSIENT: Final = (Reason.QUOTA_EXCEEDED, Reason.SERVER_BUSY, Reason.SERVER_UNAVAILABLE)


class NearSession:
    """The session at this broker, as its CONNACK found it: subscriptions by filter (with QoS, No Local, Retain As
    Published), packet ids of messages that are held for PUBREL, those that wait for PUBCOMP, and all in use."""

    subscriptions: dict[str, tuple[int, bool, bool]]
    held: list[int]
    released: set[int]
    busy: set[int]

    def __init__(
        self, subscriptions: dict[str, tuple[int, bool, bool]], held: list[int], released: set[int], busy: set[int]
    ) -> None:
        self.subscriptions = subscriptions
        self.held = held
        self.released = released
        self.busy = busy


class BridgeCounts:
    """Since the start of the broker; ``refused``: by the receiving broker; ``kept_out``: looping, too large, with a
    topic that is not carried, or at QoS 0 while too many wait; ``again``: sent again after the far broker had lost its
    session."""

    messages_out: int
    messages_in: int
    bytes_out: int
    bytes_in: int
    refused: int
    kept_out: int
    again: int

    def __init__(self) -> None:
        self.messages_out = 0
        self.messages_in = 0
        self.bytes_out = 0
        self.bytes_in = 0
        self.refused = 0
        self.kept_out = 0
        self.again = 0


class Leg:
    """One of the two connections. ``topics`` and the sites are for what comes from it."""

    state: ClientState
    version: int
    topics: TopicMap
    out: list[bytes]  # to be written to its broker
    partial: PartialFrame
    waiting: list[bytes]  # frames that came before RUNNING
    max_packet: int  # that its broker accepts
    retains: bool  # its broker accepts retained messages
    site: str  # of its broker
    learned: LearnedFilters | None  # its subscriptions, if the other broker is asked for them
    asked: dict[int, list[Subscription]]  # those that its broker has not answered, by token
    added: bytes  # before the payload of each message from it, for a 5.0 broker: properties with the mark alone

    def __init__(self, state: ClientState, version: int, topics: TopicMap, site: str) -> None:
        self.state = state
        self.version = version
        self.topics = topics
        self.out = []
        self.partial = PartialFrame()
        self.waiting = []
        self.max_packet = 0
        self.retains = True
        self.site = site
        self.learned = None
        self.asked = {}
        self.added = b""


class BridgeRelay:
    """One attempt: from two fresh connections to their end. ``look`` is called at NEAR_CONNECTED for the near session;
    ``clean``: the far CONNECT asked for a clean start."""

    far: Leg
    near: Leg
    phase: int
    problem: str
    refused: int  # why a broker refused its CONNECT; 0: none did
    begin_clean: bool  # the next attempt must ask the far broker for a clean start
    far_present: bool
    renews: bool  # the far session may be new: all subscriptions there are made again
    unsure: bool  # the next attempt must do so: a CONNECT had no answer, or this one has not come to RUNNING
    complaints: list[str]  # of subscriptions that the far broker refused
    counts: BridgeCounts
    retain: bool
    learns: bool  # set before the first event
    _clean: bool
    _look: Callable[[], NearSession]
    _steps: list[tuple[Leg, bool, list[Subscription], list[str]]]  # far or near, whether to subscribe, and to what
    _released: set[int]  # ids of the near session that the far broker no longer knows
    _ending: set[int]  # ids of messages of the lost far session that are being published
    _held: set[int]  # ids of far messages that the near broker has held since an earlier connection
    _reused: set[int]  # those of which a new message has come: one PUBCOMP of the near broker is not for the far one
    _silent: set[int]  # ids of near QoS 2 messages that are not carried, whose PUBREL is answered here

    def __init__(
        self, far: Leg, near: Leg, look: Callable[[], NearSession], clean: bool, retain: bool, counts: BridgeCounts
    ) -> None:
        self.far = far
        self.near = near
        self.phase = GREETING
        self.problem = ""
        self.refused = 0
        self.begin_clean = clean
        self.far_present = False
        self.renews = True
        self.unsure = True
        self.complaints = []
        self.counts = counts
        self.retain = retain
        self.learns = False
        self._clean = clean
        self._look = look
        self._steps = []
        self._released = set()
        self._ending = set()
        self._held = set()
        self._reused = set()
        self._silent = set()

    # Events of the shell

    def received(self, leg: Leg, data: bytes, now: float) -> None:
        """Bytes have come from the broker of ``leg``."""
        leg.state.heard(now)
        try:
            self._frames(leg, leg.partial.join(data), now)
        except MqttError as error:
            self._end(leg, f"{self._whose(leg)} broke the protocol: {error.detail}")

    def tick(self, now: float) -> None:
        """Time has passed."""
        self._on_events(self.far, self.far.state.tick(now, self.reads()), now)

    def held(self, now: float) -> None:
        """The far broker is not read, so PINGRESP cannot come: this broker takes nothing now."""
        self.far.state.heard(now)

    def joins(self) -> bool:
        """Whether the near connection is to be opened now."""
        return self.phase == JOINING

    def runs(self) -> bool:
        """Whether messages pass."""
        return self.phase == RUNNING

    def ended(self) -> bool:
        return self.phase == ENDED

    def reads(self) -> bool:
        """Whether the far connection is to be read."""
        return self.phase != JOINING

    def wake_at(self) -> float:
        """When ``tick`` is due."""
        return self.far.state.wake_at()

    def lost(self, leg: Leg, why: str) -> None:
        """A connection has ended without a word in MQTT."""
        self._end(leg, why)

    def take(self, leg: Leg, now: float) -> bytes:
        """The bytes to write to the broker of ``leg`` now."""
        said = leg.state.take(now)
        if not leg.out:
            return said
        leg.state.spoke(now)
        data = b"".join(leg.out) if len(leg.out) != 1 else leg.out[0]
        leg.out = []
        return said + data if said else data

    # Frames

    def _frames(self, leg: Leg, data: bytes, now: float) -> None:
        pos = 0
        size = len(data)
        other = self.near if leg is self.far else self.far
        while pos < size and self.phase != ENDED:
            length = frame_length(data, pos, leg.version == 5)
            if length == 0 or pos + length > size:
                leg.partial.keep(data, pos, pos + length - size if length != 0 else 1)
                return
            kind = data[pos] >> 4
            if kind < PUBLISH or kind > PUBCOMP or self._greets(leg):
                self._on_events(leg, leg.state.receive(data[pos : pos + length], now), now)
            elif self.phase < RUNNING:
                if not self._ends_held(leg, data, pos, now):
                    self._wait(leg, data[pos : pos + length])
            elif kind == PUBLISH:
                self._message(leg, other, data, pos, pos + length)
            else:
                length = self._acknowledgements(leg, other, data, pos, length)
            pos += length

    def _wait(self, leg: Leg, frame: bytes) -> None:
        """Receive Maximum bounds what waits at QoS 1 and 2."""
        if len(leg.waiting) >= WAITING_MAX and frame[0] >> 4 == PUBLISH and not frame[0] & 6 and leg.learned is None:
            self.counts.kept_out += 1
        else:
            leg.waiting.append(frame)

    def _greets(self, leg: Leg) -> bool:
        """Whether the next packet of its broker must be CONNACK."""
        return self.phase == GREETING or (self.phase == JOINING and leg is self.near)

    def _message(self, leg: Leg, other: Leg, data: bytes, pos: int, end: int) -> None:
        first = data[pos]
        start = pos + 2
        while data[start - 1] >= 0x80:
            start += 1
        if self._plain_message(leg, other, data, first, start, end):
            return
        packet = decode_publish(first, data, start, end, leg.version)
        if leg is self.far and packet.qos == 2 and packet.packet_id in self._held and not packet.dup:
            self._held.discard(packet.packet_id)  # its sender has forgotten that one
            self._reused.add(packet.packet_id)
            other.out.append(ack_frame(0x62, packet.packet_id))
        if leg.learned is not None and packet.topic == WANTED:
            self._learn(leg, other, packet.payload)
            return
        topic = leg.topics.other_name(packet.topic)
        sites = sites_of(packet.properties) if packet.properties else []
        if not topic or (sites and goes_round(sites, leg.site, other.site)) or not has_room(packet.properties):
            self._keep_out(leg, packet.qos, packet.packet_id)
            return
        properties = b""
        if other.version == 5:
            properties = marked(packet.properties, leg.site)
            if packet.expiry >= 0:
                properties += encode_property_bytes({MESSAGE_EXPIRY_INTERVAL: packet.expiry})
            if packet.dup and leg is self.near and not self.far_present:
                properties += encode_property_bytes({USER_PROPERTY: [(AGAIN, "1")]})
        retain = packet.retain and self.retain and other.retains
        frame = publish_frame(
            topic, packet.payload, packet.qos, retain, packet.dup, packet.packet_id, other.version, properties
        )
        if other.max_packet != 0 and len(frame) > other.max_packet:
            self._keep_out(leg, packet.qos, packet.packet_id)
            return
        counts = self.counts
        if leg is self.far:
            counts.messages_in += 1
            counts.bytes_in += len(packet.payload)
        else:
            counts.messages_out += 1
            counts.bytes_out += len(packet.payload)
            if packet.dup and not self.far_present:
                counts.again += 1
        other.out.append(frame)

    def _plain_message(self, leg: Leg, other: Leg, data: bytes, first: int, start: int, end: int) -> bool:
        """Carry a message as most are: without properties, not sent again, with a topic that is known. Returns whether
        it is one; the rest of ``_message`` has all the rules."""
        qos = first >> 1 & 3
        if first & 8 or qos == 3 or (qos == 2 and self._held) or start + 2 > end:
            return False
        stop = start + 2 + (data[start] << 8 | data[start + 1])
        body = stop + 2 if qos != 0 else stop
        if body + 1 > end:
            return False
        name = leg.topics.known.get(data[start + 2 : stop])
        if not name or (qos != 0 and data[stop] == 0 and data[stop + 1] == 0):
            return False
        packet_id = data[stop:body]
        if leg.version == 5:
            if data[body] != 0:
                return False
            body += 1
        if first & 1 and not (self.retain and other.retains):
            first -= 1
        payload = data[body:end]
        added = leg.added if other.version == 5 else b""
        size = len(payload)
        remaining = len(name) + len(packet_id) + len(added) + size
        if other.max_packet != 0 and remaining + 5 > other.max_packet:
            return False  # or nearly
        length = BYTE[remaining] if remaining < 128 else encode_varint(remaining)
        other.out.append(b"%b%b%b%b%b%b" % (BYTE[first], length, name, packet_id, added, payload))
        counts = self.counts
        if leg is self.far:
            counts.messages_in += 1
            counts.bytes_in += size
        else:
            counts.messages_out += 1
            counts.bytes_out += size
        return True

    def _keep_out(self, leg: Leg, qos: int, packet_id: int) -> None:
        """Acknowledge a message that is not carried."""
        self.counts.kept_out += 1
        if qos == 1:
            leg.out.append(ack_frame(0x40, packet_id))
        elif qos == 2:
            leg.out.append(ack_frame(0x50, packet_id))
            if leg is self.near:
                self._silent.add(packet_id)  # the near broker knows the id of a far message, or says 0x92

    def _acknowledgements(self, leg: Leg, other: Leg, data: bytes, pos: int, length: int) -> int:
        """Pass acknowledgements on: those of one kind that stand in a row at once. Returns how many bytes they have."""
        first = data[pos]
        if length != 4:
            self._acknowledgement(leg, other, data, pos, pos + length)
            return length
        end = pos + 4
        size = len(data)
        while end + 4 <= size and data[end] == first and data[end + 1] == 2:
            end += 4
        if leg is self.far and first == 0x62 and self._held:
            self._held.difference_update([data[at + 2] << 8 | data[at + 3] for at in range(pos, end, 4)])
        if leg is self.near and first == 0x70 and self._reused:
            for at in range(pos, end, 4):
                if not self._ends_reused(data[at + 2] << 8 | data[at + 3]):
                    other.out.append(data[at : at + 4])
            return end - pos
        if first == 0x62 and leg is self.near:
            for at in range(pos, end, 4):
                packet_id = data[at + 2] << 8 | data[at + 3]
                if packet_id in self._silent or packet_id in self._released:
                    self._silent.discard(packet_id)
                    self._released.discard(packet_id)
                    leg.out.append(ack_frame(0x70, packet_id))
                    continue
                other.out.append(data[at : at + 4])
            return end - pos
        other.out.append(data[pos:end])
        return end - pos

    def _acknowledgement(self, leg: Leg, other: Leg, data: bytes, pos: int, end: int) -> None:
        """Pass on one with a reason code or properties."""
        start = pos + 2
        while data[start - 1] >= 0x80:
            start += 1
        ack = decode(data[pos], data, start, end, leg.version)
        assert isinstance(ack, Ack)
        if ack.type in (PUBACK, PUBREC) and ack.reason >= 0x80:
            if ack.reason in TRANSIENT:
                self._end(leg, f"{self._whose(leg)} takes no message now: {explain(ack.reason, ack.properties)}")
                return
            self.counts.refused += 1
            if leg is self.near and other.version != 5 and ack.type == PUBREC:
                self._refused_far(other, ack.packet_id)
                return
        if ack.type == PUBREL and leg is self.far:
            self._held.discard(ack.packet_id)
        if ack.type == PUBCOMP and leg is self.near and self._ends_reused(ack.packet_id):
            return
        if ack.type == PUBREL and leg is self.near and ack.packet_id in self._silent | self._released:
            self._silent.discard(ack.packet_id)
            self._released.discard(ack.packet_id)
            leg.out.append(ack_frame(0x70, ack.packet_id))
            return
        first = data[pos]
        if other.version == 5 and ack.reason >= 0x80:
            other.out.append(b"%b\x03%b%b" % (bytes((first,)), ack.packet_id.to_bytes(2, "big"), bytes((ack.reason,))))
        else:
            other.out.append(ack_frame(first, ack.packet_id))

    def _ends_reused(self, packet_id: int) -> bool:
        """Whether this PUBCOMP of the near broker is for a message whose sender has forgotten it."""
        if packet_id not in self._reused:
            return False
        self._reused.discard(packet_id)
        return True

    def _refused_far(self, far: Leg, packet_id: int) -> None:
        """3.1.1 has no refusal: its broker gets PUBREC, and its PUBREL the answer of the near one, 0x92."""
        far.out.append(ack_frame(0x50, packet_id))

    # Events of the two clients

    def _on_events(self, leg: Leg, events: Iterable[Event], now: float) -> None:
        for event in events:
            if isinstance(event, Connected):
                self._step(leg, FAR_CONNECTED if leg is self.far else NEAR_CONNECTED, event, now)
            elif isinstance(event, Completed):
                self._step(leg, FAR_ANSWERED if leg is self.far else NEAR_ANSWERED, event, now)
            elif isinstance(event, Refused):
                self.refused = event.reason
                self._end(leg, f"{self._whose(leg)} refused the connection: {explain(event.reason, event.properties)}")
            elif isinstance(event, Ended):
                self._end(leg, f"{self._whose(leg)}: {event.detail}")

    def _step(self, leg: Leg, event: int, what: Connected | Completed | None, now: float) -> None:
        action = BRIDGE_TABLE[self.phase, event]
        if action == JOIN and isinstance(what, Connected):
            self._join(what)
        elif action == SETTLE and isinstance(what, Connected):
            self._settle(what, now)
        elif action == GO_ON:
            if isinstance(what, Completed):
                self._answered(leg, what)
            elif self._steps:
                return  # the answer to the present step goes on
            self._next_step(now)
        elif action == LEARN and isinstance(what, Completed):
            self._learned(leg, what)
        elif action == WRONG:
            self._end(leg, f"{self._whose(leg)} sent {EVENTS[event]} while {PHASES[self.phase]}")

    def _end(self, leg: Leg, why: str) -> None:
        if self.phase != ENDED:
            self.phase = ENDED
            self.problem = why

    def _whose(self, leg: Leg) -> str:
        return "the other broker" if leg is self.far else "this broker"

    def _join(self, connected: Connected) -> None:
        self.unsure = self.renews
        if self._clean and self.far.version != 5:
            self.begin_clean = False
            self._end(self.far, "")  # in 3.1.1 such a session ends with its connection: it has deleted the other one
            return
        self.far_present = connected.session_present
        self.begin_clean = not self.far_present
        properties = connected.properties
        self.far.max_packet = number(properties, MAXIMUM_PACKET_SIZE, 0)
        self.far.retains = number(properties, RETAIN_AVAILABLE, 1) == 1
        self.phase = JOINING

    def _settle(self, connected: Connected, now: float) -> None:
        session = self._look()
        fresh = not connected.session_present or MARKER not in session.subscriptions
        if self.far_present and (fresh or marker(MARKER_OLD, self.far.site) in session.subscriptions):
            self.begin_clean = True
            self._end(self.near, "")
            return
        self.phase = SETTLING
        properties = connected.properties
        self.near.max_packet = number(properties, MAXIMUM_PACKET_SIZE, 0)
        self.near.retains = number(properties, RETAIN_AVAILABLE, 1) == 1
        self.near.state.reserve(session.busy)
        self.far.state.reserve(session.busy)
        if self.far_present:
            self._held = set(session.held)
        else:
            markers = [name for name in session.subscriptions if name == MARKER or name.startswith(MARKER_IN)]
            markers.sort(key=lambda name: name != MARKER)
            for name in markers:
                del session.subscriptions[name]
            self._off(self.near, markers)
            self._released = session.released
            self._ending = set(session.held)
            self.near.out += [ack_frame(0x62, packet_id) for packet_id in session.held]
        self._plan(session.subscriptions)
        self._next_step(now)

    def _plan(self, present: dict[str, tuple[int, bool, bool]]) -> None:
        """Find out what to subscribe to and what to end, at both sides."""
        if self.learns:  # first, so that what is subscribed to afterwards belongs to this connection
            for leg, other in ((self.near, self.far), (self.far, self.near)):
                leg.learned = LearnedFilters(leg.topics, leg.site)
                self._on(other, [Subscription(filter=WANTED.decode())])
        wanted_far, wanted_near = self._filters(self.far, self.near), self._filters(self.near, self.far)
        markers = {f"{MARKER_IN}{qos}/{filter}": filter for filter, qos in wanted_far.items()}
        subscribed = {name for name in present if name.startswith(MARKER_IN)}
        outdated = [name.split("/", 3)[3] for name in subscribed if name not in markers]
        if self.learns:  # with COMPLETE: until then it may be one of the wanted
            self._off(self.near, [name for name in subscribed if name not in markers])
        else:
            self._off(self.far, [filter for filter in outdated if filter not in wanted_far])
        modern = self.far.version == 5  # otherwise the retained messages come all the same
        fresh = 0 if self.retain else 2
        self._on(
            self.far,
            [
                Subscription(
                    filter=filter,
                    qos=QOS[wanted_far[filter]],
                    no_local=modern,
                    retain_as_published=modern and self.retain,
                    retain_handling=1 if name in subscribed and self.retain else fresh,
                )
                for name, filter in markers.items()
                if name not in subscribed or self.renews or self.learns
            ],
        )
        pair = self._pair(present)
        kept = {MARKER, *pair, *markers, *wanted_near}
        if not self.learns:
            self._off(self.near, [name for name in present if name not in kept])
        options = {name: (qos, True, self.retain) for name, qos in wanted_near.items()}
        self._on(
            self.near,
            [
                Subscription(
                    filter=name, qos=QOS[qos], no_local=True, retain_as_published=self.retain, retain_handling=fresh
                )
                for name, (qos, _, _) in options.items()
                if not self.far_present or present.get(name) != options[name] or self.learns
            ],
        )
        self._on(self.near, [Subscription(filter=name) for name in (*markers, *pair, MARKER) if name not in present])

    def _filters(self, leg: Leg, other: Leg) -> dict[str, int]:
        """Those to subscribe to from the beginning, each with its QoS, which the broker of ``other`` takes."""
        whole = leg.topics.whole() if self.learns else leg.topics.filters()
        most = number(other.state.server, MAXIMUM_QOS, 2)
        return {filter.decode(): min(qos, most) for filter, qos in whole.items()}

    def _learn(self, teller: Leg, leg: Leg, answer: bytes) -> None:
        """The broker of ``teller`` has said which filters are wanted there: subscribe to them at that of ``leg``."""
        learned = leg.learned
        assert learned is not None
        was_complete = learned.complete
        try:
            learned.hear(answer)
        except ValueError as error:
            self._end(teller, f"{self._whose(teller)} tells filters that are none: {error}")
            return
        self._change(leg, learned, full=False)
        if learned.complete and not was_complete:
            leg.state.subscribe([Subscription(filter=COMPLETE.decode())])
        teller.state.subscribe([Subscription(filter=MORE.decode())])

    def _change(self, leg: Leg, learned: LearnedFilters, full: bool) -> None:
        """Make and end the subscriptions that ``learned`` says. ``full``: the broker of ``leg`` takes no more, so room
        is made first."""
        make, end = learned.take()
        if full:
            self._end_learned(leg, end)
            leg.state.subscribe([Subscription(filter=COMPLETE.decode())])
        for paths, filters in make.items():
            for at in range(0, len(filters), LEARNED_AT_ONCE):
                asked = [
                    Subscription(
                        filter=name,
                        qos=QOS[qos],
                        no_local=True,
                        retain_as_published=self.retain,
                        retain_handling=self._handling(first),
                    )
                    for name, qos, first in filters[at : at + LEARNED_AT_ONCE]
                ]
                leg.asked[leg.state.subscribe(asked, {USER_PROPERTY: [(PATHS, paths)]})] = asked
        if not full:
            self._end_learned(leg, end)

    def _end_learned(self, leg: Leg, filters: list[str]) -> None:
        for at in range(0, len(filters), LEARNED_AT_ONCE):
            leg.state.unsubscribe(filters[at : at + LEARNED_AT_ONCE])

    def _handling(self, first: bool) -> Literal[0, 1, 2]:
        """Which retained messages come; ``first``: the filter is learned for the first time on this connection."""
        if not self.retain:
            return 2
        return 0 if first and not self.far_present else 1

    def _learned(self, leg: Leg, completed: Completed) -> None:
        learned = leg.learned
        for subscription, reason in zip(leg.asked.pop(completed.token, []), completed.reasons, strict=False):
            if reason < 0x80:
                continue
            said = f"{self._whose(leg)} refuses the filter {subscription.filter}: {explain(reason, {})}"
            if reason == Reason.QUOTA_EXCEEDED and learned is not None and learned.refuse():
                leg.asked.clear()  # further refusals say nothing new
                self._complain(f"{said}; everything that the topics of the link match travels, wanted or not")
                self._change(leg, learned, full=True)
                return
            if reason in TRANSIENT or reason == Reason.IMPLEMENTATION_SPECIFIC_ERROR:  # of a cluster: not in time
                self._end(leg, said)
            else:
                self._complain(said)

    def _complain(self, said: str) -> None:
        if len(self.complaints) < COMPLAINTS_MAX:
            self.complaints.append(said)

    def _pair(self, present: Iterable[str]) -> list[str]:
        """The markers of sites that have had a far session, now that there is one at this site."""
        own = marker(MARKER_AT, self.far.site)
        at = [name for name in present if name.startswith(MARKER_AT) and name != own]
        old = [name for name in present if name.startswith(MARKER_OLD)]
        if self.far_present:
            return [own, *at, *old]
        left = {MARKER_OLD + name.removeprefix(MARKER_AT) for name in at}
        return [own, *sorted(left.union(old) - {marker(MARKER_OLD, self.far.site)})]

    def _on(self, leg: Leg, subscriptions: list[Subscription]) -> None:
        for at in range(0, len(subscriptions), FILTERS_MAX):
            self._steps.append((leg, True, subscriptions[at : at + FILTERS_MAX], []))

    def _off(self, leg: Leg, filters: list[str]) -> None:
        for at in range(0, len(filters), FILTERS_MAX):
            self._steps.append((leg, False, [], filters[at : at + FILTERS_MAX]))

    def _next_step(self, now: float) -> None:
        """Take the next step of SETTLING, or begin to run after the last one."""
        if self.phase != SETTLING:
            return
        self._steps = [step for step in self._steps if step[2] or step[3]]
        if self._steps:
            leg, on, subscriptions, filters = self._steps[0]
            if on:
                leg.state.subscribe(subscriptions)
            else:
                leg.state.unsubscribe(filters)
            return
        if self._ending:
            return
        self.phase = RUNNING
        self.begin_clean = self.unsure = False
        for leg in (self.near, self.far):
            mark = mark_of(leg.site)
            leg.added = encode_varint(len(mark)) + mark
            waiting = leg.waiting
            leg.waiting = []
            self._frames(leg, b"".join(waiting), now)

    def _answered(self, leg: Leg, completed: Completed) -> None:
        """A step is done."""
        _, on, subscriptions, _ = self._steps.pop(0)
        for subscription, reason in zip(subscriptions, completed.reasons, strict=False):
            if on and reason >= 0x80:
                said = f"{self._whose(leg)} refuses the filter {subscription.filter}: {explain(reason, {})}"
                if reason in TRANSIENT or leg is self.near:
                    self._end(leg, said)
                    return
                self.complaints.append(said)
                missing = f"{MARKER_IN}{subscription.qos}/{subscription.filter}"  # it is asked for again next time
                for step in self._steps:
                    step[2][:] = [each for each in step[2] if each.filter != missing]
                self._off(self.near, [missing])

    def _ends_held(self, leg: Leg, data: bytes, pos: int, now: float) -> bool:
        """Whether it is the PUBCOMP for a message of the lost far session."""
        if not self._ending or leg is not self.near or data[pos] != 0x70:
            return False
        packet_id = data[pos + 2] << 8 | data[pos + 3]
        if packet_id not in self._ending:
            return False
        self._ending.discard(packet_id)
        if not self._ending:
            self._step(leg, RELEASED_HELD, None, now)
        return True


def marker(kind: str, site: str) -> str:
    return kind + site.replace("+", "_").replace("#", "_")


def number(properties: Properties, key: int, default: int) -> int:
    value = properties.get(key, default)
    return value if isinstance(value, int) else default
