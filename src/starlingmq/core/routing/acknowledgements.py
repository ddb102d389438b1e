"""Acknowledgements from receivers, many at a time.

A client that takes many messages acknowledges them in one go: many PUBACKs, PUBRECs or PUBCOMPs stand in a row, all of
four bytes. What is asked for each connection is asked once for such a run; one look at the window is left for each of
them. Whatever is unusual (an id that is not in flight, a reason code, a message of a shared group, one that is sent
again) ends the run and goes the long way, through ``SessionDelivery.puback`` and its like.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.ready import WINDOW_PUT
from starlingmq.core.routing.session_delivery import SessionDelivery
from starlingmq.core.session.outgoing import RELEASED
from starlingmq.core.session.packet_ids import KEYS
from starlingmq.core.session.qos import SendWindow
from starlingmq.core.session.session import Client, Session
from starlingmq.wire.mqtt import ack_run

PUBACK_BYTE: Final = 0x40
PUBREC_BYTE: Final = 0x50
PUBREL_BYTE: Final = 0x62
PUBCOMP_BYTE: Final = 0x70


class Acknowledgements(SessionDelivery):
    def acknowledged(self, session: Session, client: Client, first: int, data: bytes, pos: int, end: int) -> int:
        """Handle a run of acknowledgements with this first byte, which begins at ``pos`` and may go on up to ``end``.
        The position after it: ``pos`` if already the first one has to go the long way."""
        window = session.window
        if window is None or window.owed:
            return pos
        if first == PUBREC_BYTE:
            return self._released(session, client, window, data, pos, end)
        return self._finished(session, window, first, data, pos, end)

    def _finished(self, session: Session, window: SendWindow, first: int, data: bytes, pos: int, end: int) -> int:
        """PUBACK or PUBCOMP: the messages leave the window."""
        ctx = self.ctx
        keyed = window.keyed
        recorded = ctx.recording and session.expiry != 0
        size = 0
        begin = pos
        while pos + 4 <= end and data[pos] == first and data[pos + 1] == 2:
            block = KEYS[data[pos + 2]]
            if not block:
                break
            key = block[data[pos + 3]]
            outgoing = keyed.get(key)
            if outgoing is None or outgoing.ticket != 0:
                break
            if outgoing.qos != 1 if first == PUBACK_BYTE else outgoing.stage != RELEASED:
                break
            if len(outgoing.message.id) != 0 and ctx.audit is not None:
                break
            del keyed[key]
            size += outgoing.message.octets
            if recorded:
                ctx.done(session, outgoing.packet_id)
            pos += 4
        if pos != begin:
            window.bytes -= size
            if session.queue is not None or session.shares is not None:
                self.go_on(session)
        return pos

    def _released(self, session: Session, client: Client, window: SendWindow, data: bytes, pos: int, end: int) -> int:
        """PUBREC: the messages stay in the window until PUBCOMP; the PUBRELs are one frame."""
        if client.max_packet != 0:
            return pos
        ctx = self.ctx
        keyed = window.keyed
        recorded = ctx.recording and session.expiry != 0
        now = ctx.now
        begin = pos
        while pos + 4 <= end and data[pos] == PUBREC_BYTE and data[pos + 1] == 2:
            block = KEYS[data[pos + 2]]
            if not block:
                break
            outgoing = keyed.get(block[data[pos + 3]])
            if outgoing is None or outgoing.qos != 2:
                break
            outgoing.stage = RELEASED
            outgoing.sent_at = now
            if recorded:
                ctx.ready.deliver(WINDOW_PUT, session, outgoing)
            pos += 4
        if pos != begin:
            released = ack_run(PUBREL_BYTE, data, begin, pos)
            if recorded:
                ctx.send_stored(client, released)
            else:
                ctx.send(client, released)
        return pos
