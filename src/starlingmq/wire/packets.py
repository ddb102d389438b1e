"""The MQTT control packets as plain values, the same for all protocol versions.

Topics and filters are UTF-8 ``bytes`` as on the wire; client ids and user names are ``str``; ``version`` is 3 (MQTT
3.1), 4 (3.1.1) or 5. A field that the version lacks is left at its default by the decoder and ignored by the encoder.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from .packet_types import (
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
)
from .properties import Properties

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
]


@mypyc_attr(acyclic=True)
class Record:
    """A value with field-wise equality and a ``repr`` of its fields."""

    def fields(self) -> list[tuple[str, object]]:
        """Return names and values, in the order of the constructor's arguments."""
        return []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and type(other) is type(self) and self.fields() == other.fields()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.fields())})"


@mypyc_attr(acyclic=True)
class Packet(Record):
    """A control packet; ``type`` is its number, 1 (CONNECT) to 15 (AUTH)."""

    type: int

    def __init__(self, type: int) -> None:
        self.type = type


class Will(Record):
    """The will of a CONNECT. ``topic`` is valid and without wildcards; ``properties`` are the will properties."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    properties: Properties

    def __init__(
        self,
        topic: bytes,
        payload: bytes = b"",
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.properties = {} if properties is None else properties

    def fields(self) -> list[tuple[str, object]]:
        return [
            ("topic", self.topic),
            ("payload", self.payload),
            ("qos", self.qos),
            ("retain", self.retain),
            ("properties", self.properties),
        ]


class Connect(Packet):
    """CONNECT. ``clean_start`` is "clean session" in 3.x; ``keep_alive`` is in seconds, 0 is off.

    An empty ``client_id`` is accepted: the broker decides whether to assign one. ``bridge`` is bit 7 of the level,
    which mosquitto bridges set; it is in no specification.
    """

    version: int
    client_id: str
    clean_start: bool
    keep_alive: int
    username: str | None
    password: bytes | None
    will: Will | None
    properties: Properties
    protocol_name: str
    bridge: bool

    def __init__(
        self,
        version: int = 5,
        client_id: str = "",
        clean_start: bool = True,
        keep_alive: int = 0,
        username: str | None = None,
        password: bytes | None = None,
        will: Will | None = None,
        properties: Properties | None = None,
        protocol_name: str = "",
        bridge: bool = False,
    ) -> None:
        self.type = CONNECT
        self.version = version
        self.client_id = client_id
        self.clean_start = clean_start
        self.keep_alive = keep_alive
        self.username = username
        self.password = password
        self.will = will
        self.properties = {} if properties is None else properties
        self.protocol_name = protocol_name or ("MQIsdp" if version == 3 else "MQTT")
        self.bridge = bridge

    def fields(self) -> list[tuple[str, object]]:
        return [
            ("version", self.version),
            ("client_id", self.client_id),
            ("clean_start", self.clean_start),
            ("keep_alive", self.keep_alive),
            ("username", self.username),
            ("password", self.password),
            ("will", self.will),
            ("properties", self.properties),
            ("protocol_name", self.protocol_name),
            ("bridge", self.bridge),
        ]


class Connack(Packet):
    """CONNACK. For 3.x ``reason`` is the return code itself (0..5), see ``reasons.connack_return_code``."""

    session_present: bool
    reason: int
    properties: Properties

    def __init__(self, session_present: bool = False, reason: int = 0, properties: Properties | None = None) -> None:
        self.type = CONNACK
        self.session_present = session_present
        self.reason = reason
        self.properties = {} if properties is None else properties

    def fields(self) -> list[tuple[str, object]]:
        return [
            ("session_present", self.session_present),
            ("reason", self.reason),
            ("properties", self.properties),
        ]


@mypyc_attr(acyclic=True, free_list_len=1)
class Publish(Packet):
    """PUBLISH, with its properties split by their reader.

    ``properties`` are the encoded ones that a server forwards unaltered and in order (payload format, content type,
    response topic, correlation data, user properties), without a length prefix. The others are meant for the next
    hop only: ``expiry`` in seconds (-1: none), ``topic_alias`` (0: none), ``subscription_ids`` (None: none).
    """

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int
    properties: bytes
    expiry: int
    topic_alias: int
    subscription_ids: list[int] | None

    def __init__(
        self,
        topic: bytes,
        payload: bytes = b"",
        qos: int = 0,
        retain: bool = False,
        dup: bool = False,
        packet_id: int = 0,
        properties: bytes = b"",
        expiry: int = -1,
        topic_alias: int = 0,
        subscription_ids: list[int] | None = None,
    ) -> None:
        self.type = PUBLISH
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.dup = dup
        self.packet_id = packet_id
        self.properties = properties
        self.expiry = expiry
        self.topic_alias = topic_alias
        self.subscription_ids = subscription_ids

    def fields(self) -> list[tuple[str, object]]:
        return [
            ("topic", self.topic),
            ("payload", self.payload),
            ("qos", self.qos),
            ("retain", self.retain),
            ("dup", self.dup),
            ("packet_id", self.packet_id),
            ("properties", self.properties),
            ("expiry", self.expiry),
            ("topic_alias", self.topic_alias),
            ("subscription_ids", self.subscription_ids),
        ]


class Ack(Packet):
    """One of the four steps of an acknowledgement; ``type`` is PUBACK, PUBREC, PUBREL or PUBCOMP."""

    packet_id: int
    reason: int
    properties: Properties

    def __init__(self, type: int, packet_id: int, reason: int = 0, properties: Properties | None = None) -> None:
        self.type = type
        self.packet_id = packet_id
        self.reason = reason
        self.properties = {} if properties is None else properties

    def fields(self) -> list[tuple[str, object]]:
        return [
            ("type", self.type),
            ("packet_id", self.packet_id),
            ("reason", self.reason),
            ("properties", self.properties),
        ]


class SubscribeRequest(Record):
    """One line of a SUBSCRIBE. ``filter`` is valid UTF-8; its wildcards and levels are not checked here."""

    filter: bytes
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int

    def __init__(
        self,
        filter: bytes,
        qos: int = 0,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
    ) -> None:
        self.filter = filter
        self.qos = qos
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        self.retain_handling = retain_handling

    def fields(self) -> list[tuple[str, object]]:
        return [
            ("filter", self.filter),
            ("qos", self.qos),
            ("no_local", self.no_local),
            ("retain_as_published", self.retain_as_published),
            ("retain_handling", self.retain_handling),
        ]


class Subscribe(Packet):
    packet_id: int
    subscriptions: list[SubscribeRequest]
    properties: Properties

    def __init__(
        self, packet_id: int, subscriptions: list[SubscribeRequest], properties: Properties | None = None
    ) -> None:
        self.type = SUBSCRIBE
        self.packet_id = packet_id
        self.subscriptions = subscriptions
        self.properties = {} if properties is None else properties

    def fields(self) -> list[tuple[str, object]]:
        return [
            ("packet_id", self.packet_id),
            ("subscriptions", self.subscriptions),
            ("properties", self.properties),
        ]


class Suback(Packet):
    """SUBACK; one reason per subscription: the granted QoS or a failure (0x80 is the only failure of 3.1.1)."""

    packet_id: int
    reasons: list[int]
    properties: Properties

    def __init__(self, packet_id: int, reasons: list[int], properties: Properties | None = None) -> None:
        self.type = SUBACK
        self.packet_id = packet_id
        self.reasons = reasons
        self.properties = {} if properties is None else properties

    def fields(self) -> list[tuple[str, object]]:
        return [("packet_id", self.packet_id), ("reasons", self.reasons), ("properties", self.properties)]


class Unsubscribe(Packet):
    packet_id: int
    filters: list[bytes]
    properties: Properties

    def __init__(self, packet_id: int, filters: list[bytes], properties: Properties | None = None) -> None:
        self.type = UNSUBSCRIBE
        self.packet_id = packet_id
        self.filters = filters
        self.properties = {} if properties is None else properties

    def fields(self) -> list[tuple[str, object]]:
        return [("packet_id", self.packet_id), ("filters", self.filters), ("properties", self.properties)]


class Unsuback(Packet):
    """UNSUBACK; ``reasons`` has one entry per filter in MQTT 5 and is empty in 3.x."""

    packet_id: int
    reasons: list[int]
    properties: Properties

    def __init__(self, packet_id: int, reasons: list[int] | None = None, properties: Properties | None = None) -> None:
        self.type = UNSUBACK
        self.packet_id = packet_id
        self.reasons = [] if reasons is None else reasons
        self.properties = {} if properties is None else properties

    def fields(self) -> list[tuple[str, object]]:
        return [("packet_id", self.packet_id), ("reasons", self.reasons), ("properties", self.properties)]


class Pingreq(Packet):
    def __init__(self) -> None:
        self.type = PINGREQ


class Pingresp(Packet):
    def __init__(self) -> None:
        self.type = PINGRESP


class Disconnect(Packet):
    """DISCONNECT; 3.x has neither reason nor properties."""

    reason: int
    properties: Properties

    def __init__(self, reason: int = 0, properties: Properties | None = None) -> None:
        self.type = DISCONNECT
        self.reason = reason
        self.properties = {} if properties is None else properties

    def fields(self) -> list[tuple[str, object]]:
        return [("reason", self.reason), ("properties", self.properties)]


class Auth(Packet):
    """AUTH (MQTT 5 only)."""

    reason: int
    properties: Properties

    def __init__(self, reason: int = 0, properties: Properties | None = None) -> None:
        self.type = AUTH
        self.reason = reason
        self.properties = {} if properties is None else properties

    def fields(self) -> list[tuple[str, object]]:
        return [("reason", self.reason), ("properties", self.properties)]
