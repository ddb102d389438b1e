"""The filters of this node's own subscribers: the other nodes must know of the first and of the last subscriber of
each.

Counted only in a cluster. ``value`` is what other nodes are told (see cluster.links.peer_frames.RouteRecord). For a
filter: 0, 1 (wanted) or 2 (wanted durably: by a persistent session, at QoS 1 or 2). For a shared group: the number of
its members, and whether some are at QoS 1 or 2 (``KEEPS``), or that the last one was lost and is waited for
(``LINGERS``).
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.groups.group import KEEPS, LINGERS
from starlingmq.core.session.session import Session, Subscription
from starlingmq.core.topics.topics import OF_STREAMS, of_the_node

_DURABLE: Final = 1 << 32  # above the count of all subscribers, the count of the durable ones; for groups, see KEEPS
_SHARE: Final = b"$share/"
UNWANTED_MAX: Final = 1024  # unwanted messages that are noted in a turn


def _weight(key: bytes, session: Session, subscription: Subscription) -> int:
    if subscription.qos != 0 and (session.expiry != 0 or key.startswith(_SHARE)):
        return _DURABLE + 1
    return 1


class LocalInterest:
    changed: dict[bytes, None]  # keys that changed since the last take
    # the same for filters that have moved to another node with their sessions: other nodes may hear of it later
    fading: dict[bytes, None]
    # filters that have moved here with their sessions: other nodes may hear of them a little later, too
    arriving: dict[bytes, None]
    # other nodes know some of these filters as a summary, so they also send messages without a subscriber here
    summarises: bool
    _unwanted: list[bytes]
    _counts: dict[bytes, int]
    _lingering: dict[bytes, None]

    def __init__(self) -> None:
        self.changed = {}
        self.fading = {}
        self.arriving = {}
        self.summarises = False
        self._unwanted = []
        self._counts = {}
        self._lingering = {}

    def add(self, key: bytes, session: Session, subscription: Subscription) -> None:
        self._count(key, _weight(key, session, subscription))

    def arrive(self, key: bytes, session: Session, subscription: Subscription) -> None:
        """Like ``add``, for a session that arrives from another node."""
        is_new = key not in self.changed
        self.add(key, session, subscription)
        if is_new and not key.startswith(_SHARE):
            del self.changed[key]
            self.arriving[key] = None

    def add_all(self, session: Session) -> None:
        if session.node == 0:
            for key, subscription in session.subscriptions():
                if not of_the_node(key) and not subscription.filter.startswith(OF_STREAMS):
                    self.add(key, session, subscription)

    def remove(self, key: bytes, session: Session, subscription: Subscription) -> None:
        """``session.expiry`` is the value when the subscription was added, or last ``reconsider``ed."""
        is_new = key not in self.changed
        self._count(key, -_weight(key, session, subscription))
        has_moved = session.moving is not None and session.moving.target != 0
        if is_new and has_moved and not key.startswith(_SHARE):
            del self.changed[key]
            self.fading[key] = None

    def reconsider(self, session: Session, before: int) -> None:
        """A session's expiry has changed from ``before``: its subscriptions may have become durable, or not durable."""
        if (before != 0) == (session.expiry != 0):
            return
        sign = 1 if session.expiry != 0 else -1
        for key, subscription in session.subscriptions():
            if subscription.qos != 0 and not key.startswith(_SHARE):
                self._count(key, sign * _DURABLE)

    def _count(self, key: bytes, change: int) -> None:
        count = self._counts.get(key, 0) + change
        if count == 0:
            self._counts.pop(key, None)
        else:
            self._counts[key] = count
        self.changed[key] = None

    def value(self, key: bytes) -> int:
        count = self._counts.get(key, 0)
        if key.startswith(_SHARE):
            if count == 0:
                return LINGERS if key in self._lingering else 0
            members = count & (_DURABLE - 1)
            return members | KEEPS if count >= _DURABLE else members
        if count >= _DURABLE:
            return 2
        return 1 if count != 0 else 0

    def all(self) -> dict[bytes, int]:
        """All present values."""
        return {key: self.value(key) for key in (*self._counts, *self._lingering)}

    def linger(self, key: bytes, lingers: bool) -> None:
        """A shared group without members here is waited for, or not any more."""
        if lingers:
            self._lingering[key] = None
        else:
            self._lingering.pop(key, None)
        self.changed[key] = None

    def note_unwanted(self, topic: bytes) -> None:
        """A message came from another node, and no subscriber here wants it."""
        if len(self._unwanted) < UNWANTED_MAX:
            self._unwanted.append(topic)

    def take_unwanted(self) -> list[bytes]:
        unwanted = self._unwanted
        if unwanted:
            self._unwanted = []
        return unwanted

    def take(self) -> list[bytes]:
        changed = self.changed
        changed.update(self.arriving)
        changed.update(self.fading)
        self.changed = {}
        self.arriving = {}
        self.fading = {}
        return list(changed)
