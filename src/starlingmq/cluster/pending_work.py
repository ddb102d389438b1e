"""Whether a turn of the cluster has anything to do: most turns of a busy broker have not, and a whole one costs as much
as some messages do.

A turn is needed when something came in (frames, answers of etcd, orders), when something is due (``wake_at``), when the
last one left something that the next one has to look at (``unfinished``), or when there is an errand: what the core has
put where the cluster looks (``any``). Whoever adds such a place adds it here; ``tests/cluster/test_pending_work.py``
has whole clusters find out if one is missing.
"""

from __future__ import annotations

from starlingmq.cluster.balance.drain import Drain
from starlingmq.cluster.balance.rebalance import Rebalancing
from starlingmq.cluster.membership.node_directory import NodeDirectory
from starlingmq.cluster.operator_rpc import OperatorRpc
from starlingmq.cluster.retained.retained_sync import RetainedSync
from starlingmq.cluster.takeover.ownership import Ownership
from starlingmq.cluster.takeover.takeover import Takeovers
from starlingmq.cluster.wills.cluster_wills import ClusterWills
from starlingmq.core.broker import BrokerState
from starlingmq.core.routing.retained_outbox import RetainedOutbox


class PendingWork:
    def __init__(
        self,
        broker: BrokerState,
        takeovers: Takeovers,
        ownership: Ownership,
        retained: RetainedSync,
        wills: ClusterWills,
        reception: NodeDirectory,
        drain: Drain,
        rebalancing: Rebalancing,
        calls: OperatorRpc,
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
        self._retained_up_to = 0  # what was published here and retained, when a turn was last taken

    def any(self) -> bool:
        """Asked in each turn, so nothing but attributes of the core is looked at, but for what operators do."""
        ctx, broker = self._ctx, self._broker
        interest, elsewhere, claims = ctx.cluster.interest, ctx.cluster.qos2, ctx.cluster.claims
        if interest is not None and interest.changed:
            return True
        if elsewhere is not None and (elsewhere.asked or elsewhere.left):
            return True
        if claims is not None and (claims.waiting or claims.released):
            return True
        retaining, wills = ctx.cluster.retained, ctx.cluster.wills
        if retaining is not None and self._to_retain(retaining):
            return True
        if wills is not None and (wills.changed or wills.due):
            return True
        if ctx.cluster.leaving or ctx.cluster.aware or broker.subscribing.held or broker.subscribing.replays.held:
            return True
        if broker.groups.news or broker.groups.ended:
            return True
        return self._reception.changed or self._calls.busy()

    def _to_retain(self, retaining: RetainedOutbox) -> bool:
        if retaining.changed or retaining.wanted or retaining.expired:
            return True
        return retaining.last != self._retained_up_to

    def unfinished(self) -> bool:
        """Asked after a whole turn."""
        retaining = self._ctx.cluster.retained
        if retaining is not None:
            self._retained_up_to = retaining.last
        if self._drain.active or self._rebalancing.active or not self._ownership.idle():
            return True
        return self._takeovers.busy() or self._retained.busy() or self._wills.busy()
