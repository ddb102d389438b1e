"""Events that the client state machine reports to its shell, in the order in which they happened."""

from __future__ import annotations

from dataclasses import dataclass

from starlingmq.wire.properties import Properties


@dataclass(slots=True)
class Connected:
    session_present: bool
    properties: Properties


@dataclass(slots=True)
class Refused:
    """The server refused the connection in CONNACK; ``reason`` is an MQTT 5 code in every protocol version."""

    reason: int
    properties: Properties


@dataclass(slots=True, eq=False)
class Message:
    """A message from the server. ``packet_id`` is 0 for QoS 0; ``connection`` counts this client's connections."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int
    properties: Properties
    connection: int


@dataclass(slots=True)
class Completed:
    """The answer to the publish, subscribe or unsubscribe that returned ``token``.

    ``reasons`` has one entry per filter, and exactly one for a message: 0x00 for QoS 0 once it is passed to the
    connection. ``resent`` is true when the handshake used more than one connection.
    """

    token: int
    reasons: list[int]
    properties: Properties
    resent: bool = False


@dataclass(slots=True)
class Challenged:
    """An AUTH packet: answer with ``ClientState.authenticate``."""

    reason: int
    properties: Properties


@dataclass(slots=True)
class Ended:
    """The connection has ended: close the transport once all written bytes are sent."""

    reason: int
    detail: str
    properties: Properties
    by_server: bool


Event = Connected | Refused | Message | Completed | Challenged | Ended
