"""The other nodes of the cluster, as receivers and as sources of messages.

A peer is a session without a client: its subscriptions are the routes that its node told, its queue holds what waits
for it (in the journal, as for everybody), its window what was sent and not acknowledged, and its connection is the
link. So a message is matched, stored, held back and counted for a node as it is for a client. What differs is here and
in ``Delivery.forward``: frames are those of ``core.routing.forward_batch``, and acknowledgements come as "so many
more".

A second connection, ``acks``, has nothing but the numbers of data frames that were taken: they go through the lanes
like everything else and so reach the link when what they stand for is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from starlingmq.core.connection import OPEN
from starlingmq.core.context import Context
from starlingmq.core.message import Message
from starlingmq.core.mqtt.publishing import HEARD_FACT, Publishing
from starlingmq.core.ready import FACT_DELETE, FACT_PUT, SESSION_PUT, Write
from starlingmq.core.routing.delivery import Delivery
from starlingmq.core.routing.forward_batch import FOR_THE_NODE, ForwardReader
from starlingmq.core.routing.router import Router
from starlingmq.core.routing.topics import parse_share
from starlingmq.core.session.ending import Ending
from starlingmq.core.session.qos import WINDOW_MAX
from starlingmq.core.session.session import NEVER, NODE_PREFIX, Client, Session, Subscription

SEQUENCE_SHIFT: Final = 40  # a message's sequence: incarnation << 40 | counter
FORMER_MAX: Final = 256  # numbers of nodes that are no members any more, of which the highest sequence is kept


def link(name: str, transport: Any) -> Client:
    """What is written to it goes through the lanes, and then to ``transport.write``."""
    client = Client("link", name, 0.0)
    client.client_id = name
    client.link = True
    client.version = 5
    client.state = OPEN
    client.window_limit = WINDOW_MAX
    client.plain = False
    client.transport = transport
    return client


class PeerReceiver:
    number: int
    first: int  # the first number of that node's data directory: it was removed and has joined again since, or the same
    session: Session
    client: Client  # the link: what is written to its transport goes to that node, in order
    acks: Client
    highest: int  # sequence of the last message that came from there
    begun: bool  # it was connected since we started
    joined: int  # messages with a lower sequence are from before the node was removed; 0: it never was

    def __init__(self, number: int, first: int, session: Session, data: Any, acks: Any) -> None:
        self.number = number
        self.first = first
        self.joined = 0
        self.session = session
        self.client = link(session.client_id, data)
        self.client.session = session
        self.acks = link(session.client_id, acks)
        self.highest = 0
        self.begun = False


class PeerReceivers:
    """``node`` and ``incarnation`` are this node's own; they are known once it has joined."""

    ctx: Context
    router: Router
    delivery: Delivery
    publishing: Publishing
    ending: Ending
    by_number: dict[int, PeerReceiver]
    highest: dict[int, int]  # of all numbers, also of nodes that are no members (any more): they may join again
    facts: dict[bytes, bytes]  # what was found there of the cluster's state machines
    control: Callable[[int, bytes], None] | None  # takes what a node has to say to this one, in order with messages
    settled_until: Callable[[int], int]  # the newest epoch of sessions that need no cut marker of that node any more
    settled: dict[int, int]  # that epoch when a node was removed, by its first number; it may join again

    def __init__(
        self, ctx: Context, router: Router, delivery: Delivery, publishing: Publishing, ending: Ending
    ) -> None:
        self.ctx = ctx
        self.router = router
        self.delivery = delivery
        self.publishing = publishing
        self.ending = ending
        self.by_number = {}
        self.highest = {}
        self.facts = {}
        self.control = None
        self.settled_until = lambda number: 0
        self.settled = {}

    def restore(self, highest: dict[int, int], facts: dict[bytes, bytes]) -> None:
        """What the store gives back at start."""
        self.highest = highest
        self.facts = {}
        for key, value in facts.items():
            if key.startswith(HEARD_FACT):
                number = int(key[len(HEARD_FACT) :])
                highest[number] = max(highest.get(number, 0), int.from_bytes(value, "big"))
            else:
                self.facts[key] = value

    def heard(self) -> dict[int, int]:
        """The sequence of the last message from each node, for the store to keep."""
        heard = dict(self.highest)
        for number, peer in self.by_number.items():
            heard[number] = peer.highest
            heard[peer.first] = max(heard.get(peer.first, 0), peer.highest)
        return heard

    def join(self, node: int, incarnation: int) -> None:
        self.ctx.node = node
        self.ctx.sequence = incarnation << SEQUENCE_SHIFT

    def add(self, number: int, data: Any, acks: Any, first: int = 0, since: int = 0) -> PeerReceiver:
        """A node of the cluster; ``data`` and ``acks`` take, by ``write``, what is for it.

        ``first``: the first number of its data directory (0: ``number``). The node sends again the messages of its
        earlier numbers that were not acknowledged. ``since``: its incarnation when it joined under ``number``. If we
        know messages of that incarnation already, a backup was restored there: then sequences are used a second time,
        and those of its earlier numbers tell nothing."""
        ctx = self.ctx
        client_id = NODE_PREFIX + str(number)
        session = ctx.sessions.get(client_id)
        if session is None:
            session = ctx.new_session(client_id)
            session.node = number
            session.expiry = NEVER
            ctx.cluster.links[number] = session
            if ctx.recording:
                session.kept = True
                ctx.write(Write(SESSION_PUT, session))
        first = first or number
        peer = self.by_number[number] = PeerReceiver(number, first, session, data, acks)
        peer.highest = self.highest.get(number, 0)
        if since != 0:
            peer.joined = since << SEQUENCE_SHIFT
        earlier = self.highest.get(first, 0)
        if earlier >> SEQUENCE_SHIFT < since:
            peer.highest = max(peer.highest, earlier)
        return peer

    def remove(self, number: int) -> None:
        """A node that is no member any more: what waits for it is given up, and counted."""
        peer = self.by_number.pop(number, None)
        if peer is not None:
            self.down(peer)
            self.ending.end(peer.session)
            self._keep(peer)
            settled = self.settled_until(number)
            self.settled[peer.first] = min(settled, self.settled.get(peer.first, settled))

    def release(self, number: int) -> None:
        """The line to that node begins anew, with another ``add``: what waits for it stays."""
        peer = self.by_number.pop(number)
        self.down(peer)
        self._keep(peer)

    def _keep(self, peer: PeerReceiver) -> None:
        """It may be added again, under this number or another one."""
        self.highest[peer.number] = peer.highest
        self.highest[peer.first] = max(self.highest.get(peer.first, 0), peer.highest)

    def strangers(self, members: dict[int, None]) -> None:
        """Give up what an earlier run kept for nodes that are no members any more. What was heard of them is kept: with
        their data directories they may join again, and send again what they had sent."""
        former = sorted([number for number in self.highest if number not in members])
        for number in former[:-FORMER_MAX]:
            del self.highest[number]
            self.settled.pop(number, None)
            if self.ctx.recording:
                self.ctx.write(Write(FACT_DELETE, topic=HEARD_FACT + str(number).encode()))
        for session in list(self.ctx.cluster.links.values()):
            if session.node not in members and session.node not in self.by_number:
                self.ending.end(session)

    def tell(self, number: int, payload: bytes) -> bool:
        """Say something to a node; False if it is no member."""
        peer = self.by_number.get(number)
        if peer is not None:
            self.delivery.forwarding.tell(peer.session, payload)
        return peer is not None

    def up(self, peer: PeerReceiver) -> None:
        """It is connected: what waits for it may go."""
        session = peer.session
        if session.client is not None:
            return
        session.client = peer.client
        window = session.window
        if window is not None:
            window.limit = WINDOW_MAX
            if not peer.begun:
                window.owe_all()  # sent by an earlier run of this node, perhaps never taken
        peer.begun = True
        self.delivery.go_on(session)

    def down(self, peer: PeerReceiver) -> None:
        """It can not be reached: what is for it waits in the journal from now on."""
        session = peer.session
        if session.client is None:
            return
        session.client = None
        session.stalled = False
        self.delivery.let_go(session)
        if self.ctx.recording:
            self.ctx.spill(session)

    def taken(self, peer: PeerReceiver, count: int) -> None:
        """It has stored the next ``count`` messages of those that are kept until then."""
        ctx = self.ctx
        session = peer.session
        window = session.window
        if window is not None:
            taken: list[int] = []
            for packet_id in window.entries:
                if len(taken) == count:
                    break
                taken.append(packet_id)
            for packet_id in taken:
                window.discard(packet_id)
                if ctx.recording:
                    ctx.done(session, packet_id)
        self.delivery.go_on(session)

    def receive(self, peer: PeerReceiver, reader: ForwardReader, mark: int) -> bool:
        """The messages of a data frame, as many as there is time for; whether that was all. ``mark`` is then written
        to ``acks``, when they are stored. Raises ForwardError."""
        ctx = self.ctx
        counters = ctx.counters
        while reader.left():
            if ctx.work <= 0 or peer.client.halted != 0:
                return False
            forward = reader.next()
            message = forward.message
            ctx.work -= 1
            if message.sequence <= peer.highest:
                counters.forwards_doubled += 1
                continue
            peer.highest = message.sequence
            counters.forwards_received += 1
            if forward.group == FOR_THE_NODE:
                self._take_control(peer, message)
                continue
            if ctx.audit is not None:
                ctx.audit.arrived(message)
            if message.sequence < peer.joined:
                self.publishing.deliver_returned(message, forward.group, peer.session, self.settled.get(peer.first, 0))
            else:
                self.publishing.deliver(message, forward.group, peer.session)
        ctx.send_stored(peer.acks, mark.to_bytes(8, "big"))
        return True

    def _take_control(self, peer: PeerReceiver, message: Message) -> None:
        """What it leads to is stored in this turn; the message itself is not, so that it was taken has to be."""
        if self.ctx.recording:
            heard = message.sequence.to_bytes(8, "big")
            self.ctx.write(Write(FACT_PUT, topic=HEARD_FACT + str(peer.number).encode(), value=heard))
        if self.control is not None:
            self.control(peer.number, message.payload)

    def route(self, number: int, key: bytes, value: int) -> None:
        """What a node told of a filter or a shared group (see cluster.links.peer_frames.RouteRecord)."""
        peer = self.by_number.get(number)
        share = parse_share(key)
        filter = key if share is None else share[1]
        if peer is None:  # it is no member any more, and its session and subscriptions are gone
            if share is not None:
                self.router.leave_node(share[0], filter, number)
            return
        session = peer.session
        subscription = Subscription(session, filter, 2, False, True, b"")
        if share is not None:
            subscription.durable = True  # which members outlive their connection is not told
            self.router.join_node(share[0], subscription, value)
            return
        if session.subscriptions is None:
            session.subscriptions = {}
        if value == 0:
            if session.subscriptions.pop(key, None) is not None:
                self.router.unsubscribe(filter, session)
            return
        subscription.durable = value == 2
        session.subscriptions[key] = subscription
        self.router.subscribe(subscription)
