"""What a session knows of its own move between nodes: whose messages it takes here, and whose elsewhere.

The law: of what enters at one node, everything up to that node's *mark* belongs to the former owner, everything after
it to the new one. The mark comes to both in the order of that node's messages, so none is lost and none is doubled.

At the former owner (``target`` is set) a session gives away what it has and still gets; it takes nothing of a node
whose mark has come (``marked``). At the new one (``sources`` is not empty) what comes from a node is held

- before its mark: to be dropped at the mark, for it came to the former owner as well, and comes from there;
- after it, until the former owner has given away all that it had of that node before: so that nothing is overtaken.
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.outgoing import Outgoing

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
    marked: dict[int, None]  # nodes whose messages that one takes from now on
    sources: dict[int, None]  # what of it is on its way here: the epochs in which it was asked for
    stages: dict[int, int]  # node -> MARKED or OPEN, of what comes here
    held: list[Held]
    anew: bool  # it began anew here, and it is not known whether its client has heard that

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.target = 0
        self.epoch = 0
        self.marked = {}
        self.sources = {}
        self.stages = {}
        self.held = []
        self.anew = False

    def takes(self, node: int, outgoing: Outgoing) -> bool:
        """Whether a message that entered at ``node`` is for this session now; it may be held for later."""
        if node in self.marked:
            return False
        if not self.sources:
            return True
        stage = self.stages.get(node, UNMARKED)
        if stage == OPEN:
            return True
        self.held.append(Held(node, stage == MARKED, outgoing))
        return False

    def mark(self, node: int) -> None:
        """The mark of a node has come: what came before it comes from the former owner."""
        if self.stages.get(node, UNMARKED) == UNMARKED:
            self.stages[node] = MARKED
            self.held = [held for held in self.held if held.node != node]

    def open(self, node: int) -> list[Held]:
        """All that the former owner had of that node is here: what was held of it since, in order."""
        self.stages[node] = OPEN
        opened = [held for held in self.held if held.node == node]
        self.held = [held for held in self.held if held.node != node]
        return opened

    def end(self) -> list[Held]:
        """Nobody has anything of it any more: all that was held."""
        opened = self.held
        self.held = []
        self.sources = {}
        self.stages = {}
        return opened
