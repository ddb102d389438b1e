"""A stream: messages of some topics, kept to be read in bulk (docs/STREAMS.md).

To the core it is another receiver that a store keeps, so it is a session without connections: its number identifies it
in the journal, and a message is added to it as to a queue, by a write. ``packet_id`` of that is how many offsets are
left out before the message (core.streams.sequenced_stream): its log gets an empty record for each.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.context.context import Context
from starlingmq.core.context.ready import STREAM_PUT
from starlingmq.core.messages.message import Message
from starlingmq.core.messages.outgoing import Outgoing
from starlingmq.core.session.session import NEVER, Session

STREAM_PREFIX: Final = "$stream/"  # client ids of streams, in place of a session's


class Stream(Session):
    """This node's part of a stream. ``number`` is derived from the time of its creation, and is never reused."""

    name: str
    filters: list[bytes]
    next: int  # offset of the next message
    full: bool  # it has reached its limit, and refuses messages
    pending: list[bytes]  # records that its log does not have yet, in order

    sequenced: bool  # it has one sequence, and answers its publishers (core.streams.sequenced_stream)

    def __init__(self, name: str, number: int, filters: list[bytes]) -> None:
        super().__init__(STREAM_PREFIX + name, number)
        self.expiry = NEVER
        self.name = name
        self.filters = filters
        self.next = 0
        self.full = False
        self.pending = []
        self.sequenced = False

    def take(self, ctx: Context, message: Message) -> int:
        """Add a message. Returns 1 if it is kept."""
        if message.qos == 0 and (self.full or ctx.refusing):
            ctx.drop("stream_full" if self.full else "storage_failing", self.client_id, 1, message.topic)
            self.dropped += 1
            return 0
        ctx.note(STREAM_PUT, self, Outgoing(message, message.qos, message.retain, b"", None))
        return 1

    def refusal_reason(self) -> int:
        """The reason code of MQTT for which the last message is not in this stream; 0: it is."""
        return 0

    def refusal_text(self) -> str:
        """That reason in words."""
        return ""


def refusing(streams: list[Stream]) -> Stream | None:
    """The first one that did not take the last message, and says why."""
    for stream in streams:
        if stream.refusal_reason() != 0:
            return stream
    return None


def keep(ctx: Context, message: Message, streams: list[Stream]) -> int:
    """Add a message that enters here to the streams that want it. Returns the number of streams. At QoS 1 and 2 all
    accept it: the message was accepted only after checking that they are not full."""
    kept = 0
    for stream in streams:
        kept += stream.take(ctx, message)
    return kept
