"""The topics to which a client may publish replies, because it received requests with these reply topics.

Invariant: a delivered message with a reply topic allows ``ReplyGrant.count`` messages to that topic, for
``ReplyGrant.seconds`` from its delivery. The rules are evaluated when a reply comes, so changed rules apply at once.

Memory is bounded by the number of topics and by their bytes. There are no timers: topics are kept in the order of their
notes, and each note removes some of the oldest that are too old or too many. If a topic is removed early, its request
is not answered yet, and the reply to it is refused.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.limits.access import ReplyGrant, Rights

TOPIC_BYTES: Final = 256  # average bytes per kept topic
TAKEN_OUT: Final = 2  # expired topics removed per note: more than are added


class Noted:
    """A reply topic: when its message was delivered, and how many replies came since."""

    at: float
    used: int

    def __init__(self, at: float) -> None:
        self.at = at
        self.used = 0


class Replies:
    """``seconds``: maximum time that a topic is kept; 0.0: until its room is needed."""

    seconds: float
    size: int  # bytes of topics
    _noted: dict[bytes, Noted]

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.size = 0
        self._noted = {}

    def __len__(self) -> int:
        return len(self._noted)

    def note(self, topic: bytes, now: float, limit: int) -> None:
        """A message with this reply topic is delivered. At most ``limit`` topics are kept."""
        self._take_out(topic)
        for _ in range(TAKEN_OUT):
            if not self._noted:
                break
            oldest = next(iter(self._noted))
            if self.seconds == 0.0 or self._noted[oldest].at + self.seconds > now:
                break
            self._take_out(oldest)
        self.size += len(topic)
        self._noted[topic] = Noted(now)
        while len(self._noted) > limit or self.size > limit * TOPIC_BYTES:
            self._take_out(next(iter(self._noted)))

    def use(self, topic: bytes, rights: Rights, now: float) -> bool:
        """Whether one more message to this topic is allowed as a reply; if so, it is counted."""
        noted = self._noted.get(topic)
        if noted is None:
            return False
        grant = rights.reply(topic)
        if grant is None:
            return False
        noted.used += 1
        over = grant.seconds != 0.0 and noted.at + grant.seconds <= now
        if over or (grant.count != 0 and noted.used >= grant.count):
            self._take_out(topic)
        return not over

    def _take_out(self, topic: bytes) -> None:
        if self._noted.pop(topic, None) is not None:
            self.size -= len(topic)


def longest(rights: Rights) -> float:
    """The longest time in seconds that the rules allow replies; 0.0: unlimited."""
    found = 0.0
    for grant in rights.grants:
        if isinstance(grant, ReplyGrant) and grant.allow:
            if grant.seconds == 0.0:
                return 0.0
            found = max(found, grant.seconds)
    return found
