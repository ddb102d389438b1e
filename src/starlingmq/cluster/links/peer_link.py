"""The ordered, acknowledged line of data frames between this node and one peer, both directions.

Frames are numbered from 1 for a pair of incarnations; both are named by each frame and by each acknowledgement, and
what is of another pair is not looked at. The sender keeps a frame until it is acknowledged and goes back to the first
one that is not (go back N) when nothing moves for ``resend_interval``, or when the way changed. The receiver takes the
frame that is next and no other.

    sender     offered --take--> sent --acknowledged--> gone
                  ^---- resend ----'
    receiver   next --received--> delivered --stored--> acknowledged

The law: of a pair of living incarnations each frame is delivered once and in order, and acknowledged only after it was
stored. When the receiver is a new one, frames that were not acknowledged are sent to it anew, under new numbers: some
of them the one before may have stored. Those are told by the ids of the messages in them.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Final

from starlingmq.cluster.links.peer_frames import Data, DataAck

WAITED_SECONDS: Final = 0.5  # a shorter wait of a frame is not told

Mark = tuple[int, int]  # incarnation of the source, sequence: what had been delivered at some time


class PeerLink:
    """``window``: bytes that may be on the way in each direction. A single frame may be larger."""

    target_incarnation: int  # of the frames that are sent; 0: not known, nothing is
    source_incarnation: int  # of the frames that were received, so of acknowledgements as well; 0: none yet
    ack_due: bool  # ``stored`` will have something to say
    unsaid: int  # bytes stored since whoever acknowledges has set it to 0

    def __init__(self, incarnation: int, window: int, resend_interval: float) -> None:
        self._incarnation = incarnation
        self._window: Final = window
        self._resend_interval: Final = resend_interval
        # Sending
        self.target_incarnation = 0
        self._frames: dict[int, Data] = {}  # by sequence; not acknowledged
        self._offered_at: dict[int, float] = {}  # when each of them was offered
        self._bytes = 0  # in them
        self._offered = 0  # sequence of the last frame
        self._acknowledged = 0  # sequence up to which the peer has stored
        self._next = 1  # sequence of the frame to be sent next
        self._sent = 0  # the highest sequence that was sent
        self._on_the_way = 0  # bytes of frames sent and not acknowledged, those before ``_next``
        self._room = window  # what the peer takes beyond what it has acknowledged
        self._deadline = inf  # for something to move
        # Receiving
        self.source_incarnation = 0
        self.ack_due = False
        self.unsaid = 0
        self._delivered = 0  # sequence
        self._stored = 0
        self._delivered_bytes = 0
        self._stored_bytes = 0
        self._sizes: dict[int, int] = {}  # of frames delivered and not stored
        self._promised = window  # bytes from the first frame on that the peer was told to be taken
        self._held = False

    # Sending

    def offer(self, blob: bytes, count: int, now: float) -> None:
        """Another frame for the peer, of ``count`` messages. It is for the caller to look at ``room`` before."""
        self._offered += 1
        self._frames[self._offered] = Data(self._offered, count, blob)
        self._offered_at[self._offered] = now
        self._bytes += len(blob)

    def room(self) -> int:
        """Bytes that may be offered before the window is full."""
        return max(0, self._window - self._bytes)

    def unacknowledged(self) -> int:
        """Frames that the peer has not acknowledged, sent or not."""
        return len(self._frames)

    def take(self, now: float, limit: int) -> list[Data]:
        """The frames to be sent now, of about ``limit`` bytes together. When the peer has no room, one at a time."""
        if self.target_incarnation == 0:
            return []
        if now >= self._deadline:
            self.resend()
        frames: list[Data] = []
        while limit > 0 and self._may_send():
            data = self._frames[self._next]
            waited = now - self._offered_at[self._next]
            if waited >= WAITED_SECONDS:
                data = replace(data, waited=waited)
            self._next += 1
            self._sent = max(self._sent, data.sequence)
            self._on_the_way += len(data.blob)
            limit -= len(data.blob) + 1
            frames.append(data)
        if frames and self._deadline == inf:  # not later for what is sent after it
            self._deadline = now + self._resend_interval
        return frames

    def _may_send(self) -> bool:
        data = self._frames.get(self._next)
        if data is None:
            return False
        if self._on_the_way == 0:  # whatever its size; and if there is no room, somebody must ask whether there is
            return self._room > 0 or self._deadline == inf
        return self._on_the_way + len(data.blob) <= self._room

    def acknowledged(self, ack: DataAck, source_incarnation: int, target_incarnation: int, now: float) -> int:
        """How many messages the peer has stored that it had not before. The incarnations are those of the envelope."""
        if source_incarnation != self.target_incarnation or target_incarnation != self._incarnation:
            return 0
        if not self._acknowledged <= ack.sequence <= self._sent:
            return 0  # overtaken by another one, or of something that was never said
        messages = 0
        for sequence in range(self._acknowledged + 1, ack.sequence + 1):
            data = self._frames.pop(sequence)
            del self._offered_at[sequence]
            messages += data.count
            self._bytes -= len(data.blob)
            if sequence < self._next:
                self._on_the_way -= len(data.blob)
        if ack.sequence > self._acknowledged:
            self._deadline = now + self._resend_interval
        self._acknowledged = ack.sequence
        self._next = max(self._next, ack.sequence + 1)
        self._room = ack.room
        if not self._frames:
            self._deadline = inf
        elif ack.room == 0 and self._deadline == inf:
            self._deadline = now + self._resend_interval
        return messages

    def reset_sender(self, target_incarnation: int) -> None:
        """The peer is a new one, or known for the first time: number and send anew all that it has not acknowledged."""
        if target_incarnation == self.target_incarnation:
            return
        self.target_incarnation = target_incarnation
        frames = [self._frames[sequence] for sequence in range(self._acknowledged + 1, self._offered + 1)]
        self._offered_at = {
            sequence: self._offered_at[before]
            for sequence, before in enumerate(range(self._acknowledged + 1, self._offered + 1), start=1)
        }
        self._frames = {
            sequence: Data(sequence, data.count, data.blob) for sequence, data in enumerate(frames, start=1)
        }
        self._offered = len(frames)
        self._acknowledged = 0
        self._sent = 0
        self._room = self._window
        self.resend()

    def resend(self) -> None:
        """The way changed, or the connection is a new one: begin again with the first that is not acknowledged."""
        self._next = self._acknowledged + 1
        self._on_the_way = 0
        self._deadline = inf

    def wake_at(self) -> float:
        """When ``take`` has something: 0.0: now."""
        if self.target_incarnation == 0:
            return inf
        return 0.0 if self._may_send() else self._deadline

    # Receiving

    def received(self, data: Data, source_incarnation: int, target_incarnation: int) -> bytes | None:
        """The blob, if it is the next one; it is to be stored. The incarnations are those of the envelope."""
        if target_incarnation != self._incarnation or source_incarnation < self.source_incarnation:
            return None
        if source_incarnation > self.source_incarnation:
            self._begin_to_receive(source_incarnation)
        size = len(data.blob)
        refused = self._held and self._delivered_bytes + size > self._promised
        if data.sequence != self._delivered + 1 or refused:
            self.ack_due = True
            return None
        self._delivered += 1
        self._delivered_bytes += size
        self._sizes[data.sequence] = size
        self.ack_due = True
        return data.blob

    def _begin_to_receive(self, source_incarnation: int) -> None:
        self.source_incarnation = source_incarnation
        self._delivered = self._stored = 0
        self._delivered_bytes = self._stored_bytes = 0
        self._sizes = {}
        self._promised = self._window  # what a new sender takes for granted, held or not

    def mark(self) -> Mark:
        """What was delivered so far: for ``stored``, when the commit that it is in is done."""
        return self.source_incarnation, self._delivered

    def stored(self, mark: Mark) -> DataAck | None:
        """What was delivered up to the mark is stored. The acknowledgement due, to the source's present incarnation."""
        if mark[0] == self.source_incarnation:
            while self._stored < mark[1]:
                self._stored += 1
                size = self._sizes.pop(self._stored)
                self._stored_bytes += size
                self.unsaid += size
                self.ack_due = True
        if not self.ack_due or self.source_incarnation == 0:
            return None
        self.ack_due = False
        room = 0 if self._held else self._window
        self._promised = max(self._promised, self._stored_bytes + room)
        return DataAck(self._stored, room)

    def hold(self, held: bool) -> None:
        """No more data than was promised, or again as much as the window has: the next acknowledgement says so."""
        if held != self._held:
            self._held = held
            self.ack_due = True
