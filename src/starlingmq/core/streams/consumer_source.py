"""The questions that a consumer asks of its stream."""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from starlingmq.core.messages.message import Message


@mypyc_attr(allow_interpreted_subclasses=True)
class ConsumerSource:
    """Sequences begin with 1; 0 stands for none. ``filters`` are topic filters, without any: all messages."""

    first: int  # the lowest sequence that is still there; last + 1 if there is none
    last: int  # the highest that was ever given; 0: none yet

    def message(self, sequence: int) -> Message | None:
        """None: it was removed, or it is damaged, and consumers pass over it; or see ``reads_later``."""
        raise NotImplementedError

    def reads_later(self, sequence: int) -> bool:
        """Whether a message that ``message`` has not returned is being read. A filling follows when that is done."""
        return False

    def next_from(self, sequence: int, filters: list[bytes]) -> int:
        """The lowest live sequence from ``sequence`` on that matches a filter."""
        raise NotImplementedError

    def waiting(self, sequence: int, filters: list[bytes]) -> int:
        """The number of live messages from ``sequence`` on that match. Often asked for the last few messages."""
        raise NotImplementedError

    def last_matching(self, filters: list[bytes]) -> int:
        """The highest live sequence that matches."""
        raise NotImplementedError

    def last_of_each(self, filters: list[bytes]) -> list[int]:
        """The highest live sequence of each topic that matches, rising."""
        raise NotImplementedError

    def first_since(self, time: float) -> int:
        """The lowest live sequence of a message published at ``time`` or later."""
        raise NotImplementedError

    def listens(self, reply: bytes, requester: object) -> bool:
        """Whether ``requester``, or any client if it is None, is subscribed to a topic."""
        raise NotImplementedError
