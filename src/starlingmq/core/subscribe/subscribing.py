"""SUBSCRIBE and UNSUBSCRIBE, in pieces that do not stall other work.

A packet may have a hundred thousand filters, and a filter may match a million retained messages. Both are handled in
batches, one per turn. The connection is not read before its SUBSCRIBE is answered; the replay runs beside everything
else.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from starlingmq.core.context.context import ISOLATED, Context
from starlingmq.core.context.ready import (
    BY_HOOK,
    SESSION_PUT,
    SUBSCRIBE_REFUSED,
    SUBSCRIPTION_DELETE,
    SUBSCRIPTION_PUT,
    HookAnswer,
    HookQuestion,
    Write,
)
from starlingmq.core.context.ready import SUBSCRIBE as ASK_SUBSCRIBE
from starlingmq.core.delivery.delivery import Delivery
from starlingmq.core.limits.access import NOTHING, PART, WHOLE, Rights
from starlingmq.core.messages.link_marks import is_link
from starlingmq.core.messages.outgoing import Outgoing
from starlingmq.core.retained.deletions import Deletions
from starlingmq.core.retained.retained_store import RetainedTree
from starlingmq.core.router.router import Router
from starlingmq.core.session.connection import ASKING, WORKING
from starlingmq.core.session.overlaps import OVERLAPPING, OVERLAPS
from starlingmq.core.session.session import BRIDGE_LISTENER, Client, Session, Subscription
from starlingmq.core.streams.read_port import ReadPort
from starlingmq.core.streams.stream_filters import shown_to_hooks
from starlingmq.core.subscribe.retained_replay import RetainedReplays
from starlingmq.core.subscribe.wanted_filters import OF_LINKS, WantedFilters
from starlingmq.core.topics.topics import OF_STREAMS, check_filter, levels, of_the_node, parse_share, valid_filter
from starlingmq.core.turn.job import Job
from starlingmq.wire.characters import HASH, PLUS
from starlingmq.wire.mqtt import Suback, Subscribe, SubscribeRequest, Unsuback, Unsubscribe, encode
from starlingmq.wire.primitives import encode_varint
from starlingmq.wire.properties import REASON_STRING, SUBSCRIPTION_IDENTIFIER
from starlingmq.wire.reasons import ProtocolError, Reason

FILTERS_PER_TURN: Final = 125  # of one packet; other jobs get their turn
FILTER_WORK: Final = 20  # work per filter: it leads to routes, stored facts and frames
PIECE_WORK: Final = 1000  # of a step, for rules that are compared with its filters, before others get their turn
CHECK_WORK: Final = 4  # for each filter of a packet: they are decoded and checked at once
FREED_PER_TURN: Final = 10_000  # queued messages of an ended session
FREED_AT_ONCE: Final = 100
WHY_REFUSED: Final[dict[int, str]] = {
    Reason.NOT_AUTHORIZED: "",  # the rules say it
    Reason.TOPIC_FILTER_INVALID: "it is invalid, or exceeds limits.max_topic_length or limits.topic_levels",
    Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: "mqtt.shared_subscription is false",
    Reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED: "mqtt.wildcard_subscription is false",
    Reason.QUOTA_EXCEEDED: "nothing can be stored, or limits.subscriptions_per_client is reached",
}
"""Why a filter was refused, for the log, by the reason code of SUBACK."""


class SubscribeJob(Job):
    """A SUBSCRIBE that is being handled. ``denied`` are the answers of ``authorize``; [] if it was not called."""

    owner: Subscribing
    client: Client
    session: Session
    packet: Subscribe
    denied: list[int]
    reasons: list[int]
    fresh: list[bytes]  # filters that are new for the session
    replays: list[Subscription]  # replays to begin with SUBACK
    told: bool  # the log has a line about a refused filter
    why: str  # the first filter was refused, beyond what its reason code says

    def __init__(
        self, owner: Subscribing, client: Client, session: Session, packet: Subscribe, denied: list[int]
    ) -> None:
        self.owner = owner
        self.client = client
        self.session = session
        self.packet = packet
        self.denied = denied
        self.reasons = []
        self.fresh = []
        self.replays = []
        self.told = False
        self.why = ""

    def tell(self, whole: bytes, detail: str) -> None:
        """Log the first refused filter of the packet."""
        if not self.told:
            self.told = True
            self.owner.tell_refused(self.client, whole, detail)

    def step(self) -> bool:
        if self.session.ended or self.session.client is not self.client:
            return True
        requests = self.packet.subscriptions
        ctx = self.owner.ctx
        floor = ctx.work - PIECE_WORK
        for index in range(len(self.reasons), min(len(self.reasons) + FILTERS_PER_TURN, len(requests))):
            reason = self.denied[index] if self.denied else 0
            if reason >= 0x80:
                self.tell(requests[index].filter, BY_HOOK)
            else:
                existed = self.session.subscription(requests[index].filter) is not None
                reason = self.owner.subscribe(self.client, self.session, requests[index], self.packet)
                if reason < 0x80 and not existed:
                    self.fresh.append(requests[index].filter)
                elif reason >= 0x80 and self.owner.why:
                    self.why = self.why or self.owner.why
                    self.tell(requests[index].filter, self.owner.why)
                elif reason >= 0x80 and reason in WHY_REFUSED:
                    self.tell(requests[index].filter, WHY_REFUSED[reason])
                self.replays += self.owner.later
                self.owner.later.clear()
            if reason >= 0x80 and self.client.version != 5:
                reason = 0x80  # [MQTT-3.9.3-2]: 3.1.1 has no other
            self.reasons.append(reason)
            if ctx.work < floor:
                break
        if len(self.reasons) < len(requests):
            return False
        if ctx.cluster.interest is not None:
            held = HeldSuback(self.client, self.session, self.packet, self.reasons, self.fresh)
            held.replays = self.replays
            held.why = self.why
            self.owner.held.append(held)
        else:
            ctx.send_stored(self.client, suback(self.client, self.packet.packet_id, self.reasons, self.why))
        ctx.unhalt(self.client, WORKING)
        return True


class HeldSuback:
    """A SUBACK that waits until the other nodes know the subscriptions (``version``: of this node's routes; -1: unknown
    yet)."""

    client: Client
    session: Session
    packet: Subscribe
    reasons: list[int]
    fresh: list[bytes]
    replays: list[Subscription]
    why: str
    version: int
    deadline: float

    def __init__(
        self, client: Client, session: Session, packet: Subscribe, reasons: list[int], fresh: list[bytes]
    ) -> None:
        self.client = client
        self.session = session
        self.packet = packet
        self.reasons = reasons
        self.fresh = fresh
        self.replays = []
        self.why = ""
        self.version = -1
        self.deadline = 0.0


class UnsubscribeJob(Job):
    owner: Subscribing
    client: Client
    session: Session
    packet: Unsubscribe
    reasons: list[int]

    def __init__(self, owner: Subscribing, client: Client, session: Session, packet: Unsubscribe) -> None:
        self.owner = owner
        self.client = client
        self.session = session
        self.packet = packet
        self.reasons = []

    def step(self) -> bool:
        if self.session.ended or self.session.client is not self.client:
            return True
        filters = self.packet.filters
        for index in range(len(self.reasons), min(len(self.reasons) + FILTERS_PER_TURN, len(filters))):
            self.reasons.append(self.owner.unsubscribe(self.session, filters[index]))
        if len(self.reasons) < len(filters):
            return False
        reasons = self.reasons if self.client.version == 5 else []
        frame = encode(Unsuback(self.packet.packet_id, reasons), self.client.version)
        self.owner.ctx.send_stored(self.client, frame)
        self.owner.ctx.unhalt(self.client, WORKING)
        return True


class DiscardJob(Job):
    """Removes the subscriptions of an ended session from the tree, and frees its queue."""

    owner: Subscribing
    session: Session
    left: list[bytes]
    queue: deque[Outgoing]

    def __init__(self, owner: Subscribing, session: Session) -> None:
        self.owner = owner
        self.session = session
        self.left = [whole for whole, _ in session.subscriptions()]
        self.queue = session.queue.items if session.queue is not None else deque()

    def step(self) -> bool:
        for _ in range(min(FREED_PER_TURN, len(self.queue))):
            self.queue.popleft()
        for _ in range(min(FILTERS_PER_TURN, len(self.left))):
            self.owner.unsubscribe(self.session, self.left.pop())
        return not self.left and not self.queue


class Subscribing:
    ctx: Context
    router: Router
    delivery: Delivery
    retained: RetainedTree
    held: deque[HeldSuback]  # in a cluster, in the order of their versions
    later: list[Subscription]  # of the SUBSCRIBE at hand: what is retained comes after its SUBACK
    replays: RetainedReplays
    wanted: WantedFilters
    reads: ReadPort  # subscriptions to streams; set after construction
    why: str  # the last filter was refused, beyond what its reason code says
    _asked: dict[HookQuestion, Subscribe]

    def __init__(
        self, ctx: Context, router: Router, delivery: Delivery, retained: RetainedTree, deletions: Deletions
    ) -> None:
        self.ctx = ctx
        self.router = router
        self.delivery = delivery
        self.retained = retained
        self.held = deque()
        self.later = []
        self.replays = RetainedReplays(ctx, delivery, retained, deletions)
        self.wanted = WantedFilters(ctx, router)
        self.why = ""
        self._asked = {}

    def on_subscribe(self, client: Client, session: Session, packet: Subscribe) -> None:
        if SUBSCRIPTION_IDENTIFIER in packet.properties and not self.ctx.mqtt.subscription_identifier:
            raise ProtocolError(
                "subscription identifiers are not available here", Reason.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED
            )
        self.ctx.work -= CHECK_WORK * len(packet.subscriptions)
        for request in packet.subscriptions:
            check_filter(request.filter, client.version)
            if request.no_local and request.filter.startswith(b"$share/"):
                raise ProtocolError("No Local is not allowed on a shared subscription")  # [MQTT-3.8.3-4]
            if client.mirrors:  # as mosquitto does for its bridges, which have no options in 3.1.1
                request.no_local = not request.filter.startswith(b"$share/")
                request.retain_as_published = True
        if self.ctx.isolated:
            self._isolated(client)
            reasons: list[int] = [Reason.IMPLEMENTATION_SPECIFIC_ERROR] * len(packet.subscriptions)
            self.ctx.send(client, encode(Suback(packet.packet_id, reasons), 5))
            return
        if session.needs_reset and self._waits(client, session, packet):
            return
        if self.ctx.ask_subscribe:
            question = HookQuestion(ASK_SUBSCRIBE, client)
            question.requests = [self._as_asked(request) for request in packet.subscriptions]
            self._asked[question] = packet
            self.ctx.ready.questions.append(question)
            self.ctx.halt(client, ASKING)
            return
        self._work(client, SubscribeJob(self, client, session, packet, []), len(packet.subscriptions))

    @staticmethod
    def _as_asked(request: SubscribeRequest) -> SubscribeRequest:
        shown = shown_to_hooks(request.filter)
        if shown == request.filter:
            return request
        return SubscribeRequest(
            shown, request.qos, request.no_local, request.retain_as_published, request.retain_handling
        )

    def answered(self, question: HookQuestion, answer: HookAnswer) -> None:
        client = question.client
        packet = self._asked.pop(question, None)
        self.ctx.unhalt(client, ASKING)
        session = client.session
        if packet is None or session is None or session.client is not client:
            return
        denied = answer.reasons
        if len(denied) != len(packet.subscriptions):
            denied = [answer.reason] * len(packet.subscriptions)
        self._work(client, SubscribeJob(self, client, session, packet, denied), len(packet.subscriptions))

    def _isolated(self, client: Client) -> None:
        """Other nodes cannot learn of the subscription, so it is not granted: MQTT 5 is told so, 3.x is
        disconnected."""
        if client.version != 5:
            raise ProtocolError(ISOLATED, Reason.SERVER_UNAVAILABLE)

    def on_unsubscribe(self, client: Client, session: Session, packet: Unsubscribe) -> None:
        self.ctx.work -= CHECK_WORK * len(packet.filters)
        for filter in packet.filters:
            check_filter(filter, client.version)
        if self.ctx.refusing and session.expiry != 0:
            if client.version != 5:
                raise ProtocolError("nothing can be stored at the moment", Reason.QUOTA_EXCEEDED)
            self._no_unsuback(client, packet)  # 3.x has no 0x97
            return
        if self.ctx.isolated:
            self._isolated(client)
            self._no_unsuback(client, packet)
            return
        self._work(client, UnsubscribeJob(self, client, session, packet), len(packet.filters))

    def _no_unsuback(self, client: Client, packet: Unsubscribe) -> None:
        reasons = [int(Reason.IMPLEMENTATION_SPECIFIC_ERROR)] * len(packet.filters)
        self.ctx.send(client, encode(Unsuback(packet.packet_id, reasons), 5))

    def _work(self, client: Client, job: Job, filters: int) -> None:
        """Small packets are finished at once, as many as fit into this turn."""
        self.ctx.work -= FILTER_WORK * min(filters, FILTERS_PER_TURN)
        if not job.step():
            self.ctx.halt(client, WORKING)
            self.ctx.jobs.append(job)

    def _waits(self, client: Client, session: Session, packet: Subscribe) -> bool:
        """The session was reset, and other nodes still have messages for its earlier subscriptions: new subscriptions
        wait until both can be told apart."""
        moving = session.moving
        if moving is None:
            return False
        moving.subscribe, moving.subscriber = packet, client
        self.ctx.halt(client, WORKING)
        return True

    def confirm_reset(self, session: Session) -> None:
        """The client has sent something since CONNACK told it that its session is lost, so it need not be told
        again."""
        moving = session.moving
        if moving is None or not moving.sources:
            self.finish_reset(session)
        elif not moving.reset_confirmed:
            moving.reset_confirmed = True
            self.ctx.cluster.reset_confirmed.append(session)
            if not session.reset_confirmed:
                session.reset_confirmed = True
                if self.ctx.recording and session.kept:
                    self.ctx.write(Write(SESSION_PUT, session))

    def finish_reset(self, session: Session) -> None:
        """The client knows that its earlier subscriptions have ended."""
        session.needs_reset = session.reset_confirmed = False
        session.connack_sent_to = None
        if session.moving is not None:
            session.moving.reset_confirmed = False
        self.forget(session)
        if self.ctx.recording and session.kept:
            self.ctx.write(Write(SESSION_PUT, session))

    def forget(self, session: Session) -> None:
        """Remove all subscriptions."""
        for whole, _ in session.subscriptions():
            self.unsubscribe(session, whole)

    def subscribe(self, client: Client, session: Session, request: SubscribeRequest, packet: Subscribe) -> int:
        """Add one filter. Returns the reason code for SUBACK: the granted QoS or a refusal."""
        ctx = self.ctx
        try:
            share = parse_share(request.filter)
        except ValueError:
            return Reason.TOPIC_FILTER_INVALID
        filter = request.filter if share is None else share[1]
        if filter.startswith(OF_STREAMS):
            reason = self.reads.subscribe(client, session, request, packet, share)
            self.why = self.reads.why if reason >= 0x80 else ""
            return reason
        self.why = ""
        refusal = self.refusal_of(client, session, request.filter, filter, b"" if share is None else share[0])
        if refusal != 0:
            return refusal
        if client.bridge and is_link(session.client_id) and self._is_asked(client, session, request.filter, packet):
            return 0
        qos = min(request.qos, ctx.max_qos)
        subscription = Subscription(
            session, filter, qos, request.no_local, request.retain_as_published, identifiers(packet)
        )
        rights = client.rights
        if rights is not None and share is None and rights.granted(filter, b"") == PART:
            self._check(subscription, rights)
        earlier = session.add_subscription(request.filter, subscription)
        self.count(request.filter, session, earlier, subscription)
        if share is None:
            self.router.subscribe(subscription)
        else:
            self.router.join(share[0], subscription)
        if ctx.recording and session.expiry != 0:
            ctx.write(Write(SUBSCRIPTION_PUT, session, topic=request.filter, subscription=subscription))
        ctx.event("subscribed", session.client_id, request.filter.decode())
        replay = request.retain_handling == 0 or (request.retain_handling == 1 and earlier is None)
        if replay and share is None:  # [MQTT-3.3.1-9] to [MQTT-3.3.1-11]
            if ctx.cluster.retained is not None:
                self.later.append(subscription)
            elif len(self.retained) != 0 or session.client_id in ctx.linked:
                self.replays.begin(session, subscription)
        return qos

    def _is_asked(self, client: Client, session: Session, filter: bytes, packet: Subscribe) -> bool:
        """Whether this subscription of a link asks for the filters that are wanted here. No other one to such topics is
        made: messages that clients publish there would look like an answer."""
        if not filter.startswith(OF_LINKS):
            self.wanted.note(session, filter, packet)
            return False
        for ended in self.wanted.ask(client, session, filter):
            self.unsubscribe(session, ended)
        return True

    def count(
        self,
        whole: bytes,
        session: Session,
        before: Subscription | None,
        after: Subscription | None,
        arrives: bool = False,
    ) -> None:
        """Count what this node wants from the others. Topics with figures and events of each node, its own
        subscribers and streams are left out. ``arrives``: with its session, from another node."""
        interest = self.ctx.cluster.interest
        known = before if after is None else after
        if known is None or interest is None or session.node != 0 or of_the_node(whole):
            return
        if known.filter.startswith(OF_STREAMS):  # alone or in a group
            return
        if after is not None and arrives and before is None:
            interest.arrive(whole, session, after)
        elif after is not None:
            interest.add(whole, session, after)
        if before is not None:
            interest.remove(whole, session, before)

    # SUBACK in a cluster

    def stamp(self, version: int, deadline: float) -> None:
        """The other nodes know the subscriptions up to now when they have this node's routes up to ``version``."""
        for held in reversed(self.held):
            if held.version >= 0:
                break
            held.version = version
            held.deadline = deadline

    def take_applied(self, version: int) -> list[HeldSuback]:
        """The SUBACKs whose routes all other nodes have, as they have applied this node's up to ``version``."""
        taken: list[HeldSuback] = []
        while self.held and 0 <= self.held[0].version <= version:
            taken.append(self.held.popleft())
        return taken

    def overdue(self) -> None:
        """Refuse subscriptions that could not be announced in time, and remove them: a SUBACK is true on all nodes."""
        while self.held and self.held[0].version >= 0 and self.held[0].deadline <= self.ctx.now:
            self.refuse(self.held.popleft())

    def refuse(self, held: HeldSuback) -> None:
        if held.session.ended or held.session.client is not held.client:
            return
        for filter in held.fresh:
            self.unsubscribe(held.session, filter)
        refusal = Reason.IMPLEMENTATION_SPECIFIC_ERROR if held.client.version == 5 else Reason.UNSPECIFIED_ERROR
        held.reasons = [refusal if reason < 0x80 else reason for reason in held.reasons]
        self.ctx.counters.note("suback_timeout")
        self.answer(held)

    def answer(self, held: HeldSuback) -> None:
        client = held.client
        if client.session is held.session and held.session.client is client:
            if client.protocol_handler is not None:
                client.protocol_handler.settled(client, held.reasons[0] < 0x80)
                return
            self.ctx.send_stored(client, suback(client, held.packet.packet_id, held.reasons, held.why))
            self.replays.hold(held.session, held.replays)

    def refusal_of(self, client: Client, session: Session, whole: bytes, filter: bytes, group: bytes) -> int:
        mqtt = self.ctx.mqtt
        limits = self.ctx.limits
        if not valid_filter(filter) or len(filter) > limits.max_topic_length or levels(filter) > limits.topic_levels:
            return Reason.TOPIC_FILTER_INVALID
        if group and not mqtt.shared_subscription:
            return Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED
        if not mqtt.wildcard_subscription and (PLUS in filter or HASH in filter):
            return Reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED
        rights = client.rights
        if rights is not None and rights.granted(filter, group) == NOTHING:
            return Reason.NOT_AUTHORIZED
        if self.ctx.refusing and session.expiry != 0:
            return Reason.QUOTA_EXCEEDED
        bound = 0 if client.listener == BRIDGE_LISTENER else limits.subscriptions_per_client
        if bound != 0 and session.subscription_count() >= bound and session.subscription(whole) is None:
            return Reason.QUOTA_EXCEEDED
        if session.overlaps_too_often(whole, filter):
            self._tell(client, OVERLAPPING)
            return Reason.QUOTA_EXCEEDED
        return 0

    def tell_refused(self, client: Client, whole: bytes, detail: str) -> None:
        notices = self.ctx.ready.notices
        if notices and notices[-1].detail is OVERLAPPING and notices[-1].client_id == client.client_id:
            return  # it has a line
        try:
            share = parse_share(whole)
        except ValueError:
            share = None
        filter, group = (whole, b"") if share is None else (share[1], share[0])
        self.ctx.refused(SUBSCRIBE_REFUSED, client, filter, group=group, detail=detail)

    def _tell(self, client: Client, text: str) -> None:
        """Log a refused subscription, once for each turn of its SUBSCRIBE."""
        notices = self.ctx.ready.notices
        if not notices or notices[-1].detail is not text:
            self.ctx.notice(OVERLAPS, client, text, closing=False)

    def unsubscribe(self, session: Session, whole: bytes) -> int:
        """Remove one filter. Returns the reason code for UNSUBACK."""
        subscription = session.remove_subscription(whole)
        if subscription is None:
            return Reason.NO_SUBSCRIPTION_EXISTED
        if self.wanted.feeds:
            self.wanted.dropped(session, whole)
        self.count(whole, session, subscription, None)
        share = parse_share(whole)
        if subscription.filter.startswith(OF_STREAMS):
            self.reads.unsubscribe(session, whole, subscription)
        elif share is None:
            self.router.unsubscribe(subscription.filter, session)
        if share is not None:
            self.router.leave(share[0], subscription.filter, session, session.ended)
        if self.ctx.recording and session.expiry != 0 and not session.ended:
            self.ctx.write(Write(SUBSCRIPTION_DELETE, session, topic=whole))
        self.ctx.event("unsubscribed", session.client_id, whole.decode())
        return 0

    def revoke(self, session: Session) -> None:
        """End the subscriptions that the session's client may not have any more, because the rules have changed. Those
        of which it may have a part are checked by its present rights."""
        client = session.client
        rights = None if client is None else client.rights
        if rights is None:
            if client is not None and self.router.checks:
                self._check_by(session, None)
            return
        shared = False
        for whole, subscription in session.subscriptions():
            share = parse_share(whole)
            if subscription.filter.startswith(OF_STREAMS):
                granted = WHOLE if self.reads.allows(rights, whole) else NOTHING
            else:
                granted = rights.granted(whole, b"") if share is None else rights.granted(share[1], share[0])
            self._check(subscription, rights if granted == PART else None)
            if granted == NOTHING:
                self.unsubscribe(session, whole)
                self.ctx.counters.note("subscription_revoked")
                session.rules = 0  # the rules may be the same, and the client another one
                shared = shared or share is not None
        if shared:  # messages lent by a group are for members only
            self.delivery.pass_on(session, False)

    def _check_by(self, session: Session, rights: Rights | None) -> None:
        for _, subscription in session.subscriptions():
            self._check(subscription, rights)

    def _check(self, subscription: Subscription, rights: Rights | None) -> None:
        """Have its topics checked by these rights, as of now; None: it may have all of them."""
        if subscription.checked_by is not rights:
            subscription.checked_by = rights
            self.router.check_again()

    def discard(self, session: Session) -> None:
        """Remove an ended session's subscriptions from the tree, and free a long queue in steps."""
        if session.subscription_count() != 0 or (
            session.queue is not None and len(session.queue.items) > FREED_AT_ONCE
        ):
            self.ctx.jobs.append(DiscardJob(self, session))


def identifiers(packet: Subscribe) -> bytes:
    """Its Subscription Identifier, as messages have it."""
    ids = b""
    found = packet.properties.get(SUBSCRIPTION_IDENTIFIER)
    if isinstance(found, list):
        for identifier in found:
            assert isinstance(identifier, int)
            ids += b"\x0b" + encode_varint(identifier)
    return ids


def suback(client: Client, packet_id: int, reasons: list[int], why: str) -> bytes:
    """``why``: a Reason String, left out where the client does not want or accept it [MQTT-3.9.2-1]."""
    if why and client.version == 5 and client.problem_information:
        frame = encode(Suback(packet_id, reasons, {REASON_STRING: why}), 5)
        if client.max_packet == 0 or len(frame) <= client.max_packet:
            return frame
    return encode(Suback(packet_id, reasons), client.version)
