"""A stream: what is published to some topics, kept to be read in bulk (docs/STREAMS.md).

To the core it is one more receiver of a message that a store keeps, so it is a session that nobody connects to: its
number tells it in the journal, and a message goes into it as into a queue, by a write.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.session.session import NEVER, Session

STREAM_PREFIX: Final = "$stream/"  # client ids of streams, where a session's would be named


class Stream(Session):
    """This node's part of it. ``number`` is drawn from the time it was made, and no other stream's, gone or not."""

    name: str
    filters: list[bytes]
    next: int  # offset that the next message gets
    full: bool  # it is at its bound, and is to refuse what it is offered
    pending: list[bytes]  # records that its log has not taken yet, in order

    def __init__(self, name: str, number: int, filters: list[bytes]) -> None:
        super().__init__(STREAM_PREFIX + name, number)
        self.expiry = NEVER
        self.name = name
        self.filters = filters
        self.next = 0
        self.full = False
        self.pending = []
