"""The persistence file of mosquitto (``mosquitto.db``), formats 5 (1.6) and 6 (2.0, 2.1).

A header (15 bytes of magic, 4 unused, 4 of the format), then chunks: type, length, content. Lengths and numbers of 16
and 32 bits are in network order; those of 64 bits are as the machine had them, little-endian here.

What a chunk becomes:

| chunk | here |
|---|---|
| 1 configuration | checked only: ids must have 8 bytes |
| 2 message | a message that others refer to; dropped if it has expired |
| 3 message of a client, outgoing | queued (state 11, or QoS 0); in flight; in flight and released (states 6, 9) |
| 3 message of a client, incoming | a QoS 2 message that waits for its PUBREL |
| 4 retained | a retained message |
| 5 subscription | a subscription, with No Local, Retain As Published, identifier, and $share |
| 6 client | a session; with an expiry of 0 it has ended with its connection, and is left out |

Wills are in none: mosquitto publishes them when it stops, so they are among the messages. Invariant: whatever the bytes
are, the result is a list of sessions and messages, or a MigrationError that names the offset.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from starlingmq.core.topics.topics import parse_share, valid_filter, valid_text, valid_topic
from starlingmq.migrate.described import (
    PUBLISHED,
    RELEASED,
    MigrationError,
    StoredMessage,
    StoredSession,
    StoredSubscription,
    Waiting,
)
from starlingmq.wire.packet_types import PUBLISH
from starlingmq.wire.properties import (
    MESSAGE_EXPIRY_INTERVAL,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
    decode_properties,
    encode_property_bytes,
)
from starlingmq.wire.reasons import MqttError

MAGIC: Final = b"\x00\xb5\x00mosquitto db"
FORMATS: Final = (5, 6)
CONFIGURATION, MESSAGE, CLIENT_MESSAGE, RETAINED, SUBSCRIPTION, CLIENT = range(1, 7)

HEAD: Final = struct.Struct(">II")
CONFIGURATION_PART: Final = struct.Struct("<QBB6x")
MESSAGE_PART: Final = struct.Struct("<8sq")
MESSAGE_REST: Final = struct.Struct(">IHHHHHBB")
CLIENT_MESSAGE_PART: Final = struct.Struct(">8sHHBBBB")
SUBSCRIPTION_PART: Final = struct.Struct(">IHHBBxx")
CLIENT_TIME: Final = struct.Struct("<q")
CLIENT_PART: Final = struct.Struct(">IHH")
CLIENT_USER: Final = struct.Struct(">HH4x")

QUEUED: Final = 11
RESEND_PUBREL, WAIT_FOR_PUBCOMP = 6, 9
STATES: Final = range(1, 12)
INCOMING, OUTGOING = 0, 1
NEVER: Final = 0xFFFFFFFF
TEXT_MAX: Final = 65535


@dataclass(slots=True)
class Persisted:
    """The content of the file. Counted are sessions that have ended, messages that have expired, references to none."""

    retained: list[StoredMessage] = field(default_factory=list)
    sessions: list[StoredSession] = field(default_factory=list)
    ended: int = 0
    expired: int = 0
    missing: int = 0


def is_persistence_file(data: bytes) -> bool:
    return data.startswith(MAGIC)


def read_database(data: bytes, name: str, now: float) -> Persisted:
    """Raises MigrationError with one line that names the file and the offset of the first chunk that is damaged."""
    if not is_persistence_file(data):
        raise MigrationError(f"{name}: offset 0: this is not a persistence file of mosquitto")
    if len(data) < len(MAGIC) + HEAD.size:
        raise MigrationError(f"{name}: offset {len(MAGIC)}: the file ends within its header")
    version = HEAD.unpack_from(data, len(MAGIC))[1]
    if version not in FORMATS:
        raise MigrationError(
            f"{name}: offset {len(MAGIC) + 4}: format {version} is not supported (5 and 6 are); "
            "start a mosquitto 2 with it once and stop it, which writes format 6"
        )
    reader = _DatabaseReader(version, now)
    for kind, start, chunk in _chunks(data, name):
        try:
            reader.take(kind, chunk)
        except (_Damaged, struct.error, MqttError, ValueError) as error:
            why = str(error) if isinstance(error, _Damaged) else "its content is damaged"
            raise MigrationError(f"{name}: offset {start}: {why} (chunk {kind})") from None
    return reader.found()


def _chunks(data: bytes, name: str) -> Iterator[tuple[int, int, bytes]]:
    """Type, offset and content."""
    at = len(MAGIC) + HEAD.size
    while at < len(data):
        if at + HEAD.size > len(data):
            raise MigrationError(f"{name}: offset {at}: the file ends within the head of a chunk")
        kind, length = HEAD.unpack_from(data, at)
        start = at + HEAD.size
        if start + length > len(data):
            raise MigrationError(f"{name}: offset {at}: a chunk of {length} bytes is longer than the rest of the file")
        yield kind, at, data[start : start + length]
        at = start + length


class _Damaged(Exception):
    """The message says why a chunk cannot be read."""


class _Cut:
    """Takes texts from a chunk, one after the other."""

    def __init__(self, chunk: bytes, at: int) -> None:
        self.chunk = chunk
        self.at = at

    def take(self, length: int) -> bytes:
        taken = self.chunk[self.at : self.at + length]
        if len(taken) != length:
            raise _Damaged("a text is longer than its chunk")
        self.at += length
        return taken

    def properties(self) -> dict[int, object]:
        if self.at == len(self.chunk):
            return {}
        found, end = decode_properties(self.chunk, self.at, len(self.chunk), PUBLISH)
        if end != len(self.chunk):
            raise _Damaged("bytes follow the properties")
        return dict(found)


class _DatabaseReader:
    def __init__(self, version: int, now: float) -> None:
        self.version = version
        self.now = now
        self.result = Persisted()
        self.messages: dict[bytes, StoredMessage | None] = {}  # by id; None: expired
        self.sessions: dict[str, StoredSession] = {}
        self.known: set[str] = set()  # those with a chunk of their own

    def take(self, kind: int, chunk: bytes) -> None:
        if kind == CONFIGURATION:
            if CONFIGURATION_PART.unpack(chunk)[2] != 8:
                raise _Damaged("message ids do not have 8 bytes")
        elif kind == MESSAGE:
            self._message(chunk)
        elif kind == CLIENT_MESSAGE:
            self._client_message(chunk)
        elif kind == RETAINED:
            if len(chunk) != 8:
                raise _Damaged("a message id does not have 8 bytes")
            message = self._named(chunk)
            if message is not None:
                self.result.retained.append(message)
        elif kind == SUBSCRIPTION:
            self._subscription(chunk)
        elif kind == CLIENT:
            self._client(chunk)
        # others are skipped, as mosquitto does

    def found(self) -> Persisted:
        """Sessions that end with their connection are left out, as are those that only a message names."""
        for client_id, session in self.sessions.items():
            past = session.expires_at != 0.0 and session.expires_at <= self.now
            if session.expiry == 0 or past or client_id not in self.known:
                self.result.ended += 1
            else:
                self.result.sessions.append(session)
        return self.result

    def _named(self, id: bytes) -> StoredMessage | None:
        if id not in self.messages:
            self.result.missing += 1
        return self.messages.get(id)

    def _session(self, raw: bytes) -> StoredSession:
        client_id = raw.decode()
        if not client_id or not valid_text(raw):
            raise _Damaged("a client id is empty or invalid")
        if client_id not in self.sessions:
            self.sessions[client_id] = StoredSession(client_id, None, 0, 0.0)
        return self.sessions[client_id]

    def _message(self, chunk: bytes) -> None:
        id, expires_at = MESSAGE_PART.unpack_from(chunk)
        size, _, source, user, topic_size, _, qos, retain = MESSAGE_REST.unpack_from(chunk, MESSAGE_PART.size)
        cut = _Cut(chunk, MESSAGE_PART.size + MESSAGE_REST.size)
        publisher = cut.take(source).decode()
        cut.take(user)
        topic, payload = cut.take(topic_size), cut.take(size)
        properties = cut.properties()
        if qos > 2 or not valid_topic(topic):
            raise _Damaged("a message has an invalid topic or QoS")
        if 0 < expires_at <= self.now:
            self.messages[id] = None
            self.result.expired += 1
            return
        for each in (MESSAGE_EXPIRY_INTERVAL, TOPIC_ALIAS, SUBSCRIPTION_IDENTIFIER):
            properties.pop(each, None)
        forwarded = encode_property_bytes(properties)  # type: ignore[arg-type]
        self.messages[id] = StoredMessage(
            topic, payload, qos, retain != 0, forwarded, float(max(0, expires_at)), publisher
        )

    def _client_message(self, chunk: bytes) -> None:
        id, packet_id, length, qos, state, flags, direction = CLIENT_MESSAGE_PART.unpack_from(chunk)
        cut = _Cut(chunk, CLIENT_MESSAGE_PART.size)
        session = self._session(cut.take(length))
        identifiers = cut.properties().get(SUBSCRIPTION_IDENTIFIER, [])
        message = self._named(id)
        if qos > 2 or state not in STATES or direction not in (INCOMING, OUTGOING):
            raise _Damaged("a message of a client has an invalid QoS, state or direction")
        if qos and not packet_id:
            raise _Damaged("a message of a client has no packet id")
        if message is None:
            return
        if direction == INCOMING:
            if qos == 2:
                session.held[packet_id] = message
            return
        assert isinstance(identifiers, list)
        waiting = Waiting(message, qos, flags >> 4 != 0, identifiers=tuple(identifiers))
        if state == QUEUED or qos == 0:
            session.queued.append(waiting)
            return
        waiting.packet_id = packet_id
        waiting.stage = RELEASED if qos == 2 and state in (RESEND_PUBREL, WAIT_FOR_PUBCOMP) else PUBLISHED
        session.in_flight.append(waiting)

    def _subscription(self, chunk: bytes) -> None:
        identifier, length, topic_size, qos, options = SUBSCRIPTION_PART.unpack_from(chunk)
        cut = _Cut(chunk, SUBSCRIPTION_PART.size)
        session, whole = self._session(cut.take(length)), cut.take(topic_size)
        share = parse_share(whole)
        if qos > 2 or not valid_filter(whole if share is None else share[1]) or identifier > 268_435_455:
            raise _Damaged("a subscription has an invalid filter, QoS or identifier")
        session.subscriptions.append(StoredSubscription(whole, qos, bool(options & 4), bool(options & 8), identifier))

    def _client(self, chunk: bytes) -> None:
        (expires_at,) = CLIENT_TIME.unpack_from(chunk)
        expiry, last_id, length = CLIENT_PART.unpack_from(chunk, CLIENT_TIME.size)
        at, user_size = CLIENT_TIME.size + CLIENT_PART.size, 0
        if self.version == 6:
            _, user_size = CLIENT_USER.unpack_from(chunk, at)
            at += CLIENT_USER.size
        cut = _Cut(chunk, at)
        session = self._session(cut.take(length))
        owner = cut.take(user_size).decode()
        self.known.add(session.client_id)
        session.expiry, session.last_id = expiry, last_id
        session.expires_at = 0.0 if expiry == NEVER else float(max(0, expires_at))
        session.owner = owner if self.version == 6 else None
