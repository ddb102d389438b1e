"""Replies to clients while nothing can be stored.

When a disk is full or fails, the writes of a turn stay in the store's memory, in order, and are written as soon as
possible. Clients do not wait for that: ``StorageFailure.answer`` replaces the frames that waited for these writes by
frames that are true now. Invariant:

- Nothing is acknowledged that is not stored: PUBACK and PUBREC become 0x97, and a handshake refused like this is no
  longer held. MQTT 3.x has no such code, so the connection ends without an acknowledgement.
- Nothing is refused that may be stored nevertheless. Suppose a QoS 2 message was written, but its sync failed, and the
  broker refused it. If a power failure then lost later writes but not the message, the broker would hold it for a
  handshake that is over, in place of the next one with its packet id. So the connection ends, for MQTT 5, too.
- Frames that cannot be refused are postponed until storing works: PUBCOMP, PUBREL, and QoS 2 messages, which must
  arrive exactly once.
- QoS 1 messages may arrive twice, and QoS 0 ones need no disk: they are sent.

A refused QoS 1 message may have reached receivers or their queues before; it may arrive again when its publisher
retries, as it may after a lost connection.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.connect.ending import Ending
from starlingmq.core.context.context import Context
from starlingmq.core.context.ready import INBOUND_DELETE, Write
from starlingmq.core.delivery.delivery import Delivery
from starlingmq.core.session.session import Client, Session
from starlingmq.core.turn.job import Job
from starlingmq.wire.frames import frame_length
from starlingmq.wire.mqtt import (
    CONNACK,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    Connack,
    Disconnect,
    encode,
    packet_id_bytes,
)
from starlingmq.wire.reasons import Reason

RELEASED_PER_TURN: Final = 100  # sessions that continue per turn when storing works again


class ReleaseJob(Job):
    """Storing works again: postponed frames are sent, and stopped queues advance."""

    owner: StorageFailure
    sessions: list[Session]

    def __init__(self, owner: StorageFailure) -> None:
        self.owner = owner
        self.sessions = list(owner.delivery.postponed)

    def step(self) -> bool:
        for _ in range(min(RELEASED_PER_TURN, len(self.sessions))):
            self.owner.release(self.sessions.pop())
        return not self.sessions


class StorageFailure:
    ctx: Context
    ending: Ending
    delivery: Delivery
    refused_turns: int  # their frames have not been answered yet
    _is_over: bool

    def __init__(self, ctx: Context, ending: Ending, delivery: Delivery) -> None:
        self.ctx = ctx
        self.ending = ending
        self.delivery = delivery
        self.refused_turns = 0
        self._is_over = False

    def answer(self, client: Client, held: bytes) -> bytes:
        """The frames for a client in place of those in ``held``, whose writes were not stored. This may close its
        connection: then these bytes are the last."""
        if client.link:
            self.delivery.links_postponed.append(
                (client, held)
            )  # nothing for another node is lost, and nothing overtakes it
            return b""
        if client.protocol_handler is not None:
            return self._close(client)
        session = client.session
        said: list[bytes] = []
        owed: dict[int, None] = {}
        pos = 0
        while pos < len(held) and not client.output_stopped:
            end = pos + frame_length(held, pos)
            frame = held[pos:end]
            body = 2
            while frame[body - 1] >= 0x80:
                body += 1
            if session is None or session.client is not client:
                if frame[0] >> 4 > UNSUBACK:  # the connection that replaces it sends the rest again
                    said.append(frame)
            else:
                said.append(self._instead(client, session, frame, body, owed))
            pos = end
        if owed and session is not None and session.window is not None:
            window = session.window
            owed.update(window.owed)
            window.owed = dict.fromkeys([packet_id for packet_id in window.entries if packet_id in owed][::-1])
            self.delivery.wait(session)
        return b"".join(said)

    def released(self, client: Client, frames: bytes) -> bytes:
        """The frames to send now for a link whose writes are stored: none while earlier frames for that node are
        postponed. They would overtake those, which the node would then take for known ones."""
        links = self.delivery.links_postponed
        for postponed, _ in links:
            if postponed is client:
                links.append((client, frames))
                self._go_on()
                return b""
        return frames

    def _instead(self, client: Client, session: Session, frame: bytes, body: int, owed: dict[int, None]) -> bytes:
        kind = frame[0] >> 4
        if kind == PUBLISH:
            if frame[0] & 6 == 4 and session.expiry != 0:
                at = body + 2 + (frame[body] << 8 | frame[body + 1])
                owed[frame[at] << 8 | frame[at + 1]] = None
                return b""
            return frame
        if kind == CONNACK:
            return self._connack(client, session, frame, body)
        packet_id = frame[body] << 8 | frame[body + 1] if len(frame) > body + 1 else 0
        reason = frame[body + 2] if len(frame) > body + 2 else 0
        if (kind == PUBACK or kind == PUBREC) and reason < 0x80:  # noqa: SIM109  a tuple would be made and searched
            position = self._held_at(session, packet_id) if kind == PUBREC else -1
            if 0 <= position < self.ctx.storage.stored_before:
                return frame
            if client.version != 5 or 0 <= position < self.ctx.storage.written_before:
                return self._close(client)
            if kind == PUBREC:
                self._let_go(session, packet_id)
            self.ctx.drop("storage_failing", client.client_id)
            return bytes((frame[0], 3)) + packet_id_bytes(packet_id) + bytes((Reason.QUOTA_EXCEEDED,))
        if kind == PUBCOMP and reason < 0x80:
            self.delivery.wait(session).append(frame)
            return b""
        if kind == PUBREL and session.expiry != 0:
            owed[packet_id] = None
            return b""
        if kind == SUBACK and session.expiry != 0 and min(self._codes(client, frame, body)) < 0x80:
            return self._close(client)
        if kind == UNSUBACK and session.expiry != 0:
            return self._close(client)
        return frame

    def _codes(self, client: Client, frame: bytes, body: int) -> bytes:
        """The codes of a SUBACK. A SUBACK of this broker has no properties in MQTT 5: one byte says so."""
        return frame[body + 3 :] if client.version == 5 else frame[body + 2 :]

    def _held_at(self, session: Session, packet_id: int) -> int:
        """The journal offset of the PUBLISH of this handshake; -1 if none is held."""
        inbound = session.inbound
        entry = None if inbound is None else inbound.entries.get(packet_id)
        message = None if entry is None else entry.message
        return -1 if message is None else message.offset

    def _let_go(self, session: Session, packet_id: int) -> None:
        inbound = session.inbound
        if inbound is not None and inbound.abandon(packet_id) and self.ctx.recording and session.expiry != 0:
            self.ctx.write(Write(INBOUND_DELETE, session, packet_id))

    def _connack(self, client: Client, session: Session, frame: bytes, body: int) -> bytes:
        """The session of this CONNACK has to be stored. A new one is undone, so that no client is told later of a
        session that it does not know. One that needs a reset is kept: it may be the client's only session, with all its
        messages, and says session present 0 again."""
        if frame[body + 1] != 0:
            return frame
        present = frame[body] != 0
        session.will = None  # it was never accepted
        self.ending.will_changed(session)
        client.output_stopped = True
        self.ctx.notice("not_stored", client, "its session could not be stored")
        self.ending.close(client, "storage failed")
        if not present and client.version != 3 and not session.ended and not session.needs_reset:
            self.ending.end(session)
        client.last_words = True
        code = int(Reason.QUOTA_EXCEEDED) if client.version == 5 else 3
        return encode(Connack(False, code), client.version)

    def _close(self, client: Client) -> bytes:
        """The protocol cannot refuse this frame alone: the connection ends, and the client knows that its request
        failed."""
        client.output_stopped = True
        self.ctx.notice("not_stored", client, "the response could not be stored")
        self.ending.close(client, "storage failed")
        client.last_words = client.version == 5
        return encode(Disconnect(Reason.QUOTA_EXCEEDED), 5) if client.version == 5 else b""

    # Recovery

    def over(self) -> None:
        """Storing works again. What is postponed is sent once the frames of all refused turns are answered: frames for
        a node that are postponed later would come behind newer ones, and that node would take them for known ones."""
        self._is_over = True
        self._go_on()

    def turn_answered(self) -> bool:
        """All frames of a refused turn are. Returns whether there is more to send now."""
        self.refused_turns -= 1
        return self._go_on()

    def _go_on(self) -> bool:
        if not self._is_over or self.refused_turns != 0:
            return False
        for client, _ in self.delivery.links_postponed:
            if client.waiting != 0 and not client.gone:
                return False  # ``released`` gets later frames for that node, and goes on
        self._is_over = False
        if self.ctx.refusing:
            return False  # it has failed again: this waits until the next time
        links, self.delivery.links_postponed = self.delivery.links_postponed, []
        for client, held in links:
            self.ctx.send_stored(client, held)
            if client.session is not None:
                self.delivery.wait(client.session)
        if self.delivery.postponed:
            self.ctx.jobs.append(ReleaseJob(self))
        return True

    def release(self, session: Session) -> None:
        frames = self.delivery.postponed.pop(session, None)
        if frames is None or session.ended or session.client is None:
            return
        for frame in frames:
            self.ctx.send_stored(session.client, frame)
        self.delivery.go_on(session)
