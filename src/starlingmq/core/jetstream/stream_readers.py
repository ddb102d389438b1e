"""MQTT clients that read streams: subscriptions to ``$stream/NAME``, alone or in shared groups, and to ``$queue/NAME``.

::

    SUBSCRIBE --subscribe--> Feeder at a position --turn--> the window of the session, or a member of the group
    acknowledged, written --relieve--> the feeders that wait for room --turn--> ...

Invariants:

- A session is given a message only if it can be sent at once. So nothing is queued, whatever the stream has, and the
  client's Receive Maximum is the flow control.
- The position is in the journal record of the message that it follows, if the session or group is stored.
- A receiver is given nothing in the turn of its SUBSCRIBE. Records of messages come first in a turn's append, and a
  crash in its middle must not leave a message that belongs to a session, subscription or group which is not there.
- Only messages that are stored are given (``SequencedStream.end``).
"""

from __future__ import annotations

from typing import Final, cast

from starlingmq.core.context.context import Context
from starlingmq.core.context.ready import FACT_WITH, SUBSCRIPTION_PUT, Write
from starlingmq.core.delivery.delivery import Delivery
from starlingmq.core.delivery.group_engine import GroupEngine
from starlingmq.core.groups.group import Group
from starlingmq.core.jetstream.far_readers import FarReaders, FarReading, may_have, position, read_position
from starlingmq.core.jetstream.far_streams import FarStreams
from starlingmq.core.jetstream.work_queues import WorkQueue, WorkQueues
from starlingmq.core.limits.access import PART, WHOLE, Rights
from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import Outgoing
from starlingmq.core.nats.jetstream_port import JetStreamPort
from starlingmq.core.router.router import Router
from starlingmq.core.session.session import Client, Session, Subscription
from starlingmq.core.streams.far_read import FarRead, ReadTold
from starlingmq.core.streams.feeder import GROUP, LOOKED, POSITION_FACT, Feeder, Reading, begin, numbered
from starlingmq.core.streams.read_port import ReadPort
from starlingmq.core.streams.sequenced_stream import TOPICS_SHIFT, SequencedStream, drop_fact, put_fact
from starlingmq.core.streams.stream_filters import (
    LATEST,
    NEW,
    OFFSET,
    Start,
    StreamFilter,
    parse_stream_filter,
    start_in,
)
from starlingmq.core.subscribe.subscribing import Subscribing, identifiers
from starlingmq.core.topics.topics import STREAM, parse_share
from starlingmq.wire.mqtt import Subscribe, SubscribeRequest
from starlingmq.wire.reasons import Reason

FEED_BUDGET: Final = 256  # messages that one feeder gives before others have their turn
TURN_BUDGET: Final = 4096
GROUPS_MAX: Final = 1000  # that read one stream
READS_MAX: Final = 1000  # subscriptions of one session to streams
AGAIN_SECONDS: Final = 1.0  # after a failed read
READINGS_PER_UNIT: Final = 32  # of one session that are looked at for the work of one message

UNKNOWN: Final = "there is no stream with one sequence of this name"
NO_JETSTREAM: Final = "streams with one sequence are not served here"
GROUPS_FULL: Final = "too many groups read this stream"
READS_FULL: Final = "this session reads too many streams, or too many filters of one"
NO_READING: Final = "the rules do not let this client read the stream (allow: stream)"
NOT_ALL: Final = "a member of a group or a queue needs the right to subscribe to all that it may be given"


class MqttReaders(ReadPort):
    ctx: Context
    router: Router
    delivery: Delivery
    groups: GroupEngine
    subscribing: Subscribing
    queues: WorkQueues
    far_readers: FarReaders
    far: FarStreams | None  # those of other nodes; None: there are no other nodes
    streams: dict[str, SequencedStream]  # of the hub
    jetstream: JetStreamPort
    due_at: float  # 0.0: never
    _feeders: dict[SequencedStream, dict[Feeder, None]]
    _active: dict[Feeder, None]  # feeders that may have something to do
    _later: dict[Feeder, None]  # those that go on at ``due_at``, since the store did not work
    _stored: dict[bytes, bytes]  # positions that a store had, until their subscriptions are restored
    _gone: list[bytes]  # facts of the store that belong to nothing

    def __init__(
        self,
        ctx: Context,
        router: Router,
        delivery: Delivery,
        groups: GroupEngine,
        subscribing: Subscribing,
        streams: dict[str, SequencedStream],
        jetstream: JetStreamPort,
    ) -> None:
        self.why = ""
        self.ctx = ctx
        self.router = router
        self.delivery = delivery
        self.groups = groups
        self.subscribing = subscribing
        self.queues = WorkQueues(ctx, router, delivery, subscribing)
        self.far_readers = FarReaders(ctx, delivery, subscribing)
        self.far = None
        self.streams = streams
        self.jetstream = jetstream
        self.due_at = 0.0
        self._feeders = {}
        self._active = {}
        self._later = {}
        self._stored = {}
        self._gone = []

    # Subscriptions

    def subscribe(
        self,
        client: Client,
        session: Session,
        request: SubscribeRequest,
        packet: Subscribe,
        share: tuple[bytes, bytes] | None,
    ) -> int:
        group = b"" if share is None else share[0]
        try:
            parsed = parse_stream_filter(request.filter if share is None else share[1])
        except ValueError as error:
            return self._no(Reason.TOPIC_FILTER_INVALID, str(error))
        clustered = self.ctx.cluster.interest is not None
        if not self.jetstream.enabled or (clustered and self.far is None):
            return self._no(Reason.IMPLEMENTATION_SPECIFIC_ERROR, NO_JETSTREAM)
        if parsed.queue and share is not None:
            return self._no(Reason.TOPIC_FILTER_INVALID, "a queue is shared by all its subscribers, without $share")
        if clustered:
            parsed.group = group
        refusal = self.subscribing.refusal_of(client, session, request.filter, parsed.wanted(), group)
        if refusal != 0:
            self.why = ""
            return refusal
        elsewhere = self.far is not None and self.far.is_elsewhere(parsed.name)
        stream = None if elsewhere else self.streams.get(parsed.name)
        if stream is None and not elsewhere:
            return self._no(Reason.TOPIC_FILTER_INVALID, UNKNOWN)
        rights = client.rights
        if rights is not None and not rights.may_read(parsed.name.encode()):
            return self._no(Reason.NOT_AUTHORIZED, NO_READING)
        if rights is not None and (group or parsed.queue) and not self._all(rights, parsed):
            return self._no(Reason.NOT_AUTHORIZED, NOT_ALL)
        start = parsed.start
        if start is None:
            try:
                start = start_in(packet.properties)
            except ValueError as error:
                return self._no(Reason.IMPLEMENTATION_SPECIFIC_ERROR, str(error))
        qos = min(request.qos, self.ctx.max_qos)
        whole = parsed.plain if group else request.filter
        subscription = Subscription(session, whole, qos, request.no_local, False, identifiers(packet))
        reason = self._read(session, request.filter, subscription, parsed, group, start, stream)
        if reason != 0:
            return reason
        session.add_subscription(request.filter, subscription)
        if self.ctx.recording and session.expiry != 0:
            self.ctx.write(Write(SUBSCRIPTION_PUT, session, topic=request.filter, subscription=subscription))
        self.ctx.event("subscribed", session.client_id, request.filter.decode())
        return qos

    def _read(
        self,
        session: Session,
        whole: bytes,
        subscription: Subscription,
        parsed: StreamFilter,
        group: bytes,
        start: Start,
        stream: SequencedStream | None,
    ) -> int:
        """``stream`` None: it is another node's. Returns the reason why it cannot, or 0."""
        if stream is None:
            earlier = self._feeder_of(session, whole)
            if earlier is not None:  # of a stream that was here
                self._end(earlier)
            if session.reads is not None and len(session.reads) >= READS_MAX and whole not in session.reads:
                return self._no(Reason.QUOTA_EXCEEDED, READS_FULL)
            self.far_readers.add(session, whole, subscription, parsed, start)
            return 0
        if parsed.competes():
            self.why = self.queues.join(session, whole, subscription, parsed, stream, start)
            return Reason.QUOTA_EXCEEDED if self.why else 0
        if group:
            known = self.router.group(b"$share/%b/%b" % (group, parsed.plain))
            if known is None or known.feeder is None:
                self.ctx.spend(len(self._feeders.get(stream, {})) // READINGS_PER_UNIT)
                of_groups = [each for each in self._feeders.get(stream, {}) if each.group is not None]
                if len(of_groups) >= GROUPS_MAX and not self._end_lost(of_groups):
                    return self._no(Reason.QUOTA_EXCEEDED, GROUPS_FULL)
            self.router.join(group, subscription)
            self._lead(group, parsed, stream, start)
            return 0
        feeder = self._feeder_of(session, whole)
        if feeder is None and session.reads is not None and len(session.reads) >= READS_MAX:
            return self._no(Reason.QUOTA_EXCEEDED, READS_FULL)
        if feeder is None or feeder.stream is not stream:
            feeder = self._new_feeder(stream, parsed, start, _session_fact(session, whole))
            self._keep_position(feeder, session.expiry != 0)
        self._attach(feeder, session, whole, subscription)
        return 0

    def _no(self, reason: int, why: str) -> int:
        self.why = why
        return reason

    def _all(self, rights: Rights, parsed: StreamFilter) -> bool:
        """Whether a client may have all that a stream may give it. A member that may not would lose messages for the
        others."""
        wanted = parsed.filters()
        if not wanted and self.far is not None and self.far.is_elsewhere(parsed.name):
            wanted = self.far.subjects(parsed.name)
        elif not wanted and parsed.name in self.streams:
            wanted = self.streams[parsed.name].kept_filters()
        return all(rights.may_subscribe(each, b"") for each in wanted)

    def allows(self, rights: Rights, whole: bytes) -> bool:
        share = parse_share(whole)
        parsed = _parsed(whole if share is None else share[1])
        if parsed is None:
            return True  # it gets nothing
        if not rights.may_read(parsed.name.encode()):
            return False
        group = b"" if share is None else share[0]
        granted = rights.granted(parsed.wanted(), group)
        if group or parsed.queue:
            return granted == WHOLE and self._all(rights, parsed)
        return granted in (PART, WHOLE)

    def _new_feeder(self, stream: SequencedStream, parsed: StreamFilter, start: Start, fact: bytes) -> Feeder:
        filters = parsed.filters()
        feeder = Feeder(stream, filters, 0, fact, self._active)
        stored = self._stored.pop(feeder.fact, None)
        position = None if stored is None else _position(stored, stream)
        feeder.stored = stored is not None
        if start.kind == LATEST and not feeder.selection.exact:
            self.ctx.work -= len(stream.index.topics) >> TOPICS_SHIFT
        feeder.next = begin(stream, feeder.selection, start) if position is None else position
        if position is not None and not filters and feeder.next < stream.index.first:
            feeder.skipped = stream.index.first - feeder.next
        self._watch(feeder)
        return feeder

    def _watch(self, feeder: Feeder) -> None:
        of_stream = self._feeders.get(feeder.stream)
        if of_stream is None:
            of_stream = self._feeders[feeder.stream] = {}
        of_stream[feeder] = None
        feeder.stream.watch(feeder, feeder.filters)

    def _attach(self, feeder: Feeder, session: Session, whole: bytes, subscription: Subscription) -> None:
        feeder.session = session
        feeder.subscription = subscription
        feeder.whole = whole
        if session.reads is None:
            session.reads = {}
        session.reads[whole] = feeder
        feeder.begins = True
        feeder.wake()

    def _lead(self, group: bytes, parsed: StreamFilter, stream: SequencedStream, start: Start) -> None:
        """Have a group that exists read the stream, if it does not do so yet."""
        found = self.router.group(b"$share/%b/%b" % (group, parsed.plain))
        assert found is not None
        if found.feeder is None:
            feeder = self._new_feeder(stream, parsed, start, GROUP + found.share()[7:])
            feeder.group = found
            found.feeder = feeder
            self._keep_position(feeder, self._group_is_stored())
        joined = cast(Feeder, found.feeder)
        joined.begins = True
        joined.wake()

    def _group_is_stored(self) -> bool:
        return self.ctx.groups.storage == "journal"

    @staticmethod
    def _feeder_of(session: Session, whole: bytes) -> Feeder | None:
        found = None if session.reads is None else session.reads.get(whole)
        return found if isinstance(found, Feeder) else None

    def unsubscribe(self, session: Session, whole: bytes, subscription: Subscription) -> None:
        found = None if session.reads is None else session.reads.pop(whole, None)
        if session.reads is not None and not session.reads:
            session.reads = None
        if isinstance(found, Feeder):
            self._end(found)
        elif isinstance(found, FarReading):
            self.far_readers.end(found)
            self.queues.forget(session)
        elif found is not None:
            self.queues.leave(session, found, whole)

    def group_ended(self, feeder: object) -> None:
        ended = cast(Feeder, feeder)
        if ended.group is not None:
            ended.group.feeder = None
        self._end(ended)

    def _end(self, feeder: Feeder) -> None:
        """Its position is not wanted any more."""
        of_stream = self._feeders.get(feeder.stream)
        if of_stream is not None:
            of_stream.pop(feeder, None)
            if not of_stream:
                del self._feeders[feeder.stream]
        feeder.stream.unwatch(feeder, feeder.filters)
        self._active.pop(feeder, None)
        self._later.pop(feeder, None)
        if feeder.stored:
            drop_fact(self.ctx, feeder.fact)

    def stream_removed(self, stream: SequencedStream) -> None:
        """The stream is deleted, and with it all subscriptions to it."""
        for feeder in list(self._feeders.get(stream, {})):
            session = feeder.session
            if session is not None:
                if self._feeder_of(session, feeder.whole) is feeder:
                    self.subscribing.unsubscribe(session, feeder.whole)
            elif feeder.group is not None:
                self._end_group(feeder.group)
            elif feeder.far is not None:
                self._end(feeder)
        self._feeders.pop(stream, None)

    def _end_lost(self, feeders: list[Feeder]) -> bool:
        """Make room for another group: that without members ends which lost its last one first."""
        lost: Group | None = None
        for feeder in feeders:
            group = feeder.group
            if group is not None and not group.members and (lost is None or group.gone_at < lost.gone_at):
                lost = group
        if lost is not None:
            self._end_group(lost)
        return lost is not None

    def stream_changed(self, stream: SequencedStream) -> None:
        """It may have other topics from now on, which not all members of its groups and queues may be given."""
        sessions: dict[Session, None] = {}
        for feeder in self._feeders.get(stream, {}):
            if feeder.group is not None:
                for member in feeder.group.members:
                    sessions[member.session] = None
        self.queues.add_members(stream, sessions)
        for session in sessions:
            self.subscribing.revoke(session)

    def _end_group(self, group: Group) -> None:
        for member in list(group.members):
            for whole, subscription in member.session.subscriptions():
                if subscription is member:
                    self.subscribing.unsubscribe(member.session, whole)
        if group.feeder is not None:  # it had no members
            group.gone_at = 0.0
            self.groups.emptied(group, False)

    # A start

    def restore_positions(self, facts: dict[bytes, bytes]) -> None:
        """Take the positions out of the facts of a store. Its streams are known."""
        for fact in [fact for fact in facts if fact.startswith(POSITION_FACT)]:
            self._stored[fact] = facts.pop(fact)

    def restore(self, session: Session, whole: bytes, subscription: Subscription) -> None:
        share = parse_share(whole)
        session.add_subscription(whole, subscription)
        parsed = _parsed(whole if share is None else share[1])
        if parsed is None:
            return  # of an earlier release, to which these topics were topics as others are
        if share is not None:
            subscription.filter = parsed.plain
            parsed.group = share[0] if self.far is not None else b""
        stream = self.streams.get(parsed.name)
        if stream is None and (share is None or parsed.group):
            self._restore_far(session, whole, subscription, parsed)
        elif parsed.competes():
            self.queues.restore(session, whole, subscription, parsed)
        elif share is not None:
            self.router.join(share[0], subscription)
            if stream is not None:
                self._lead(share[0], parsed, stream, Start(NEW))
        elif stream is not None:
            earlier = self._feeder_of(session, whole)
            if earlier is not None:  # a session that arrives again
                self._end(earlier)
            feeder = self._new_feeder(stream, parsed, Start(NEW), _session_fact(session, whole))
            self._attach(feeder, session, whole, subscription)

    def _restore_far(self, session: Session, whole: bytes, subscription: Subscription, parsed: StreamFilter) -> None:
        """A stream that is not here: of another node, or there is none any more."""
        self.far_readers.add(session, whole, subscription, parsed, None)
        stored = self._stored.pop(POSITION_FACT + _session_fact(session, whole), b"")
        found = None if session.reads is None else session.reads.get(whole)
        if stored.startswith(b"0 ") and isinstance(found, FarReading):
            found.stored = True
            found.begin_at(stored)
        if parsed.competes():
            self.queues.renumber(session)

    def join_cluster(self, far: FarStreams) -> None:
        """After ``restored``. In a cluster, groups that read streams are consumers (core.jetstream.work_queues)."""
        self.far = self.far_readers.far = self.queues.far = far
        for group in self.router.groups():
            if not group.filter.startswith(STREAM):
                continue
            parsed = parse_stream_filter(group.filter)
            parsed.group = group.name
            feeder = cast("Feeder | None", group.feeder)
            if feeder is not None:
                self.queues.queue_of(parsed).start = Start(OFFSET, feeder.next)
            members = list(group.members)
            for member in members:
                self.router.leave(group.name, group.filter, member.session, False)
            if not members:
                group.gone_at = 0.0
                self.groups.emptied(group, False)
            for member in members:
                for whole, subscription in list(member.session.subscriptions()):
                    if subscription is member:
                        self.restore(member.session, whole, member)

    # A session that leaves, or arrives from another node

    def position_of(self, session: Session, whole: bytes) -> bytes:
        found = None if session.reads is None else session.reads.get(whole)
        if isinstance(found, Feeder):
            return position(found.next, None, found.stream.created)
        return found.value() if isinstance(found, FarReading) else b""

    def set_position(self, session: Session, whole: bytes, position: bytes) -> None:
        found = None if session.reads is None else session.reads.get(whole)
        if isinstance(found, Feeder):
            next, start, made = read_position(position)
            found.next = _within(found.stream, next, made) or begin(found.stream, found.selection, start)
            self._keep_position(found, session.expiry != 0)
            found.wake()
        elif isinstance(found, FarReading):
            self.far_readers.begin_at(found, position)

    def restored(self) -> None:
        """All sessions are restored. Groups whose members were lost wait for others; other positions are removed."""
        head = POSITION_FACT + GROUP
        for fact in list(self._stored):
            name, _, plain = fact[len(head) :].partition(b"/")
            if fact.startswith(head):
                parsed = parse_stream_filter(plain)
                stream = self.streams.get(parsed.name)
                if stream is not None and _position(self._stored[fact], stream) is not None:
                    group = self.router.waits_for(name, plain)
                    self._lead(name, parsed, stream, Start(NEW))
                    if not group.members and group.line is None:
                        self.groups.emptied(group, True)
                    continue
            self._gone.append(fact)
        self._stored = {}

    # Room

    def relieve(self, session: Session) -> None:
        reads = session.reads
        if reads is not None:
            self.ctx.spend(len(reads) // READINGS_PER_UNIT)
            for each in reads.values():
                reading = cast(Reading, each)
                if reading.waits:
                    reading.waits = False
                    reading.wake()

    def session_connected(self, session: Session) -> None:
        reads = session.reads
        if reads is not None:
            self.queues.session_connected(session)
            for each in reads.values():
                cast(Reading, each).wake()

    def session_gone(self, session: Session) -> None:
        for each in [] if session.reads is None else list(session.reads.values()):
            if isinstance(each, FarReading):
                self.far_readers.close(each)
        window = session.window
        if window is not None:  # others of a group get what this one has not acknowledged
            for packet_id, outgoing in list(window.entries.items()):
                if outgoing.qos == 1 and _is_of_group(outgoing):
                    window.discard(packet_id)
                    self.give_back(outgoing)

    def session_leaves(self, session: Session) -> None:
        """Its other node does not know where messages of queues are acknowledged: at QoS 1 they are due again. Those of
        groups at QoS 2 are the session's from now on."""
        window = session.window
        if window is None:
            return
        for packet_id, outgoing in list(window.entries.items()):
            if outgoing.qos == 1 and self.groups.competes(outgoing):
                window.discard(packet_id)
                self.give_back(outgoing)
            elif _is_of_group(outgoing):
                self._settle(outgoing, False)

    def group_advanced(self, feeder: object) -> None:
        found = cast(Feeder, feeder)
        if found.waits:
            found.waits = False
            found.wake()

    def settle(self, outgoing: Outgoing, refused: bool) -> None:
        self._settle(outgoing, refused and not _is_of_group(outgoing))  # [MQTT-4.8.2-6]

    def give_back(self, outgoing: Outgoing) -> None:
        self._settle(outgoing, outgoing.qos == 1 or not _is_of_group(outgoing))  # [MQTT-4.8.2-5]

    def _settle(self, outgoing: Outgoing, refused: bool) -> None:
        self.queues.settle(outgoing, refused)
        self.far_readers.settle(outgoing, refused)

    # Sessions of other nodes, at the home of the stream

    def read_for(self, read: FarRead, stream: SequencedStream) -> Feeder:
        """They get what ``read`` asks for, as it comes, until ``end_for``."""
        filters = [read.filter] if read.filter else []
        feeder = Feeder(stream, filters, read.next, b"", self._active)
        feeder.far = read
        index = stream.index
        within = _within(stream, read.next, read.made)
        read.made = stream.created
        if within == 0:
            if read.start.kind == LATEST and not feeder.selection.exact:
                self.ctx.work -= len(index.topics) >> TOPICS_SHIFT
            feeder.next = begin(stream, feeder.selection, read.start if read.next == 0 else Start(NEW))
            self._tell(feeder, read, ReadTold(read, 0, feeder.next), True)
            read.next = feeder.next
        elif not filters and read.next < index.first:
            read.skipped = index.first - read.next
        self._watch(feeder)
        feeder.wake()
        return feeder

    def end_for(self, feeder: Feeder) -> None:
        if feeder in self._feeders.get(feeder.stream, {}):
            self._end(feeder)

    def _tell(self, feeder: Feeder, read: FarRead, told: ReadTold, counted: bool) -> None:
        if counted:
            told.waiting = feeder.stream.index.waiting(max(told.next, 1), feeder.selection)
        if self.far is not None:
            self.far.tell_read(read, told)

    def _pass(self, feeder: Feeder, read: FarRead) -> None:
        """Messages that it has looked at in vain are behind it, also after the next request."""
        told = ReadTold(read, read.next, feeder.next)
        told.skipped, read.skipped = read.skipped, 0
        read.next = feeder.next
        self._tell(feeder, read, told, False)

    def _send(self, feeder: Feeder, read: FarRead, message: Message, seq: int) -> None:
        read.count -= 1
        read.octets -= message.size()
        if read.octets <= 0:
            read.count = 0
        told = ReadTold(read, read.next, seq + 1)
        told.message, told.sequence = message, seq
        told.skipped, read.skipped = read.skipped, 0
        read.next = seq + 1
        self._tell(feeder, read, told, read.count == 0)

    # Turns

    def pending(self) -> bool:
        return len(self._active) != 0 or self.far_readers.pending()

    def turn(self) -> None:
        if self._gone and self.ctx.recording and not self.ctx.refusing:
            for fact in self._gone:
                drop_fact(self.ctx, fact)
            self._gone = []
        if self.due_at != 0.0 and self.ctx.now >= self.due_at:
            self.due_at = 0.0
            for feeder in self._later:
                feeder.wake()
            self._later = {}
        self.far_readers.turn()
        self.queues.turn()
        if not self._active:
            return
        left = TURN_BUDGET
        active = list(self._active)
        self._active.clear()
        for feeder in active:
            if left <= 0:
                self._active[feeder] = None
                continue
            left -= 1
            given = self._feed(feeder, min(left, FEED_BUDGET))
            if feeder.moved:
                feeder.moved = False
                feeder.stored = True
                put_fact(self.ctx, feeder.fact, feeder.value())
            if feeder.far is not None and feeder.far.count <= 0:
                self._end(feeder)
            if given != 0:
                left -= given
                self._last(feeder)
        self.ctx.work -= TURN_BUDGET - left

    def _feed(self, feeder: Feeder, budget: int) -> int:
        """Give the receiver as many messages as it can take, up to ``budget``. Returns their number."""
        stream = feeder.stream
        given = 0
        try:
            end = stream.end()
            if feeder.skipped != 0:
                self._skip(feeder)
            while given < budget:
                if not self._has_room(feeder):
                    return given
                seq = feeder.find(end)
                given += feeder.cost
                if seq == 0:
                    if feeder.far is not None and feeder.next - feeder.far.next >= LOOKED:
                        self._pass(feeder, feeder.far)
                    return given
                message = stream.message(seq)
                feeder.next = seq + 1
                given += 1
                if message is None:
                    self._drop(feeder, "lost_in_storage", b"")
                else:
                    self._give(feeder, message, seq)
        except OSError:
            self._put_off(feeder)
            return given
        feeder.wake()
        return given

    def _put_off(self, feeder: Feeder) -> None:
        """The store does not work at the moment."""
        self._later[feeder] = None
        if self.due_at == 0.0:
            self.due_at = self.ctx.now + AGAIN_SECONDS

    @staticmethod
    def _last(feeder: Feeder) -> None:
        """It has got its share: the others that its session reads come before it."""
        session = feeder.session
        reads = None if session is None else session.reads
        if reads is None or len(reads) == 1:
            return
        if reads.pop(feeder.whole, None) is not None:
            reads[feeder.whole] = feeder

    def _has_room(self, feeder: Feeder) -> bool:
        """Whether the receiver can take a message now. If not, it says when it can."""
        group, far = feeder.group, feeder.far
        if far is not None:
            return far.count > 0
        if feeder.begins:
            feeder.begins = False
            feeder.wake()
            if group is not None:
                self.groups.line_of(group)
            return False
        if group is not None:
            if self.ctx.refusing and self.ctx.recording:
                self._put_off(feeder)
                return False
            feeder.waits = self.groups.has_line(group) or group.online() == 0
            return not feeder.waits
        session = feeder.session
        subscription = feeder.subscription
        assert session is not None and subscription is not None
        client = session.client
        if client is None or session.ended or session.moving is not None:
            return False  # ``session_connected`` follows
        feeder.waits = True
        queue = session.queue
        if client.blocked or client.size > self.ctx.write_buffer or (queue is not None and len(queue) != 0):
            return False
        if subscription.qos != 0 and self.delivery.window(session, client).full():
            return False
        if self.ctx.refusing and session.expiry != 0 and self.ctx.recording:
            self.delivery.wait(session)
            return False
        feeder.waits = False
        return True

    def _give(self, feeder: Feeder, message: Message, seq: int) -> None:
        ctx = self.ctx
        if feeder.far is not None:
            self._send(feeder, feeder.far, message, seq)
            return
        if message.expired(ctx.now):
            self._drop(feeder, "expired", message.topic)  # [MQTT-3.3.2-5]
            return
        shown = numbered(message, seq, ctx.now)
        group = feeder.group
        if group is not None:
            shown.qos = 2  # the member's subscription has the QoS
            self.groups.take(group, shown, None)
            self._store_position(feeder, shown, self._group_is_stored())
            return
        session, subscription = feeder.session, feeder.subscription
        assert session is not None and subscription is not None
        client = session.client
        assert client is not None
        if client.rights is not None and not may_have(client.rights, feeder.stream.name, message.topic):
            return
        if subscription.no_local and message.publisher == session.client_id:
            return
        outgoing = Outgoing(shown, subscription.qos, False, subscription.ids, None)
        if subscription.qos == 0:
            self.delivery.transmit(client, outgoing, 0, False)
            feeder.moved = ctx.recording and session.expiry != 0
            return
        self.delivery.transmit_acknowledged(session, client, self.delivery.window(session, client), outgoing)
        self._store_position(feeder, outgoing.message, session.expiry != 0)

    def _store_position(self, feeder: Feeder, message: Message, stored: bool) -> None:
        """In the record of the message itself, which is stored whole or not at all."""
        if self.ctx.recording and stored:
            feeder.stored = True
            self.ctx.write(Write(FACT_WITH, topic=feeder.fact, message=message, value=feeder.value()))

    def _keep_position(self, feeder: Feeder, stored: bool) -> None:
        """The start of a new subscription is stored with it: after the messages of this turn, since records of
        messages come before all else of a turn."""
        feeder.moved = self.ctx.recording and stored

    def _skip(self, feeder: Feeder) -> None:
        if feeder.far is not None:
            feeder.far.skipped += feeder.skipped
            feeder.skipped = 0
            return
        name = feeder.session.client_id if feeder.session is not None else ""
        if feeder.session is not None:
            feeder.session.dropped += feeder.skipped
        self.ctx.drop("stream_removed", name, feeder.skipped)
        feeder.skipped = 0

    def _drop(self, feeder: Feeder, reason: str, topic: bytes) -> None:
        session = feeder.session
        if session is not None:
            session.dropped += 1
        self.ctx.drop(reason, "" if session is None else session.client_id, 1, topic)


def _is_of_group(outgoing: Outgoing) -> bool:
    """Whether it is a message of a group that reads a stream in a cluster."""
    source = outgoing.source
    if isinstance(source, FarReading):
        return source.parsed.group != b""
    return isinstance(source, WorkQueue) and source.is_group


def _session_fact(session: Session, whole: bytes) -> bytes:
    return b"%d/%b" % (session.number, whole)


def _parsed(filter: bytes) -> StreamFilter | None:
    try:
        return parse_stream_filter(filter)
    except ValueError:
        return None


def _within(stream: SequencedStream, next: int, made: float) -> int:
    """0: it is beyond the end, or was made at another time, so it is of an earlier stream of that name."""
    return next if next <= stream.index.last + 1 and made in (0.0, stream.created) else 0


def _position(value: bytes, stream: SequencedStream) -> int | None:
    """None: it is about an earlier stream of that name. Number 0: of a session that another node had."""
    number, _, next = value.partition(b" ")
    if int(number) == 0:
        found, _, made = read_position(value)
        return _within(stream, found, made) or None
    return int(next) if int(number) == stream.number else None
