"""Claims of this node that etcd has answered: this node asks each node with an owner key for its session.

docs/SESSIONS.md has the rules. A claim that came too late releases the client id again.
"""

from __future__ import annotations

from starlingmq.cluster.takeover.drain_offers import DrainOffers
from starlingmq.cluster.takeover.inbound import InboundSession
from starlingmq.cluster.takeover.inbound_states import InboundEvent
from starlingmq.cluster.takeover.migrations import Migrations
from starlingmq.cluster.takeover.ownership import Owned
from starlingmq.cluster.takeover.takeover_target import TakeoverTarget
from starlingmq.cluster.takeover.transfer_frames import OVERTAKEN, UNREPORTED, Head, Takeover
from starlingmq.cluster.takeover.waiting_connects import WaitingConnects
from starlingmq.core.session.owner_claims import OwnerClaim
from starlingmq.core.session.session_user import BY_CLIENT_ID, is_anothers


class InboundClaims:
    def __init__(
        self, migrations: Migrations, target: TakeoverTarget, connects: WaitingConnects, offers: DrainOffers
    ) -> None:
        self._migrations = migrations
        self._target = target
        self._connects = connects
        self._offers = offers
        self._ctx = migrations.ctx

    def own(self, owned: Owned, now: float) -> None:
        """This node owns the client id. Every other node with an owner key may have state of its session."""
        migrations = self._migrations
        client_id, epoch = owned.client_id, owned.epoch
        claims = self._ctx.cluster.claims
        assert claims is not None
        if not migrations.ownership.claiming(
            client_id
        ):  # otherwise the CONNECT that waits now belongs to the next claim
            claims.own(client_id, epoch)
        migrations.postponed.pop(client_id, None)
        if self._is_overtaken(client_id, epoch):
            return
        claim = claims.still(client_id)
        clean = claim is not None and claim.clean_start
        if claim is None and not owned.firm and not self._has(client_id):
            # the client is gone: no other node needs to give up its session
            migrations.ownership.release(client_id, migrations.me, epoch)
            return
        if owned.clean and not clean:  # the CONNECT with a clean start is gone: no other node may discard its session
            migrations.ownership.claim_again(client_id, owned.firm)
            return
        if claim is None and not owned.firm and self._is_older(owned):
            return
        earlier = migrations.of(client_id)
        if not clean and self._is_too_early(owned, earlier):
            migrations.postponed[client_id] = owned
            return
        self._turn_down(client_id, epoch)
        invited = self._offers.invited(client_id)
        offered = invited if claim is None else None
        if offered is not None and not self._takes_offer(owned, offered, earlier):
            return
        if claim is not None:
            migrations.broker.connecting.make_way(client_id)
        user = None if claim is None or self._ctx.session_owner == BY_CLIENT_ID else claim.client.username
        for inbound in earlier:
            self._own_again(inbound, owned, claim, user)
        others = self._others(owned, earlier)
        held = self._keep(owned, clean, others)
        former_members = [node for node in owned.others if node not in migrations.members]
        if not (others or former_members or self._is_will_unpublished(client_id)):
            self._connects.go_on(client_id, epoch, held)
            return
        inbound = InboundSession(client_id, epoch, others)
        inbound.user = user
        inbound.best_held = held
        inbound.newest = max(list(others.items()), key=_held, default=(0, 0))
        inbound.wills.expect(former_members)
        if clean:
            inbound.wills.expect(others, UNREPORTED)
        for node, source in inbound.sources.items():
            source.late = migrations.is_unreachable(node)
        inbound.discarded = clean
        migrations.add(inbound)
        migrations.changed(inbound)
        for node, had in others.items():
            migrations.say(node, Takeover(client_id, epoch, clean or had < owned.floor, offered is not None, user))

    def _is_overtaken(self, client_id: str, epoch: int) -> bool:
        """Whether a node with a higher epoch has asked for the session. If so, this claim is given up."""
        migrations = self._migrations
        given = [outbound.epoch for outbound in migrations.outbound_of.get(client_id, ())]
        overtaken = max(migrations.overtaken.pop(client_id, 0), *given, 0)
        if overtaken <= epoch:
            return False
        migrations.ownership.release(client_id, migrations.me, epoch)
        migrations.broker.connecting.overtaken(client_id, overtaken)
        return True

    def _is_older(self, owned: Owned) -> bool:
        """Whether another node has a later session than this one. The client that asked here is gone, so the session
        stays there. What is here keeps its epoch and is handed over to that owner, or to the next one. If it got the
        epoch of this claim, it would replace the later session while that node cannot be reached."""
        migrations = self._migrations
        session = self._ctx.sessions.get(owned.client_id)
        here = max([inbound.owned for inbound in migrations.of(owned.client_id)], default=0)
        here = max(here, 0 if session is None else session.epoch)
        return any(epoch > here for node, epoch in owned.others.items() if node in migrations.members)

    def _takes_offer(self, owned: Owned, offered: tuple[int, int], earlier: list[InboundSession]) -> bool:
        """Whether this node may keep a client id that it claimed because a draining node offered the session."""
        migrations, client_id = self._migrations, owned.client_id
        holds = self._offers.holds(owned, *offered)
        if not (holds or earlier or client_id in self._ctx.sessions):
            migrations.ownership.release(client_id, migrations.me, owned.epoch)
            return False
        if holds and offered[1] == 0:  # the offering node has no owner key for it, and never had one
            owned.others.setdefault(*offered)
        return True

    def _own_again(self, inbound: InboundSession, owned: Owned, claim: OwnerClaim | None, user: str | None) -> None:
        """This node owns the client id again while sessions that an earlier claim asked for are still moving here."""
        clean = claim is not None and claim.clean_start
        if clean or inbound.owned < owned.floor or self._is_anothers(inbound, user):
            inbound.discarded = True
            inbound.wills.expect(inbound.sources)
        elif user is not None:
            inbound.user = user
        if claim is not None:
            self._target.step(inbound, InboundEvent.CONNECT)
        inbound.owned = owned.epoch
        self._migrations.changed(inbound)

    def _keep(self, owned: Owned, clean: bool, others: dict[int, int]) -> int:
        """Gives the session here the epoch of the claim, or adds this node to ``others``, so that its old session is
        handed over like that of any other node. Returns the epoch by which this node has held the session all the time;
        0: it did not."""
        migrations = self._migrations
        session = self._ctx.sessions.get(owned.client_id)
        if session is None:
            return 0
        if session.epoch < owned.floor:
            migrations.broker.connecting.taken_over(session, True)  # another node's clean start has discarded it
            return 0
        if not clean and not session.hollow and any(other > session.epoch for other in others.values()):
            # the client was at another node in the meantime: the session here is an old one
            others[migrations.me] = session.epoch
            return 0
        held = 0 if session.hollow else session.epoch
        session.epoch = owned.epoch
        moving = session.moving
        if moving is not None:
            moving.marked = {}  # these markers were for earlier owners
            if not moving.sources:
                migrations.broker.mover.settle(session)  # the later owner that they were for has lost its session
        return held

    def _is_will_unpublished(self, client_id: str) -> bool:
        """Whether this node still has to publish the will of an earlier connection."""
        return self._migrations.ports.wills.unpublished(client_id)

    def _is_anothers(self, inbound: InboundSession, user: str | None) -> bool:
        """Whether the inbound session belongs to another user."""
        session = inbound.session
        owner = inbound.user if session is None or session.ended or session.owner is None else session.owner
        return is_anothers(self._ctx.session_owner, owner, user)

    def _is_too_early(self, owned: Owned, earlier: list[InboundSession]) -> bool:
        """Whether the old session here, which this node has to hand over to itself, has not arrived completely yet."""
        session = self._ctx.sessions.get(owned.client_id)
        if session is None or session.hollow or session.epoch < owned.floor:
            return False
        old = any(other > session.epoch for other in owned.others.values())
        return old and any(inbound.awaited() for inbound in earlier)

    def look_at_postponed(self, client_id: str, now: float) -> None:
        owned = self._migrations.postponed.get(client_id)
        if owned is not None and not self._is_too_early(owned, self._migrations.of(client_id)):
            del self._migrations.postponed[client_id]
            self.own(owned, now)

    def _turn_down(self, client_id: str, epoch: int) -> None:
        """Refuses a node that has asked, by an epoch below this claim's, for the session that is still moving here.
        This claim may ask the same node, so that each would wait for the other."""
        migrations = self._migrations
        deferred = migrations.deferred.get(client_id)
        if deferred is not None and deferred[1].epoch < epoch:
            del migrations.deferred[client_id]
            migrations.refused += 1
            migrations.take_early((client_id, deferred[1].epoch))
            migrations.say(deferred[0], Head(client_id, deferred[1].epoch, OVERTAKEN))

    def _has(self, client_id: str) -> bool:
        migrations = self._migrations
        return (
            client_id in self._ctx.sessions
            or client_id in migrations.inbound_sessions
            or client_id in migrations.outbound_of
        )

    def _others(self, owned: Owned, earlier: list[InboundSession]) -> dict[int, int]:
        """Nodes that may have state of the client id and have not been asked yet."""
        migrations = self._migrations
        others: dict[int, int] = {}
        for node, held in owned.others.items():
            if node not in migrations.members:
                migrations.ownership.release(owned.client_id, node, held)
            elif not any(held == inbound.epoch_of(node) for inbound in earlier):
                others[node] = held
        return others


def _held(item: tuple[int, int]) -> int:
    return item[1]
