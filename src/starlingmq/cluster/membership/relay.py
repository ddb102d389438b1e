"""The path of a frame: directly to its target, or through a relay that reaches the target.

Invariant: a frame is relayed at most once. A node that receives a frame for another node, not relayed yet, sends it to
its target and to no other node, so frames never circle. A relayed path needs two working directions: from this node to
the relay, and from the relay to the target. The opposite directions do not matter, so faults in one direction are
bypassed too.
"""

from __future__ import annotations

from starlingmq.cluster.links.peer_frames import Envelope
from starlingmq.cluster.membership.quorum import Quorum


class Relay:
    _number: int  # this node's
    _quorum: Quorum
    _through: dict[int, int]  # target -> the relay chosen last, kept while it works

    def __init__(self, number: int, quorum: Quorum) -> None:
        self._number = number
        self._quorum = quorum
        self._through = {}

    def next_hop(self, target: int) -> int | None:
        """The next hop of a frame for ``target``; None: there is no path now."""
        quorum = self._quorum
        if quorum.reports_hearing_directly(target):
            self._through.pop(target, None)
            return target
        chosen = self._through.get(target, 0)
        if chosen and self._leads(chosen, target):
            return chosen
        for third in quorum.numbers():
            if self._leads(third, target):
                self._through[target] = third
                return third
        self._through.pop(target, None)
        return None if quorum.has_heard_us(target) else target

    def heartbeat_ways(self, target: int) -> list[int]:
        """The next hops of a heartbeat for ``target``: every path that may work, while the direct path is not known to
        work. A relay of unknown state may hear this node; only one that says it does not is left out."""
        quorum = self._quorum
        if quorum.reports_hearing_directly(target):
            return [target]
        thirds = [third for third in quorum.numbers() if third != target]
        return [target, *[third for third in thirds if not quorum.reports_deaf(third)]]

    def pass_on(self, envelope: Envelope) -> int | None:
        """The next hop of a frame that arrived here for another node, now marked ``relayed``; None: it is dropped."""
        target = envelope.target
        if envelope.relayed or target == self._number or self._number == envelope.source or target == envelope.source:
            return None
        return target if target in self._quorum.numbers() else None

    def _leads(self, third: int, target: int) -> bool:
        """Whether a frame given to ``third`` reaches ``target``, as far as this node knows."""
        quorum = self._quorum
        if third == target or not quorum.reports_hearing_directly(third):
            return False
        if quorum.hears(target):
            return quorum.reports_hearing(target, third)
        return quorum.reports_connected(third, target)
