"""What a session knows of its own move between nodes: whose messages it takes here, and whose elsewhere.

The law: of what enters at one node, everything up to that node's *mark* is the former owner's to give, everything after
it the new one's. The mark comes to both in the order of that node's messages, so none is lost and none is doubled.

At the former owner (``target`` is set) a session gives away what it has and still gets; it takes nothing of a node
whose mark has come (``marked``). At the new one (``sources`` is not empty) what comes from a node

- before its mark is the former owner's if he subscribed to it (``former``), and is left alone here. It is taken if he
  did not: the client has subscribed meanwhile. If it is not known yet what he did (``unknown``) it is held;
- after its mark is held until the former owner has given away all that he had of that node before: so that nothing is
  overtaken.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.client import Client
from starlingmq.core.outgoing import Outgoing
from starlingmq.core.topics import matches
from starlingmq.wire.packets import Subscribe

UNMARKED: Final = 0
MARKED: Final = 1
OPEN: Final = 2


class Held:
    """A message that waits. ``marked``: the mark of ``node``, where it entered, has come before it."""

    node: int
    marked: bool
    outgoing: Outgoing

    def __init__(self, node: int, marked: bool, outgoing: Outgoing) -> None:
        self.node = node
        self.marked = marked
        self.outgoing = outgoing


class Moving:
    client_id: str  # whose session it is: one that is given away has a name of its own
    target: int  # the node that it goes to; 0: it is not given away
    epoch: int  # of its owner there
    parted: bool  # some of its window has gone there, or may have
    marked: dict[int, None]  # nodes whose messages that one takes from now on
    sources: dict[int, None]  # what of it is on its way here: the epochs in which it was asked for
    stages: dict[int, int]  # node -> MARKED or OPEN, of what comes here
    former: dict[bytes, None]  # what those who have it subscribed to, shared groups left out
    unknown: bool  # not all of them have said
    held: list[Held]
    aware: bool  # its client knows that it begins anew (core.anew)
    subscribe: Subscribe | None  # what it said then: to be done when the marks are here
    subscriber: Client | None  # on which connection

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.target = 0
        self.epoch = 0
        self.parted = False
        self.marked = {}
        self.sources = {}
        self.stages = {}
        self.former = {}
        self.unknown = False
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
        if stage == UNMARKED:
            if self._theirs(outgoing):
                return False
            if not self.unknown:
                return True
        self.held.append(Held(node, stage == MARKED, outgoing))
        return False

    def _theirs(self, outgoing: Outgoing) -> bool:
        topic = outgoing.message.topic
        if topic in self.former:
            return True
        return any(matches(filter, topic) for filter in self.former)

    def learn(self, former: dict[bytes, None], unknown: bool) -> list[Held]:
        """What former owners subscribed to; of what was held before a mark that which is theirs after all."""
        self.former = former
        self.unknown = unknown
        theirs = [held for held in self.held if not held.marked and self._theirs(held.outgoing)]
        if theirs:
            self.held = [held for held in self.held if held.marked or not self._theirs(held.outgoing)]
        return theirs

    def take_known(self) -> list[Held]:
        """What was held because of what was not known, and now is, in order."""
        if self.unknown:
            return []
        known = [held for held in self.held if not held.marked]
        if known:
            self.held = [held for held in self.held if held.marked]
        return known

    def open(self, node: int) -> list[Held]:
        """All that the former owner had of that node is here: what was held of it since, in order."""
        self.stages[node] = OPEN
        opened = [held for held in self.held if held.node == node and held.marked]
        if opened:
            self.held = [held for held in self.held if held.node != node or not held.marked]
        return opened

    def end(self) -> list[Held]:
        """Nobody has anything of it any more: all that was held."""
        opened = self.held
        self.held = []
        self.sources = {}
        self.stages = {}
        self.former = {}
        self.unknown = False
        return opened
