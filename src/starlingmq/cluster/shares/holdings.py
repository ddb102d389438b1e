"""The state that this node has of client ids, as its parts know it: the answer to a new leader of a share."""

from __future__ import annotations

from collections.abc import Iterator

from starlingmq.cluster.shares.share_messages import WillKey
from starlingmq.cluster.takeover.inbound_states import InboundState
from starlingmq.cluster.takeover.outbound import moved_session
from starlingmq.cluster.takeover.ownership import Ownership
from starlingmq.cluster.takeover.takeover import Takeovers
from starlingmq.cluster.wills.cluster_wills import ClusterWills

OLDEST: int = 1  # the epoch of a will without anything else: older than any session


class Holdings:
    def __init__(self, takeovers: Takeovers, ownership: Ownership, wills: ClusterWills) -> None:
        self._takeovers = takeovers
        self._ownership = ownership
        self._wills = wills

    def client_ids(self) -> Iterator[str]:
        migrations = self._takeovers.migrations
        for name in migrations.ctx.sessions:
            moved = moved_session(name)
            yield name if moved is None else moved[2]
        yield from migrations.inbound_sessions
        yield from migrations.outbound_of
        yield from migrations.postponed
        yield from self._ownership.answered_ids()
        yield from self._wills.table.client_ids()

    def held_key(self, client_id: str) -> tuple[int, int]:
        """The newest epoch of what is here, and the floor of its owner key; epoch 0: nothing is here. An orphaned
        session does not count: the number of this node has no key of it."""
        if client_id in self._takeovers.orphaned:
            return 0, 0
        migrations = self._takeovers.migrations
        session = migrations.ctx.sessions.get(client_id)
        postponed = migrations.postponed.get(client_id)
        epoch = max(
            0 if session is None else session.epoch,
            0 if postponed is None else postponed.epoch,
            self._ownership.answered_epoch(client_id),
            *[inbound.owned for inbound in migrations.of(client_id)],
            *[max(outbound.session.epoch, OLDEST) for outbound in migrations.outbound_of.get(client_id, ())],
        )
        if epoch == 0 and self._wills.table.is_known(client_id):
            epoch = OLDEST
        return epoch, self._takeovers.discarded_below(client_id)

    def held_wills(self, client_id: str) -> list[WillKey]:
        return self._wills.held_wills(client_id)

    def served_epoch(self, client_id: str) -> int:
        """The newest epoch in which this node has served the client, as far as it knows; 0: none. A client is served
        once all wills are settled that it had left elsewhere."""
        migrations = self._takeovers.migrations
        epoch = self._wills.newest_epoch(client_id)
        session = migrations.ctx.sessions.get(client_id)
        if session is None or session.placeholder or client_id in self._takeovers.orphaned:
            return epoch
        settled = all(inbound.state is InboundState.OPEN for inbound in migrations.of(client_id))
        return max(epoch, session.epoch) if settled else epoch

    def has(self, client_id: str) -> bool:
        """Whether this node has any state of the client id."""
        return self._takeovers.has(client_id)

    def release(self, client_id: str, epoch: int) -> None:
        """An earlier incarnation of this node had that key. It is not needed unless there is state here."""
        if not self.has(client_id):
            self._ownership.release(client_id, self._takeovers.migrations.me, epoch)

    def newest(self) -> int:
        """The highest epoch of a session here."""
        return max([session.epoch for session in self._takeovers.migrations.ctx.sessions.values()], default=0)
