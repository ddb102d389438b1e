"""A shared subscription group on this node: each message goes to one member (MQTT 5, 4.8.2).

Members that can take a message at once are chosen at random among each other; a member whose client is away or whose
queue has filled is passed over while any other can take it.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.filter_tree import Subscriber
from starlingmq.core.session import Session, Subscription

_MULTIPLIER: Final = 6364136223846793005  # Knuth's MMIX generator: choosing a member needs no better
_INCREMENT: Final = 1442695040888963407
LOOKS_MAX: Final = 64  # after so many members without a free one, a connected one will do
_MASK: Final = (1 << 64) - 1


class Group(Subscriber):
    """``name`` and ``filter`` as in $share/name/filter."""

    name: bytes
    filter: bytes
    members: list[Subscription]
    _places: dict[str, int]  # client id -> index in members
    _state: int

    def __init__(self, name: bytes, filter: bytes, seed: int) -> None:
        self.name = name
        self.filter = filter
        self.members = []
        self._places = {}
        self._state = seed & _MASK

    def key(self) -> object:
        return self

    def join(self, subscription: Subscription) -> None:
        """Add a member, or replace what it subscribed with before."""
        place = self._places.get(subscription.session.client_id)
        if place is None:
            self._places[subscription.session.client_id] = len(self.members)
            self.members.append(subscription)
        else:
            self.members[place] = subscription

    def leave(self, session: Session) -> None:
        place = self._places.get(session.client_id, -1)
        if place < 0 or self.members[place].session is not session:
            return  # not (any more) a member, or a later session of the same client is
        del self._places[session.client_id]
        last = self.members.pop()
        if place < len(self.members):
            self.members[place] = last
            self._places[last.session.client_id] = place

    def choose(self, refused: Session | None = None) -> Subscription | None:
        """A member for one message, or None when there is none; ``refused`` has just given it back."""
        count = len(self.members)
        if count == 0:
            return None
        self._state = (self._state * _MULTIPLIER + _INCREMENT) & _MASK
        start = (self._state >> 33) % count
        second: Subscription | None = None  # connected, but its messages queue up
        third: Subscription | None = None  # away
        for step in range(count):
            member = self.members[(start + step) % count]
            session = member.session
            if session is refused or session.ended:
                continue
            client = session.client
            if client is None:
                third = member if third is None else third
            elif client.blocked or (session.queue is not None and len(session.queue) != 0):
                second = member if second is None else second
                if step >= LOOKS_MAX:
                    break
            else:
                return member
        return second if second is not None else third
