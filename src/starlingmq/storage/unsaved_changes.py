"""The changes since the last checkpoint, which the next one writes."""

from __future__ import annotations

from starlingmq.core.context.ready import (
    FACT_DELETE,
    FACT_PUT,
    FACT_WITH,
    PRODUCER_PUT,
    RETAINED_DELETE,
    RETAINED_PUT,
    SESSION_DELETE,
    SESSION_PUT,
    SUBSCRIPTION_DELETE,
    SUBSCRIPTION_PUT,
    Write,
)
from starlingmq.core.publish.producers import PRODUCER_FACT
from starlingmq.core.session.session import Session
from starlingmq.storage.keys import fact_key, retained_key, session_key, subscription_key
from starlingmq.storage.kv import Batch
from starlingmq.storage.records import encode_retained
from starlingmq.storage.session_values import encode_session, encode_subscription


class UnsavedChanges:
    """``values``: sessions, subscriptions, retained messages and facts. ``dirty``: sessions whose queue, window or
    handshakes changed."""

    def __init__(self) -> None:
        self.values = Batch()
        self.dirty: dict[Session, None] = {}

    def note(self, write: Write) -> None:
        kind = write.kind
        session = write.session
        if kind == RETAINED_PUT:
            assert write.message is not None
            self.values.put(retained_key(write.message.topic), encode_retained(write.message))
        elif kind == RETAINED_DELETE:
            self.values.delete(retained_key(write.topic))
        elif kind in (FACT_PUT, FACT_WITH):
            self.values.put(fact_key(write.topic), write.value)
        elif kind == PRODUCER_PUT:
            self.values.put(fact_key(PRODUCER_FACT + write.topic), write.value)
        elif kind == FACT_DELETE:
            self.values.delete(fact_key(write.topic))
        elif session is None:
            return
        elif kind == SESSION_PUT:
            self.values.put(session_key(session.number), encode_session(session))
        elif kind == SESSION_DELETE:
            self.values.delete(session_key(session.number))
            self.dirty[session] = None
        elif kind == SUBSCRIPTION_PUT:
            assert write.subscription is not None
            key = subscription_key(session.number, write.topic)
            self.values.put(key, encode_subscription(write.topic, write.subscription))
        elif kind == SUBSCRIPTION_DELETE:
            self.values.delete(subscription_key(session.number, write.topic))

    def take(self) -> UnsavedChanges:
        """Returns all changes so far. Later changes are collected separately."""
        taken = UnsavedChanges()
        taken.values, self.values = self.values, taken.values
        taken.dirty, self.dirty = self.dirty, taken.dirty
        return taken

    def put_back(self, taken: UnsavedChanges) -> None:
        """The checkpoint with these changes failed: the next one writes them, unless they have changed again since."""
        taken.values.changes.update(self.values.changes)
        self.values = taken.values
        self.dirty.update(taken.dirty)
