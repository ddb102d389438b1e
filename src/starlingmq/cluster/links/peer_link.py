"""The ordered, acknowledged link for data frames between this node and one peer, in both directions.

Frames are numbered from 1 for a pair of incarnations. Each frame and each acknowledgement names both incarnations;
those of another pair are ignored. The sender keeps a frame until it is acknowledged, and goes back to the first
unacknowledged one (go back N) when there was no progress for ``resend_interval``, or when the path has changed. The
receiver accepts only the next frame in sequence.

    sender     offered --take--> sent --acknowledged--> gone
                  ^---- resend ----'
    receiver   next --received--> delivered --stored--> acknowledged

Invariant: between two running incarnations each frame is delivered once and in order, and acknowledged only after it
was stored. To a new incarnation of the receiver, unacknowledged frames are sent again under new numbers. The previous
incarnation may have stored some of them; these are recognized by the ids of their messages.
"""

from __future__ import annotations

from math import inf
from typing import Final

from starlingmq.cluster.links.peer_frames import Data, DataAck

WAITED_SECONDS: Final = 0.5  # a shorter delay of a frame is not reported

Mark = tuple[int, int]  # (source incarnation, sequence): the frames delivered up to some point


class PeerLink:
    """``window``: bytes that may be in transit in each direction. A single frame may be larger."""

    target_incarnation: int  # of the frames that are sent; 0: unknown, nothing is sent
    source_incarnation: int  # of the received frames, and so of acknowledgements; 0: none yet
    ack_due: bool  # ``stored`` has something to acknowledge
    unsaid: int  # bytes stored since the sender of acknowledgements reset it to 0

    def __init__(self, incarnation: int, window: int, resend_interval: float) -> None:
        self._incarnation = incarnation
        self._window: Final = window
        self._resend_interval: Final = resend_interval
        # Sending
        self.target_incarnation = 0
        self._frames: dict[int, Data] = {}  # by sequence; not acknowledged
        self._offered_at: dict[int, float] = {}  # when each of them was offered
        self._bytes = 0  # in them
        self._offered = 0  # sequence of the last offered frame
        self._acknowledged = 0  # sequence up to which the peer has stored
        self._next = 1  # sequence of the next frame to send
        self._sent = 0  # the highest sequence sent so far
        self._on_the_way = 0  # bytes of frames sent and not acknowledged, those before ``_next``
        self._room = window  # bytes that the peer accepts beyond what it has acknowledged
        self._deadline = inf  # for progress
        self._kept_until = 0  # sequence: frames up to here waited for the peer while it was not connected
        # Receiving
        self.source_incarnation = 0
        self.ack_due = False
        self.unsaid = 0
        self._delivered = 0  # sequence
        self._stored = 0
        self._delivered_bytes = 0
        self._stored_bytes = 0
        self._sizes: dict[int, int] = {}  # of frames delivered and not stored
        self._promised = window  # bytes, counted from the first frame, that the peer was told it may send
        self._held = False

    # Sending

    def offer(self, blob: bytes, count: int, now: float, kept: bool = False) -> None:
        """Adds a frame of ``count`` messages for the peer. The caller has to check ``room`` first. ``kept``: they have
        waited while the peer was not connected."""
        self._offered += 1
        if kept:
            self._kept_until = self._offered
        self._frames[self._offered] = Data(self._offered, count, blob)
        self._offered_at[self._offered] = now
        self._bytes += len(blob)

    def room(self) -> int:
        """Bytes that may be offered before the window is full."""
        return max(0, self._window - self._bytes)

    def unacknowledged(self) -> int:
        """The number of frames that the peer has not acknowledged, sent or not."""
        return len(self._frames)

    def take(self, now: float, limit: int) -> list[Data]:
        """The frames to send now, of about ``limit`` bytes together. While the peer has no room, one at a time."""
        if self.target_incarnation == 0:
            return []
        if now >= self._deadline:
            self.resend()
        frames: list[Data] = []
        while limit > 0 and self._may_send():
            data = self._frames[self._next]
            waited = now - self._offered_at[self._next]
            kept = self._next <= self._kept_until
            if waited >= WAITED_SECONDS or kept:
                data = Data(data.sequence, data.count, data.blob, waited if waited >= WAITED_SECONDS else 0.0, kept)
            self._next += 1
            self._sent = max(self._sent, data.sequence)
            self._on_the_way += len(data.blob)
            limit -= len(data.blob) + 1
            frames.append(data)
        if frames and self._deadline == inf:  # later frames do not extend the deadline
            self._deadline = now + self._resend_interval
        return frames

    def _may_send(self) -> bool:
        data = self._frames.get(self._next)
        if data is None:
            return False
        # a frame of any size; and with no room, one frame has to ask whether there is room again
        if self._on_the_way == 0:
            return self._room > 0 or self._deadline == inf
        return self._on_the_way + len(data.blob) <= self._room

    def acknowledged(self, ack: DataAck, source_incarnation: int, target_incarnation: int, now: float) -> int:
        """The number of messages that the peer has newly stored. The incarnations are those of the envelope."""
        if source_incarnation != self.target_incarnation or target_incarnation != self._incarnation:
            return 0
        if not self._acknowledged <= ack.sequence <= self._sent:
            return 0  # it arrived after a newer one, or is invalid
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
        """The peer is a new incarnation, or known for the first time: renumbers and sends everything unacknowledged."""
        if target_incarnation == self.target_incarnation:
            return
        if self.target_incarnation != 0:
            self.keep()
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
        self._kept_until = max(0, self._kept_until - self._acknowledged)
        self._acknowledged = 0
        self._sent = 0
        self._room = self._window
        self.resend()

    def keep(self) -> None:
        """The peer is connected again, or a new incarnation: what is not acknowledged has waited for that."""
        self._kept_until = self._offered

    def resend(self) -> None:
        """The path has changed, or the connection is new: continues from the first unacknowledged frame."""
        self._next = self._acknowledged + 1
        self._on_the_way = 0
        self._deadline = inf

    def wake_at(self) -> float:
        """When ``take`` has frames to send; 0.0: now."""
        if self.target_incarnation == 0:
            return inf
        return 0.0 if self._may_send() else self._deadline

    # Receiving

    def received(self, data: Data, source_incarnation: int, target_incarnation: int) -> bytes | None:
        """The blob if it is the next one; the caller has to store it. The incarnations are those of the envelope."""
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
        self._promised = self._window  # a new sender assumes this much, even while the link is held

    def mark(self) -> Mark:
        """Everything delivered so far, to be passed to ``stored`` once the current commit is done."""
        return self.source_incarnation, self._delivered

    def stored(self, mark: Mark) -> DataAck | None:
        """Everything delivered up to the mark is stored. Returns the acknowledgement that is due, for the source's
        current incarnation."""
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
        """Limits the peer to what was promised, or opens the full window again. The next acknowledgement says so."""
        if held != self._held:
            self._held = held
            self.ack_due = True
