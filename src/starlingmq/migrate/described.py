"""The description of a broker that is migrated: what its files say, in the terms of StarlingMQ.

The readers (``mosquitto_conf``, ``nats_conf``, ``emqx_export``) fill it; ``written_settings`` and ``written_data``
write it. An option is either *carried over*, or *not needed* here, or gets a line that says what to do (``Attention``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

PUBLISHED: Final = 1  # stages of a message in flight, as in core.messages.outgoing
RELEASED: Final = 2


class MigrationError(Exception):
    """A file cannot be read as what it should be. The message is one line that begins with the file."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Something without an equivalent: what it is, where it was found (``file:line``), and what to do."""

    option: str
    where: str
    remedy: str


@dataclass(slots=True)
class Address:
    """A listener. ``scheme`` as in listeners[].url, ``host`` "" for all addresses of both families, ``path`` of a
    WebSocket or a Unix socket, ``options`` further keys of the section of a listener."""

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class BridgeLink:
    """A bridge. ``options``: further keys of an entry of ``bridges``; ``topics`` as in an entry."""

    name: str
    servers: list[str] = field(default_factory=list)
    topics: list[dict[str, Any]] = field(default_factory=list)
    client_id: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    tls: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class StoredMessage:
    """``properties`` are encoded, those that a server forwards. ``expires_at`` in seconds since the epoch, or 0.0."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool = False
    properties: bytes = b""
    expires_at: float = 0.0
    publisher: str = ""


@dataclass(slots=True)
class Waiting:
    """A message for one session: queued (``packet_id`` 0), or sent and in ``stage``."""

    message: StoredMessage
    qos: int
    retain: bool
    packet_id: int = 0
    stage: int = 0
    identifiers: tuple[int, ...] = ()


@dataclass(slots=True)
class StoredSubscription:
    filter: bytes  # with $share/group/
    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int = 0


@dataclass(slots=True)
class StoredSession:
    """``expiry`` in seconds, as in MQTT 5; ``expires_at`` in seconds since the epoch, 0.0: its time begins now.
    ``owner``: the user name, "" for an anonymous client, None if the file does not say. ``held``: QoS 2 messages that
    were received and not released, by packet id."""

    client_id: str
    owner: str | None
    expiry: int
    expires_at: float
    last_id: int = 0
    subscriptions: list[StoredSubscription] = field(default_factory=list)
    in_flight: list[Waiting] = field(default_factory=list)
    queued: list[Waiting] = field(default_factory=list)
    held: dict[int, StoredMessage] = field(default_factory=dict)


@dataclass(slots=True)
class Description:
    """``settings``: values by path. ``rules`` in the form of ``auth.acl.file``, None: everything is allowed.
    ``secrets``: contents of files to write, by name; ``secret_settings``: the settings that name them."""

    addresses: list[Address] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    users: dict[str, str] = field(default_factory=dict, repr=False)
    rules: list[dict[str, Any]] | None = None
    client_ids: list[str] = field(default_factory=list)
    rule_default: str = "deny"
    bridges: list[BridgeLink] = field(default_factory=list)
    secrets: dict[str, str] = field(default_factory=dict, repr=False)  # name of the file to content
    secret_settings: dict[str, str] = field(default_factory=dict)  # path of the setting to name of the file
    persistent: bool = False
    database: str = ""  # the file where the other broker keeps its sessions, if it is one of its own
    pid_file: str = ""
    retained: list[StoredMessage] = field(default_factory=list)
    sessions: list[StoredSession] = field(default_factory=list)
    carried: dict[str, int] = field(default_factory=dict)
    not_needed: list[Attention] = field(default_factory=list)
    attention: list[Attention] = field(default_factory=list)

    def needs(self, option: str, where: str, remedy: str) -> None:
        """Add a line that needs attention, unless the same one is there."""
        line = Attention(option, where, remedy)
        if line not in self.attention:
            self.attention.append(line)

    def count(self, what: str, number: int = 1) -> None:
        if number:
            self.carried[what] = self.carried.get(what, 0) + number


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise MigrationError(f"{path}: cannot be read: {error.strerror}") from error


def read_text(path: Path) -> str:
    """Raises MigrationError also for text that is not UTF-8."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError:
        raise MigrationError(f"{path}: cannot be read: it is not UTF-8 text") from None
