"""Whether the core has anything for the cluster: most turns of a busy broker have not, and a whole turn of
``cluster.state`` costs as much as some messages do.

A turn is needed when something came in (frames, answers of etcd, orders), when something is due (``wake_at``), or when
there is an errand: what the core has put where the cluster looks, or what waits for a commit. Whoever adds such a place
adds it here; ``tests/cluster/test_errands.py`` has whole clusters find out if one is missing.
"""

from __future__ import annotations

from starlingmq.cluster.calls import Calls
from starlingmq.cluster.drain import Drain
from starlingmq.cluster.ownership import Ownership
from starlingmq.cluster.rebalance import Rebalancing
from starlingmq.cluster.reception import Reception
from starlingmq.cluster.retained import RetainedIndex
from starlingmq.cluster.takeover import Takeovers
from starlingmq.cluster.wills import ClusterWills
from starlingmq.core.broker import BrokerState


class Errands:
    def __init__(
        self,
        broker: BrokerState,
        takeovers: Takeovers,
        ownership: Ownership,
        retained: RetainedIndex,
        wills: ClusterWills,
        reception: Reception,
        drain: Drain,
        rebalancing: Rebalancing,
        calls: Calls,
    ) -> None:
        self._broker = broker
        self._ctx = broker.ctx
        self._takeovers = takeovers
        self._ownership = ownership
        self._retained = retained
        self._wills = wills
        self._reception = reception
        self._drain = drain
        self._rebalancing = rebalancing
        self._calls = calls

    def any(self) -> bool:
        ctx = self._ctx
        interest, elsewhere = ctx.interest, ctx.elsewhere
        if interest is not None and interest.changed:
            return True
        if elsewhere is not None and (elsewhere.asked or elsewhere.left):
            return True
        broker = self._broker
        if broker.groups.news or broker.groups.ended or broker.subscribing.held or broker.subscribing.replays:
            return True
        if self._reception.changed or self._drain.active or self._rebalancing.active or self._calls.busy():
            return True
        return self._takeovers.busy() or not self._ownership.idle() or self._retained.busy() or self._wills.busy()
