"""A shared subscription group: each message goes to one member (MQTT 5, 4.8.2).

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
    nodes: dict[int, Subscription]  # other nodes with members, by number ...
    counts: dict[int, int]  # ... and how many each has
    _places: dict[str, int]  # client id -> index in members
    _state: int

    def __init__(self, name: bytes, filter: bytes, seed: int) -> None:
        self.name = name
        self.filter = filter
        self.members = []
        self.nodes = {}
        self.counts = {}
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

    def share(self) -> bytes:
        """What its members subscribe to."""
        return b"$share/%b/%b" % (self.name, self.filter)

    def join_node(self, subscription: Subscription, count: int) -> None:
        """Another node has so many members now."""
        node = subscription.session.node
        if count == 0:
            self.leave_node(node)
        else:
            self.nodes[node] = subscription
            self.counts[node] = count

    def leave_node(self, node: int) -> None:
        self.nodes.pop(node, None)
        self.counts.pop(node, None)

    def choose(self, refused: Session | None = None) -> Subscription | None:
        """A member for one message, or None when there is none; ``refused`` has just given it back. Members elsewhere
        are chosen by their node, each node as often as it has members; one that can not be reached is passed over."""
        if not self.nodes:
            return self.choose_here(refused)
        total = len(self.members)
        for node, subscription in self.nodes.items():
            if subscription.session.client is not None:
                total += self.counts[node]
        if total != 0:
            place = self._draw() % total - len(self.members)
            if place >= 0:
                for node, subscription in self.nodes.items():
                    if subscription.session.client is not None:
                        place -= self.counts[node]
                        if place < 0:
                            return subscription
        here = self.choose_here(refused)
        if here is not None and here.session.client is not None:
            return here
        for subscription in self.nodes.values():
            if subscription.session.client is not None:
                return subscription
        if here is not None:
            return here
        for subscription in self.nodes.values():
            return subscription  # it waits until that node is back
        return None

    def _draw(self) -> int:
        self._state = (self._state * _MULTIPLIER + _INCREMENT) & _MASK
        return self._state >> 33

    def choose_here(self, refused: Session | None = None) -> Subscription | None:
        """A member of this node, or None when it has none."""
        count = len(self.members)
        if count == 0:
            return None
        start = self._draw() % count
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
