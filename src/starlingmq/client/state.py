"""The MQTT client as pure state: bytes and ``now`` in, bytes and events out. No socket, no clock, no asyncio.

    connection_made(now)  -> CONNECT is in ``take()``
    receive(data, now)    -> events
    tick(now)             -> events; call it at ``wake_at()``
    connection_lost()     -> the session waits for the next connection_made
    publish, subscribe, unsubscribe -> a token, which comes back in a ``Completed`` event

The phases::

    IDLE --connection_made--> CONNECTING --CONNACK 0--> CONNECTED --disconnect, error, server's DISCONNECT--> CLOSING
    any --connection_lost--> IDLE

Requests are accepted in every phase and sent in CONNECTED. Requests that are unanswered when a connection is lost are
sent again on the next one: messages as ``window`` defines, SUBSCRIBE and UNSUBSCRIBE as new packets. When the server no
longer has the session, the client first renews its subscriptions. All times are seconds of the caller's clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from starlingmq.client import inbox, window
from starlingmq.client.client_frames import Frames
from starlingmq.client.client_topics import TopicAliases, encode_topic
from starlingmq.client.errors import explain
from starlingmq.client.events import Challenged, Completed, Connected, Ended, Event, Message, Refused
from starlingmq.client.inbox import Inbox
from starlingmq.client.options import V5, ConnectOptions, Subscription
from starlingmq.client.requests import Requests
from starlingmq.client.window import Outgoing, PacketIds, Window
from starlingmq.wire.mqtt import ack_frame, decode, decode_publish, encode, publish_frame
from starlingmq.wire.packets import (
    AUTH,
    CONNACK,
    DISCONNECT,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    Ack,
    Auth,
    Connack,
    Disconnect,
    Packet,
    Pingreq,
    Publish,
    Suback,
    Unsuback,
)
from starlingmq.wire.primitives import decode_varint
from starlingmq.wire.properties import (
    ASSIGNED_CLIENT_IDENTIFIER,
    MAXIMUM_PACKET_SIZE,
    MAXIMUM_QOS,
    MESSAGE_EXPIRY_INTERVAL,
    RECEIVE_MAXIMUM,
    RETAIN_AVAILABLE,
    SERVER_KEEP_ALIVE,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
    TOPIC_ALIAS_MAXIMUM,
    Properties,
    decode_property_bytes,
    encode_properties,
)
from starlingmq.wire.reasons import MqttError, ProtocolError, Reason

IDLE: Final = 0
CONNECTING: Final = 1
CONNECTED: Final = 2
CLOSING: Final = 3

PING_AFTER: Final = 0.8  # of the keep-alive: a timer that fires late must not exceed it
PING_PATIENCE_MAX: Final = 20.0  # seconds until an unanswered PINGREQ ends the connection
ACK_FIRST_BYTE: Final = {PUBACK: 0x40, PUBREC: 0x50, PUBREL: 0x62, PUBCOMP: 0x70}
# MQTT 3.1.1, 3.2.2.3
RETURN_CODES: Final = {
    1: Reason.UNSUPPORTED_PROTOCOL_VERSION,
    2: Reason.CLIENT_IDENTIFIER_NOT_VALID,
    3: Reason.SERVER_UNAVAILABLE,
    4: Reason.BAD_USER_NAME_OR_PASSWORD,
    5: Reason.NOT_AUTHORIZED,
}


class ClientState:
    """One client session over any number of connections. See the top of the file."""

    def __init__(self, options: ConnectOptions) -> None:
        self.options = options
        self.client_id = options.client_id
        self.phase = IDLE
        self.server: Properties = {}  # properties of the last CONNACK
        self._version = options.version
        announced = options.announced()
        modern = options.version == V5
        self._receive_maximum = _number(announced, RECEIVE_MAXIMUM, 65_535) if modern else 1 << 30
        self._packet_maximum = _number(announced, MAXIMUM_PACKET_SIZE, 0) if modern else 0
        self._ids = PacketIds()
        self._window = Window(self._ids)
        self._requests = Requests(self._ids)
        self._inbox = Inbox(self._receive_maximum)
        self._frames = Frames(self._packet_maximum)
        self._aliases = TopicAliases(_number(announced, TOPIC_ALIAS_MAXIMUM, 0) if modern else 0)
        self._out: list[bytes] = []
        self._unwritten = 0
        self._events: list[Event] = []
        self._was_connected = False
        self.speaks_mqtt = False  # the server has answered CONNECT at least once
        self._clean = options.clean_start
        self._keep_alive = 0.0
        self._connack_due = math.inf
        self._pong_due = math.inf
        self._heard_at = 0.0
        self._spoke_at = 0.0
        self._tokens = 0
        self._handlers: dict[int, Callable[[Packet], None]] = {
            CONNACK: self._on_connack,
            PUBACK: self._on_ack,
            PUBREC: self._on_ack,
            PUBREL: self._on_ack,
            PUBCOMP: self._on_ack,
            SUBACK: self._on_suback,
            UNSUBACK: self._on_unsuback,
            PINGRESP: self._on_pingresp,
            DISCONNECT: self._on_disconnect,
            AUTH: self._on_auth,
        }

    # The connection

    def connection_made(self, now: float) -> None:
        """A transport is open: CONNECT goes first [MQTT-3.1.0-1]."""
        self.phase = CONNECTING
        self._frames = Frames(self._packet_maximum)
        self._aliases.clear()
        self._discard_output()
        self._pong_due = math.inf
        self._connack_due = now + self.options.connect_timeout
        self._heard_at = now
        # A clean start applies to the first connection; later ones in MQTT 5 can resume the session that it created.
        self._clean = self.options.clean_start and not (self._was_connected and self._version == V5)
        self._send(encode(self.options.packet(self.client_id, self._clean), self._version))

    def connection_lost(self) -> None:
        """The transport is closed; unwritten bytes are lost."""
        self.phase = IDLE
        self._discard_output()
        self._connack_due = self._pong_due = math.inf
        self._requests.disconnected()

    def hand_over(self) -> bytes:
        """The connection is used by others from here on. Returns what has arrived of the next frame."""
        self.connection_lost()
        return self._frames.rest

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Handle bytes from the server, split anywhere. After an ``Ended`` or ``Refused`` the rest is ignored."""
        self._heard_at = now
        try:
            for first, whole, start, end in self._frames.feed(data):
                if self.phase in (IDLE, CLOSING):
                    break
                self.speaks_mqtt = self.speaks_mqtt or first >> 4 in (CONNACK, AUTH)
                self._frame(first, whole, start, end)
        except MqttError as error:
            self._fail(error.reason, error.detail + self.doubt())
        return self._take_events()

    def heard(self, now: float) -> None:
        """The server has sent something that goes past this client."""
        self._heard_at = now

    def spoke(self, now: float) -> None:
        """Something that goes past this client is written."""
        self._spoke_at = now

    def reserve(self, packet_ids: Iterable[int]) -> None:
        """These packet ids are used by others."""
        self._ids.reserve(packet_ids)

    def tick(self, now: float, reading: bool = True) -> list[Event]:
        """Time has passed. ``reading`` is false while the caller leaves the server's bytes unread on purpose."""
        if self.phase == CONNECTING and now >= self._connack_due:
            late = f"the server did not answer CONNECT within {self.options.connect_timeout:g} s"
            self._fail(Reason.UNSPECIFIED_ERROR, late + self.doubt())
        if self.phase != CONNECTED or not self._keep_alive:
            return self._take_events()
        if now >= self._pong_due:
            if reading and self._heard_at < self._pong_due - self._patience():
                self._fail(Reason.KEEP_ALIVE_TIMEOUT, "the server does not answer PINGREQ")
                return self._take_events()
            self._pong_due = math.inf
        if now >= self._ping_at() and self._pong_due == math.inf:
            self._send(encode(Pingreq(), self._version))
            self._pong_due = now + self._patience()
            self._spoke_at = now
        return self._take_events()

    def doubt(self) -> str:
        """The end of an error's text while the server has not shown that it speaks MQTT."""
        return "" if self.speaks_mqtt else "; is it an MQTT port?"

    def wake_at(self) -> float:
        """When ``tick`` is due; ``math.inf`` for never."""
        if self.phase == CONNECTING:
            return self._connack_due
        if self.phase != CONNECTED or not self._keep_alive:
            return math.inf
        return self._pong_due if self._pong_due != math.inf else self._ping_at()

    def take(self, now: float) -> bytes:
        """Return the bytes to write now."""
        if not self._out:
            return b""
        self._spoke_at = now
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._discard_output()
        return data

    def disconnect(self, reason: int = Reason.SUCCESS, properties: Properties | None = None) -> None:
        """Send DISCONNECT. 3.x has no reason in it: with another ``reason`` the connection ends without DISCONNECT."""
        if self.phase == CONNECTED and (self._version == V5 or reason == Reason.SUCCESS):
            self._send(encode(Disconnect(reason, properties), self._version))
        self.phase = CLOSING

    def authenticate(self, reason: int, properties: Properties) -> None:
        """Send the next step of an enhanced authentication: CONTINUE_AUTHENTICATION or RE_AUTHENTICATE."""
        self._send(encode(Auth(reason, properties), self._version))

    # Requests

    def publish(
        self, topic: str, payload: bytes, qos: int = 0, retain: bool = False, properties: Properties | None = None
    ) -> int:
        """Accept a message; return the token of its ``Completed``. Raises ValueError for an invalid one."""
        if len(self._window) >= self.options.max_queued:
            raise ValueError(f"{self.options.max_queued} messages are queued already (max_queued)")
        outgoing = Outgoing(self._token(), encode_topic(topic), payload, qos, retain, self._encoded(properties))
        outgoing.alias = _number(properties, TOPIC_ALIAS, 0) if properties else 0
        self._window.add(outgoing)
        self._pump()
        return outgoing.token

    def subscribe(self, subscriptions: Sequence[Subscription], properties: Properties | None = None) -> int:
        token = self._token()
        self._requests.subscribe(token, list(subscriptions), dict(properties or {}))
        self._pump()
        return token

    def unsubscribe(self, filters: Sequence[str], properties: Properties | None = None) -> int:
        token = self._token()
        self._requests.unsubscribe(token, list(filters), dict(properties or {}))
        self._pump()
        return token

    def taken(self, message: Message) -> None:
        """The application has ``message``: acknowledge it. Without this call the server keeps it for the client."""
        acknowledgement = self._inbox.taken(message)
        if acknowledgement and self.phase == CONNECTED:
            self._send(ack_frame(ACK_FIRST_BYTE[acknowledgement], message.packet_id))

    def events(self) -> list[Event]:
        """Return events of the requests since the last ``receive`` (QoS 0 completions, local refusals)."""
        return self._take_events()

    @property
    def unwritten(self) -> int:
        """Bytes that ``take`` would return now."""
        return self._unwritten

    @property
    def unanswered(self) -> bool:
        """Whether CONNECT, a SUBSCRIBE or an UNSUBSCRIBE still waits for its answer."""
        return self.phase == CONNECTING or len(self._requests) > 0

    @property
    def outstanding(self) -> int:
        """Messages accepted by ``publish`` and not yet completed."""
        return len(self._window)

    # Packets from the server

    def _frame(self, first: int, data: bytes, start: int, end: int) -> None:
        kind = first >> 4
        if self.phase == CONNECTING and kind not in (CONNACK, AUTH):
            raise ProtocolError(f"received packet type {kind} before CONNACK")  # [MQTT-3.2.0-1]
        if kind == PUBLISH:
            self._on_publish(decode_publish(first, data, start, end, self._version))
            return
        handler = self._handlers.get(kind)
        if handler is None or (kind in (DISCONNECT, AUTH) and self._version != V5):
            raise ProtocolError(f"received packet type {kind}, which servers must not send")
        handler(decode(first, data, start, end, self._version))

    def _on_connack(self, packet: Packet) -> None:
        assert isinstance(packet, Connack)
        if self.phase != CONNECTING:
            raise ProtocolError("received a second CONNACK")  # [MQTT-3.2.0-2]
        self._connack_due = math.inf
        if packet.reason != 0:
            reason = packet.reason if self._version == V5 else RETURN_CODES.get(packet.reason, packet.reason)
            self.phase = CLOSING
            self._events.append(Refused(reason, packet.properties))
            return
        if packet.session_present and self._clean:  # [MQTT-3.2.2-4]
            raise ProtocolError("the server resumed a session although a clean start was requested")
        self.phase = CONNECTED
        self.server = packet.properties
        assigned = packet.properties.get(ASSIGNED_CLIENT_IDENTIFIER)
        self.client_id = assigned if isinstance(assigned, str) else self.client_id
        self._keep_alive = float(_number(packet.properties, SERVER_KEEP_ALIVE, self.options.keep_alive))
        present = packet.session_present
        self._inbox.connected(present)
        self._requests.connected(present)
        self._window.connected(present, min(_number(self.server, RECEIVE_MAXIMUM, 65_535), self.options.max_inflight))
        self._was_connected = True
        self._events.append(Connected(present, packet.properties))
        self._pump()

    def _on_publish(self, packet: Publish) -> None:
        message = Message(
            self._aliases.topic_of(packet),
            packet.payload,
            packet.qos,
            packet.retain,
            packet.dup,
            packet.packet_id,
            _received_properties(packet) if self._version == V5 else {},
            self._inbox.connection,
        )
        action = self._inbox.publish(message)
        if action == inbox.OFFER:
            self._events.append(message)
        elif action == inbox.REPEAT:
            self._send(ack_frame(ACK_FIRST_BYTE[PUBREC], packet.packet_id))

    def _on_ack(self, packet: Packet) -> None:
        assert isinstance(packet, Ack)
        if packet.type == PUBREL:
            self._on_pubrel(packet)
            return
        if packet.type == PUBREC:
            outgoing = self._window.pubrec(packet.packet_id, packet.reason)
            if outgoing is None or outgoing.stage == window.RELEASED:
                self._release(packet.packet_id, known=outgoing is not None)
                return
        elif packet.type == PUBACK:
            outgoing = self._window.puback(packet.packet_id)
        else:
            outgoing = self._window.pubcomp(packet.packet_id)
        if outgoing is not None:
            self._complete(outgoing, packet.reason, packet.properties)
            self._pump()

    def _release(self, packet_id: int, known: bool) -> None:
        if known or self._version != V5:
            self._send(ack_frame(ACK_FIRST_BYTE[PUBREL], packet_id))
        else:
            self._send(encode(Ack(PUBREL, packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND), self._version))

    def _on_pubrel(self, packet: Ack) -> None:
        known = self._inbox.pubrel(packet.packet_id)
        if known or self._version != V5:
            self._send(ack_frame(ACK_FIRST_BYTE[PUBCOMP], packet.packet_id))
        else:
            self._send(encode(Ack(PUBCOMP, packet.packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND), self._version))

    def _on_suback(self, packet: Packet) -> None:
        assert isinstance(packet, Suback)
        self._answered(self._requests.suback(packet.packet_id, packet.reasons), packet.reasons, packet.properties)

    def _on_unsuback(self, packet: Packet) -> None:
        assert isinstance(packet, Unsuback)
        self._answered(self._requests.unsuback(packet.packet_id), packet.reasons, packet.properties)

    def _answered(self, token: int | None, reasons: list[int], properties: Properties) -> None:
        if token is not None:
            self._events.append(Completed(token, reasons, properties))
        self._pump()

    def _on_pingresp(self, _packet: Packet) -> None:
        self._pong_due = math.inf

    def _on_disconnect(self, packet: Packet) -> None:
        assert isinstance(packet, Disconnect)
        self.phase = CLOSING
        detail = f"the server closed the connection: {explain(packet.reason, packet.properties)}"
        self._events.append(Ended(packet.reason, detail, packet.properties, by_server=True))

    def _on_auth(self, packet: Packet) -> None:
        assert isinstance(packet, Auth)
        self._events.append(Challenged(packet.reason, packet.properties))

    # Sending

    def _pump(self) -> None:
        """Send all that may be sent: requests first, so that a subscription is in effect before the next message."""
        if self.phase != CONNECTED:
            return
        for packet in self._requests.due():
            self._send(encode(packet, self._version))
        while (outgoing := self._window.next_to_send()) is not None:
            self._transmit(outgoing)

    def _transmit(self, outgoing: Outgoing) -> None:
        if outgoing.stage == window.RELEASED:
            self._send(ack_frame(ACK_FIRST_BYTE[PUBREL], outgoing.packet_id))
            return
        frame = publish_frame(
            outgoing.topic,
            outgoing.payload,
            outgoing.qos,
            outgoing.retain,
            outgoing.dup,
            outgoing.packet_id,
            self._version,
            outgoing.properties,
        )
        refusal = self._unacceptable(outgoing, len(frame))
        if refusal:
            self._window.reject(outgoing)
            self._complete(outgoing, refusal, {})
            return
        self._send(frame)
        if outgoing.qos == 0:
            self._complete(outgoing, Reason.SUCCESS, {})

    def _unacceptable(self, outgoing: Outgoing, length: int) -> int:
        """Return the reason code for a message that the server's announced limits exclude; 0 if they allow it."""
        if self._version != V5:
            return 0
        if outgoing.qos > _number(self.server, MAXIMUM_QOS, 2):  # [MQTT-3.2.2-11]
            return Reason.QOS_NOT_SUPPORTED
        if outgoing.retain and _number(self.server, RETAIN_AVAILABLE, 1) == 0:  # [MQTT-3.2.2-14]
            return Reason.RETAIN_NOT_SUPPORTED
        if 0 < _number(self.server, MAXIMUM_PACKET_SIZE, 0) < length:  # [MQTT-3.2.2-15]
            return Reason.PACKET_TOO_LARGE
        if outgoing.alias > _number(self.server, TOPIC_ALIAS_MAXIMUM, 0):  # [MQTT-3.2.2-17]
            return Reason.TOPIC_ALIAS_INVALID
        return 0

    def _complete(self, outgoing: Outgoing, reason: int, properties: Properties) -> None:
        self._events.append(Completed(outgoing.token, [reason], properties, outgoing.resent))

    def _fail(self, reason: int, detail: str) -> None:
        """End the connection after an error or silence of the server, with a reason where the version has one."""
        if self.phase == CONNECTED and self._version == V5:
            self._send(encode(Disconnect(reason), self._version))
        self.phase = CLOSING
        self._events.append(Ended(reason, detail, {}, by_server=False))

    def _send(self, frame: bytes) -> None:
        self._out.append(frame)
        self._unwritten += len(frame)

    def _discard_output(self) -> None:
        self._out.clear()
        self._unwritten = 0

    def _token(self) -> int:
        self._tokens += 1
        return self._tokens

    def _encoded(self, properties: Properties | None) -> bytes:
        if not properties or self._version != V5:
            return b""
        raw = encode_properties(properties)
        return raw[decode_varint(raw, 0, len(raw))[1] :]

    def _ping_at(self) -> float:
        return min(self._spoke_at, self._heard_at) + self._keep_alive * PING_AFTER

    def _patience(self) -> float:
        return min(self._keep_alive, PING_PATIENCE_MAX)

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events


def _number(properties: Properties, key: int, default: int) -> int:
    value = properties.get(key, default)
    return value if isinstance(value, int) else default


def _received_properties(packet: Publish) -> Properties:
    properties = decode_property_bytes(packet.properties) if packet.properties else {}
    if packet.expiry >= 0:
        properties[MESSAGE_EXPIRY_INTERVAL] = packet.expiry
    if packet.topic_alias:
        properties[TOPIC_ALIAS] = packet.topic_alias
    if packet.subscription_ids:
        properties[SUBSCRIPTION_IDENTIFIER] = packet.subscription_ids
    return properties
