"""Sessions and messages of the old broker, in the terms of the core."""

from __future__ import annotations

from collections.abc import Iterable

from starlingmq.core.broker import BrokerState
from starlingmq.core.context.ready import INBOUND_PUT, Write
from starlingmq.core.messages.message import Message
from starlingmq.core.peers.session_transfer import Granted
from starlingmq.core.session.session import Session
from starlingmq.migrate.described import StoredMessage, StoredSession
from starlingmq.wire.properties import SUBSCRIPTION_IDENTIFIER, encode_property_bytes


def as_message(found: StoredMessage, now: float) -> Message:
    return Message(
        found.topic,
        found.payload,
        found.qos,
        found.retain,
        found.properties,
        found.expires_at,
        found.publisher,
        now,
    )


def granted_of(found: StoredSession) -> list[Granted]:
    return [
        Granted(each.filter, each.qos, each.no_local, each.retain_as_published, encoded_identifiers([each.identifier]))
        for each in found.subscriptions
    ]


def encoded_identifiers(identifiers: Iterable[int]) -> bytes:
    found = [each for each in identifiers if each]
    return encode_property_bytes({SUBSCRIPTION_IDENTIFIER: found}) if found else b""


def put_held(state: BrokerState, session: Session, packet_id: int, message: Message) -> None:
    """A QoS 2 message that was received and not released."""
    state.restoring.handshake(session, packet_id, message, state.ctx.now)
    state.ctx.write(Write(INBOUND_PUT, session, packet_id, message=message))
