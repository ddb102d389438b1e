"""Mistakes in the consumer, made on purpose, for the worlds of ``consumer_world`` to find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from unittest.mock import patch

from tests.planting import Plant, around, nothing

from starlingmq.core.streams import consumer as consumer_module
from starlingmq.core.streams.consumer import JetStreamConsumer
from starlingmq.core.streams.consumer_policy import ConsumerPolicy
from starlingmq.core.streams.consumer_state import ConsumerState
from starlingmq.core.streams.pending_messages import Pending, PendingMessages
from starlingmq.core.streams.pull_requests import PullRequest, PullRequests


def acknowledged_but_due(sound: Callable[..., Any], pending: PendingMessages, sequence: int) -> Pending | None:
    """An acknowledgement that comes after the wait is over leaves the message on the redelivery queue."""
    known = pending.waiting.pop(sequence, None)
    return pending.later.pop(sequence, None) if known is None else known


def uncounted(sound: Callable[..., bool], consumer: JetStreamConsumer, sequence: int, now: float) -> bool:
    found = sound(consumer, sequence, now)
    if found and consumer.pending.redelivered.get(sequence, 0) > 1:
        consumer.pending.redelivered[sequence] -= 1
    return found


def impatient(sound: Callable[..., None], pending: PendingMessages, sequence: int, known: Pending, when: float) -> None:
    sound(pending, sequence, known, when - 0.5)


def one_too_many(sound: Callable[..., None], consumer: JetStreamConsumer, policy: ConsumerPolicy) -> None:
    sound(consumer, policy)
    consumer._room += 1


def once_more(sound: Callable[..., bool], consumer: JetStreamConsumer, sequence: int, known: Pending) -> bool:
    if consumer.pending.redelivered.get(sequence, 0) + 1 == consumer.policy.max_deliver:
        return False
    return sound(consumer, sequence, known)


def over_and_pending(sound: Callable[..., bool], consumer: JetStreamConsumer, sequence: int, known: Pending) -> bool:
    """It is exhausted, and no advisory says so."""
    before = len(consumer.effects)
    found = sound(consumer, sequence, known)
    del consumer.effects[before:]
    return found


def all_gone(sound: Callable[..., None], requests: PullRequests, requester: object, reply: bytes) -> None:
    requests._taken()


def not_requeued(sound: Callable[..., None], requests: PullRequests) -> None:
    """The same request is served until it has all it wants."""
    request = requests.first
    assert request is not None
    request.sent += 1
    request.left -= 1
    if request.left <= 0:
        requests.drop()


def forgotten_counts(sound: Callable[[bytes], ConsumerState], data: bytes) -> ConsumerState:
    state = sound(data)
    state.redelivered = []
    return state


def forgotten_pending(sound: Callable[[bytes], ConsumerState], data: bytes) -> ConsumerState:
    state = sound(data)
    state.pending = state.pending[:-1]
    return state


def unsigned(sound: Callable[..., None], out: bytearray, value: int) -> None:
    sound(out, abs(value))


def at_once(sound: Callable[..., None], consumer: JetStreamConsumer, sequence: int, known: Pending, now: float) -> None:
    """A restored or redelivered message is not waited for."""
    consumer.pending.make_due(sequence, known)


def uncounted_removal(
    sound: Callable[..., None], consumer: JetStreamConsumer, sequence: int, topic: bytes = b""
) -> None:
    ahead = consumer._ahead
    sound(consumer, sequence, topic)
    consumer._ahead = ahead


def generous(sound: Callable[..., bool], consumer: JetStreamConsumer, request: PullRequest, size: int) -> bool:
    octets = request.octets
    found = sound(consumer, request, size)
    request.octets = octets
    return found


def never_drained(
    sound: Callable[..., None], requests: PullRequests, now: float, drained: bool, *others: object
) -> None:
    sound(requests, now, True, *others)


def without_heartbeats(sound: Callable[..., None], requests: PullRequests, now: float, *others: Any) -> None:
    request = requests.first
    while request is not None:
        request.heartbeat_at = 0.0
        request = request.next
    sound(requests, now, *others)


def covers_less(sound: Callable[..., list[int]], pending: PendingMessages, end: int) -> list[int]:
    return sound(pending, end)[1:]


def silent_term(sound: Callable[..., bool], consumer: JetStreamConsumer, sequence: int, *others: Any) -> bool:
    """A terminated message is not reported as done, so that it stays in the stream."""
    reports, consumer.reports_done = consumer.reports_done, False
    found = sound(consumer, sequence, *others)
    consumer.reports_done = reports
    return found


def new_before_due(sound: Callable[..., int], pending: PendingMessages) -> int:
    return sound(pending) if len(pending.due) > 1 else 0


def late_heap(sound: Callable[..., None], pending: PendingMessages, sequence: int, known: Pending, when: float) -> None:
    """A NAK with a delay, or a backoff: nothing wakes the consumer for it."""
    sound(pending, sequence, known, when)
    pending._heap.clear()


def floor_too_high(sound: Callable[..., None], pending: PendingMessages) -> None:
    sound(pending)
    if pending._follows:
        pending.floor += 1


def skips_all(sound: Callable[..., None], consumer: JetStreamConsumer) -> None:
    """last_per_subject: the messages after those that were selected are not delivered."""
    sound(consumer)
    if consumer._resume == 0:
        consumer.next = consumer._source.last + 1


MISTAKES: Final[dict[str, Callable[[], Plant]]] = {
    "a late acknowledgement does not stop a redelivery": lambda: around(PendingMessages, "take", acknowledged_but_due),
    "redeliveries are not counted": lambda: around(JetStreamConsumer, "_redeliver", uncounted),
    "messages come again too early": lambda: around(PendingMessages, "wait", impatient),
    "one message more is pending than may be": lambda: around(JetStreamConsumer, "_follow", one_too_many),
    "one delivery more than max_deliver": lambda: around(JetStreamConsumer, "_exhausted", once_more),
    "no advisory after the last delivery": lambda: around(JetStreamConsumer, "_exhausted", over_and_pending),
    "one client's end ends all requests": lambda: around(PullRequests, "gone", all_gone),
    "requests of a client stay after its end": lambda: patch.object(PullRequests, "gone", nothing),
    "requests do not take turns": lambda: around(PullRequests, "served", not_requeued),
    "counts are lost at a restart": lambda: around(consumer_module, "decode_state", forgotten_counts),
    "the last pending message is lost at a restart": lambda: around(consumer_module, "decode_state", forgotten_pending),
    "a redelivered message is not waited for": lambda: around(JetStreamConsumer, "_wait", at_once),
    "removed messages are still counted": lambda: around(JetStreamConsumer, "removed", uncounted_removal),
    "bytes of a request are not counted": lambda: around(JetStreamConsumer, "_fits", generous),
    "requests that do not wait end early": lambda: around(PullRequests, "look", never_drained),
    "acknowledge-all leaves the first one": lambda: around(PendingMessages, "up_to", covers_less),
    "what is acknowledged is not done": lambda: around(JetStreamConsumer, "_acknowledged", silent_term),
    "new messages go before one that is due": lambda: around(PendingMessages, "next_due", new_before_due),
    "delays have no timer": lambda: around(PendingMessages, "wait_until", late_heap),
    "the floor is above a pending message": lambda: around(PendingMessages, "find_floor", floor_too_high),
    "nothing follows the last of each subject": lambda: around(JetStreamConsumer, "_end_skip", skips_all),
    "work in progress changes nothing": lambda: patch.object(JetStreamConsumer, "_progress", nothing),
    "heartbeats are not sent": lambda: around(PullRequests, "look", without_heartbeats),
}
