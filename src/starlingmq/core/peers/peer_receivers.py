"""The other nodes of the cluster, as receivers and as sources of messages.

A peer is a session without a client: its subscriptions are the routes of its node, its queue has the messages that wait
for it (in the journal, as for all sessions), its window those sent and not acknowledged, and its connection is the
link. So a message is matched, stored, held back and counted for a node as for a client. The differences are here and in
``Delivery.forward``: frames are those of ``core.delivery.forward_batch``, and an acknowledgement is a number of further
messages.

A second connection, ``acks``, carries only the numbers of received data frames: they go through the lanes like
everything else, and so reach the link when the messages that they acknowledge are stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from starlingmq.core.connect.ending import Ending
from starlingmq.core.context.context import SEQUENCE_SHIFT, Context
from starlingmq.core.context.ready import FACT_DELETE, FACT_PUT, SESSION_PUT, Write
from starlingmq.core.delivery.delivery import Delivery
from starlingmq.core.delivery.forward_batch import FOR_THE_NODE, ForwardReader
from starlingmq.core.messages.message import Message
from starlingmq.core.peers.peer_summaries import PeerSummaries
from starlingmq.core.publish.publishing import HEARD_FACT, Publishing
from starlingmq.core.router.filter_summary import is_summary
from starlingmq.core.router.router import Router
from starlingmq.core.session.connection import OPEN
from starlingmq.core.session.qos import WINDOW_MAX
from starlingmq.core.session.session import NEVER, NODE_PREFIX, Client, Session, Subscription
from starlingmq.core.topics.topics import parse_share

FORMER_MAX: Final = 256  # numbers of former members whose highest sequence is kept


def link(name: str, transport: Any) -> Client:
    """A connection whose output goes through the lanes, and then to ``transport.write``."""
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
    # the first number of that node's data directory: the node was removed and has joined again since, or the same
    # number
    first: int
    session: Session
    client: Client  # the link: output for its transport goes to that node, in order
    acks: Client
    highest: int  # sequence of the last message from that node
    begun: bool  # it was connected since this node started
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
    """``node`` and ``incarnation`` are those of this node, known after it has joined."""

    ctx: Context
    router: Router
    delivery: Delivery
    publishing: Publishing
    ending: Ending
    by_number: dict[int, PeerReceiver]
    summaries: PeerSummaries
    highest: dict[int, int]  # of all numbers, also of former members, which may join again
    facts: dict[bytes, bytes]  # facts of the cluster's state machines in the store
    control: Callable[[int, bytes], None] | None  # handles messages for this node itself, in order with other messages
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
        self.summaries = PeerSummaries(router)
        self.highest = {}
        self.facts = {}
        self.control = None
        self.settled_until = lambda number: 0
        self.settled = {}

    def restore(self, highest: dict[int, int], facts: dict[bytes, bytes]) -> None:
        """The state from the store at start."""
        self.highest = highest
        self.facts = {}
        for key, value in facts.items():
            if key.startswith(HEARD_FACT):
                number = int(key[len(HEARD_FACT) :])
                highest[number] = max(highest.get(number, 0), int.from_bytes(value, "big"))
            else:
                self.facts[key] = value

    def last_sequences(self) -> dict[int, int]:
        """The sequence of the last message from each node, for the store."""
        sequences = dict(self.highest)
        for number, peer in self.by_number.items():
            sequences[number] = peer.highest
            sequences[peer.first] = max(sequences.get(peer.first, 0), peer.highest)
        return sequences

    def join(self, node: int, incarnation: int) -> None:
        self.ctx.node = node
        self.ctx.sequence = incarnation << SEQUENCE_SHIFT

    def add(self, number: int, data: Any, acks: Any, first: int = 0, since: int = 0) -> PeerReceiver:
        """Add a node of the cluster; ``data`` and ``acks`` have a ``write`` for output to it.

        ``first``: the first number of its data directory (0: ``number``). The node sends unacknowledged messages of its
        earlier numbers again. ``since``: its incarnation when it joined under ``number``. If this node knows messages
        of that incarnation already, a backup was restored there: then sequences are used a second time, and those of
        its earlier numbers say nothing.
        """
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
        """A node that is not a member any more: drop and count the messages that wait for it."""
        peer = self.by_number.pop(number, None)
        if peer is not None:
            self.down(peer)
            self.summaries.remove(peer.session)
            self.ending.end(peer.session)
            self._keep(peer)
            settled = self.settled_until(number)
            self.settled[peer.first] = min(settled, self.settled.get(peer.first, settled))

    def release(self, number: int) -> None:
        """The link to that node begins again, with another ``add``: waiting messages stay."""
        peer = self.by_number.pop(number)
        self.down(peer)
        self._keep(peer)

    def _keep(self, peer: PeerReceiver) -> None:
        """It may be added again, under this number or another one."""
        self.highest[peer.number] = peer.highest
        self.highest[peer.first] = max(self.highest.get(peer.first, 0), peer.highest)

    def strangers(self, members: dict[int, None]) -> None:
        """Drop what an earlier process stored for nodes that are not members any more. The sequences received from them
        are kept: with their data directories they may join again, and send again what they had sent."""
        former = sorted([number for number in self.highest if number not in members])
        for number in former[:-FORMER_MAX]:
            del self.highest[number]
            self.settled.pop(number, None)
            if self.ctx.recording:
                self.ctx.write(Write(FACT_DELETE, topic=HEARD_FACT + str(number).encode()))
        for session in list(self.ctx.cluster.links.values()):
            if session.node not in members and session.node not in self.by_number:
                self.ending.end(session)

    def send(self, number: int, payload: bytes) -> bool:
        """Send a message to the node itself; False if it is not a member."""
        peer = self.by_number.get(number)
        if peer is not None:
            self.delivery.send_to_node(peer.session, payload)
        return peer is not None

    def up(self, peer: PeerReceiver) -> None:
        """The node is connected: send waiting messages."""
        session = peer.session
        if session.client is not None:
            return
        session.client = peer.client
        window = session.window
        if window is not None:
            window.begin(WINDOW_MAX, False)
            if not peer.begun:
                window.owe_all()  # sent by an earlier process of this node, perhaps never received
        peer.begun = True
        self.delivery.go_on(session)

    def down(self, peer: PeerReceiver) -> None:
        """The node is unreachable: messages for it wait in the journal from now on."""
        session = peer.session
        if session.client is None:
            return
        session.client = None
        session.stalled = False
        self.delivery.let_go(session)
        if self.ctx.recording:
            self.ctx.spill(session)

    def taken(self, peer: PeerReceiver, count: int) -> None:
        """The node has stored the next ``count`` of the messages that are kept until then."""
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
        """Handle the messages of a data frame, as many as fit into the turn. Returns whether that was all. ``mark`` is
        then written to ``acks``, when they are stored. Raises ForwardError."""
        self.ctx.promised = reader.kept
        try:
            return self._receive(peer, reader, mark)
        finally:
            self.ctx.promised = False

    def _receive(self, peer: PeerReceiver, reader: ForwardReader, mark: int) -> bool:
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
            if reader.kept:
                counters.forwards_kept += 1
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
        """The effects are stored in this turn; the message itself is not, so its sequence has to be stored, unless it
        is never sent again."""
        if self.ctx.recording and message.qos != 0:
            heard = message.sequence.to_bytes(8, "big")
            self.ctx.write(Write(FACT_PUT, topic=HEARD_FACT + str(peer.number).encode(), value=heard))
        if self.control is not None:
            self.control(peer.number, message.payload)

    def route(self, number: int, key: bytes, value: int) -> None:
        """A node's route for a filter or a shared group, or a part of a summary (cluster.links.peer_frames)."""
        peer = self.by_number.get(number)
        if is_summary(key):
            if peer is not None:
                self.summaries.route(peer.session, key, value)
            return
        share = parse_share(key)
        filter = key if share is None else share[1]
        if peer is None:  # it is not a member any more, and its session and subscriptions are gone
            if share is not None:
                self.router.leave_node(share[0], filter, number)
            return
        session = peer.session
        subscription = Subscription(session, filter, 2, False, True, b"")
        if share is not None:
            subscription.durable = True  # it is not known which members have persistent sessions
            self.router.join_node(share[0], subscription, value)
            return
        if value == 0:
            if session.remove_subscription(key) is not None:
                self.router.unsubscribe(filter, session)
            return
        subscription.durable = value == 2
        session.add_subscription(key, subscription)
        self.router.subscribe(subscription)
