"""Bytes from clients: they are assembled to packets, and each packet is passed to the part that handles it."""

from __future__ import annotations

from typing import Final, cast

from starlingmq.core.connect.connecting import Connecting
from starlingmq.core.connect.ending import Ending
from starlingmq.core.connect.session_reset import knows
from starlingmq.core.context.context import HEAVY, Context
from starlingmq.core.delivery.delivery import Delivery
from starlingmq.core.limits.meter import Meter
from starlingmq.core.publish.publishing import Publishing
from starlingmq.core.session.connection import AUTHENTICATING, CLOSED, DEAF, NEW, OPEN, PACED, TURN_OVER
from starlingmq.core.session.session import Client, Session
from starlingmq.core.subscribe.subscribing import Subscribing
from starlingmq.core.turn.timers import TimerWheel
from starlingmq.wire.decoder import BRIDGE
from starlingmq.wire.mqtt import (
    AUTH,
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    UNSUBSCRIBE,
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Subscribe,
    Unsubscribe,
    decode,
    encode,
    frame_length,
)
from starlingmq.wire.mqtt import SUBSCRIBE as SUBSCRIBE_PACKET
from starlingmq.wire.primitives import LONG_FORM
from starlingmq.wire.reasons import MalformedPacket, MqttError, ProtocolError, Reason

PINGRESP: Final = b"\xd0\x00"
ACK_WORK: Final = 4  # for an acknowledgement with a reason code
TINY: Final = 8  # bytes of a ping or some acknowledgements: their work is never worth a wait


def _level(data: bytes, start: int, end: int) -> int:
    """The protocol level of a CONNECT that could not be decoded; 0 if even the level is missing."""
    if end - start < 3:
        return 0
    at = start + 2 + (data[start] << 8 | data[start + 1])
    return data[at] if at < end else 0


class PacketIntake:
    """Input of MQTT clients. Another protocol gets the bytes of its clients unchanged."""

    ctx: Context
    delivery: Delivery
    publishing: Publishing
    subscribing: Subscribing
    ending: Ending
    connecting: Connecting
    pace_wheel: TimerWheel  # clients that are not read because of ``limits.message_rate`` or ``byte_rate``

    def __init__(
        self,
        ctx: Context,
        delivery: Delivery,
        publishing: Publishing,
        subscribing: Subscribing,
        ending: Ending,
        connecting: Connecting,
    ) -> None:
        self.ctx = ctx
        self.delivery = delivery
        self.publishing = publishing
        self.subscribing = subscribing
        self.ending = ending
        self.connecting = connecting
        self.pace_wheel = TimerWheel()

    def receive(self, client: Client, data: bytes, now: float) -> None:
        """Bytes have arrived. Complete packets are handled; the rest is kept for the next call."""
        ctx = self.ctx
        ctx.now = now
        if now >= ctx.serves_until:
            ctx.isolated = True  # the machine stood still: others may have gone on without us since long ago
        ctx.counters.bytes_received += len(data)
        client.bytes_in += len(data)
        if client.state == CLOSED:
            return
        if client.halted != 0 or (ctx.work <= 0 and (len(data) > TINY or client.missing != 0 or client.rest)):
            self._put_off(client, data)
            return
        if client.blocked and self._deaf(client, data):
            return
        if client.missing > len(data):
            assert client.chunks is not None
            client.chunks.append(data)
            client.missing -= len(data)
            return
        if client.chunks is not None:
            client.chunks.append(data)
            data = b"".join(client.chunks)
            client.chunks = None
            client.missing = 0
        elif client.rest:
            data = client.rest + data
            client.rest = b""
        if client.meter is not None:
            self._handle_paced(client, client.meter, data, len(data))
        else:
            self._handle(client, data)

    def _put_off(self, client: Client, data: bytes) -> None:
        """Keep bytes for later: at most what the transport had read before it was paused. If the work of this turn is
        used up, that is the next turn: otherwise each of many connections could have one more expensive packet
        handled in this one."""
        self._keep(client, data)
        if client.halted == 0:
            self.ctx.turn_over(client)

    def _keep(self, client: Client, data: bytes) -> None:
        """The pieces of an incomplete packet are joined only once, when all of it has arrived: it may be large, and
        many of its pieces may come while the client has to wait."""
        if client.chunks is None:
            client.rest += data
            return
        client.chunks.append(data)
        client.missing -= len(data)
        if client.missing <= 0:
            client.rest = b"".join(client.chunks)
            client.chunks = None
            client.missing = 0

    def _handle_paced(self, client: Client, meter: Meter, data: bytes, size: int) -> None:
        """Handle as many messages as the client may publish now; ``size`` bytes of ``data`` are new."""
        ctx = self.ctx
        work = ctx.work
        before = ctx.counters.publish_received
        ctx.work = min(work, meter.allowance(ctx.now))
        given = ctx.work
        self._handle(client, data)
        ctx.work = work - (given - ctx.work)
        seconds = meter.used(ctx.counters.publish_received - before, size, ctx.now)
        if seconds > 0.0 and client.state == OPEN and not client.gone:
            ctx.halt(client, PACED)
            self.pace_wheel.add(client, ctx.now + seconds)

    def _deaf(self, client: Client, data: bytes) -> bool:
        """Count what a client sends while it does not read: no answer is much larger than its request, so this bounds
        the answers, too. Above ``limits.write_buffer`` the client is not read, until it reads or its keep alive
        expires."""
        client.bytes_while_blocked += len(data)
        if client.bytes_while_blocked <= self.ctx.write_buffer:
            return False
        self._keep(client, data)
        self.ctx.halt(client, DEAF)
        return True

    def _handle(self, client: Client, data: bytes) -> None:
        if client.protocol_handler is not None:
            client.protocol_handler.handle(client, data)
            return
        self.publishing.answer_together(client)
        try:
            self._handle_packets(client, data)
        finally:
            self.publishing.answered_together(client)
        session = client.session
        if session is not None and session.needs_reset:
            self._notice_publish(client, session)

    def _notice_publish(self, client: Client, session: Session) -> None:
        """A PUBLISH shows that the client knows of a session reset, like any other packet. It is looked at once for all
        packets that were read together, and stored with them."""
        if session.connack_sent_to is client and client.published != 0 and knows(client):
            self.subscribing.confirm_reset(session)

    def _handle_packets(self, client: Client, data: bytes) -> None:
        """Long because it is the loop over all packets of a read, in which each call costs."""
        ctx = self.ctx
        publishing = self.publishing
        before = ctx.work
        published = False  # and not yet answered
        size = len(data)
        modest = ctx.connect_size  # a client must not send more before CONNACK
        pos = start = end = 0
        try:
            while size - pos >= 2:
                length = data[pos + 1]
                if length < 0x80:
                    length += 2
                    start = pos + 2
                elif size - pos >= 3 and data[pos + 2] < 0x80:
                    length = (length & 0x7F) + (data[pos + 2] << 7) + 3
                    if length < 131 and client.version == 5:
                        raise MalformedPacket(LONG_FORM)  # [MQTT-1.5.5-1] of 5.0
                    start = pos + 3
                else:
                    length = frame_length(data, pos, client.version == 5)
                    if length == 0:
                        break
                    start = pos + 2
                    while data[start - 1] >= 0x80:
                        start += 1
                if length > modest and (length > ctx.max_packet or client.state != OPEN):
                    end = size
                    raise MalformedPacket(
                        f"its packet has {length} bytes; {ctx.max_packet} are allowed (limits.max_packet_size)"
                        if client.state == OPEN
                        else f"its packet has {length} bytes; {modest} are allowed in CONNECT (limits.connect_size)",
                        Reason.PACKET_TOO_LARGE,
                    )
                end = pos + length
                if end > size:
                    if client.state == NEW and data[pos] >> 4 != CONNECT:
                        raise ProtocolError("the first packet is not CONNECT")  # not worth waiting for its end
                    self._wait_for(client, data, pos, end - size)
                    return
                first = data[pos]
                pos = end
                client.last_packet = ctx.now
                if first & 0xF0 == 0x30 and client.state == OPEN:
                    published = True
                    publishing.on_publish(client, cast(Session, client.session), first, data, start, end)
                else:
                    if published:
                        published = False
                        publishing.answer_now(client)
                    pos = self._on_others(client, first, data, start, end)
                if ctx.work <= 0:
                    client.heavy = before - ctx.work >= HEAVY
                    if pos != size:
                        ctx.turn_over(client)
                if client.halted != 0 or client.state == CLOSED:
                    break
            if client.state == NEW and pos < size and data[pos] != CONNECT << 4:
                raise ProtocolError("the first packet is not CONNECT")  # not worth waiting for its length
        except MqttError as error:
            publishing.answer_now(client)
            self._fail(client, error, data, start, end)
        if client.state != CLOSED and pos != size:
            client.rest = data[pos:] + client.rest

    def _wait_for(self, client: Client, data: bytes, pos: int, missing: int) -> None:
        """A packet is incomplete. A large one is assembled only once all of it has arrived."""
        client.chunks = [data[pos:] if pos else data]
        client.missing = missing

    def _on_packet(self, client: Client, first: int, data: bytes, start: int, end: int) -> None:
        kind = first >> 4
        if client.state == NEW:
            if kind != CONNECT:
                raise ProtocolError("the first packet is not CONNECT")  # [MQTT-3.1.0-1]
            connect = cast(Connect, decode(first, data, start, end, 0))
            if connect.version == 5 and data[start - 1] == 0:  # superfluous: the length itself is not 0
                raise MalformedPacket(LONG_FORM)
            if client.full != 0:
                client.version = connect.version
                client.client_id = connect.client_id
                self.ending.turn_away(client)
                return
            self.connecting.on_connect(client, connect)
            return
        if client.state == AUTHENTICATING:
            if kind == DISCONNECT:
                decode(first, data, start, end, client.version)
                self.ending.close(client, "disconnect")
                return
            if kind != AUTH or client.version != 5:
                raise ProtocolError("a packet other than AUTH before CONNACK")  # [MQTT-3.1.2-30]
            self.connecting.on_auth(client, cast(Auth, decode(first, data, start, end, 5)))
            return
        session = cast(Session, client.session)
        self.ctx.work -= 1
        if session.needs_reset and session.connack_sent_to is client and (knows(client) or kind == SUBSCRIBE_PACKET):
            self.subscribing.confirm_reset(session)
        if kind >= PUBACK and kind <= PUBCOMP:
            self._on_ack(client, session, first, data, start, end)
            return
        if kind == PINGREQ:
            decode(first, data, start, end, client.version)
            self.ctx.send(client, PINGRESP)  # [MQTT-3.12.4-1]
        elif kind == SUBSCRIBE_PACKET:
            packet = decode(first, data, start, end, client.version)
            self.subscribing.on_subscribe(client, session, cast(Subscribe, packet))
        elif kind == UNSUBSCRIBE:
            packet = decode(first, data, start, end, client.version)
            self.subscribing.on_unsubscribe(client, session, cast(Unsubscribe, packet))
        elif kind == DISCONNECT:
            packet = decode(first, data, start, end, client.version)
            self.ending.on_disconnect(client, session, cast(Disconnect, packet))
        elif kind == AUTH and client.version == 5:
            self.connecting.on_auth(client, cast(Auth, decode(first, data, start, end, 5)))
        elif kind == CONNECT:
            raise ProtocolError("a second CONNECT")  # [MQTT-3.1.0-2]
        elif kind == 0:
            raise MalformedPacket("a packet of type 0, which does not exist")
        else:
            raise ProtocolError("a packet type that only a server may send")

    def _on_others(self, client: Client, first: int, data: bytes, start: int, end: int) -> int:
        """Handle a packet that is not a PUBLISH, and with a plain acknowledgement those of its kind that stand in a row
        behind it. The position after them."""
        session = client.session
        if end - start == 2 and client.state == OPEN and session is not None and not session.needs_reset:
            ctx = self.ctx
            begin = end - 4
            last = min(len(data), begin + 4 * ctx.work)
            handled = begin
            if first == 0x62:
                handled = self.publishing.on_pubrels(client, session, data, begin, last)
            elif first == 0x40 or first == 0x50 or first == 0x70:
                handled = self.delivery.acknowledged(session, client, first, data, begin, last)
                ctx.work -= (handled - begin) >> 2
            if handled != begin:
                return handled
        self._on_packet(client, first, data, start, end)
        return end

    def _on_ack(self, client: Client, session: Session, first: int, data: bytes, start: int, end: int) -> None:
        kind = first >> 4
        reason = 0
        if end - start == 2 and (first == 0x40 or first == 0x62 or first == 0x50 or first == 0x70):
            packet_id = data[start] << 8 | data[start + 1]
            if packet_id == 0:
                raise ProtocolError("packet identifier 0")
        else:
            self.ctx.work -= ACK_WORK
            ack = cast(Ack, decode(first, data, start, end, client.version))
            packet_id = ack.packet_id
            reason = ack.reason
        if kind == PUBACK:
            self.delivery.puback(session, packet_id, reason)
        elif kind == PUBREC:
            self.delivery.pubrec(session, client, packet_id, reason)
        elif kind == PUBREL:
            self.publishing.on_pubrel(client, session, packet_id)
        else:
            self.delivery.pubcomp(session, packet_id)

    def _fail(self, client: Client, error: MqttError, data: bytes, start: int, end: int) -> None:
        if client.state == NEW and client.full == 0:
            if data[0] >> 4 == CONNECT and _level(data, start, end) & ~BRIDGE == 5:
                client.version = 5  # it is answered in the form of 5.0, whatever protocol name it gave
            elif error.reason == Reason.UNSUPPORTED_PROTOCOL_VERSION:
                self.ctx.send(client, encode(Connack(False, 1), 4))  # [MQTT-3.1.2-2] of 3.1.1
        elif error.reason == Reason.PACKET_IDENTIFIER_NOT_FOUND and client.version != 5:
            self.publishing.closed_for(client, data, end)
        self.end_for(client, error)

    def end_for(self, client: Client, error: MqttError) -> None:
        unknown = error.reason == Reason.PACKET_IDENTIFIER_NOT_FOUND and client.version != 5
        session = client.session
        self.ending.fail(client, error.reason, error.detail)
        if unknown and self.ctx.mqtt.unknown_pubrel == "end_session" and session is not None and not session.ended:
            self.ending.end(session)

    def resume(self, client: Client) -> None:
        client.halted &= ~TURN_OVER
        if client.halted != 0 or client.state == CLOSED:
            return
        client.last_packet = self.ctx.now
        data = client.rest
        client.rest = b""
        if data:
            if client.meter is not None:
                self._handle_paced(client, client.meter, data, 0)
            else:
                self._handle(client, data)
        if client.halted == 0:
            self.ctx.ready.pause.append(client)
            if client.gone:
                self.ending.close(client, "connection lost")

    def resume_last(self) -> None:
        """Clients whose messages are expensive come after all others, so that these do not wait for each of them. They
        have a part of the turn for themselves."""
        ctx = self.ctx
        ctx.work = max(ctx.work, HEAVY)
        for _ in range(len(ctx.resumable_last)):
            client = ctx.resumable_last.popleft()
            before, had = ctx.work, len(client.rest)
            self.resume(client)
            if had != 0:
                client.heavy = before - ctx.work >= HEAVY
            if ctx.work <= 0:
                break
