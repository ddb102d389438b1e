"""Mistakes in the bridge, made on purpose, and the worlds by seed that find each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from tests.bridges import bridge_carrier
from tests.bridges.bridge_world import run
from tests.planting import Plant, around

from starlingmq.bridges import bridge_relay
from starlingmq.bridges.bridge_relay import MARKER, SETTLING, BridgeRelay, Leg, NearSession
from starlingmq.bridges.bridge_sessions import near_options
from starlingmq.client.events import Completed, Connected
from starlingmq.client.options import ConnectOptions, Subscription
from starlingmq.core.context.context import Context
from starlingmq.core.delivery import delivery
from starlingmq.core.publish import publishing
from starlingmq.core.retained import retained_messages
from starlingmq.core.retained.deletions import Deletions
from starlingmq.core.retained.retained_messages import RetainedMessages
from starlingmq.core.retained.stamps import Stamp, next_stamp
from starlingmq.wire.mqtt import ack_frame, decode_publish, publish_frame


def looking(change: Callable[[NearSession], None]) -> Plant:
    """The relay gets a changed view of the near session."""

    def settle(sound: Callable[..., None], relay: BridgeRelay, connected: Connected, now: float) -> None:
        look = relay._look

        def changed() -> NearSession:
            session = look()
            change(session)
            return session

        relay._look = changed
        sound(relay, Connected(True, connected.properties), now)

    return around(BridgeRelay, "_settle", settle)


def as_if_settled(session: NearSession) -> None:
    session.subscriptions.setdefault(MARKER, (0, False, False))


def early_pubrec(
    sound: Callable[..., None], relay: BridgeRelay, leg: Leg, other: Leg, data: bytes, pos: int, end: int
) -> None:
    sound(relay, leg, other, data, pos, end)
    if leg is relay.far and data[pos] & 6 == 4:
        start = pos + 2
        while data[start - 1] >= 0x80:
            start += 1
        packet = decode_publish(data[pos], data, start, end, leg.version)
        leg.out.append(ack_frame(0x50, packet.packet_id))


def backwards(sound: Callable[..., None], relay: BridgeRelay, now: float) -> None:
    for leg in (relay.near, relay.far):
        leg.waiting.reverse()
    sound(relay, now)
    if relay.phase == SETTLING:
        for leg in (relay.near, relay.far):
            leg.waiting.reverse()


def all_granted(sound: Callable[..., None], relay: BridgeRelay, leg: Leg, completed: Completed) -> None:
    completed.reasons = [reason if reason < 0x80 else 0 for reason in completed.reasons]
    sound(relay, leg, completed)


def without_dup(topic: bytes, payload: bytes, qos: int, retain: bool, dup: bool, *more: Any) -> bytes:
    return publish_frame(topic, payload, qos, retain, False, *more)


def with_local(**options: Any) -> Subscription:
    return Subscription(**options | {"no_local": False})


def unlimited(*arguments: Any) -> ConnectOptions:
    return replace(near_options(*arguments), receive_maximum=65_535)


def clean_and_used(sound: Callable[..., None], relay: BridgeRelay, connected: Connected) -> None:
    relay._clean = False
    sound(relay, connected)


def never_renewed(sound: Callable[..., None], relay: BridgeRelay, connected: Connected) -> None:
    relay.renews = False
    sound(relay, connected)
    relay.begin_clean = False


def without_packet_limit(sound: Callable[..., None], relay: BridgeRelay, connected: Connected) -> None:
    sound(relay, connected)
    relay.far.max_packet = 0


class Backwards(tuple[int, int, str]):
    """A stamp that is larger than those that it is smaller than."""

    def __lt__(self, other: tuple[Any, ...]) -> bool:
        return tuple(self) > tuple(other)

    def __gt__(self, other: tuple[Any, ...]) -> bool:
        return tuple(self) < tuple(other)


def the_smaller_wins(sound: Callable[..., Stamp | None], messages: RetainedMessages, topic: bytes) -> Stamp | None:
    known = sound(messages, topic)
    return None if known is None else Backwards(known)


def by_the_clock(now: float, known: Stamp | None, site: str) -> Stamp:
    return next_stamp(now, None, site)


def nothing(sound: Callable[..., None], *arguments: Any) -> None:
    """It is not done."""


MISTAKES: dict[str, tuple[Plant, dict[str, Any]]] = {
    "the far session of a fresh near one does not begin clean": (
        looking(as_if_settled),
        {"kind": "pair", "losses": True, "frail": False},
    ),
    "held messages are not released when the far session is lost": (
        looking(lambda session: session.held.clear()),
        {"kind": "pair", "losses": True, "frail": False},
    ),
    "PUBREL to a lost far session is passed instead of answered": (
        looking(lambda session: session.released.clear()),
        {"kind": "pair", "losses": True, "frail": False, "version": "5.0"},
    ),
    "QoS 2 is acknowledged before the near broker has it": (
        around(BridgeRelay, "_message", early_pubrec),
        {"kind": "pair", "losses": False},
    ),
    "a refusal for the moment is passed on": (
        patch.object(bridge_relay, "TRANSIENT", ()),
        {"kind": "pair", "losses": False, "frail": True, "version": "5.0"},
    ),
    "frames that waited are out of order": (around(BridgeRelay, "_next_step", backwards), {"losses": False}),
    "a refused filter is remembered": (
        around(BridgeRelay, "_answered", all_granted),
        {"kind": "pair", "losses": False},
    ),
    "DUP is lost": (patch.object(bridge_relay, "publish_frame", without_dup), {"kind": "pair"}),
    "No Local is lost": (
        patch.object(bridge_relay, "Subscription", with_local),
        {"kind": "pair", "version": "3.1.1", "losses": False},
    ),
    "the far broker's quota is ignored": (
        patch.object(bridge_carrier, "near_options", unlimited),
        {"kind": "pair", "version": "5.0", "room": 1, "losses": False},
    ),
    "the mark of sites is not made": (
        patch.object(bridge_relay, "marked", lambda properties, site: properties),
        {"kind": "ring both"},
    ),
    "a session of a clean start of 3.1.1 is used": (
        around(BridgeRelay, "_join", clean_and_used),
        {"kind": "pair", "version": "3.1.1", "losses": True, "frail": False},
    ),
    "messages of a link have no handshake beside their own": (
        patch.object(delivery, "put_on", lambda client_id, outgoing: True),
        {"kind": "pair", "version": "5.0", "link": True, "losses": False},
    ),
    "a message that came by a link keeps the link's QoS": (
        patch.object(publishing, "unmark", lambda message: None),
        {"version": "5.0", "link": True, "losses": False},
    ),
    "a far session of which no CONNACK came is not subscribed again": (
        around(BridgeRelay, "_join", never_renewed),
        {"kind": "pair", "losses": True, "frail": False},
    ),
    "deletions of retained messages are not remembered": (
        around(Deletions, "note", nothing),
        {"retains": True, "losses": False, "frail": False},
    ),
    "stamps of retained messages are of the clock alone": (
        patch.object(retained_messages, "next_stamp", by_the_clock),
        {"retains": True, "losses": False, "frail": False},
    ),
    "the smaller stamp wins": (
        around(RetainedMessages, "_known", the_smaller_wins),
        {"retains": True, "losses": False, "frail": False},
    ),
    "what a link's queue has dropped is not sent again": (
        around(Context, "owe_link", nothing),
        {"short": True, "version": "5.0", "losses": False, "frail": False},
    ),
}
"""Each with what is fixed of the worlds, so that few of them are needed."""


def find(name: str, seed: int) -> object:
    return run(seed, acts=100, **MISTAKES[name][1])
