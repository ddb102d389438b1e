"""The output of ``-d``: a line per packet in either direction, as mosquitto's clients print it."""

from __future__ import annotations

import sys

from starlingmq.client.client_frames import Frames
from starlingmq.client.errors import reason_name
from starlingmq.wire.mqtt import decode
from starlingmq.wire.packets import (
    Ack,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from starlingmq.wire.properties import Properties

ACK_NAMES = {4: "PUBACK", 5: "PUBREC", 6: "PUBREL", 7: "PUBCOMP"}


class PacketLog:
    """Called with all bytes that are sent (``sent``) or received."""

    def __init__(self, version: int) -> None:
        self._version = version
        self._streams = {True: Frames(), False: Frames()}

    def __call__(self, sent: bool, data: bytes) -> None:
        for first, whole, start, end in self._streams[sent].feed(data):
            packet = decode(first, whole, start, end, self._version)
            if isinstance(packet, Connect | Connack):
                self._streams[not sent] = Frames()  # a new connection: discard an incomplete frame of the previous one
            print("sending" if sent else "received", describe(packet), file=sys.stderr)


def describe(packet: Packet) -> str:
    if isinstance(packet, Publish):
        flags = f"d{packet.dup:d}, q{packet.qos}, r{packet.retain:d}, m{packet.packet_id}"
        return f"PUBLISH ({flags}, {packet.topic.decode(errors='replace')!r}, ... ({len(packet.payload)} bytes))"
    if isinstance(packet, Connack):
        return f"CONNACK ({_reason(packet.reason)}, session present {packet.session_present:d}{_more(packet)})"
    if isinstance(packet, Ack):
        return f"{ACK_NAMES[packet.type]} (m{packet.packet_id}, {_reason(packet.reason)}{_more(packet)})"
    if isinstance(packet, Subscribe):
        lines = ", ".join(f"{each.filter.decode()} q{each.qos}" for each in packet.subscriptions)
        return f"SUBSCRIBE (m{packet.packet_id}, {lines}{_more(packet)})"
    if isinstance(packet, Unsubscribe):
        filters = ", ".join(each.decode() for each in packet.filters)
        return f"UNSUBSCRIBE (m{packet.packet_id}, {filters}{_more(packet)})"
    if isinstance(packet, Suback | Unsuback):
        reasons = ", ".join(_reason(each) for each in packet.reasons)
        return f"{type(packet).__name__.upper()} (m{packet.packet_id}{', ' if reasons else ''}{reasons}{_more(packet)})"
    if isinstance(packet, Connect):
        # never the password
        return f"CONNECT ({packet.client_id!r}, c{packet.clean_start:d}, k{packet.keep_alive}{_more(packet)})"
    if isinstance(packet, Disconnect):
        return f"DISCONNECT ({_reason(packet.reason)}{_more(packet)})"
    return type(packet).__name__.upper()


def _reason(reason: int) -> str:
    return reason_name(reason) if reason >= 0x80 else f"rc{reason}"


def _more(packet: object) -> str:
    properties: Properties = getattr(packet, "properties", {})
    return f", {properties}" if properties else ""
