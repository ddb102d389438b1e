"""Recovery of a broker's state: the checkpoint, then the journal since then."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Final

from starlingmq.core.broker import BrokerState
from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import Outgoing
from starlingmq.core.messages.stored_messages import QOS_MASK, RETAIN, References
from starlingmq.core.reports.session_totals import of_clients
from starlingmq.core.session.session import Session
from starlingmq.core.session.trail import Trail
from starlingmq.core.streams.sequenced_stream import SequencedStream
from starlingmq.storage.journal import Journal
from starlingmq.storage.keys import (
    FACT,
    HOLDINGS,
    META_CHECKPOINT,
    META_HIGHEST,
    META_NEXT_SESSION,
    META_STREAMS,
    RETAINED,
    SESSION,
    SUBSCRIPTION,
    session_of,
)
from starlingmq.storage.kv import Batch, Kv, after, prefix_end
from starlingmq.storage.records import decode_message
from starlingmq.storage.session_values import (
    decode_highest,
    decode_holdings,
    decode_session,
    decode_subscription,
    restore_will,
)
from starlingmq.storage.store_image import SessionImage, StoreImage, StreamPut
from starlingmq.storage.streams.sequence_logs import read_all
from starlingmq.storage.streams.stream_logs import StreamLogs, decode_positions

BATCH: Final = 1000
READ_BYTES: Final = 1 << 20


class Recovered:
    """``sessions`` that were restored; ``lost`` references to messages that the journal does not have any more;
    ``replayed`` records; ``ahead``: the checkpoint is ahead of the journal, which a power failure can cause.
    ``changes`` and ``changed`` are known to the journal but not to the checkpoint: values, and sessions whose holdings
    changed or that ended."""

    def __init__(self) -> None:
        self.sessions = 0
        self.retained = 0
        self.replayed = 0
        self.lost = 0
        self.ahead: list[Session] = []
        self.changes = Batch()
        self.changed: list[Session] = []


def read(kv: Kv, journal: Journal, keep: Callable[[list[StreamPut]], None]) -> tuple[StoreImage, int]:
    """The image, and the number of records replayed on top of the checkpoint. ``keep`` receives the messages of
    streams."""
    image = StoreImage()
    image.next_number = int.from_bytes(kv.get(META_NEXT_SESSION) or b"\0", "big") or 1
    _scan(kv, SESSION, lambda key, value: _set_session(image, key, value))
    _scan(kv, SUBSCRIPTION, lambda key, value: _set_subscription(image, key, value))
    _scan(kv, HOLDINGS, lambda key, value: image.session(session_of(key)).hold(decode_holdings(value)))
    _scan(kv, RETAINED, lambda key, value: image.retain(value))
    _scan(kv, FACT, lambda key, value: image.facts.__setitem__(key[1:], value))
    highest = kv.get(META_HIGHEST)
    if highest is not None:
        image.highest = decode_highest(highest)
    offset = int.from_bytes(kv.get(META_CHECKPOINT) or b"\0", "big")
    replayed = 0
    while records := journal.read(offset, BATCH, READ_BYTES):
        for at, record in records:
            image.apply(at, record)
        if image.kept:
            keep(image.kept)
            image.kept = []
        replayed += len(records)
        offset = records[-1][0] + 1
    return image, replayed


def _scan(kv: Kv, prefix: bytes, take: Callable[[bytes, bytes], None]) -> None:
    start, end = prefix, prefix_end(prefix)
    while found := kv.scan(start, end, BATCH):
        for key, value in found:
            take(key, value)
        start = after(found[-1][0])


def _set_session(image: StoreImage, key: bytes, value: bytes) -> None:
    image.session(session_of(key)).value = decode_session(value)


def _set_subscription(image: StoreImage, key: bytes, value: bytes) -> None:
    subscription = decode_subscription(value)
    image.session(session_of(key)).subscriptions[subscription.whole] = subscription


def restore(
    state: BrokerState, kv: Kv, journal: Journal, streams: StreamLogs | None = None, careful: bool = False
) -> Recovered:
    """Fill an empty broker from the store, and append to ``streams`` what they lack. The broker's clock must be set
    before. ``careful``: the store has durability ``power``. Raises OSError if a stream cannot be written."""
    collecting = gc.isenabled()
    gc.disable()  # recovery makes no garbage, and a collection takes longer than making the objects
    try:
        return _restore(state, kv, journal, streams or StreamLogs(), careful)
    finally:
        if collecting:
            gc.enable()


def _restore(state: BrokerState, kv: Kv, journal: Journal, streams: StreamLogs, careful: bool) -> Recovered:
    ends = dict(decode_positions(kv.get(META_STREAMS)))
    image, replayed = read(kv, journal, lambda puts: streams.replay(puts, ends))
    streams.recovered(ends, careful)
    for log in streams.by_number.values():
        if isinstance(log.stream, SequencedStream):  # JetStream's service lets it have messages
            read_all(log, log.stream)
            state.jetstream.restore(log.stream, image.facts)
        else:
            state.router.add_stream(log.stream)
    state.jetstream.reads.restore_positions(image.facts)
    state.jetstream.restored(image.facts)
    recovered = Recovered()
    recovered.replayed = replayed
    for number in sorted(image.sessions):
        found = image.sessions[number]
        if found.value is not None:
            _restore_session(state, journal, found, recovered)
    for message in image.retained.values():
        if not message.expired(state.ctx.now):
            state.restoring.retain(message)
            recovered.retained += 1
    state.publishing.producers.restore(image.facts)
    state.publishing.retained.restore(image.facts)
    state.peers.restore(image.highest, image.facts)
    state.jetstream.reads.restored()
    state.groups.restored()
    state.ctx.numbers_from(image.next_number)
    recovered.changes = image.replayed()
    recovered.changed = [_session_of(state, image, number) for number in image.touched]
    return recovered


def _session_of(state: BrokerState, image: StoreImage, number: int) -> Session:
    found = image.sessions.get(number)
    if found is not None and found.value is not None:
        session = state.ctx.sessions[found.value.client_id]
        if session.number == number:
            return session
    ended = Session("", number)
    ended.ended = True
    return ended


def _restore_session(state: BrokerState, journal: Journal, found: SessionImage, recovered: Recovered) -> None:
    value = found.value
    assert value is not None
    restoring = state.restoring
    session = restoring.session(found.number, value.client_id, value.expiry)
    session.epoch, session.needs_reset, session.placeholder = value.epoch, value.needs_reset, value.placeholder
    session.owner, session.floor, session.reset_confirmed = value.owner, value.floor, value.reset_confirmed
    session.trail = None if value.trail is None else Trail(*value.trail)
    recovered.sessions += of_clients(session)
    if found.as_of > journal.next:
        recovered.ahead.append(session)
    for entry in found.subscriptions.values():
        restoring.subscription(session, entry.whole, entry.qos, entry.no_local, entry.retain_as_published, entry.ids)
    restoring.queue(session, _within(found.references(), journal, recovered))
    for sent in found.window.values():
        if sent.offset >= journal.next and sent.stage == 1:
            recovered.lost += 1
            continue
        outgoing = Outgoing(Message.at(sent.offset), sent.flags & QOS_MASK, sent.flags & RETAIN != 0, sent.ids, None)
        outgoing.stage = sent.stage
        restoring.window(session, sent.packet_id, outgoing)
    _restore_handshakes(state, journal, found, session, recovered)
    will = None if value.will is None else restore_will(value.will, value.client_id)
    restoring.away(session, value.connected, value.expires_at, will, value.will_at)


def _within(references: References, journal: Journal, recovered: Recovered) -> References:
    """The references without those past the end of the journal, where other messages will be stored."""
    end = journal.next
    if len(references) == 0 or max(references.offsets()) < end:
        return references
    whole = References()
    while len(references) != 0:
        entry = references.pop()
        if entry.offset < end:
            whole.append(entry.offset, entry.flags, entry.expires, entry.size, entry.ids)
        else:
            recovered.lost += 1
    return whole


def _restore_handshakes(
    state: BrokerState, journal: Journal, found: SessionImage, session: Session, recovered: Recovered
) -> None:
    if not found.inbound:
        return
    held = [entry for entry in found.inbound.values() if entry.offset >= 0]
    offsets = [entry.offset for entry in held]
    records = dict(zip(offsets, journal.read_at(offsets), strict=True))
    for entry in found.inbound.values():
        message = None
        if entry.offset >= 0:
            record = records[entry.offset]
            if record is None:
                recovered.lost += 1
                continue
            message = decode_message(record)
            message.offset = entry.offset
        state.restoring.handshake(session, entry.packet_id, message, entry.since)
