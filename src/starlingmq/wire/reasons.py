"""MQTT reason codes, and the errors that carry one.

    Exception
    +-- MqttError              the peer's fault ends the packet or the connection; ``reason`` is its code
        +-- MalformedPacket    the bytes are not a packet of this protocol version (0x81)
        +-- ProtocolError      the packet can be parsed, but its content is not allowed (0x82)

Both subclasses accept a more exact code, for example 0x94 for a topic alias of zero. The code can be sent to a 5.0
client as it is; 3.x clients have codes in CONNACK only, see ``connack_return_code``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Reason(IntEnum):
    """The reason codes of MQTT 5 (2.4). Below 0x80 is success, from 0x80 on failure."""

    SUCCESS = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    RE_AUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


# MQTT 3.1.1, 3.2.2.3: five refusals; "server unavailable" is used for every temporary cause.
_RETURN_CODES: Final[dict[int, int]] = {
    0x00: 0,
    0x84: 1,
    0x85: 2,
    0x88: 3,
    0x89: 3,
    0x8B: 3,
    0x97: 3,
    0x9C: 3,
    0x9D: 3,
    0x9F: 3,
    0x86: 4,
    0x8C: 4,
    0x87: 5,
    0x8A: 5,
}


def connack_return_code(reason: int) -> int:
    """Return the CONNACK return code (0..5) for ``reason`` in 3.x; -1 if there is none: close without CONNACK."""
    return _RETURN_CODES.get(reason, -1)


class MqttError(Exception):
    """A fault of the peer: ``reason`` is the MQTT 5 reason code to answer with, ``detail`` a sentence for the log."""

    reason: int
    detail: str

    def __init__(self, detail: str, reason: int = 0x80) -> None:
        super().__init__(detail)
        self.detail = detail
        self.reason = int(reason)

    def __str__(self) -> str:
        return f"{self.detail} (reason 0x{self.reason:02x})"


class MalformedPacket(MqttError):
    """The bytes cannot be parsed as a packet of this protocol version."""

    def __init__(self, detail: str, reason: int = 0x81) -> None:
        super().__init__(detail, reason)


class ProtocolError(MqttError):
    """The packet can be parsed, but the protocol does not allow its content."""

    def __init__(self, detail: str, reason: int = 0x82) -> None:
        super().__init__(detail, reason)
