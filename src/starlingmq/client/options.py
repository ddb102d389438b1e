"""The options of a client's CONNECT, validated once at construction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypedDict

from starlingmq.wire.packets import Connect, Will
from starlingmq.wire.properties import (
    MAXIMUM_PACKET_SIZE,
    RECEIVE_MAXIMUM,
    SESSION_EXPIRY_INTERVAL,
    TOPIC_ALIAS_MAXIMUM,
    Properties,
)

Qos = Literal[0, 1, 2]
QOS: Final[tuple[Qos, Qos, Qos]] = (0, 1, 2)  # by number, for a QoS that is not known to the type checker

V31: Final = 3
V311: Final = 4
V5: Final = 5

NEVER_EXPIRES: Final = 0xFFFFFFFF
DEFAULT_RECEIVE_MAXIMUM: Final = 1000  # bounds the unacknowledged messages in memory; the protocol's default is 65,535


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """One topic filter with its MQTT 5 options; 3.x servers see the filter and the QoS only."""

    filter: str
    qos: Qos = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectOptions:
    """``keep_alive`` and ``session_expiry`` in seconds; ``properties`` override the named MQTT 5 fields.

    Raises ValueError for options that no server can accept.
    """

    client_id: str = ""
    version: int = V5
    clean_start: bool = True
    keep_alive: int = 60
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    session_expiry: int = 0
    receive_maximum: int = DEFAULT_RECEIVE_MAXIMUM
    topic_alias_maximum: int = 0
    max_packet_size: int = 0  # 0: the protocol's limit
    max_inflight: int = 65_535  # the client's own bound on unacknowledged PUBLISH packets, below the server's
    max_queued: int = 100_000  # messages waiting for the window or for a connection
    connect_timeout: float = 10.0
    properties: Properties = field(default_factory=dict)
    bridge: bool = False  # 3.x: says so as mosquitto does; subscriptions are then No Local and Retain As Published

    def __post_init__(self) -> None:
        if self.version not in (V31, V311, V5):
            raise ValueError(f"MQTT version must be 3 (3.1), 4 (3.1.1) or 5, not {self.version}")
        if not 0 <= self.keep_alive <= 65_535:
            raise ValueError("keep_alive must be 0 to 65535 seconds")
        if not 1 <= self.max_inflight <= 65_535:
            raise ValueError("max_inflight must be 1 to 65535")
        if self.version != V5 and not self.clean_start and not self.client_id:
            raise ValueError("a persistent session needs a client id")  # [MQTT-3.1.3-8]
        if self.version == V31 and not self.client_id:
            raise ValueError("MQTT 3.1 needs a client id")

    def announced(self) -> Properties:
        """Return the CONNECT properties as they are sent; values that equal the protocol's defaults are omitted."""
        announced: Properties = {}
        if self.session_expiry:
            announced[SESSION_EXPIRY_INTERVAL] = self.session_expiry
        if self.receive_maximum != 65_535:
            announced[RECEIVE_MAXIMUM] = self.receive_maximum
        if self.topic_alias_maximum:
            announced[TOPIC_ALIAS_MAXIMUM] = self.topic_alias_maximum
        if self.max_packet_size:
            announced[MAXIMUM_PACKET_SIZE] = self.max_packet_size
        announced.update(self.properties)
        return announced

    def packet(self, client_id: str, clean_start: bool) -> Connect:
        return Connect(
            version=self.version,
            client_id=client_id,
            clean_start=clean_start,
            keep_alive=self.keep_alive,
            username=self.username,
            password=self.password,
            will=self.will,
            properties=self.announced() if self.version == V5 else {},
            bridge=self.bridge and self.version != V5,
        )


class ConnectFields(TypedDict, total=False):
    """The fields of ``ConnectOptions`` as keyword arguments."""

    client_id: str
    version: int
    clean_start: bool
    keep_alive: int
    username: str | None
    password: bytes | None
    will: Will | None
    session_expiry: int
    receive_maximum: int
    topic_alias_maximum: int
    max_packet_size: int
    max_inflight: int
    max_queued: int
    connect_timeout: float
    properties: Properties
    bridge: bool
