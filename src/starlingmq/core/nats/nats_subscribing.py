"""SUB and UNSUB: a ``sid`` is a separate subscription in the tree, or a member of a queue group."""

from __future__ import annotations

from typing import Final

from starlingmq.core.context.context import Context
from starlingmq.core.context.ready import BY_HOOK, HookAnswer, HookQuestion
from starlingmq.core.context.ready import SUBSCRIBE as ASK_SUBSCRIBE
from starlingmq.core.limits.access import NOTHING, PART, WHOLE
from starlingmq.core.nats.nats_client import NatsClient, NatsSubscription
from starlingmq.core.nats.nats_errors import INVALID_SUBJECT, NatsErrors
from starlingmq.core.router.router import Router
from starlingmq.core.session.connection import ASKING, WORKING
from starlingmq.core.session.overlaps import OVERLAPPING, OVERLAPS
from starlingmq.core.session.session import BRIDGE_LISTENER, Client, Session
from starlingmq.core.subscribe.subscribing import WHY_REFUSED, HeldSuback, Subscribing
from starlingmq.core.topics.topics import levels, of_streams, valid_filter
from starlingmq.core.turn.job import Job
from starlingmq.wire.mqtt import Subscribe, SubscribeRequest
from starlingmq.wire.nats_frames import OK_FRAME, PONG_FRAME
from starlingmq.wire.nats_subjects import filter_of
from starlingmq.wire.reasons import Reason

SUBSCRIPTIONS_PER_TURN: Final = 1000  # of a closed connection


class LeaveJob(Job):
    """Removes the subscriptions of a closed connection from the tree, some per turn."""

    owner: NatsSubscribing
    left: list[NatsSubscription]

    def __init__(self, owner: NatsSubscribing, left: list[NatsSubscription]) -> None:
        self.owner = owner
        self.left = left

    def step(self) -> bool:
        for _ in range(min(SUBSCRIPTIONS_PER_TURN, len(self.left))):
            self.owner.forget(self.left.pop())
        return not self.left


class NatsSubscribing:
    ctx: Context
    router: Router
    subscribing: Subscribing
    errors: NatsErrors

    def __init__(self, ctx: Context, router: Router, subscribing: Subscribing, errors: NatsErrors) -> None:
        self.ctx = ctx
        self.router = router
        self.subscribing = subscribing
        self.errors = errors

    def subscribe(self, client: Client, nats: NatsClient, subject: bytes, name: bytes, sid: bytes) -> None:
        ctx = self.ctx
        session = client.session
        assert session is not None
        if sid in nats.subscriptions:  # as in nats-server, the first one stays
            nats.ok(client)
            return
        filter = filter_of(subject)
        limits = ctx.limits
        if not filter:
            self.errors.send(client, INVALID_SUBJECT)
            return
        if (
            filter.startswith(b"$share/")
            or not _may_name_a_group(name)
            or len(filter) > limits.max_topic_length
            or levels(filter) > limits.topic_levels
        ):
            self.errors.may_not_subscribe(client, subject, name, WHY_REFUSED[Reason.TOPIC_FILTER_INVALID])
            return
        most = 0 if client.listener == BRIDGE_LISTENER else limits.subscriptions_per_client
        if most != 0 and len(nats.subscriptions) >= most:
            self.errors.send(client, "Maximum Subscriptions Exceeded")
            return
        if nats.overlaps_too_often(filter):
            ctx.notice(OVERLAPS, client, OVERLAPPING, closing=False)
            self.errors.send(client, "Maximum Subscriptions Exceeded")
            return
        if ctx.isolated:
            self.errors.isolated(client)
            return
        extent = self._extent(client, filter, name)
        if extent == NOTHING:
            self.errors.may_not_subscribe(client, subject, name)
            return
        if name:
            session = Session(f"{client.client_id}/{sid.decode('latin-1')}", ctx.next_number)
            session.client = client
        sub = NatsSubscription(session, filter, subject, name, sid)
        _check(nats, sub, extent)
        if ctx.ask_subscribe:
            nats.waiting = sub
            question = HookQuestion(ASK_SUBSCRIBE, client)
            question.requests = [SubscribeRequest(sub.whole())]
            ctx.ready.questions.append(question)
            ctx.halt(client, ASKING)
            return
        self._take_in(client, nats, sub)

    def answered(self, client: Client, nats: NatsClient, answer: HookAnswer) -> None:
        """The answer of ``authorize``."""
        sub = nats.waiting
        nats.waiting = None
        if sub is None:
            return
        denied = answer.reasons[0] if answer.reasons else answer.reason
        extent = self._extent(client, sub.filter, sub.name)  # by the present rules
        _check(nats, sub, extent)
        if denied >= 0x80 or extent == NOTHING:
            self.errors.may_not_subscribe(client, sub.subject, sub.name, BY_HOOK if denied >= 0x80 else "")
        else:
            self._take_in(client, nats, sub)

    def _take_in(self, client: Client, nats: NatsClient, sub: NatsSubscription) -> None:
        ctx = self.ctx
        nats.subscriptions[sub.sid] = sub
        if nats.overlaps is not None:
            nats.overlaps.add(sub.filter, True)
        if sub.name:
            self.router.join(sub.name, sub)
        else:
            self.router.subscribe(sub)
        ctx.event("subscribed", client.client_id, sub.whole().decode(errors="replace"))
        self.subscribing.count(sub.whole(), sub.session, None, sub)
        if ctx.cluster.interest is not None:
            nats.unsettled = True
            if nats.verbose:
                self.settle(client, nats, OK_FRAME)
        else:
            nats.ok(client)

    def limit(self, client: Client, nats: NatsClient, sid: bytes, number: int) -> None:
        """UNSUB: end the subscription when ``number`` messages have been delivered, or now if they have."""
        sub = nats.subscriptions.get(sid)
        if sub is not None:
            sub.limit = number
            if sub.limit <= sub.count:
                self.unsubscribe(nats, sub)
        nats.ok(client)

    def unsubscribe(self, nats: NatsClient, sub: NatsSubscription) -> None:
        if nats.subscriptions.pop(sub.sid, None) is not None and nats.overlaps is not None:
            nats.overlaps.remove(sub.filter, True)
        self.forget(sub)

    def revoke(self, client: Client, nats: NatsClient) -> None:
        nats.entitle(client)
        for sub in list(nats.subscriptions.values()):
            extent = self._extent(client, sub.filter, sub.name)
            _check(nats, sub, extent)
            if extent == NOTHING:
                self.unsubscribe(nats, sub)
                self.errors.may_not_subscribe(client, sub.subject, sub.name)

    def _extent(self, client: Client, filter: bytes, group: bytes) -> int:
        """How much of a subscription is allowed. For a member of a queue group it is all or nothing: a message given to
        a member that may not receive it would be lost for the others."""
        rights = client.rights
        if of_streams(filter):
            return NOTHING  # it would join groups of MQTT clients that read a stream
        if rights is None:
            return WHOLE
        extent = rights.extent(filter, group)
        return NOTHING if group and extent == PART else extent

    def forget(self, sub: NatsSubscription) -> None:
        session = sub.session
        if sub.name:
            lost = session.client is None
            session.ended = True
            self.router.leave(sub.name, sub.filter, session, lost)
        else:
            self.router.unsubscribe(sub.filter, sub)
        self.subscribing.count(sub.whole(), session, sub, None)
        self.ctx.event("unsubscribed", session.client_id, sub.whole().decode(errors="replace"))

    def shut(self, nats: NatsClient) -> None:
        """The connection has ended."""
        left = list(nats.subscriptions.values())
        nats.subscriptions = {}
        nats.overlaps = None
        for sub in left:
            if sub.name:  # before the other members of its groups are considered
                sub.session.ended = True
                sub.session.client = None
        job = LeaveJob(self, left)
        if not job.step():
            self.ctx.jobs.append(job)

    # Other nodes

    def settle(self, client: Client, nats: NatsClient, frame: bytes) -> None:
        """Send ``frame`` when all nodes that may publish know the subscriptions here."""
        session = client.session
        assert session is not None
        nats.wait(client, frame)
        self.subscribing.held.append(HeldSuback(client, session, Subscribe(0, []), [0], []))

    def settled(self, client: Client, nats: NatsClient, known: bool) -> None:
        if not known:
            self.errors.end(client, "the routes of its subscriptions could not be sent to all nodes")
            return
        if nats.keeps and nats.owed == PONG_FRAME:
            nats.keeps = False
            self.ctx.send_stored(client, nats.owed)
        else:
            self.ctx.send(client, nats.owed)
        nats.owed = b""
        self.ctx.unhalt(client, WORKING)
        if client.session is not None:
            self.router.sharing.relieve(client.session)  # as a member of queue groups it was skipped


def _check(nats: NatsClient, sub: NatsSubscription, extent: int) -> None:
    """Note whether deliveries need a check."""
    sub.narrowed = extent == PART
    sub.checked = sub.narrowed or nats.replies is not None


def _may_name_a_group(name: bytes) -> bool:
    """Whether MQTT clients can be members of it, too. An empty name is no group."""
    return not name or (valid_filter(name) and len(name.translate(None, b"/+#")) == len(name))
