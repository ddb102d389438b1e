"""From a message to the frames of one connection, and the handling of messages that are not sent."""

from __future__ import annotations

from typing import Final, cast

from starlingmq.core.context import Context
from starlingmq.core.groups.group_port import GroupPort
from starlingmq.core.message import Message
from starlingmq.core.observe.audit import name_of
from starlingmq.core.observe.counters import DELAYS_MASK
from starlingmq.core.ready import QUEUE_DELETE, WINDOW_PUT
from starlingmq.core.routing.forward_batch import encode_forward
from starlingmq.core.session.outgoing import Outgoing
from starlingmq.core.session.qos import SendWindow
from starlingmq.core.session.session import Client, Session
from starlingmq.wire.mqtt import frame_of_parts, packet_id_bytes, publish_frame, publish_parts

SHARED_SIZE: Final = 512
"""From this size on a payload is not copied for each receiver: it is sent as a frame part that all of them share."""


def expiry_property(message: Message, now: float) -> bytes:
    """Message Expiry Interval with the remaining time, in whole seconds [MQTT-3.3.2-6]."""
    left = max(0, int(message.expires_at - now + 0.999))
    return bytes((2, left >> 24 & 255, left >> 16 & 255, left >> 8 & 255, left & 255))


def _unadorned(outgoing: Outgoing) -> bool:
    """Whether an MQTT 5 receiver gets only the properties that all others get, too."""
    return len(outgoing.ids) == 0 and outgoing.message.expires_at == 0.0


class Transmission:
    ctx: Context
    sharing: GroupPort  # handles the messages of groups; set after construction

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx

    def window(self, session: Session, client: Client) -> SendWindow:
        window = session.window
        if window is None:
            window = session.window = SendWindow(client.window_limit, self.ctx.max_queue_bytes)
        return window

    def transmit_acknowledged(self, session: Session, client: Client, window: SendWindow, outgoing: Outgoing) -> None:
        """Move a QoS 1 or 2 message into the window and send it."""
        ctx = self.ctx
        packet_id = window.add(outgoing, ctx.now)
        if ctx.recording and session.expiry != 0:
            ctx.ready.deliver(WINDOW_PUT, session, outgoing)
            if client.stored_from < 0 and not ctx.refusing:  # then it is QoS 1, which may arrive twice
                client.stored_from = len(client.frames)
        if not self.transmit(client, outgoing, packet_id, False):
            self.take_out(session, window, packet_id)
            return
        if client.version != 5 and ctx.retry_interval != 0.0:
            ctx.arm(session, ctx.now + ctx.retry_interval)

    def transmit_shared(self, session: Session, client: Client, message: Message, qos: int, alone: bool) -> bool:
        """Send a message at QoS 1 or 2 as every plain receiver gets it; False when this one does not take it now, or
        gets it in another form. ``qos`` is that of the subscription; ``alone``: there is no other receiver.

        The same as ``offer``, ``transmit_acknowledged`` and ``transmit`` for the common case, asked in one place."""
        ctx = self.ctx
        window = session.window
        version5 = client.version == 5
        if (
            window is None
            or session.queue is not None
            or session.ended
            or session.moving is not None
            or session.node != 0
            or ctx.refusing
            or (version5 and message.expires_at != 0.0)
            or window.full()
        ):
            return False
        if message.qos < qos:
            qos = message.qos
        now = ctx.now
        outgoing = Outgoing(message, qos, False, b"", None)
        packet_id = window.add(outgoing, now)
        if ctx.recording and session.expiry != 0:
            ctx.ready.deliver(WINDOW_PUT, session, outgoing)
            if client.stored_from < 0:
                client.stored_from = len(client.frames)
        elif client.waiting != 0 and client.stored_from < 0:
            client.stored_from = 0
        self._put_shared(client, message, qos, packet_id, alone)
        if ctx.audit is not None and len(message.id) != 0:
            ctx.audit.passed(session, message, qos)
        if not client.dirty:
            client.dirty = True
            ctx.ready.dirty.append(client)
        counters = ctx.counters
        counters.publish_sent += 1
        if counters.publish_sent & DELAYS_MASK == 0:
            counters.delays.add(now - message.published_at)
        if qos == 1:
            counters.sent_qos1 += 1
        else:
            counters.sent_qos2 += 1
        if not version5 and ctx.retry_interval != 0.0:
            retry_at = now + ctx.retry_interval
            if session.armed_at == 0.0 or retry_at < session.armed_at:
                ctx.arm(session, retry_at)
        return True

    def _put_shared(self, client: Client, message: Message, qos: int, packet_id: int, alone: bool) -> None:
        """The PUBLISH for one of the receivers: in one frame, or a large one in parts that all of them share."""
        version = client.version
        if alone and len(message.payload) < SHARED_SIZE:
            frame = publish_frame(
                message.topic, message.payload, qos, False, False, packet_id, version, message.properties
            )
        else:
            shape = qos if version != 5 else qos + 4
            if message.shape != shape:
                message.head, message.tail = publish_parts(
                    message.topic, message.payload, qos, False, version, message.properties
                )
                message.shape = shape
            head = message.head
            tail = message.tail
            if len(tail) >= SHARED_SIZE:
                client.frames.append(head)
                client.frames.append(packet_id_bytes(packet_id))
                client.frames.append(tail)
                client.size += len(head) + 2 + len(tail)
                return
            frame = frame_of_parts(head, packet_id, tail)
        client.frames.append(frame)
        client.size += len(frame)

    def transmit(self, client: Client, outgoing: Outgoing, packet_id: int, dup: bool) -> bool:
        """Write a PUBLISH; False if the client does not accept one of this size [MQTT-3.1.2-24]."""
        if client.link:
            self._transmit_to_node(client, outgoing, packet_id)
            return True
        ctx = self.ctx
        message = outgoing.message
        if client.plain and not dup and outgoing.qos != 0 and (client.version != 5 or _unadorned(outgoing)):
            shape = outgoing.qos if client.version != 5 else outgoing.qos + 4
            if outgoing.retain:
                shape += 8
            if message.shape != shape:
                message.head, message.tail = publish_parts(
                    message.topic, message.payload, outgoing.qos, outgoing.retain, client.version, message.properties
                )
                message.shape = shape
            client.frames.append(message.head)
            client.frames.append(packet_id_bytes(packet_id))
            client.frames.append(message.tail)
            client.size += len(message.head) + 2 + len(message.tail)
        else:
            frame = self.frame(client, outgoing, packet_id, dup)
            if client.max_packet != 0 and len(frame) > client.max_packet:
                self.give_up(cast(Session, client.session), outgoing, "packet_too_large")
                return False
            client.frames.append(frame)
            client.size += len(frame)
        if client.waiting != 0 and client.stored_from < 0:
            client.stored_from = 0
        if not client.dirty:
            client.dirty = True
            ctx.ready.dirty.append(client)
        ctx.counters.publish_sent += 1
        if ctx.counters.publish_sent & DELAYS_MASK == 0 and not dup and not outgoing.retain:
            ctx.counters.delays.add(ctx.now - message.published_at)
        if outgoing.qos == 1:
            ctx.counters.sent_qos1 += 1
        elif outgoing.qos == 2:
            ctx.counters.sent_qos2 += 1
        if len(message.id) != 0 and ctx.audit is not None:
            ctx.audit.delivered(client.client_id, message, outgoing.qos, dup)
        return True

    def _transmit_to_node(self, client: Client, outgoing: Outgoing, packet_id: int) -> None:
        ctx = self.ctx
        frame = encode_forward(outgoing.message, outgoing.ids, packet_id != 0, ctx.now)
        # QoS 2, too, only when its cause is stored; otherwise a restart would route it again, with another sequence.
        if client.stored_from < 0 and (client.waiting != 0 or (outgoing.qos == 2 and ctx.recording)):
            client.stored_from = len(client.frames)
        client.frames.append(frame)
        client.size += len(frame)
        if not client.dirty:
            client.dirty = True
            ctx.ready.dirty.append(client)
        ctx.counters.forwards_sent += 1

    def frame(self, client: Client, outgoing: Outgoing, packet_id: int, dup: bool) -> bytes:
        message = outgoing.message
        topic = message.topic
        if client.version != 5:
            return publish_frame(topic, message.payload, outgoing.qos, outgoing.retain, dup, packet_id, 4, b"")
        properties = message.properties
        if message.expires_at != 0.0:
            properties += expiry_property(message, self.ctx.now)
        properties += outgoing.ids
        aliases = client.aliases_out
        if client.alias_out_limit != 0 and not dup:
            if aliases is None:
                aliases = client.aliases_out = {}
            alias = aliases.get(topic, 0)
            if alias != 0:
                topic = b""
            elif len(aliases) < client.alias_out_limit:
                alias = len(aliases) + 1
                # A frame over the client's limit is not sent, so it must not be the one that sets an alias.
                if client.max_packet == 0 or message.size() + len(properties) + 32 <= client.max_packet:
                    aliases[topic] = alias
                else:
                    alias = 0
            if alias != 0:
                properties += b"\x23" + packet_id_bytes(alias)
        return publish_frame(topic, message.payload, outgoing.qos, outgoing.retain, dup, packet_id, 5, properties)

    def give_up(self, session: Session, outgoing: Outgoing, reason: str) -> None:
        self.drop(session, outgoing, reason)
        self.ctx.note(QUEUE_DELETE, session, outgoing)
        if outgoing.ticket != 0:
            self.sharing.settle(outgoing)

    def drop(self, session: Session, outgoing: Outgoing, reason: str) -> None:
        self.ctx.drop(reason, session.client_id)
        session.dropped += 1
        if self.ctx.audit is not None:
            self.ctx.audit.dropped(name_of(session), outgoing.message, outgoing.qos, reason)

    def take_out(self, session: Session, window: SendWindow, packet_id: int) -> None:
        """Remove a message that this client will never accept because of its size from the window."""
        outgoing = window.entries.get(packet_id)
        if outgoing is not None and outgoing.ticket != 0:
            self.sharing.settle(outgoing)
        window.discard(packet_id)
        if self.ctx.recording and session.expiry != 0:
            self.ctx.done(session, packet_id)
