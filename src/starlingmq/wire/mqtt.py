"""The MQTT codec as others see it: frames in, packets out, and back.

A frame is ``first byte | remaining length | body``. A reader asks ``frame_length`` until the frame is there, then
hands first byte and body to ``decode`` (or ``decode_publish``, which it comes to anyway). Nothing here knows more than
one packet. The hot writers are in ``frames``, everything about one direction in ``decoder`` and ``encoder``.
"""

from __future__ import annotations

from .decoder import decode, decode_publish
from .encoder import encode
from .frames import ack_frame, ack_run, frame_length, frame_of_parts, packet_id_bytes, publish_frame, publish_parts
from .packets import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Record,
    Suback,
    Subscribe,
    SubscribeRequest,
    Unsuback,
    Unsubscribe,
    Will,
)

__all__ = [
    "AUTH",
    "CONNACK",
    "CONNECT",
    "DISCONNECT",
    "PINGREQ",
    "PINGRESP",
    "PUBACK",
    "PUBCOMP",
    "PUBLISH",
    "PUBREC",
    "PUBREL",
    "SUBACK",
    "SUBSCRIBE",
    "UNSUBACK",
    "UNSUBSCRIBE",
    "Ack",
    "Auth",
    "Connack",
    "Connect",
    "Disconnect",
    "Packet",
    "Pingreq",
    "Pingresp",
    "Publish",
    "Record",
    "Suback",
    "Subscribe",
    "SubscribeRequest",
    "Unsuback",
    "Unsubscribe",
    "Will",
    "ack_frame",
    "ack_run",
    "decode",
    "decode_publish",
    "encode",
    "frame_length",
    "frame_of_parts",
    "packet_id_bytes",
    "publish_frame",
    "publish_parts",
]
