"""Claims of this node that are answered: this node asks each node with an owner key for its session.

``claim_decisions`` says what an answered claim leads to. A claim that came too late releases the client id again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlingmq.cluster.takeover.claim_decisions import CLAIM_TABLE, ClaimAction, ClaimDecision
from starlingmq.cluster.takeover.drain_offers import DrainOffers
from starlingmq.cluster.takeover.inbound import InboundSession
from starlingmq.cluster.takeover.inbound_states import InboundEvent
from starlingmq.cluster.takeover.migrations import Migrations
from starlingmq.cluster.takeover.ownership import Owned
from starlingmq.cluster.takeover.takeover_target import TakeoverTarget
from starlingmq.cluster.takeover.transfer_frames import OVERTAKEN, UNREPORTED, Head, Takeover
from starlingmq.cluster.takeover.waiting_connects import WaitingConnects
from starlingmq.core.context.owner_claims import OwnerClaim, OwnerClaims
from starlingmq.core.session.session import Session
from starlingmq.core.session.session_user import BY_CLIENT_ID, is_anothers


class AnsweredClaim:
    """An answered claim of this node, with everything that the decision on it depends on."""

    owned: Owned
    claim: OwnerClaim | None  # of the waiting CONNECT
    clean: bool  # that CONNECT has a clean start
    earlier: list[InboundSession]  # that earlier claims have asked for
    overtaken: int  # the highest epoch by which another node has requested the session; 0: none has
    offer: tuple[int, int] | None  # (node, epoch) of the offer that it was claimed for, without a CONNECT

    def __init__(
        self,
        owned: Owned,
        claim: OwnerClaim | None,
        earlier: list[InboundSession],
        overtaken: int,
        offer: tuple[int, int] | None,
    ) -> None:
        self.owned = owned
        self.claim = claim
        self.clean = claim is not None and claim.clean_start
        self.earlier = earlier
        self.overtaken = overtaken
        self.offer = offer


class InboundClaims:
    def __init__(
        self, migrations: Migrations, target: TakeoverTarget, connects: WaitingConnects, offers: DrainOffers
    ) -> None:
        self._migrations = migrations
        self._target = target
        self._connects = connects
        self._offers = offers
        self._ctx = migrations.ctx
        self._by_claim: Final[dict[ClaimAction, Callable[[AnsweredClaim], None]]] = {
            ClaimAction.RELEASE: self._release,
            ClaimAction.REFUSE_CONNECT: self._refuse_connect,
            ClaimAction.CLAIM_AGAIN: self._claim_again,
            ClaimAction.POSTPONE: self._postpone,
            ClaimAction.TURN_DOWN: self._turn_down,
            ClaimAction.DROP_OFFER: self._drop_offer,
            ClaimAction.TAKE_OFFER: self._take_offer,
            ClaimAction.PREPARE: self._prepare,
            ClaimAction.REQUEST: self._request,
        }

    def own(self, owned: Owned, now: float) -> None:
        """A claim of this node is answered: carries out what ``CLAIM_TABLE`` says of its decision."""
        migrations = self._migrations
        claims = self._ctx.cluster.claims
        assert claims is not None
        # A CONNECT that waits while the next claim is outstanding belongs to that claim.
        if not migrations.ownership.claiming(owned.client_id):
            claims.own(owned.client_id, owned.epoch)
        migrations.postponed.pop(owned.client_id, None)
        for inbound in migrations.of(owned.client_id):
            self._target.reconsider(inbound)
        answered = self._answered(owned, claims)
        for action in CLAIM_TABLE[self.decide(answered)]:
            self._by_claim[action](answered)

    def _answered(self, owned: Owned, claims: OwnerClaims) -> AnsweredClaim:
        migrations = self._migrations
        epochs = [outbound.epoch for outbound in migrations.outbound_of.get(owned.client_id, ())]
        overtaken = max(migrations.overtaken.pop(owned.client_id, 0), *epochs, 0)
        claim = claims.still(owned.client_id) if overtaken <= owned.epoch else None
        offer = self._offers.offer(owned.client_id) if claim is None else None
        return AnsweredClaim(owned, claim, migrations.of(owned.client_id), overtaken, offer)

    def decide(self, answered: AnsweredClaim) -> ClaimDecision:
        owned = answered.owned
        unwanted = answered.claim is None and not owned.unconditional
        if answered.overtaken > owned.epoch:
            return ClaimDecision.OVERTAKEN
        if unwanted and not self._has(owned.client_id):
            return ClaimDecision.UNUSED
        if owned.clean and not answered.clean:
            return ClaimDecision.CLEAN_START_GONE
        if unwanted and self._is_older(owned):
            return ClaimDecision.OLDER
        if not answered.clean and self._is_too_early(owned, answered.earlier):
            return ClaimDecision.INCOMPLETE
        if answered.offer is not None and not self._takes_offer(answered, *answered.offer):
            return ClaimDecision.OFFER_VOID
        return ClaimDecision.OWNED

    # Actions

    def _release(self, answered: AnsweredClaim) -> None:
        owned = answered.owned
        self._migrations.ownership.release(owned.client_id, self._migrations.me, owned.epoch)

    def _refuse_connect(self, answered: AnsweredClaim) -> None:
        self._migrations.broker.connecting.overtaken(answered.owned.client_id, answered.overtaken)

    def _claim_again(self, answered: AnsweredClaim) -> None:
        self._migrations.ownership.claim_again(answered.owned.client_id, answered.owned.unconditional)

    def _postpone(self, answered: AnsweredClaim) -> None:
        self._migrations.postponed[answered.owned.client_id] = answered.owned

    def _drop_offer(self, answered: AnsweredClaim) -> None:
        self._offers.forget(answered.owned.client_id)

    def _take_offer(self, answered: AnsweredClaim) -> None:
        owned, offer = answered.owned, answered.offer
        self._offers.forget(owned.client_id)
        if offer is not None and self._offers.take(owned, *offer) and offer[1] == 0:
            owned.others.setdefault(*offer)  # that node has no owner key for it, and never had one

    def _prepare(self, answered: AnsweredClaim) -> None:
        if answered.claim is not None:
            self._migrations.broker.connecting.settle_will_for_connect(answered.owned.client_id)

    def _request(self, answered: AnsweredClaim) -> None:
        """Every other node with an owner key may have state of the session."""
        migrations = self._migrations
        owned, claim, clean = answered.owned, answered.claim, answered.clean
        client_id, epoch = owned.client_id, owned.epoch
        user = None if claim is None or self._ctx.session_owner == BY_CLIENT_ID else claim.client.username
        for inbound in answered.earlier:
            self._own_again(inbound, owned, claim, user)
        others = self._others(owned, answered.earlier)
        former_members = {node: had for node, had in owned.others.items() if node not in migrations.members}
        removed = {} if clean or owned.unconditional else former_members.copy()
        held = self._keep(answered, others, removed)
        for node, had in former_members.items():
            if had <= held or had < owned.floor:
                removed.pop(node, None)
            if node not in removed:
                migrations.ownership.release(client_id, node, had)
        if not (others or former_members or self._is_will_unpublished(client_id)):
            self._connects.go_on(client_id, epoch, held)
            return
        inbound = InboundSession(client_id, epoch, others)
        inbound.user = user
        inbound.since = 0.0 if claim is None else claim.since
        inbound.holders.update(dict.fromkeys(owned.others))
        if former_members or self._is_one_absent(owned):
            inbound.unheard[0] = None
        inbound.removed = removed
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
        offered = answered.offer is not None
        for node, had in others.items():
            migrations.send(node, Takeover(client_id, epoch, clean or had < owned.floor, offered, user))

    def _is_older(self, owned: Owned) -> bool:
        """Whether another node has a later session than this one. The client that asked here is gone, so the session
        stays there. What is here keeps its epoch and is handed over to that owner, or to the next one. If it got the
        epoch of this claim, it would replace the later session while that node cannot be reached."""
        migrations = self._migrations
        session = self._ctx.sessions.get(owned.client_id)
        here = max([inbound.owned for inbound in migrations.of(owned.client_id)], default=0)
        here = max(here, 0 if session is None else session.epoch)
        return any(epoch > here for node, epoch in owned.others.items() if node in migrations.members)

    def _takes_offer(self, answered: AnsweredClaim, node: int, epoch: int) -> bool:
        """Whether this node may keep a client id that it claimed because a draining node offered the session."""
        owned = answered.owned
        here = bool(answered.earlier) or owned.client_id in self._ctx.sessions
        return here or self._offers.holds(owned, node, epoch)

    def _own_again(self, inbound: InboundSession, owned: Owned, claim: OwnerClaim | None, user: str | None) -> None:
        """This node owns the client id again while sessions that an earlier claim asked for are still moving here."""
        clean = claim is not None and claim.clean_start
        if clean or inbound.owned < owned.floor or self._is_anothers(inbound, user):
            inbound.discarded = True
            inbound.wills.expect(inbound.sources)
        elif user is not None:
            inbound.user = user
        if claim is not None:
            inbound.since = claim.since
            self._target.step(inbound, InboundEvent.CONNECT)
        inbound.owned = owned.epoch
        self._migrations.changed(inbound)

    def _keep(self, answered: AnsweredClaim, others: dict[int, int], removed: dict[int, int]) -> int:
        """Gives the session here the epoch of the claim, or adds this node to ``others``, so that its old session is
        handed over like that of any other node. Returns the epoch by which this node has held the session all the time;
        0: it did not."""
        migrations, owned, clean = self._migrations, answered.owned, answered.clean
        session = self._ctx.sessions.get(owned.client_id)
        if session is None:
            return 0
        if session.epoch < owned.floor:
            migrations.broker.connecting.taken_over(session, True)  # another node's clean start has discarded it
            return 0
        if not clean and not session.placeholder and self._is_earlier(session, answered, {**removed, **others}):
            others[migrations.me] = session.epoch
            return 0
        held = 0 if session.placeholder else session.epoch
        session.epoch = owned.epoch
        moving = session.moving
        if moving is not None:
            moving.marked = {}  # these markers were for earlier owners
            if not moving.sources:
                migrations.broker.mover.settle(session)  # the later owner that they were for has lost its session
        return held

    def _is_earlier(self, session: Session, answered: AnsweredClaim, others: dict[int, int]) -> bool:
        """Whether the session here has to be handed over to this node itself: its client was at another node in the
        meantime, or has to be told that its session is lost. In the second case messages for the earlier subscriptions
        may be on their way from any node, and only cut markers for this claim, or for a later one, follow them."""
        if any(other > session.epoch for other in others.values()):
            return True
        if answered.claim is None or not session.needs_reset or session.reset_confirmed:
            return False
        return not any(inbound.session is session and inbound.is_unmarked() for inbound in answered.earlier)

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
        if session is None or session.placeholder or session.epoch < owned.floor:
            return False
        old = any(other > session.epoch for other in owned.others.values())
        return old and any(inbound.awaited() for inbound in earlier)

    def look_at_postponed(self, client_id: str, now: float) -> None:
        owned = self._migrations.postponed.get(client_id)
        if owned is not None and not self._is_too_early(owned, self._migrations.of(client_id)):
            del self._migrations.postponed[client_id]
            self.own(owned, now)

    def _turn_down(self, answered: AnsweredClaim) -> None:
        """Refuses a node that has asked, by an epoch below this claim's, for the session that is still moving here.
        This claim may ask the same node, so that each would wait for the other."""
        migrations, client_id = self._migrations, answered.owned.client_id
        deferred = migrations.deferred.get(client_id)
        if deferred is not None and deferred[1].epoch < answered.owned.epoch:
            del migrations.deferred[client_id]
            migrations.refused += 1
            migrations.take_early((client_id, deferred[1].epoch))
            migrations.send(deferred[0], Head(client_id, deferred[1].epoch, OVERTAKEN))

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
        claims = self._ctx.cluster.claims
        assert claims is not None
        for node, held in owned.others.items():
            if node not in migrations.members:
                continue
            if any(held == inbound.epoch_of(node) for inbound in earlier):
                continue
            if not claims.is_absent(owned.client_id, node, held):
                others[node] = held
        return others

    def _is_one_absent(self, owned: Owned) -> bool:
        """Whether a node with an owner key is not asked, because it has answered before that it has nothing."""
        claims = self._ctx.cluster.claims
        assert claims is not None
        return any(claims.is_absent(owned.client_id, node, held) for node, held in owned.others.items())


def _held(item: tuple[int, int]) -> int:
    return item[1]
