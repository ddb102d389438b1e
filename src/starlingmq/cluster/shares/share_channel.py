"""The messages about owners between two nodes: each is processed once, in order, though frames may be lost, doubled or
late.

Laws:

- Frames are numbered from 1 in each version of the table of shares, and sent again until the other node has said that
  it has taken them. A frame out of order is not taken; one that was taken already is acknowledged again.
- With another version both sides begin again, and everything that was not taken is forgotten: those who wait for
  something ask again.
- All messages of a turn go in one frame, up to FRAME_BYTES.
- A frame is acknowledged with the next frame of the other direction. Without one, that is at once if something waits
  for it (``owe``) or half of the frames that may be under way have come, and after ACKNOWLEDGE_SECONDS otherwise.

Pure: messages in, frames out; the other way round for the receiver.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final

from starlingmq.cluster.links.peer_frames import ShareFrame
from starlingmq.cluster.shares.share_messages import Message, ShareMessageError, encode, pack, unpack

FRAME_BYTES: Final = 128 * 1024
FRAMES_UNDER_WAY: Final = 8
RESEND_SECONDS: Final = 0.5  # after the first frame, the last time they were sent again, or the last acknowledgement
ACKNOWLEDGE_SECONDS: Final = 0.05


class ShareChannel:
    added: int  # messages so far, in this version
    taken: int  # those of them that the other node has taken

    def __init__(self, version: int) -> None:
        self.added = self.taken = 0
        self.version = version
        self._waiting: deque[bytes] = deque()
        self._under_way: deque[tuple[ShareFrame, int]] = deque()  # (frame, number of its last message)
        self._sent = 0
        self._received = 0
        self._owes = False  # an acknowledgement at once, or a word about the version
        self._unacknowledged = 0  # frames of the other node that were taken since the last frame to it
        self._acknowledge_at = inf
        self._resend_at = inf

    def add(self, message: Message) -> int:
        """Returns the number of the message."""
        self._waiting.append(encode(message))
        self.added += 1
        return self.added

    def owe(self) -> None:
        """The other node waits to hear what this one has taken."""
        self._owes = True

    def resend(self) -> None:
        """Frames may be lost: there is a new stream, or the other node had another version when they came."""
        if self._under_way:
            self._resend_at = 0.0

    def full(self) -> bool:
        """Whether more would only wait here."""
        return len(self._under_way) >= FRAMES_UNDER_WAY

    def idle(self) -> bool:
        return not (self._waiting or self._under_way or self._owes)

    def has_output(self) -> bool:
        return self._owes or bool(self._waiting and not self.full())

    def wake_at(self) -> float:
        return min(self._resend_at, self._acknowledge_at)

    def received(self, frame: ShareFrame) -> list[Message]:
        """Takes a frame of this version. Returns its messages if it is the next one."""
        while self._under_way and self._under_way[0][0].sequence <= frame.taken:
            self.taken = self._under_way.popleft()[1]
            self._resend_at = 0.0 if self._resend_at == 0.0 else inf
        if frame.sequence == 0:
            return []
        if frame.sequence != self._received + 1:
            self._owes = True
            return []
        try:
            messages = unpack(frame.messages)
        except ShareMessageError:
            messages = []  # of a newer version of the software: it asks again in the next version of the table
        self._received += 1
        self._unacknowledged += 1
        if self._unacknowledged >= FRAMES_UNDER_WAY // 2:
            self._owes = True
        return messages

    def take_frames(self, now: float) -> list[ShareFrame]:
        frames: list[ShareFrame] = []
        if now >= self._resend_at:
            frames = [self._acknowledging(frame) for frame, _ in self._under_way]
            self._resend_at = inf
        while self._waiting and not self.full():
            frames.append(self._next())
        if (self._owes or now >= self._acknowledge_at) and not frames:
            frames.append(ShareFrame(self.version, 0, self._received, b""))
        self._owes = False
        if frames:
            self._unacknowledged, self._acknowledge_at = 0, inf
        elif self._unacknowledged and self._acknowledge_at == inf:
            self._acknowledge_at = now + ACKNOWLEDGE_SECONDS
        if self._under_way and self._resend_at == inf:
            self._resend_at = now + RESEND_SECONDS
        return frames

    def _acknowledging(self, frame: ShareFrame) -> ShareFrame:
        return ShareFrame(frame.version, frame.sequence, self._received, frame.messages)

    def _next(self) -> ShareFrame:
        messages: list[bytes] = []
        size = 0
        while self._waiting and size < FRAME_BYTES:
            messages.append(self._waiting.popleft())
            size += len(messages[-1])
        self._sent += 1
        frame = ShareFrame(self.version, self._sent, self._received, pack(messages))
        self._under_way.append((frame, self.added - len(self._waiting)))
        return frame
