"""Retained messages: kept, replaced, expired; in a cluster also those of other nodes."""

from __future__ import annotations

from typing import Final

from starlingmq.core.context.context import Context
from starlingmq.core.context.ready import (
    FACT_DELETE,
    FACT_PUT,
    RETAINED_DELETE,
    RETAINED_PUT,
    Write,
)
from starlingmq.core.context.retained_outbox import DELETED_FACT, REPLICA
from starlingmq.core.messages.message import Message
from starlingmq.core.retained.deletions import Deletions
from starlingmq.core.retained.retained_store import RetainedTree
from starlingmq.core.retained.stamps import (
    AGAIN,
    Stamp,
    changed,
    message_stamp,
    next_stamp,
    stamp_of,
    stamp_text,
    stamped,
)
from starlingmq.core.session.session import BRIDGE_PREFIX, Session
from starlingmq.core.turn.timers import TimerWheel
from starlingmq.wire.reasons import Reason

MEMORY_SHARE: Final = 2  # retained messages take this part of ``limits.memory``: clients need the rest
COST: Final = 400  # bytes that a message takes beside its topic, payload and properties


class RetainedMessages:
    ctx: Context
    tree: RetainedTree
    wheel: TimerWheel  # messages that expire
    deletions: Deletions

    def __init__(self, ctx: Context, tree: RetainedTree) -> None:
        self.ctx = ctx
        self.tree = tree
        self.wheel = TimerWheel()
        self.deletions = Deletions(ctx)

    def stamp(self, message: Message) -> Message:
        """In a cluster, a retained message gets a sequence before it goes anywhere, by which other nodes know what is
        here."""
        ctx = self.ctx
        retaining = ctx.cluster.retained
        if retaining is None or ctx.node == 0 or message.topic.startswith(b"$SYS/"):
            return message
        if message.offset >= 0:  # it was held, and its stored record has no sequence
            message = message.copy()
        ctx.sequence += 1
        message.sequence = retaining.last = ctx.sequence
        message.origin = ctx.node
        return message

    # Linked sites

    def restore(self, facts: dict[bytes, bytes]) -> None:
        """Remove deletions and links from the facts of the store, and use them."""
        self.deletions.restore(facts)
        self.ctx.restore_links(facts)

    def judge(self, message: Message, publisher: Session | None) -> Message | None:
        """Before a retained message is kept: give it a stamp, or compare that of its origin with the one of the topic.
        The message is kept if it is returned with ``retain``; None: it has been here before, and goes nowhere.

        A message with an older stamp than the topic is an ordinary one for live subscribers, unless it is marked as
        sent again."""
        ctx = self.ctx
        if not ctx.stamping or message.topic.startswith(b"$SYS/"):
            return message
        known = self._known(message.topic)
        text = stamp_text(message.properties)
        stamp = stamp_of(text) if publisher is not None and self._stamps_of(publisher) else None
        if stamp is None:
            return changed(message, stamped(message.properties, next_stamp(ctx.now, known, ctx.stamp_site())))
        if known is None or stamp > known:
            return message
        if stamp == known or text.endswith(AGAIN):
            return None
        message = message.copy()
        message.retain = False
        return message

    def _stamps_of(self, publisher: Session) -> bool:
        """Whether stamps of this publisher count: it is a bridge."""
        return publisher.client_id in self.ctx.linked or publisher.client_id.startswith(BRIDGE_PREFIX)

    def _known(self, topic: bytes) -> Stamp | None:
        """The stamp of what is known of a topic: its retained message, or its deletion."""
        present = self.tree.get(topic)
        deleted = None if len(self.deletions) == 0 else self.deletions.stamp(topic)
        if present is None:
            return deleted
        stamp = message_stamp(present, self.ctx.stamp_site())
        return stamp if deleted is None or stamp > deleted else deleted

    def heard(self, node: int, message: Message) -> None:
        """A retained message that another node has accepted has come here; ``show`` or ``hide`` keeps it."""
        if self.ctx.cluster.retained is not None:
            self.ctx.cluster.retained.note_accepted(node, message.sequence)
        if self.ctx.stamping and not message.payload:
            stamp, known = stamp_of(stamp_text(message.properties)), self._known(message.topic)
            if stamp is not None and (known is None or stamp > known):
                self.deletions.note(message.topic, stamp)

    def keep(self, message: Message) -> int:
        """Keep it as the retained message of its topic, or remove that [MQTT-3.3.1-6]. Returns a reason code."""
        ctx = self.ctx
        retaining = None if message.sequence == 0 else ctx.cluster.retained
        if retaining is not None and retaining.full:
            return Reason.QUOTA_EXCEEDED
        if not message.payload:
            previous = self.tree.remove(message.topic)
            if previous is not None:
                self._let_expire(previous)
                if ctx.recording:
                    ctx.write(Write(RETAINED_DELETE, topic=message.topic))
            if ctx.stamping and not message.topic.startswith(b"$SYS/"):
                self.deletions.note(message.topic, message_stamp(message, ctx.stamp_site()))
            if retaining is not None:
                retaining.change(message.topic, message.sequence, None)
                if ctx.recording:
                    retaining.deleted[message.topic] = message.sequence
                    sequence = message.sequence.to_bytes(8, "big")
                    ctx.write(Write(FACT_PUT, topic=DELETED_FACT + message.topic, value=sequence))
            return 0
        if ctx.refusing and message.qos == 0 and not message.topic.startswith(b"$SYS/"):
            return Reason.QUOTA_EXCEEDED  # further messages would fill the memory while they wait for the disk
        limit = ctx.limits.retained_messages
        limit_bytes = ctx.limits.retained_bytes
        crowded = (limit != 0 and len(self.tree) >= limit) or (retaining is not None and retaining.crowded)
        if crowded and self.tree.get(message.topic) is None:
            return Reason.QUOTA_EXCEEDED
        share = ctx.limits.memory // MEMORY_SHARE
        size = self.tree.total_bytes + message.size()
        if (limit_bytes != 0 and size > limit_bytes) or (share != 0 and size + COST * len(self.tree) > share):
            replaced = self.tree.get(message.topic)
            if replaced is None or message.size() > replaced.size():
                return Reason.QUOTA_EXCEEDED
        self._put(message)
        if len(self.deletions) != 0:
            self.deletions.forget(message.topic)
        if ctx.recording and not message.topic.startswith(b"$SYS/"):
            ctx.write(Write(RETAINED_PUT, message=message))
        if retaining is not None:
            retaining.change(message.topic, message.sequence, message)
            if retaining.deleted.pop(message.topic, 0) != 0:
                ctx.write(Write(FACT_DELETE, topic=DELETED_FACT + message.topic))
        return 0

    def count_refused(self, message: Message) -> Message:
        """It is not kept. Returns what live subscribers get: a linked site is not to keep it either."""
        failing = self.ctx.refusing and message.qos == 0
        self.ctx.drop("storage_failing" if failing else "retained_quota", message.publisher, 1, message.topic)
        if self.ctx.stamping:
            message = message.copy()
            message.retain = False
        return message

    def show(self, message: Message) -> None:
        """The retained message of another node replaces the present one. It is not stored here; the replaced one may
        be."""
        message.origin = REPLICA
        previous = self._put(message)
        if len(self.deletions) != 0:
            deleted = self.deletions.stamp(message.topic)
            if deleted is not None and message_stamp(message, self.ctx.stamp_site()) > deleted:
                self.deletions.forget(message.topic)
        if previous is not None and previous.origin != REPLICA and self.ctx.recording:
            self.ctx.write(Write(RETAINED_DELETE, topic=message.topic))

    def store(self, message: Message) -> None:
        """A message that was retained before this node joined the cluster belongs to the cluster from now on."""
        message = self.stamp(message.copy())
        if self.keep(message) != 0:
            self.count_refused(message)

    def hide(self, topic: bytes) -> None:
        """Other nodes say that this topic has no retained message any more."""
        known = self._known(topic) if self.ctx.stamping else None
        previous = self.tree.remove(topic)
        if previous is not None:
            self._let_expire(previous)
            if known is not None and known != self.deletions.stamp(topic):  # ``heard`` may yet tell the true stamp
                self.deletions.note(topic, next_stamp(0.0, known, self.ctx.stamp_site()))
            if previous.origin != REPLICA and self.ctx.recording:
                self.ctx.write(Write(RETAINED_DELETE, topic=topic))

    def expire(self, limit: int) -> None:
        for item in self.wheel.due(self.ctx.now, limit):
            assert isinstance(item, Message)
            if self.tree.get(item.topic) is item and item.expired(self.ctx.now):
                self.tree.remove(item.topic)
                if self.ctx.recording:
                    self.ctx.write(Write(RETAINED_DELETE, topic=item.topic))
                if self.ctx.cluster.retained is not None:
                    self.ctx.cluster.retained.expired.append(item.topic)

    def _put(self, message: Message) -> Message | None:
        previous = self.tree.put(message)
        if previous is not None:
            self._let_expire(previous)
        if message.expires_at != 0.0:
            self.wheel.add(message, message.expires_at)
        return previous

    def _let_expire(self, previous: Message) -> None:
        """It need not expire any more, and the wheel must not keep it until then."""
        if previous.expires_at != 0.0:
            self.wheel.remove(previous, previous.expires_at)
