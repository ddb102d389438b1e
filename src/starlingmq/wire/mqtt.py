"""The public interface of the MQTT codec: frames to packets and packets to frames.

A frame is ``first byte | remaining length | body``. A reader calls ``frame_length`` until the frame is complete, then
passes first byte and body to ``decode`` (or directly to ``decode_publish``). The codec keeps no state between packets.
The hot writers are in ``frames``, the rest of each direction in ``decoder`` and ``encoder``.
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
