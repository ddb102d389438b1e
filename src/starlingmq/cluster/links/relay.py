"""Which way a frame goes: straight to its target, or through a third node that reaches it (docs/CLUSTER.md, Relay).

The law: a frame takes one hop more at most. Who has a frame that is not for him and that nobody passed on yet sends it
to its target and to nobody else; so frames never circle. The way through a third node needs two directions that work,
from us to the third and from the third to the target; those back are not our concern, so faults in one direction are
got around as well.
"""

from __future__ import annotations

from starlingmq.cluster.links.peer_frames import Envelope
from starlingmq.cluster.membership.quorum import Quorum


class Relay:
    _number: int  # ours
    _quorum: Quorum
    _through: dict[int, int]  # target -> the third node last chosen, and kept while it will do

    def __init__(self, number: int, quorum: Quorum) -> None:
        self._number = number
        self._quorum = quorum
        self._through = {}

    def next_hop(self, target: int) -> int | None:
        """Where a frame for ``target`` goes next; None: there is no way now."""
        quorum = self._quorum
        if quorum.says_hears_directly(target):
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
        """The next hops of a heartbeat for ``target``: each way that may work while the direct one is not known to.

        A third node of which nothing is known may well hear us; only one that says it does not is left out.
        """
        quorum = self._quorum
        if quorum.says_hears_directly(target):
            return [target]
        thirds = [third for third in quorum.numbers() if third != target]
        return [target, *[third for third in thirds if not quorum.says_deaf(third)]]

    def pass_on(self, envelope: Envelope) -> int | None:
        """Where to send a frame that came here for another node, marked ``relayed``; None: nowhere, it is dropped."""
        target = envelope.target
        if envelope.relayed or target == self._number or self._number == envelope.source or target == envelope.source:
            return None
        return target if target in self._quorum.numbers() else None

    def _leads(self, third: int, target: int) -> bool:
        """Whether what we give to ``third`` reaches ``target``, as far as one can know."""
        quorum = self._quorum
        if third == target or not quorum.says_hears_directly(third):
            return False
        if quorum.hears(target):
            return quorum.says_hears(target, third)
        return quorum.says_connected(third, target)
