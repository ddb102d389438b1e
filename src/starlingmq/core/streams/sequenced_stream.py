"""A stream with one sequence, as JetStream has it: which messages it takes, what it says to their publishers, and which
ones it gives up.

::

    message --refusal_of: headers, duplicates, limits--> refused, with an error of nats-server
                                                     --> known already: the sequence of then
                                                     --> taken: the next sequence, then limits remove older ones

Invariants:

- A sequence is given to one message, in the order of the log: the offset in the log is the sequence less one.
- What was removed stays removed, also over a restart: a store has ``first``, and the gaps behind it.
- A publisher is told after its message is stored. So is a consumer: it is sent nothing that a crash could take back.

The messages of the last moments are in memory, at least those that the log does not have yet; others are read from the
log, some at a time.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import Final, cast

from mypy_extensions import mypyc_attr

from starlingmq.core.context.context import Context
from starlingmq.core.context.ready import FACT_DELETE, FACT_PUT, STREAM_PUT, Write
from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import Outgoing
from starlingmq.core.router.stream import Stream
from starlingmq.core.streams.message_index import (
    MASK,
    REMEMBERED_MAX,
    SHIFT,
    MessageIndex,
    TopicSelection,
    takes_all,
)
from starlingmq.core.streams.policies import DISCARD_NEW, INTEREST, StreamPolicy
from starlingmq.core.streams.publish_headers import NO_HEADERS, PREFIX, PublishHeaders, publish_headers
from starlingmq.core.topics.filter_tree import FilterTree
from starlingmq.wire.nats_headers import carried
from starlingmq.wire.nats_subjects import filter_of
from starlingmq.wire.reasons import Reason

RECENT_BYTES: Final = 256 << 10  # of messages in memory, beside those that are not in the log yet
AHEAD: Final = 64  # messages that are read from the log at a time
OVERHEAD: Final = 30  # bytes that a message in a file counts for beside its content, as nats-server counts them
HEADER_OVERHEAD: Final = 4
MEMORY_OVERHEAD: Final = 16
EXPIRED_PER_TURN: Final = 1000
TOPICS_SHIFT: Final = 4  # topics that are compared with a filter, for the work of a message
REASON_MAX: Final = 200  # characters of a refusal in a PUBACK: a part of it may be as long as a client chose it
GAP_MAX: Final = 4096  # sequences that are left out by empty records in the log, 12 bytes each; more, by a new file
STALE_MIN: Final = 64  # ends of messages that were removed, which are tolerated
PLACES_MAX: Final = 1000  # of sources that a stream has no more
REMOVED_FACT: Final = b"js/r/"  # and the number of the stream, and of a block: which sequences in it are removed
PLACES_FACT: Final = b"js/s/"  # and the number of the stream: its places in others, where its log has given room back
FIRST_FACT: Final = b"js/f/"  # and the number of the stream: its first sequence

# The outcome of a message
TAKEN: Final = 0
DUPLICATE: Final = 1
REFUSED: Final = 2


@mypyc_attr(allow_interpreted_subclasses=True)
class SequenceLog:
    """Where the messages are kept. Raises OSError."""

    def stored(self) -> int:
        """The messages before this sequence can be read."""
        raise NotImplementedError

    def given(self) -> int:
        """The messages before this sequence were given to it, at the end of a turn."""
        raise NotImplementedError

    def go_on_at(self, seq: int) -> None:
        """The next message is to have this sequence, which is above those that were given."""
        raise NotImplementedError

    def read(self, seq: int, count: int) -> list[Message | None]:
        """Up to ``count`` messages from ``seq`` on. None: it is damaged."""
        raise NotImplementedError


class StreamRefusal:
    """An error of nats-server: ``description`` is what it says."""

    code: int
    error: int
    description: str

    def __init__(self, code: int, error: int, description: str) -> None:
        self.code = code
        self.error = error
        self.description = description

    def reason(self) -> int:
        """The reason code in a PUBACK."""
        return Reason.QUOTA_EXCEEDED if self.error in (10054, 10077) else Reason.IMPLEMENTATION_SPECIFIC_ERROR


class StreamWatcher:
    """A consumer or an MQTT reader, which wants the messages of some topics."""

    def wake(self) -> None:
        """A message has come that it wants."""
        raise NotImplementedError

    def removed(self, seq: int, topic: bytes) -> None:
        """A message that it wants has gone."""
        raise NotImplementedError

    def purged(self) -> None:
        """Many have gone at once."""
        raise NotImplementedError

    def needs(self, seq: int) -> bool:
        """Whether it is not done with a message."""
        raise NotImplementedError

    def counts(self) -> bool:
        """Whether it is a consumer: those decide what retention by interest keeps."""
        return True


class SequencedStream(Stream):
    ctx: Context
    policy: StreamPolicy
    config: bytes  # the settings as JSON, as the API has them
    created: float
    index: MessageIndex
    log: SequenceLog | None  # None: everything is in memory
    last_time: float
    last_id: bytes  # of the last message with a Nats-Msg-Id
    outcome: int  # of the last message, TAKEN, DUPLICATE or REFUSED
    answer: int  # ... its sequence, or that of its first copy
    refusal: StreamRefusal | None
    news: bool  # messages came, or were removed, since the hub looked ...
    noticed: list[SequencedStream]  # ... and it is in this list of the hub
    removed: bool  # it is deleted, and gets no messages
    left: list[bytes]  # facts of its consumers, then
    sourcing: bool  # the message that is looked at is that of a source
    restoring: bool  # its settings are not known yet
    sourcings: list[StreamWatcher]  # they copy other streams into this one (core.streams.sourcing)
    places: dict[bytes, tuple[int, bytes]]  # by source: of its last message the sequence here, and that in the origin
    _told_places: dict[bytes, tuple[int, bytes]]  # as the store has them
    to_republish: list[tuple[int, int, Message]]  # once it is stored: sequence, the one before it of its topic, message
    seen: int  # sequences up to here have been shown to watchers
    ends_at: float  # when the hub looks for messages that have ended; 0.0: not planned
    consumers: dict[str, StreamWatcher]  # by name
    watchers: FilterTree  # of new messages, those with filters
    watch_all: dict[StreamWatcher, None]  # those without
    _watching: dict[bytes, list[StreamWatcher]]  # watchers by topic
    _recent: dict[int, Message]
    _recent_bytes: int
    _ahead: dict[int, Message | None]
    _read_next: int  # where reading goes on if it is in order
    _ids: dict[bytes, int]  # sequences by Nats-Msg-Id, those of the last ``duplicate_window`` seconds
    _id_times: deque[tuple[float, bytes]]
    _ends: list[tuple[float, int]]  # a heap: when messages with a time to live end
    _told_first: int  # the first sequence as the store has it
    _told: dict[int, None]  # blocks of which the store has the removed sequences

    def __init__(
        self,
        ctx: Context,
        name: str,
        number: int,
        policy: StreamPolicy,
        config: bytes,
        created: float,
        log: SequenceLog | None,
        first: int,
    ) -> None:
        super().__init__(name, number, policy.subjects)
        self.sequenced = True
        self.ctx = ctx
        self.policy = policy
        self.config = config
        self.created = created
        self.index = MessageIndex(log is None, first)
        self.log = log
        self.last_time = 0.0
        self.last_id = b""
        self.outcome = TAKEN
        self.answer = 0
        self.refusal = None
        self.news = False
        self.noticed = []
        self.removed = False
        self.left = []
        self.sourcing = False
        self.restoring = False
        self.sourcings = []
        self.places = {}
        self._told_places = {}
        self.to_republish = []
        self.seen = first - 1
        self.ends_at = 0.0
        self.consumers = {}
        self.watchers = FilterTree()
        self.watch_all = {}
        self._watching = {}
        self._recent = {}
        self._recent_bytes = 0
        self._ahead = {}
        self._read_next = first
        self._ids = {}
        self._id_times = deque()
        self._ends = []
        self._told_first = 0
        self._told = {}

    # Publishing

    def take(self, ctx: Context, message: Message) -> int:
        headers = publish_headers(message.properties) if message.properties else NO_HEADERS
        self.outcome = REFUSED
        republishing = self.policy.republishing
        if republishing is not None:
            message = republishing.kept(message)
        refusal = self.refusal = self.refusal_of(message, headers)
        if refusal is not None:
            self.dropped += 1
            ctx.drop("stream_refused", self.client_id, 1, message.topic)
            return 0
        if headers.message_id and self.policy.duplicate_window > 0.0:
            known = self._ids.get(headers.message_id)
            if known is not None:
                self.outcome = DUPLICATE
                self.answer = known
                return 1
        if headers.expected_id is not None and headers.expected_id != self.last_id:
            self.refusal = StreamRefusal(400, 10070, f"wrong last msg ID: {self.last_id.decode(errors='replace')}")
            return 0
        refusal = self.refusal = self._limit_of(message, headers)
        if refusal is not None:
            if not self.sourcing:  # else it is tried again
                self.dropped += 1
                ctx.drop("stream_full", self.client_id, 1, message.topic)
            return 0
        self.outcome = TAKEN
        if republishing is not None and republishing.republish is not None:
            self.to_republish.append((self.index.last + 1, self._last_of(message.topic, b""), message))
        self.answer = self._add(message, headers)
        if self.log is not None:
            ctx.note(STREAM_PUT, self, Outgoing(message, message.qos, message.retain, b"", None))
        self._after(message.topic, headers)
        return 1

    def kept_filters(self) -> list[bytes]:
        """The filters of all topics of messages that it takes."""
        republishing = self.policy.republishing
        if self.policy.sources:
            return [b"#"]
        if republishing is None or republishing.transform is None:
            return self.filters
        return [*self.filters, republishing.transform.made()]

    def take_sourced(self, message: Message) -> bool:
        """A message of a source. Returns False if there is no room for it now. One that is too large is left out."""
        if self.policy.sealed or (self.log is not None and self.ctx.refusing):
            return False
        self.sourcing = True
        self.take(self.ctx, message)
        self.sourcing = False
        return self.outcome != REFUSED or (self.refusal is not None and self.refusal.error != 10077)

    def is_behind(self, seq: int) -> bool:
        """Whether a wide gap before ``seq`` has to wait: made where the log ends, which has not all messages yet."""
        return self.log is not None and seq - self.index.last - 1 > GAP_MAX and self.log.stored() <= self.index.last

    def take_mirrored(self, message: Message, seq: int) -> bool:
        """A message of the origin of a mirror, with its sequence there. Returns False if there is no room for it now.
        Raises OSError."""
        if self.policy.sealed or (self.log is not None and self.ctx.refusing):
            return False
        republishing = self.policy.republishing
        if republishing is not None:
            message = republishing.kept(message)
        headers = publish_headers(message.properties) if message.properties else NO_HEADERS
        if self._limit_of(message, headers) is not None:
            return False
        gap = seq - self.index.last - 1
        if gap > GAP_MAX:
            self._go_on_at(seq)
            gap = 0
        elif gap > 0:
            self.index.skip(seq - 1)
        if republishing is not None and republishing.republish is not None:
            self.to_republish.append((seq, self._last_of(message.topic, b""), message))
        self.sourcing = True  # the places are for sources that it gets when it is a mirror no more
        self._add(message, headers)
        self.sourcing = False
        if len(self.places) > PLACES_MAX:
            del self.places[next(iter(self.places))]
        if self.log is not None:
            outgoing = Outgoing(message, 0, False, b"", None)
            outgoing.packet_id = gap
            self.ctx.note(STREAM_PUT, self, outgoing)
        self._after(message.topic, headers)
        return True

    def refusal_reason(self) -> int:
        refusal = self.refusal
        return 0 if refusal is None else refusal.reason()

    def refusal_text(self) -> str:
        return "" if self.refusal is None else f"stream {self.name}: {self.refusal.description}"[:REASON_MAX]

    def refusal_of(self, message: Message, headers: PublishHeaders) -> StreamRefusal | None:
        policy = self.policy
        if policy.sealed:
            return StreamRefusal(400, 10109, "invalid operation on sealed stream")
        if self.log is not None and self.ctx.refusing:
            return StreamRefusal(503, 10077, "nothing can be stored at the moment")
        if 0 <= policy.max_message_size < headers.size + len(message.payload):
            return StreamRefusal(400, 10054, "message size exceeds maximum allowed")
        return None if headers is NO_HEADERS else self._unexpected(message.topic, headers)

    def _unexpected(self, topic: bytes, headers: PublishHeaders) -> StreamRefusal | None:
        policy = self.policy
        if headers.source and policy.sources and not self.sourcing:
            return StreamRefusal(400, 10052, "only a source of the stream says where a message comes from")
        if headers.expected_stream and headers.expected_stream != self.name.encode():
            return StreamRefusal(400, 10060, "expected stream does not match")
        if headers.invalid:
            return StreamRefusal(400, 10165, "invalid per-message TTL")
        if headers.time_to_live != 0.0 and not policy.allow_ttl:
            return StreamRefusal(400, 10166, "per-message TTL is disabled")
        if headers.expected_last_of_subject >= 0:
            last = self._last_of(topic, headers.expected_subject)
            if last != headers.expected_last_of_subject:
                return StreamRefusal(400, 10071, f"wrong last sequence: {last}")
        elif headers.expected_subject:
            return StreamRefusal(400, 10193, "missing sequence for expected last sequence per subject")
        if headers.expected_last >= 0 and headers.expected_last != self.index.last:
            return StreamRefusal(400, 10071, f"wrong last sequence: {self.index.last}")
        if headers.rollup:
            if not policy.allow_rollup or policy.deny_purge:
                return StreamRefusal(500, 10111, "rollup not permitted")
            if headers.rollup not in (b"sub", b"all"):
                return StreamRefusal(500, 10111, f'rollup value invalid: "{headers.rollup.decode(errors="replace")}"')
        return None

    def _last_of(self, topic: bytes, subject: bytes) -> int:
        if not subject:
            found = self.index.topics.get(topic)
            return 0 if found is None else found.last
        selection = TopicSelection([filter_of(subject)])
        if not selection.exact:
            self.ctx.work -= len(self.index.topics) >> TOPICS_SHIFT
        return max([each.last for each in self.index.matching(selection)], default=0)

    def _limit_of(self, message: Message, headers: PublishHeaders) -> StreamRefusal | None:
        """The limit that a new message would exceed, if then it is the new one that goes."""
        policy = self.policy
        index = self.index
        if policy.discard != DISCARD_NEW:
            return None
        if policy.max_per_subject > 0 and policy.discard_new_per_subject:
            found = index.topics.get(message.topic)
            if found is not None and found.count >= policy.max_per_subject:
                return StreamRefusal(503, 10077, "maximum messages per subject exceeded")
        replaced = 0  # a message of its subject makes room
        if policy.max_per_subject > 0 and not policy.discard_new_per_subject:
            found = index.topics.get(message.topic)
            replaced = 1 if found is not None and found.count >= policy.max_per_subject else 0
        if 0 < policy.max_messages <= index.count - replaced:
            return StreamRefusal(503, 10077, "maximum messages exceeded")
        if 0 < policy.max_bytes < index.octets + self._size(message, headers.size) and not replaced:
            return StreamRefusal(503, 10077, "maximum bytes exceeded")
        return None

    def _add(self, message: Message, headers: PublishHeaders) -> int:
        now = message.published_at
        seq = self.index.add(
            message.topic, self._size(message, headers.size), now, message if self.log is None else None
        )
        self.last_time = now
        self.notice()
        if self.log is not None:
            self._recent[seq] = message
            self._recent_bytes += message.octets
            if self._recent_bytes > RECENT_BYTES:
                self._forget_recent()
        self._note_headers(seq, now, headers)
        return seq

    def notice(self) -> None:
        if not self.news:
            self.news = True
            self.noticed.append(self)

    def _size(self, message: Message, headers: int) -> int:
        """As nats-server counts it."""
        size = len(message.topic) + headers + len(message.payload)
        if self.log is None:
            return size + MEMORY_OVERHEAD
        return size + OVERHEAD + HEADER_OVERHEAD if headers else size + OVERHEAD

    def _note_headers(self, seq: int, now: float, headers: PublishHeaders) -> None:
        if headers.source and (self.sourcing or self.restoring):
            place = headers.source.split(b" ")
            if len(place) == 6 and place[1].isdigit() and len(place[1]) < 20:
                index = b" ".join((place[0], place[2], place[3]))
                self.places.pop(index, None)  # the newest is the last one
                self.places[index] = (seq, b"%b %b" % (place[1], place[5]))
        if headers.message_id:
            self.last_id = headers.message_id
            self._ids[headers.message_id] = seq
            self._id_times.append((now, headers.message_id))
        else:
            self.last_id = b""
        if headers.time_to_live > 0.0:
            heappush(self._ends, (now + headers.time_to_live, seq))
            if len(self._ends) > 2 * self.index.count + STALE_MIN:
                self._ends = [each for each in self._ends if self.index.has(each[1])]
                heapify(self._ends)

    def _after(self, topic: bytes, headers: PublishHeaders) -> None:
        """A message was added: older ones make room, or it goes itself where no consumer wants it."""
        index = self.index
        policy = self.policy
        if policy.retention == INTEREST and not self.has_consumer(topic):
            self.remove(index.last)
            if self.to_republish and self.to_republish[-1][0] == index.last:
                self.to_republish.pop()
            return
        if policy.max_per_subject > 0:
            found = index.topics[topic]
            while found.count > policy.max_per_subject:
                self.remove(found.first)
        if headers.rollup == b"all":
            self._remove_before(index.last)
            for watcher in self.consumers.values():
                watcher.purged()
        elif headers.rollup == b"sub":
            for seq in index.topics[topic].oldest(1):
                self.remove(seq)
        if policy.max_messages > 0:
            while index.count > policy.max_messages:
                self.remove(index.first)
        if policy.max_bytes > 0:
            while index.octets > policy.max_bytes and index.count > 1:
                self.remove(index.first)

    # Messages

    def message(self, seq: int) -> Message | None:
        """None: it is not there, or damaged. Raises OSError."""
        index = self.index
        if self.log is None:
            return index.kept(seq)
        if not index.has(seq):
            return None
        found = self._recent.get(seq)
        if found is not None:
            return found
        if seq in self._ahead:
            return self._ahead[seq]
        count = AHEAD if seq == self._read_next else 1
        self._ahead = {}
        at = seq
        for message in self.log.read(seq, count):
            self._ahead[at] = message
            at += 1
        self._read_next = at
        return self._ahead.get(seq)

    def _forget_recent(self) -> None:
        assert self.log is not None
        stored = self.log.stored()
        gone = []
        for seq, message in self._recent.items():
            if self._recent_bytes <= RECENT_BYTES // 2 or seq >= stored:
                break
            self._recent_bytes -= message.octets
            gone.append(seq)
        for seq in gone:
            del self._recent[seq]

    def end(self) -> int:
        """The last sequence that may be shown to consumers."""
        return self.index.last if self.log is None else min(self.index.last, self.log.stored() - 1)

    # Watchers

    def watch(self, watcher: StreamWatcher, filters: list[bytes]) -> None:
        """From now on, ``watchers_of`` has it for topics that match."""
        self._watching = {}
        if takes_all(filters):
            self.watch_all[watcher] = None
        else:
            for filter in filters:
                self.watchers.add(filter, watcher, watcher)

    def unwatch(self, watcher: StreamWatcher, filters: list[bytes]) -> None:
        self._watching = {}
        self.watch_all.pop(watcher, None)
        for filter in filters:
            self.watchers.remove(filter, watcher)

    def watchers_of(self, topic: bytes) -> list[StreamWatcher]:
        if len(self.watchers) == 0 and len(self.watch_all) == 0:
            return []
        found = self._watching.get(topic)
        if found is None:
            if len(self._watching) >= REMEMBERED_MAX:
                self._watching = {}
            found = list(self.watch_all)
            for each in dict.fromkeys(self.watchers.match(topic)):
                found.append(cast(StreamWatcher, each))
            self._watching[topic] = found
        return found

    def has_consumer(self, topic: bytes) -> bool:
        for watcher in self.watchers_of(topic):  # noqa: SIM110  a generator would be made
            if watcher.counts():
                return True
        return False

    # Removing

    def remove(self, seq: int) -> bool:
        """Returns whether it was there."""
        topic = self.index.topic_of(seq)
        if topic is None:
            return False
        self._remove(seq)
        for watcher in self.watchers_of(topic):
            watcher.removed(seq, topic)
        return True

    def _remove(self, seq: int) -> None:
        self.index.remove(seq)
        self.notice()
        recent = self._recent.pop(seq, None)
        if recent is not None:
            self._recent_bytes -= recent.octets

    def purge(self, filter: bytes, keep: int, below: int) -> int:
        """Remove the messages of ``filter`` (b"": all) before the sequence ``below`` (0: all) but the newest ``keep``.
        Returns their number. Where ``below`` was not given yet, and all go, it is the next sequence. Raises OSError."""
        selection = TopicSelection([filter] if filter else [])
        jumps = not filter and not keep and below > self.index.last + 1
        if jumps and self.log is not None and self.log.given() <= self.index.last:
            raise OSError("messages have just come: try again")  # they would come behind the gap in the log
        before = self._all_before(selection, below or self.index.last + 1)
        if keep:
            before = before[: max(0, len(before) - keep)]
        if selection.everything and before:
            self._remove_before(before[-1] + 1)
        else:
            for seq in before:
                self._remove(seq)
        for watcher in self.consumers.values():
            watcher.purged()
        if jumps:
            self._go_on_at(below)
        return len(before)

    def _remove_before(self, seq: int) -> None:
        self.index.remove_before(seq)
        self.notice()
        for each in [each for each in self._recent if each < seq]:
            self._recent_bytes -= self._recent.pop(each).octets

    def _go_on_at(self, seq: int) -> None:
        """The next message gets this sequence, and those before it are given to none. Raises OSError."""
        if self.log is not None:
            self.log.go_on_at(seq)
        self.index.skip(seq - 1)
        self.notice()

    def _all_before(self, selection: TopicSelection, below: int) -> list[int]:
        found = []
        seq = self.index.next_of(self.index.first, selection)
        while 0 < seq < below:
            found.append(seq)
            seq = self.index.next_of(seq + 1, selection)
        return found

    def apply(self, policy: StreamPolicy, config: bytes) -> None:
        """New settings, which limits may remove messages by."""
        self.policy = policy
        self.config = config
        self.filters = policy.subjects
        self.restoring = False
        known = self.places
        self.places = {each.index: known[each.index] for each in policy.sources if each.index in known}
        if policy.sources:  # else any publisher may have written them
            for index in list(known)[-PLACES_MAX:]:  # a source that comes back goes on
                self.places[index] = known[index]
        self.trim()

    def trim(self) -> None:
        """Remove what the limits do not keep."""
        index = self.index
        policy = self.policy
        if policy.max_per_subject > 0:
            for found in list(index.topics.values()):
                for seq in found.oldest(policy.max_per_subject):
                    self.remove(seq)
        if policy.max_messages > 0:
            while index.count > policy.max_messages:
                self.remove(index.first)
        if policy.max_bytes > 0:
            while index.octets > policy.max_bytes:
                self.remove(index.first)

    def expire(self, now: float) -> None:
        """Remove what is too old, some at a time."""
        index = self.index
        left = EXPIRED_PER_TURN
        age = self.policy.max_age
        while left > 0 and age > 0.0 and index.count != 0 and index.time_of(index.first) + age <= now:
            self.remove(index.first)
            left -= 1
        while left > 0 and self._ends and self._ends[0][0] <= now:
            seq = heappop(self._ends)[1]
            self.remove(seq)
            left -= 1
        window = self.policy.duplicate_window
        while left > 0 and self._id_times and self._id_times[0][0] + window <= now:
            when, id = self._id_times.popleft()
            seq = self._ids.get(id, 0)
            if seq != 0 and (not index.has(seq) or index.time_of(seq) <= when):
                del self._ids[id]
            left -= 1

    def due_at(self) -> float:
        """When ``expire`` has something to do; 0.0: never."""
        due = 0.0
        index = self.index
        if self.policy.max_age > 0.0 and index.count != 0:
            due = index.time_of(index.first) + self.policy.max_age
        if self._ends:
            due = min(due, self._ends[0][0]) if due else self._ends[0][0]
        if self._id_times:
            ends = self._id_times[0][0] + self.policy.duplicate_window
            due = min(due, ends) if due else ends
        return due

    # The store

    def restore(self, message: Message | None) -> None:
        """The next message of the log, at a start. None: it is damaged."""
        if message is None:
            self.index.skip(self.index.last + 1)
            return
        headers = publish_headers(message.properties) if PREFIX in message.properties else NO_HEADERS
        self.restoring = True
        size = headers.size
        if headers is NO_HEADERS and message.properties:
            size = len(carried(message.properties).headers)
        seq = self.index.add(message.topic, self._size(message, size), message.published_at, None)
        self.last_time = message.published_at
        self._note_headers(seq, message.published_at, headers)

    def restored(self, facts: dict[bytes, bytes]) -> None:
        """The log was read; ``facts``: those of all streams, of which this one's are taken out."""
        head = FIRST_FACT + b"%d" % self.number
        value = facts.pop(head, None)
        if value is not None:
            self._told_first = int(value)
            while self.index.count != 0 and self.index.first < self._told_first:
                self.index.remove(self.index.first)
            if self.index.count == 0:
                self.index.first = self.index.last + 1
        head = REMOVED_FACT + b"%d/" % self.number
        for fact in [fact for fact in facts if fact.startswith(head)]:
            number = int(fact[len(head) :])
            bits = int.from_bytes(facts.pop(fact), "little")
            self._told[number] = None
            place = 0
            while bits:
                if bits & 1:
                    self.index.remove(number << SHIFT | place)
                bits >>= 1
                place += 1
        value = facts.pop(PLACES_FACT + b"%d" % self.number, b"")
        for line in value.split(b"\n") if value else []:
            here, there, ident, source = line.split(b" ", 3)
            self._told_places[source] = (int(here), b"%b %b" % (there, ident))
            known = self.places.get(source)
            if known is None or known[0] < int(here):
                self.places[source] = self._told_places[source]
        self.index.changed = {}
        self.trim()

    def flush(self) -> None:
        """Note for the store what was removed."""
        ctx = self.ctx
        index = self.index
        if self.log is None:
            index.changed = {}
            return
        lowest = index.first >> SHIFT
        for number in index.changed:
            if number >= lowest:
                put_fact(ctx, REMOVED_FACT + b"%d/%d" % (self.number, number), index.removed_bits(number))
                self._told[number] = None
        index.changed = {}
        if index.first != self._told_first:
            if lowest != self._told_first >> SHIFT:
                for number in [number for number in self._told if number < lowest]:
                    drop_fact(ctx, REMOVED_FACT + b"%d/%d" % (self.number, number))
                    del self._told[number]
            self._told_first = index.first
            put_fact(ctx, FIRST_FACT + b"%d" % self.number, b"%d" % index.first)

    def gave_back(self, gaps: list[tuple[int, int]]) -> None:
        """The log has nothing between the sequences of each pair: the store need not know what was removed there."""
        for first, last in gaps:
            for number in [each for each in self._told if first <= each << SHIFT and (each << SHIFT | MASK) <= last]:
                drop_fact(self.ctx, REMOVED_FACT + b"%d/%d" % (self.number, number))
                del self._told[number]

    def released(self) -> int:
        """Up to which sequence the log may drop messages: those that have places, once the store has them, too. It is
        told of others now."""
        told = self._told_places
        lacks = [place[0] for index, place in self.places.items() if told.get(index) != place]
        if not lacks:
            return self.index.last
        self._told_places = dict(self.places)
        lines = [b"%d %b %b" % (seq, place, index) for index, (seq, place) in self.places.items()]
        put_fact(self.ctx, PLACES_FACT + b"%d" % self.number, b"\n".join(lines))
        return min(lacks) - 1

    def forget(self) -> None:
        """The stream is deleted: the store forgets what it has of it."""
        for fact in self.left:
            drop_fact(self.ctx, fact)
        for number in self._told:
            drop_fact(self.ctx, REMOVED_FACT + b"%d/%d" % (self.number, number))
        if self._told_places:
            drop_fact(self.ctx, PLACES_FACT + b"%d" % self.number)
        if self._told_first != 0:
            drop_fact(self.ctx, FIRST_FACT + b"%d" % self.number)


def put_fact(ctx: Context, key: bytes, value: bytes) -> None:
    """Store a fact with the writes of this turn."""
    if ctx.recording:
        ctx.write(Write(FACT_PUT, topic=key, value=value))


def drop_fact(ctx: Context, key: bytes) -> None:
    if ctx.recording:
        ctx.write(Write(FACT_DELETE, topic=key))
