"""What a session knows of its own move between nodes: whose messages it takes here, and whose elsewhere.

The law: of what enters at one node, everything up to that node's *mark* is the former owner's to give, everything after
it the new one's. The mark comes to both in the order of that node's messages, so none is lost and none is doubled.

At the former owner (``target`` is set) a session gives away what it has and still gets; it takes nothing of a node
whose mark has come (``marked``). At the new one (``sources`` is not empty) what comes from a node

- before its mark is the former owner's if he subscribed to it (``formers``), and is left alone here. It is taken if he
  did not: the client has subscribed meanwhile. If it is not known yet what he did (``unknown``) it is held;
- after its mark is held until the former owner has given away all that he had of that node before: so that nothing is
  overtaken.

A session may be on its way here more than once, each time in another epoch and from other former owners, and the mark
of a node may be there for one of these moves and not for another (``unmarked``). Its messages are then held, left or
taken as both say: only former owners whose move is not marked may leave one to themselves.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.routing.topics import matches
from starlingmq.core.session.outgoing import Outgoing
from starlingmq.wire.packets import Subscribe

UNMARKED: Final = 0
MARKED: Final = 1
OPEN: Final = 2


class Held:
    """A message that waits. ``before``: epochs of the moves whose mark of ``node``, where it entered, had not come."""

    node: int
    before: tuple[int, ...]
    outgoing: Outgoing

    def __init__(self, node: int, before: tuple[int, ...], outgoing: Outgoing) -> None:
        self.node = node
        self.before = before
        self.outgoing = outgoing


class MigrationState:
    client_id: str  # whose session it is: one that is given away has a name of its own
    target: int  # the node that it goes to; 0: it is not given away
    epoch: int  # of its owner there
    parted: bool  # some of its window has gone there, or may have
    marked: dict[int, None]  # nodes whose messages that one takes from now on
    sources: dict[int, None]  # what of it is on its way here: the epochs in which it was asked for
    stages: dict[int, int]  # node -> MARKED or OPEN, of what comes here
    formers: dict[int, dict[bytes, None]]  # epoch -> what those who have it subscribed to, shared groups left out
    unknown: dict[int, None]  # epochs of which not all of them have said
    unmarked: dict[int, tuple[int, ...]]  # node -> epochs for which its mark has not come, while it has for others
    behind: dict[int, None]  # nodes of which a former owner still has something from before their mark
    held: list[Held]
    aware: bool  # its client knows that it begins anew (core.session.session_reset)
    subscribe: Subscribe | None  # what it said then: to be done when the marks are here
    subscriber: object  # on which connection; None: on none

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.target = 0
        self.epoch = 0
        self.parted = False
        self.marked = {}
        self.sources = {}
        self.stages = {}
        self.formers = {}
        self.unknown = {}
        self.unmarked = {}
        self.behind = {}
        self.held = []
        self.aware = False
        self.subscribe = None
        self.subscriber = None

    def takes(self, node: int, outgoing: Outgoing) -> bool:
        """Whether a message that entered at ``node`` is for this session now; it may be held for later."""
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
            former = self.formers.get(epoch)
            if former is not None and (topic in former or any(matches(filter, topic) for filter in former)):
                return True
        return False

    def _is_known(self, node: int, before: tuple[int, ...]) -> bool:
        """Whether nothing that is not known yet keeps a message from being given now that is not theirs."""
        return node not in self.behind and not any(epoch in self.unknown for epoch in before)

    def learn(self, formers: dict[int, dict[bytes, None]], unknown: dict[int, None]) -> list[Held]:
        """What former owners subscribed to; of what was held before a mark that which is theirs after all."""
        self.formers = formers
        self.unknown = unknown
        theirs = [held for held in self.held if self._theirs(held.before, held.outgoing)]
        if theirs:
            self.held = [held for held in self.held if not self._theirs(held.before, held.outgoing)]
        return theirs

    def take_known(self) -> list[Held]:
        """What was held because of what was not known, and now is, in order."""
        known = [held for held in self.held if held.before and self._is_known(held.node, held.before)]
        if known:
            self.held = [held for held in self.held if not held.before or not self._is_known(held.node, held.before)]
        return known

    def open(self, node: int) -> list[Held]:
        """All that the former owner had of that node is here: what was held of it since, in order."""
        self.stages[node] = OPEN
        self.behind.pop(node, None)
        opened = [held for held in self.held if held.node == node and self._is_known(node, held.before)]
        if opened:
            self.held = [held for held in self.held if held.node != node or not self._is_known(node, held.before)]
        return opened

    def end(self) -> list[Held]:
        """Nobody has anything of it any more: all that was held."""
        opened = self.held
        self.held = []
        self.sources = {}
        self.stages = {}
        self.formers = {}
        self.unknown = {}
        self.unmarked = {}
        self.behind = {}
        return opened
