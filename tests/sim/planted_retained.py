"""Mistakes with retained messages, made on purpose: see ``planted``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from tests.planting import set_in_init

from starlingmq.cluster.retained.large_retained import LargeRetained
from starlingmq.cluster.retained.retained_sync import RetainedSync
from starlingmq.cluster.retained.retained_writer import RetainedEntry, RetainedWriter
from starlingmq.core.context.context import Context
from starlingmq.core.context.ready import FACT_PUT
from starlingmq.core.context.retained_outbox import DELETED_FACT, RetainedOutbox


def a_batch_does_not_look_whether_it_was_done() -> Any:
    batch = RetainedWriter._batch

    def blind(self: RetainedWriter, entries: list[RetainedEntry]) -> Any:
        return [replace(txn, compares=()) for txn in batch(self, entries)]

    return patch.object(RetainedWriter, "_batch", blind)


def what_the_watch_told_meanwhile_is_forgotten() -> Any:
    def forgetful(self: RetainedSync, topic: bytes) -> None:
        self._overlay.pop(topic, None)
        self._held.pop(topic, None)

    return patch.object(RetainedSync, "_uncover", forgetful)


def what_was_published_here_gives_way_at_once() -> Any:
    """And the watch does not report it again, since this node wrote it."""
    changed = RetainedSync._changed

    def hasty(self: RetainedSync, topic: bytes, data: bytes | None, revision: int) -> None:
        overlay, self._overlay = self._overlay, {}
        changed(self, topic, data, revision)
        self._overlay = overlay

    return patch.object(RetainedSync, "_changed", hasty)


def deletions_are_forgotten_in_a_crash() -> Any:
    write = Context.write

    def forgetful(self: Context, entry: Any) -> None:
        if entry.kind != FACT_PUT or not entry.topic.startswith(DELETED_FACT):
            write(self, entry)

    return patch.object(Context, "write", forgetful)


def what_was_not_read_again_stays() -> Any:
    def lazy(self: RetainedSync) -> None:
        self.state = "following"
        self._retaining.complete = True

    return patch.object(RetainedSync, "_complete", lazy)


def a_page_replaces_newer_messages() -> Any:
    took = RetainedSync._took_page

    def trusting(self: RetainedSync, answer: Any, now: float) -> None:
        self._revisions = dict.fromkeys(self._revisions, 0)
        took(self, answer, now)

    return patch.object(RetainedSync, "_took_page", trusting)


def messages_on_their_way_are_not_waited_for() -> Any:
    return patch.object(RetainedOutbox, "here", lambda self, needs: True)


def routes_do_not_tell_the_retained_sequence() -> Any:
    return patch.object(RetainedOutbox, "note_accepted", lambda self, node, sequence: None)


def a_payload_is_asked_of_one_node_only() -> Any:
    ask = LargeRetained._ask_next

    def once(self: LargeRetained, topic: bytes, fetching: Any, now: float) -> None:
        if fetching.asked:
            fetching.left, fetching.asked = [], 0
        else:
            ask(self, topic, fetching, now)

    return patch.object(LargeRetained, "_ask_next", once)


def copies_ignore_messages_published_here() -> Any:
    init, covered = LargeRetained.__init__, set_in_init(LargeRetained, "_covered")

    def careless(self: LargeRetained, *arguments: Any) -> None:
        init(self, *arguments)
        setattr(self, covered, lambda topic: False)

    return patch.object(LargeRetained, "__init__", careless)


def marks_count_before_all_is_read() -> Any:
    read = set_in_init(LargeRetained, "read")
    return patch.object(LargeRetained, read, property(lambda self: True, lambda self, read: None), create=True)
