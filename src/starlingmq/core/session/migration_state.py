"""The state of a session's migration between nodes: which messages it accepts here, and which the other node accepts.

Invariant: of the messages that enter at one node, those up to that node's *cut marker* belong to the former owner, and
those after it to the new owner. Both receive the marker in the order of that node's messages, so none is lost and none
is duplicated.

At the former owner (``target`` is set) a session hands over what it has and still receives; it accepts nothing from a
node whose marker has come (``marked``). At the new owner (``sources`` is not empty), a message from a node

- before its marker belongs to the former owner if that had subscribed to it (``former_filters``), and is ignored here.
  Otherwise it is accepted: the client has subscribed meanwhile. While the former subscriptions are unknown
  (``unknown``), the message is held;
- after its marker is held until the former owner has handed over all earlier messages of that node, so that nothing is
  overtaken.

Several migrations of a session to this node may be in progress, each in its own epoch and from its own former owners.
The marker of a node may have come for one of them and not for another (``unmarked``). Its messages are then held,
ignored or accepted as all of them require: only former owners whose migration is not marked may claim a message.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.messages.outgoing import Outgoing
from starlingmq.core.topics.topics import matches
from starlingmq.wire.packets import Subscribe

UNMARKED: Final = 0
MARKED: Final = 1
OPEN: Final = 2


class Held:
    """A held message. ``before``: epochs of the migrations for which the marker of ``node``, where it entered, had not
    come."""

    node: int
    before: tuple[int, ...]
    outgoing: Outgoing

    def __init__(self, node: int, before: tuple[int, ...], outgoing: Outgoing) -> None:
        self.node = node
        self.before = before
        self.outgoing = outgoing


class MigrationState:
    client_id: str  # of the session; a session that migrates away has another name
    target: int  # the node that it migrates to; 0: it does not migrate away
    epoch: int  # ownership epoch at the target
    parted: bool  # some of its window was handed over, or may have been
    marked: dict[int, None]  # nodes whose messages belong to the target from now on
    sources: dict[int, None]  # epochs of the migrations to this node
    stages: dict[int, int]  # node -> MARKED or OPEN, for migrations to this node
    former_filters: dict[int, dict[bytes, None]]  # epoch -> subscriptions of its former owners, without shared groups
    unknown: dict[int, None]  # epochs of which some former owner has not sent its subscriptions yet
    unmarked: dict[int, tuple[int, ...]]  # node -> epochs for which its marker has not come, while it has for others
    behind: dict[int, None]  # nodes of which a former owner still has messages from before their marker
    held: list[Held]
    reset_confirmed: bool  # its client knows that the session was reset (core.connect.session_reset)
    subscribe: Subscribe | None  # its SUBSCRIBE since then, to be handled when the markers have come
    subscriber: object  # the connection of that SUBSCRIBE; None: none

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.target = 0
        self.epoch = 0
        self.parted = False
        self.marked = {}
        self.sources = {}
        self.stages = {}
        self.former_filters = {}
        self.unknown = {}
        self.unmarked = {}
        self.behind = {}
        self.held = []
        self.reset_confirmed = False
        self.subscribe = None
        self.subscriber = None

    def takes(self, node: int, outgoing: Outgoing) -> bool:
        """Whether this session accepts a message that entered at ``node`` now. It may be held for later."""
        if node in self.marked:
            return False
        if not self.sources:
            return True
        stage = self.stages.get(node, UNMARKED)
        if stage == OPEN:
            return True
        before: tuple[int, ...] = ()
        if stage == UNMARKED:
            before = self.unmarked.get(node) or tuple(self.sources)
            if self._theirs(before, outgoing):
                return False
            if self._is_known(node, before):
                return True
        self.held.append(Held(node, before, outgoing))
        return False

    def _theirs(self, before: tuple[int, ...], outgoing: Outgoing) -> bool:
        topic = outgoing.message.topic
        for epoch in before:
            former = self.former_filters.get(epoch)
            if former is not None and (topic in former or any(matches(filter, topic) for filter in former)):
                return True
        return False

    def _is_known(self, node: int, before: tuple[int, ...]) -> bool:
        """Whether nothing unknown prevents delivering a message now that does not belong to a former owner."""
        return node not in self.behind and not any(epoch in self.unknown for epoch in before)

    def learn(self, former_filters: dict[int, dict[bytes, None]], unknown: dict[int, None]) -> list[Held]:
        """Set the subscriptions of former owners. Returns held messages of before a marker that belong to them after
        all."""
        self.former_filters = former_filters
        self.unknown = unknown
        theirs = [held for held in self.held if self._theirs(held.before, held.outgoing)]
        if theirs:
            self.held = [held for held in self.held if not self._theirs(held.before, held.outgoing)]
        return theirs

    def take_known(self) -> list[Held]:
        """Messages that were held because of something unknown, and need not be any more, in order."""
        known = [held for held in self.held if held.before and self._is_known(held.node, held.before)]
        if known:
            self.held = [held for held in self.held if not held.before or not self._is_known(held.node, held.before)]
        return known

    def open(self, node: int) -> list[Held]:
        """All messages of that node from the former owner have arrived. Returns those held since, in order."""
        self.stages[node] = OPEN
        self.behind.pop(node, None)
        opened = [held for held in self.held if held.node == node and self._is_known(node, held.before)]
        if opened:
            self.held = [held for held in self.held if held.node != node or not self._is_known(node, held.before)]
        return opened

    def end(self) -> list[Held]:
        """No other node has anything of the session any more. Returns all held messages."""
        opened = self.held
        self.held = []
        self.sources = {}
        self.stages = {}
        self.former_filters = {}
        self.unknown = {}
        self.unmarked = {}
        self.behind = {}
        return opened
