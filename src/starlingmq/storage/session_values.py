"""Sessions, subscriptions and holdings of sessions, encoded as values of operations and of the checkpoint
(MessagePack)."""

from __future__ import annotations

import msgspec

from starlingmq.core.messages.message import Message
from starlingmq.core.messages.stored_messages import References
from starlingmq.core.session.connection import UNPROVED
from starlingmq.core.session.queue import refer
from starlingmq.core.session.session import Client, Session, Subscription, Will


class WillValue(msgspec.Struct, array_like=True):
    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    properties: bytes
    delay: int
    expiry: int
    username: str
    peer: str
    id: int = 0
    granted: bool = False
    epoch: int = 0


class SessionValue(msgspec.Struct, array_like=True):
    """``connected``: it had a connection, so its deadlines begin when the broker starts without that connection."""

    client_id: str
    expiry: int
    connected: bool
    expires_at: float
    will: WillValue | None
    will_at: float
    epoch: int = 0
    floor: int = 0
    trail: tuple[int, int, bool] | None = None
    needs_reset: bool = False
    placeholder: bool = False
    owner: str | None = None
    reset_confirmed: bool = False


class SubscriptionValue(msgspec.Struct, array_like=True):
    """``whole`` is the filter as subscribed, including the $share prefix."""

    whole: bytes
    qos: int
    no_local: bool
    retain_as_published: bool
    ids: bytes


class WindowValue(msgspec.Struct, array_like=True):
    packet_id: int
    offset: int
    flags: int
    stage: int
    ids: bytes


class InboundValue(msgspec.Struct, array_like=True):
    """``offset`` -1: completed at ``since``."""

    packet_id: int
    offset: int
    since: float


class HoldingsValue(msgspec.Struct, array_like=True):
    """Queue (packed references), window and handshakes of a session, as of a journal offset."""

    as_of: int
    queue: bytes
    ids: dict[int, bytes]
    window: list[WindowValue]
    inbound: list[InboundValue]


_encoder = msgspec.msgpack.Encoder()
_session = msgspec.msgpack.Decoder(SessionValue)
_subscription = msgspec.msgpack.Decoder(SubscriptionValue)
_highest = msgspec.msgpack.Decoder(dict[int, int])
_holdings = msgspec.msgpack.Decoder(HoldingsValue)


def encode_session(session: Session) -> bytes:
    will = session.will
    value = None
    if will is not None:
        message = will.message
        value = WillValue(
            message.topic,
            message.payload,
            message.qos,
            message.retain,
            message.properties,
            will.delay,
            will.expiry,
            will.client.username,
            will.client.peer,
            will.id,
            will.granted,
            will.epoch,
        )
    return _encoder.encode(
        SessionValue(
            session.client_id,
            session.expiry,
            session.client is not None,
            session.expires_at,
            value,
            session.will_at,
            session.epoch,
            session.floor,
            None if session.trail is None else (session.trail.node, session.trail.epoch, session.trail.sure),
            session.needs_reset,
            session.placeholder,
            session.owner,
            session.reset_confirmed,
        )
    )


def decode_session(data: bytes) -> SessionValue:
    return _session.decode(data)


def restore_will(value: WillValue, client_id: str) -> Will:
    """The will, under the client id of its client."""
    client = Client("", value.peer, 0.0)
    client.client_id = client_id
    client.username = value.username
    client.standing = UNPROVED
    message = Message(value.topic, value.payload, value.qos, value.retain, value.properties, 0.0, client_id, 0.0)
    return Will(message, value.delay, value.expiry, client, value.id, value.granted, value.epoch)


def encode_subscription(whole: bytes, subscription: Subscription) -> bytes:
    return _encoder.encode(
        SubscriptionValue(
            whole, subscription.qos, subscription.no_local, subscription.retain_as_published, subscription.ids
        )
    )


def decode_subscription(data: bytes) -> SubscriptionValue:
    return _subscription.decode(data)


def encode_holdings(session: Session, as_of: int) -> bytes:
    """All holdings of a session. Its queue must be spilled before: entries that are only in memory are left out."""
    queue = b""
    ids: dict[int, bytes] = {}
    held = [] if session.moving is None else session.moving.held
    if session.queue is not None or held:
        references = References() if session.queue is None else session.queue.references()
        for each in held:
            refer(references, each.outgoing)
        queue, ids = references.pack()
    window: list[WindowValue] = []
    if session.window is not None:
        for packet_id, outgoing in session.window.entries.items():
            if outgoing.ticket != 0 and outgoing.qos == 1:  # of a work queue, which has it
                continue
            flags = outgoing.qos | (4 if outgoing.retain else 0)
            window.append(WindowValue(packet_id, outgoing.message.offset, flags, outgoing.stage, outgoing.ids))
    inbound: list[InboundValue] = []
    if session.inbound is not None:
        for packet_id, handshake in session.inbound.entries.items():
            message = handshake.message
            inbound.append(InboundValue(packet_id, -1 if message is None else message.offset, handshake.since))
    return _encoder.encode(HoldingsValue(as_of, queue, ids, window, inbound))


def encode_highest(highest: dict[int, int]) -> bytes:
    return _encoder.encode(highest)


def decode_highest(data: bytes) -> dict[int, int]:
    return _highest.decode(data)


def decode_holdings(data: bytes) -> HoldingsValue:
    return _holdings.decode(data)
