"""Retained messages of the whole cluster: messages published here are written to etcd, and etcd's are shown here.

::

    IDLE --registered--> READING --all pages--> SETTLING --own mark seen by the watch--> FOLLOWING
                            ^------------------ the watch was compacted ----------------------'

Invariants:

- At every node, the message with the highest revision in etcd is the one of its topic.
- A message published here is shown here at once, until it is in etcd and the watch has reported it. Then the latest
  record of the watch is shown. So no node returns to a message that it has replaced, and all nodes converge.
- A node is *complete* when it has read everything and the watch has reported a mark that it wrote after that: a message
  here that was not read is gone.

Pure: the core's messages, answers of etcd and frames of nodes in; requests, and calls of ``Publishing``, out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final, Literal

from starlingmq.cluster.etcd.etcd_cas import CasUpdate, EtcdCas
from starlingmq.cluster.etcd.etcd_requests import Answer, Get, Request, Txn, TxnAnswer, Watch, WatchEvent, WatchLost
from starlingmq.cluster.retained.copy_holders import CopyHolders
from starlingmq.cluster.retained.large_retained import COPY_FACT, LargeRetained
from starlingmq.cluster.retained.retained_expiry import RetainedExpiry
from starlingmq.cluster.retained.retained_records import (
    MARK,
    Keep,
    RetainedError,
    RetainedFrame,
    RetainedValue,
    decode_frame,
    decode_value,
    encode_frame,
    encode_value,
    mark_key,
    message_of,
    prefix,
    value_of,
)
from starlingmq.cluster.retained.retained_writer import ENTRY_BYTES, RetainedWriter, Written
from starlingmq.cluster.view.durable_tokens import DurableTokens
from starlingmq.cluster.view.subsystem import NodeLife, Subsystem
from starlingmq.config.settings import ClusterConfig
from starlingmq.core.broker import BrokerState
from starlingmq.core.context.ready import FACT_DELETE, Write
from starlingmq.core.context.retained_outbox import DELETED_FACT
from starlingmq.core.messages.message import Message

PAGE: Final = 1000  # keys read at once
RETRY_SECONDS: Final = 0.5
WAITING_MAX: Final = 50_000  # messages waiting to be written; more are refused
QUOTA_PART: Final = 4  # of etcd's quota, for retained messages ...
CHANGES_PART: Final = 8  # ... and for overwritten ones that are not compacted yet
LOOK_SECONDS: Final = 1.0  # between two measurements of the total size

FACTS: Final = b"r"  # prefix of the keys of all facts of this package
State = Literal["idle", "reading", "settling", "following"]
Own = tuple[int, bytes, Message | None]  # sequence, topic, its retained message


class RetainedSync(Subsystem):
    """``connected``: whether a node is connected. ``leading``: whether this node is the leader."""

    fact_prefix = FACTS

    def __init__(
        self, broker: BrokerState, config: ClusterConfig, connected: Callable[[int], bool], leading: Callable[[], bool]
    ) -> None:
        self.state: State = "idle"
        self.page = PAGE
        self._broker = broker
        self._ctx = broker.ctx
        self._config = config
        self._connected = connected
        self._leading = leading
        self._keys = prefix(config.name)
        self._retaining = self._ctx.cluster.share_retained(config.subscribe_ack_timeout)
        self._stored = DurableTokens(broker)
        self._stored_up_to = 0  # requested
        self._seen_up_to = 0  # sequence of the last retained message published here, as of the last whole turn
        self.copies = LargeRetained(
            broker, connected, self._covered, self._send, self._retaining.reached, config.retained_cache
        )
        self._holders = CopyHolders(self.copies, connected, self._send, config.retained_copies)
        quota = config.etcd.quota
        self.writer = RetainedWriter(
            self._keys,
            config.retained_window,
            quota / CHANGES_PART,
            config.etcd.compaction_retention,
            self._published_at,
        )
        self._amendments = EtcdCas("retained amend")
        self._quota = quota
        self._me = 0
        self._members: dict[int, None] = {}
        self._restored: list[Own] = []  # of an earlier incarnation; this node's mark tells which of them are done
        self._overlay: dict[bytes, int] = {}  # topic -> sequence of the message that was published and is shown here
        self._held: dict[bytes, tuple[bytes | None, int]] = {}  # topic -> record reported by the watch in the meantime
        self._awaiting: deque[Written] = deque()  # in etcd; the watch has to report them
        self._position = 0  # revision that the watch has reached
        self._page = ""  # tag of the outstanding page
        self._pages = 0
        self._after = b""
        self._retry_at = 0.0
        self._read_at = 0  # revision of the last page
        self._complete_at = 0  # revision that the watch has to reach; 0: unknown
        self._mark = (0, 0)  # this node's mark, as read, and its revision
        self._begun = False  # it is known which writes of an earlier incarnation are done
        self._revisions: dict[bytes, int] = {}  # topic -> revision taken since reading began; < 0: deleted
        self._expiry = RetainedExpiry(broker.retained)
        self._look_at = 0.0
        self._requests: list[Request] = []
        self._notices: list[str] = []

    # Start

    def enter(self, life: NodeLife, now: float) -> None:
        me, facts = life.me.number, life.facts(FACTS)
        self._me = me
        self.writer.be(mark_key(self._config.name, me))
        self.copies.enter(me, {key: fact for key, fact in facts.items() if key.startswith(COPY_FACT)})
        for topic, message in self._broker.retained.items():
            if message.origin == me and message.sequence != 0:
                self._restored.append((message.sequence, topic, message))
        for key, fact in facts.items():
            if key.startswith(DELETED_FACT):
                sequence, topic = int.from_bytes(fact, "big"), key[len(DELETED_FACT) :]
                self._retaining.deleted[topic] = sequence
                self._restored.append((sequence, topic, None))
        self._restored.sort(key=lambda own: own[0])
        for sequence, topic, _ in self._restored:
            self._overlay[topic] = sequence
        self._retaining.last = self._ctx.sequence  # messages of an earlier incarnation have lower sequences

    def set_members(self, numbers: dict[int, None]) -> None:
        before, self._members = self._members, numbers
        self._holders.set_others([node for node in numbers if node != self._me])
        for node in before:
            if node not in numbers:
                self._retaining.accepted_by.pop(node, None)
                for topic, value, revision in self._holders.replace(node):
                    self._amendments.add(CasUpdate(self._keys + topic, revision, encode_value(value)))

    def registered(self, now: float) -> None:
        if self.state == "idle":
            self._read(now)

    def _read(self, now: float) -> None:
        self.state = "reading"
        self.copies.read = False
        self._retaining.complete = False
        self._after = b""
        self._complete_at = 0
        self._revisions = {}
        self._held = {}
        self._page = ""
        self._next_page(now)

    def _next_page(self, now: float) -> None:
        if self.state != "reading" or self._page or now < self._retry_at:
            return
        self._pages += 1
        self._page = f"retained page {self._pages}"
        get = Get(self._keys, prefix=True, limit=self.page, after=self._after)
        self._requests.append(Txn(self._page, (), (get,)))

    # Answers of etcd

    def answered(self, answer: Answer, now: float) -> None:
        if isinstance(answer, TxnAnswer):
            self._transacted(answer, now)
        elif isinstance(answer, WatchEvent):
            if answer.prefix == self._keys and self.state != "idle":
                for change in answer.changes:
                    self._changed(change.key[len(self._keys) :], change.value, change.mod_revision)
                self._position = max(self._position, answer.revision)
                self._look_at_position()
        elif isinstance(answer, WatchLost) and answer.prefix == self._keys and self.state != "idle":
            self._read(now)

    def _transacted(self, answer: TxnAnswer, now: float) -> None:
        if answer.tag == self._page and self._page:
            self._page = ""
            self._took_page(answer, now)
            return
        written = self.writer.answered(answer, now)
        if written is not None:
            self._awaiting.append(written)
            for topic in written.done:
                self._undelete(topic, written.done[topic])
            if self.state == "settling" and not self._complete_at:
                if written.last and written.revision >= self._read_at:
                    self._complete_at = written.revision
                else:
                    self.writer.ask()
            self._look_at_position()
            return
        self._amendments.answered(answer, now)

    def _took_page(self, answer: TxnAnswer, now: float) -> None:
        if answer.error:
            self._retry_at = now + RETRY_SECONDS
            return
        self._read_at = answer.revision
        if not self._after:
            self._position = answer.revision
            self._requests.append(Watch(self._keys, answer.revision + 1))
        found = answer.found[0]
        for entry in found:
            topic = entry.key[len(self._keys) :]
            if topic.startswith(MARK) and int(topic[1:]) == self._me:
                self._mark = (int(entry.value), entry.mod_revision)
            if abs(self._revisions.get(topic, 0)) < entry.mod_revision:
                self._changed(topic, entry.value, entry.mod_revision)
        if len(found) == self.page:
            self._after = found[-1].key
            self._next_page(now)
            return
        self.state = "settling"
        self.copies.all_is_read()
        if not self._begun:
            self.writer.begin(*self._mark)
        self.writer.ask()

    def _begin(self) -> None:
        """This node has written its mark, and the watch has reported it. Writes of an earlier incarnation that are not
        done by now will never be done by themselves, even if they were still in transit to etcd during the reading.
        They are written first."""
        self._begun = True
        for sequence, topic, message in self._restored:
            if self._overlay.get(topic) != sequence or topic in self._retaining.changed:
                pass  # replaced by a later message of this node
            elif sequence <= self.writer.mark:
                self._uncover(topic)
            else:
                at = inf if message is None else message.published_at
                self.writer.add(topic, sequence, self._encoded(topic, message), at)
            if sequence <= self.writer.mark:
                self._undelete(topic, sequence)
        if self._restored:
            self._store_up_to(self._restored[-1][0])
        self._restored = []

    def _published_at(self, data: bytes) -> float:
        try:
            return decode_value(data).published_at
        except RetainedError:
            return 0.0

    def _changed(self, topic: bytes, data: bytes | None, revision: int) -> None:
        if self.state != "following":
            if abs(self._revisions.get(topic, 0)) >= revision:
                return
            self._revisions[topic] = revision if data is not None else -revision
        if topic.startswith(MARK):
            if data is not None:
                node, mark = int(topic[1:]), int(data)
                self._retaining.reached[node] = max(mark, self._retaining.reached.get(node, 0))
                self.copies.marked()
        elif self._covered(topic):
            self._held[topic] = (data, revision)
        else:
            self._show(topic, data, revision)

    def _covered(self, topic: bytes) -> bool:
        """Whether the topic shows a message published here; etcd's record is applied once the watch has reported that
        message."""
        return topic in self._overlay or topic in self._retaining.changed

    def _show(self, topic: bytes, data: bytes | None, revision: int) -> None:
        """Shows etcd's record as the topic's retained message."""
        self._expiry.forget(topic)
        value = None if data is None else self._decoded(topic, data)
        if value is None:
            self.copies.forget(topic)
            self._broker.publishing.retained.hide(topic)
            return
        if value.expires_at != 0.0:
            self._expiry.note(topic, revision)
            if value.expires_at <= self._ctx.now:
                self.copies.forget(topic)
                self._broker.publishing.retained.hide(topic)
                return
        present = self._broker.retained.get(topic)
        if (
            present is not None
            and present.origin == self._me
            and value.origin == self._me
            and present.sequence == value.sequence
        ):
            if value.holders:
                self.copies.own(topic, value, revision)
            else:
                self.copies.forget(topic)
        elif value.holders:
            self.copies.point(topic, value, revision)
        else:
            self.copies.forget(topic)
            self._broker.publishing.retained.show(message_of(topic, value))

    def _decoded(self, topic: bytes, data: bytes) -> RetainedValue | None:
        try:
            return decode_value(data)
        except RetainedError as error:
            self._notices.append(f"{topic!r}: {error}")
            return None

    def _look_at_position(self) -> None:
        """Handles everything that the watch has reported by now."""
        while self._awaiting and self._awaiting[0].revision <= self._position:
            for topic, sequence in self._awaiting.popleft().done.items():
                if self._overlay.get(topic) == sequence and topic not in self._retaining.changed:
                    self._uncover(topic)
        if self.state == "settling" and self._complete_at and self._position >= self._complete_at:
            self._complete()

    def _uncover(self, topic: bytes) -> None:
        self._overlay.pop(topic, None)
        held = self._held.pop(topic, None)
        if held is not None:
            self._show(topic, *held)

    def _complete(self) -> None:
        if not self._begun:
            self._begin()
        self.state = "following"
        revisions, self._revisions = self._revisions, {}
        for topic, message in self._broker.retained.items():
            if revisions.get(topic, 0) > 0 or self._covered(topic) or topic.startswith(b"$SYS/"):
                continue
            if message.origin == 0 and message.sequence == 0:  # from before this node was part of a cluster
                self._broker.publishing.retained.store(message)
            else:
                self.copies.forget(topic)
                self._broker.publishing.retained.hide(topic)
        self._expiry.keep_only(revisions)
        self._retaining.complete = True

    # The core's messages

    def finish(self, now: float) -> None:
        retaining = self._retaining
        retaining.connected = {node: None for node in self._members if self._connected(node)}
        if self._begun:
            self._take_changes()
        self.copies.look(now)
        wanted, retaining.wanted = retaining.wanted, []
        for each in wanted:
            self.copies.want(each, now)
        self._expire()
        self._next_page(now)
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._measure()
        retaining.waiting = len(self.writer) + len(retaining.changed)
        retaining.full = retaining.waiting >= WAITING_MAX
        retaining.written, retaining.coalesced = self.writer.written, self.writer.coalesced
        retaining.fetched = self.copies.fetched
        self._broker.subscribing.replays.release()

    def _take_changes(self) -> None:
        retaining = self._retaining
        if retaining.changed:
            for topic, change in retaining.take().items():
                self._overlay[topic] = change.sequence
                at = self._ctx.now if change.message is None else change.message.published_at
                self.writer.add(topic, change.sequence, self._encoded(topic, change.message), at, self._position)
        self.writer.last = max(self.writer.last, retaining.last)
        self._store_up_to(self.writer.last)

    def _store_up_to(self, sequence: int) -> None:
        if sequence > self._stored_up_to:
            self._stored_up_to = sequence
            self._stored.mark(sequence)

    def _encoded(self, topic: bytes, message: Message | None) -> bytes | None:
        if message is None:
            return None
        if len(message.payload) + len(message.properties) < self._config.retained_inline:
            return encode_value(value_of(message, ()))
        holders = self._holders.choose(topic)
        for node in holders:
            self._send(node, Keep(topic, value_of(message, ())))
        return encode_value(value_of(message, (self._me, *holders)))

    def _undelete(self, topic: bytes, sequence: int) -> None:
        """The cluster has this node's change of the topic: it need not be remembered any more."""
        deleted = self._retaining.deleted
        if 0 < deleted.get(topic, 0) <= sequence:
            del deleted[topic]
            self._ctx.write(Write(FACT_DELETE, topic=DELETED_FACT + topic))

    def _expire(self) -> None:
        """Expired messages disappear at every node; the leader deletes them from etcd."""
        expired, self._retaining.expired = self._retaining.expired, []
        for topic, revision in self._expiry.due(expired, self._leading() and self.state == "following"):
            if topic not in self._overlay:
                self._amendments.add(CasUpdate(self._keys + topic, revision, None))

    def _measure(self) -> None:
        tree = self._broker.retained
        size = tree.total_bytes + ENTRY_BYTES * len(tree)
        if size * QUOTA_PART > self._quota:
            size -= self.copies.large_bytes()
        self._retaining.crowded = size * QUOTA_PART > self._quota

    # Messages between nodes

    def _send(self, node: int, frame: RetainedFrame) -> None:
        self._broker.peers.send(node, encode_frame(frame))

    def take(self, node: int, payload: bytes) -> None:
        try:
            frame = decode_frame(payload)
        except RetainedError as error:
            self._notices.append(f"node {node}: {error}")
            return
        self.copies.take(node, frame)

    # Output

    def take_requests(self, now: float) -> list[Request]:
        self._seen_up_to = self._retaining.last
        if self._me == 0:
            return []
        self.writer.durable = max(self.writer.durable, self._stored.reached)
        requests, self._requests = self._requests, []
        return [*requests, *self.writer.take_requests(now), *self._amendments.take_requests(now)]

    def has_input(self) -> bool:
        retaining = self._retaining
        if retaining.changed or retaining.wanted or retaining.expired or retaining.last != self._seen_up_to:
            return True
        return bool(self._broker.subscribing.replays.held)

    def is_busy(self) -> bool:
        """Whether etcd lacks messages of this node, or this node lacks messages of etcd."""
        return self.state != "following" or self.writer.mark < self._retaining.last or len(self.writer) != 0

    def take_notices(self) -> list[str]:
        notices, self._notices = self._notices, []
        return notices

    def written_up_to(self) -> int:
        """The sequence up to which etcd has the retained messages that were published here."""
        return self.writer.mark

    def wake_at(self, now: float) -> float:
        soonest = min(self.writer.wake_at() or inf, self._amendments.wake_at() or inf, self.copies.wake_at())
        replays = self._broker.subscribing.replays.held
        if replays:
            soonest = min(soonest, replays[0].deadline)
        if self.state == "reading" and not self._page:
            soonest = min(soonest, self._retry_at)
        return soonest
