"""JetStream across nodes: each stream is at its home, and its clients are anywhere.

::

    node of a client                                         home of the stream
    $JS.API.> --call--> ApiCall ---------------------------> on_call: the API answers
    $JS.ACK.> --acknowledge--> AckPassed ------------------> the consumer
    connection ends --gone--> ClientGone ------------------> its requests end
    no subscription to what is shown --> Unheard ----------> that request ends
    the subscription <-------------------------------------- Shown: answers, statuses, messages
    subscribers <------------------------------------------- Shown: of push consumers
    PUB to a subject of the stream, by its route ----------> SequencedStream.take; PubAck as Shown

Invariants:

- A stream is served by its home alone, which the registry names. Another node passes on, and answers nothing itself.
- An answer reaches only the connection that asked: it is given to that one's own subscription, at its node.
- Nothing is passed on twice: a home answers what it is asked, or says that it is not the home.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from starlingmq.cluster.etcd.etcd_requests import Answer, Request
from starlingmq.cluster.links.control_frames import MemberInfo, Membership
from starlingmq.cluster.streams.far_reads import FarReads
from starlingmq.cluster.streams.far_requester import FarRequester, shown_of
from starlingmq.cluster.streams.frame_outbox import FrameOutbox
from starlingmq.cluster.streams.stream_frames import (
    AckPassed,
    ApiCall,
    ClientGone,
    ReadAsked,
    ReadEnded,
    ReadShown,
    Shown,
    StreamFrameError,
    StreamsAsked,
    StreamsTold,
    Unheard,
    unpack,
)
from starlingmq.cluster.streams.stream_registry import Entries, RegistryChange, StreamRegistry
from starlingmq.cluster.view.cluster_view import ClusterView
from starlingmq.cluster.view.subsystem import Subsystem
from starlingmq.core.broker import BrokerState
from starlingmq.core.groups.group import Group
from starlingmq.core.jetstream.far_streams import FarStreams
from starlingmq.core.jetstream.hub import FLOW, REQUEST_WORK
from starlingmq.core.jetstream.requesters import Requester
from starlingmq.core.messages.message import Message
from starlingmq.core.nats.nats_client import SHAPE_HEADERS, NatsClient
from starlingmq.core.router.router import Route
from starlingmq.core.session.session import Session
from starlingmq.core.streams.acknowledgements import NEXT, ack_subject, kind_of
from starlingmq.core.streams.far_read import FarRead, ReadTold
from starlingmq.wire.nats_frames import message_head, message_tail
from starlingmq.wire.nats_subjects import subject_of
from starlingmq.wire.reasons import MqttError

ANSWER_SECONDS: Final = 2.0  # for what homes tell of their streams
QUESTIONS_MAX: Final = 256  # that are open; others are answered without the other nodes
KNOWN_SECONDS: Final = 2.0  # for other nodes to know the subjects of a new stream
AGAIN_SECONDS: Final = 2.0  # after a change that etcd has not made


class Question:
    """``told``: what nodes have answered; ``left``: those that have not."""

    def __init__(self, nodes: list[int], until: float, done: Callable[[dict[int, bytes]], None]) -> None:
        self.left = dict.fromkeys(nodes)
        self.told: dict[int, bytes] = {}
        self.until = until
        self.done = done


class Announcement:
    """``version``: of the routes that other nodes are to know; 0: that of the next turn."""

    def __init__(self, until: float, then: Callable[[], None]) -> None:
        self.until = until
        self.then = then
        self.version = 0


class ClusterStreams(Subsystem):
    """``on_call``, ``on_ask`` and ``on_change`` are those of the service (jetstream.cluster_requests); ``wake``: let a
    whole turn follow. Without ``open`` there is no JetStream here."""

    def __init__(self, broker: BrokerState, cluster: str, name: str, view: ClusterView) -> None:
        self.registry = StreamRegistry(cluster)
        self.name = name
        self.outbox = FrameOutbox(broker.delivery, self._session_of)
        self.wake: Callable[[], None] = lambda: None
        self.on_call: Callable[[FarRequester, ApiCall], None] = lambda requester, call: None
        self.on_ask: Callable[[list[str] | None], bytes] = lambda names: b"{}"
        self.on_change: Callable[[], None] = lambda: None  # the entries of the registry
        self._broker = broker
        self._hub = broker.jetstream
        self._view = view
        self._port = FarPort(self)
        self.reads = FarReads(self.outbox, broker.jetstream, self.is_here)
        self._far: dict[tuple[int, str], FarRequester] = {}  # those that wait for messages
        self._questions: dict[int, Question] = {}
        self._announcements: list[Announcement] = []
        self._notices: list[str] = []
        self._started = False  # the registry
        self._asked = 0
        self._seen = (0, 0)  # changes of the registry, and incarnation of this node, that the service was told of
        self._now = 0.0
        self._numbers_of = Membership(0, ())
        self._numbers: dict[str, int] = {}  # of its members
        self._elsewhere = Session("$js", 0)  # in place of the publisher of what other nodes get as frames
        self._elsewhere.node = -1
        self._turns = 0
        self.leaving = False  # this node gives up its streams
        self.again_at = inf  # when the service looks at the entries again

    def open(self) -> None:
        """Before the streams of the store get messages."""
        self._hub.far = self._port
        self._hub.reads.join_cluster(self._port)

    def start(self, now: float) -> None:
        """This node joins its cluster."""
        if self._hub.far is not None:
            self._started = True
            self.registry.start(now)

    def look_again(self, now: float, then: Callable[[], None]) -> None:
        self.registry.look_again(now, then)
        self.wake()

    def at_home(self, name: str) -> list[str]:
        """The streams of which that node is the home."""
        return sorted(stream for stream, entry in self.registry.entries.items() if entry.home == name)

    def forget_home(self, name: str, done: Callable[[str], None]) -> None:
        """That node, or this one, is no member any more, or will be none: its streams are gone. ``done`` gets "", or
        why the registry still has them."""
        self.leaving = self.leaving or name == self.name
        self.change(_Forgetting(name, done))

    def when_known(self, now: float, then: Callable[[], None]) -> None:
        """Call ``then`` once the nodes that are reached send messages to the streams that are here now: as a SUBACK,
        the answer about a new stream holds on every node."""
        self._announcements.append(Announcement(now + KNOWN_SECONDS, then))
        self.wake()

    def is_ready(self) -> bool:
        """Whether this node knows which streams there are."""
        return self.registry.is_read() or not self.registry.started

    def change(self, change: RegistryChange) -> None:
        """Of the registry."""
        self.registry.ask(change)
        self.wake()

    # Nodes

    def _session_of(self, node: int) -> Session | None:
        peer = self._broker.peers.by_number.get(node)
        return None if peer is None else peer.session

    def members(self) -> list[MemberInfo]:
        return list(self._view.members.membership.members)

    def incarnation(self) -> int:
        """0: it is not known yet."""
        return self._view.incarnation

    def is_registered(self) -> bool:
        """Whether the registry has the streams that this node began with."""
        return self.incarnation() in (0, self.registry.nodes.get(self.name))

    def are_all_registered(self) -> bool:
        """Whether the registry has the streams of all nodes, so that what it does not have is free. A node of a version
        before there were streams in a cluster registers nothing."""
        nodes = self.registry.nodes
        return self.registry.known and all(nodes.get(each.name) == each.incarnation for each in self.members())

    def follow_later(self) -> None:
        """etcd has not done what this node wanted."""
        self.again_at = self._now + AGAIN_SECONDS
        self.wake()

    def number_of(self, name: str) -> int:
        """0: it is no member."""
        membership = self._view.members.membership
        if membership is not self._numbers_of:
            self._numbers_of = membership
            self._numbers = {member.name: member.number for member in membership.members}
        return self._numbers.get(name, 0)

    def others(self) -> list[int]:
        """The nodes that are reached."""
        return [each.number for each in self._view.others() if self.outbox.reaches(each.number)]

    def reaches_all(self) -> bool:
        return all(self.outbox.reaches(each.number) for each in self._view.others())

    def home_of(self, stream: str) -> int:
        """The number of the node; 0: it is this one, or there is no such stream, or its home is no member."""
        entry = self.registry.entries.get(stream)
        return 0 if entry is None or entry.home == self.name else self.number_of(entry.home)

    def is_here(self, stream: str) -> bool:
        entry = self.registry.entries.get(stream)
        return entry is not None and entry.home == self.name and not entry.ending

    def is_elsewhere(self, stream: str) -> bool:
        """Whether it is another node's, as far as is known."""
        entry = self.registry.entries.get(stream)
        if entry is None:
            return stream not in self._hub.streams and not self.are_all_registered()
        return entry.home != self.name

    def connected(self, node: int) -> None:
        self._hub.reads.queues.look()
        self._hub.reads.far_readers.look(node)

    def node_restarted(self, node: int) -> None:
        self._hub.reads.queues.look()
        self._let_go(node)
        self._hub.reads.far_readers.look(node)  # it has none of the members here

    def set_members(self, numbers: dict[int, None]) -> None:
        for node in {node for node, _ in self._far} | self.reads.nodes():
            if node not in numbers:
                self._let_go(node)
        self._hub.reads.far_readers.look(0)

    def _let_go(self, node: int) -> None:
        for key in [key for key in self._far if key[0] == node]:
            self._far.pop(key).leave()
        self.reads.let_go(node)
        for number, question in list(self._questions.items()):
            self._answered(number, question, node, b"")

    # From this node

    def call(self, home: int, requester: Requester, call: ApiCall) -> None:
        requester.homes[home] = None
        self.outbox.add(home, call)

    def acknowledge(self, requester: Requester, subject: bytes, payload: bytes, reply: bytes) -> bool:
        if subject.startswith(FLOW):
            name = subject.split(b".", 3)[2]
        else:
            found = ack_subject(subject)
            if found is None:
                return False
            name = found.name.partition(b".")[0]
        entry = self.registry.entries.get(name.decode(errors="replace"))
        if entry is None or entry.home == self.name:
            return False
        home = self.number_of(entry.home)
        if self.outbox.reaches(home):
            if kind_of(payload) == NEXT:
                requester.homes[home] = None
            self.outbox.add(home, AckPassed(requester.client_id, subject, payload, reply))
        return True

    def gone(self, requester: Requester) -> None:
        for home in requester.homes:
            self.outbox.add(home, ClientGone(requester.client_id))

    def show(self, message: Message, route: Route) -> None:
        """To receivers anywhere. NATS clients of other nodes see the same subject as those of this one."""
        for subscription in route.subscriptions:
            if subscription.session.node > 0:
                self.outbox.add(subscription.session.node, shown_of(message, ""))
        for group in route.groups:
            node = self._node_for(group)
            if node == 0:
                self._broker.groups.arrived(group, message)
            else:
                self.outbox.add(node, shown_of(message, "", group.share()))
        self._broker.delivery.fan_out(message, route, self._elsewhere)

    def _node_for(self, group: Group) -> int:
        """The node whose member gets the next message, in turn, more often where there are more; 0: this one."""
        places = [0] * len(group.members)
        for node, count in group.counts.items():
            if self.outbox.reaches(node):
                places += [node] * min(count, 16)
        self._turns += 1
        return places[self._turns % len(places)] if places else 0

    def answer(self, node: int, client_id: str, reply: bytes, payload: bytes) -> None:
        head = message_head(subject_of(reply))
        self.outbox.add(node, Shown(client_id, reply, head, message_tail(b"", b"", payload), len(payload)), True)

    def ask(self, names: dict[int, list[str] | None], now: float, done: Callable[[dict[int, bytes]], None]) -> None:
        """Ask nodes about their streams; ``done`` gets the answers of those that answer in time."""
        if len(self._questions) >= QUESTIONS_MAX:  # each keeps what it will answer
            names = {}
        self._asked += 1
        question = self._questions[self._asked] = Question(list(names), now + ANSWER_SECONDS, done)
        for node, wanted in names.items():
            self.outbox.add(node, StreamsAsked(self._asked, wanted))
        self._end_if_told(self._asked, question)
        self.wake()

    # From other nodes

    def take(self, node: int, payload: bytes) -> None:
        try:
            frames = unpack(payload)
        except StreamFrameError as error:
            self._notices.append(f"node {node}: {error}")
            self.wake()
            return
        called = False
        self._hub.spend(len(frames))
        for frame in frames:
            if isinstance(frame, Shown):
                self._shown(node, frame)
            elif isinstance(frame, AckPassed):
                if not frame.client and not self.reads.is_current(frame.subject, frame.payload):
                    continue
                requester = self._requester(node, frame.client)
                self._hub.acknowledge_for(requester, frame.subject, frame.payload, frame.reply)
                self._keep(requester)
            elif isinstance(frame, ApiCall):
                self._hub.spend(REQUEST_WORK)
                requester = self._requester(node, frame.client)
                self.on_call(requester, frame)
                self._keep(requester)
                called = True
            elif isinstance(frame, ClientGone):
                gone = self._far.pop((node, frame.client), None)
                if gone is not None:
                    gone.leave()
            elif isinstance(frame, Unheard):
                for consumer in self._requester(node, frame.client).pulls:
                    consumer.gone(self._far[node, frame.client], frame.topic)
            elif isinstance(frame, ReadShown):
                self.reads.shown(node, frame, self._broker.ctx.now)
            elif isinstance(frame, ReadAsked):
                self.reads.asked(node, frame, self._broker.ctx.now)
            elif isinstance(frame, ReadEnded):
                self.reads.ended(node, frame.reader, frame.left)
            elif isinstance(frame, StreamsAsked):
                self._hub.spend(REQUEST_WORK)
                self.outbox.add(node, StreamsTold(frame.number, self.on_ask(frame.names)))
            elif frame.number in self._questions:
                self._answered(frame.number, self._questions[frame.number], node, frame.payload)
        self._hub.save_awaited()
        if called:
            self._hub.save_removed()

    def _requester(self, node: int, client_id: str) -> FarRequester:
        found = self._far.get((node, client_id))
        return found or FarRequester(node, client_id, self.outbox, self._hub.replies)

    def _keep(self, requester: FarRequester) -> None:
        if requester.pulls:
            self._far[requester.node, requester.client_id] = requester

    def _answered(self, number: int, question: Question, node: int, payload: bytes) -> None:
        if node in question.left:
            del question.left[node]
            if payload:
                question.told[node] = payload
            self._end_if_told(number, question)

    def _end_if_told(self, number: int, question: Question) -> None:
        if not question.left:
            del self._questions[number]
            question.done(question.told)

    def _shown(self, node: int, shown: Shown) -> None:
        payload = shown.tail[len(shown.tail) - 2 - shown.size : -2] if shown.size else b""
        message = Message(shown.topic, payload, 0, False, shown.properties, 0.0, "", self._broker.ctx.now)
        message.shape, message.head, message.tail = SHAPE_HEADERS, shown.head, shown.tail
        if shown.client:
            self._shown_to(node, shown, message)
            return
        if shown.group:
            group = self._broker.router.group(shown.group)
            if group is not None:
                self._broker.groups.arrived(group, message)
            return
        try:
            route = self._broker.router.resolve(shown.topic)
        except MqttError:
            return
        self._broker.delivery.fan_out(message, route, self._elsewhere)

    def _shown_to(self, node: int, shown: Shown, message: Message) -> None:
        session = self._broker.ctx.sessions.get(shown.client)
        client = None if session is None else session.client
        nats = None if client is None else client.protocol_handler
        if client is None or not isinstance(nats, NatsClient):
            self.outbox.add(node, ClientGone(shown.client))  # the first one may have been lost
            return
        if not shown.head:
            self._hub.requester(client, nats).has_no_responders(shown.topic)
            return
        sub = self._hub.replies.listener(client, nats, shown.topic)
        if sub is not None:
            nats.deliver(client, message, sub, None)
        else:
            self.outbox.add(node, Unheard(shown.client, shown.topic))

    # Turns

    def answered(self, answer: Answer, now: float) -> None:
        if self.registry.started:
            self._now = now
            self.registry.answered(answer, now)
            self._tell_changes()

    def _tell_changes(self) -> None:
        seen = (self.registry.changes, self._view.incarnation)
        if seen != self._seen and self.registry.known:
            self._seen = seen
            self.on_change()
            self._hub.reads.far_readers.look(0)

    def finish(self, now: float) -> None:
        self._now = now
        if self._started:  # a CONNECT takes several turns, and most clusters have no streams
            self.registry.tick(now)
            self._tell_changes()
        if self._announcements:
            self._announce(now)
        if now >= self.again_at:
            self.again_at = inf
            self.on_change()
        if self._questions:
            self._give_up(now)

    def _give_up(self, now: float) -> None:
        for number, question in list(self._questions.items()):
            if now >= question.until:
                del self._questions[number]
                question.done(question.told)

    def _announce(self, now: float) -> None:
        routes, waiting = self._view.routes, self._announcements
        if routes is None:
            return
        applied = routes.applied_by(self.others())
        self._announcements = []
        for each in waiting:
            if each.version == 0:
                each.version = routes.version
                routes.confirm(each.version)
            if applied >= each.version or now >= each.until:
                each.then()
            else:
                self._announcements.append(each)

    def take_notices(self) -> list[str]:
        notices, self._notices = self._notices, []
        if self.registry.problem:
            notices.append(self.registry.problem)
            self.registry.problem = ""
        return notices

    def take_requests(self, now: float) -> Sequence[Request]:
        return self.registry.take_requests() if self._started else ()

    def wake_at(self, now: float) -> float:
        soonest = self.again_at
        if self._started:
            soonest = min(self.registry.wake_at() or inf, soonest)
        if self._questions:
            soonest = min([soonest, *[question.until for question in self._questions.values()]])
        if self._announcements:
            soonest = min([soonest, *[each.until for each in self._announcements]])
        return soonest


class _Forgetting(RegistryChange):
    def __init__(self, home: str, told: Callable[[str], None]) -> None:
        self._home = home
        self._told = told

    def decide(self, entries: Entries) -> Entries | None:
        left = {name: entry for name, entry in entries.items() if entry.home != self._home}
        if len(left) == len(entries):
            self._told("")
            return None
        return left

    def done(self) -> None:
        self._told("")

    def failed(self, why: str) -> None:
        self._told(why)


class FarPort(FarStreams):
    """The same for the core, whose interface it is."""

    def __init__(self, streams: ClusterStreams) -> None:
        self._streams = streams

    def acknowledge(self, requester: Requester, subject: bytes, payload: bytes, reply: bytes) -> bool:
        return self._streams.acknowledge(requester, subject, payload, reply)

    def show(self, message: Message, route: Route) -> None:
        self._streams.show(message, route)

    def answer(self, node: int, client_id: str, reply: bytes, payload: bytes) -> None:
        self._streams.answer(node, client_id, reply, payload)

    def gone(self, requester: Requester) -> None:
        self._streams.gone(requester)

    def is_elsewhere(self, name: str) -> bool:
        return self._streams.is_elsewhere(name)

    def home_of(self, name: str) -> int:
        return self._streams.home_of(name)

    def subjects(self, name: str) -> list[bytes]:
        entry = self._streams.registry.entries.get(name)
        return [] if entry is None else entry.kept_filters()

    def ask_read(self, read: FarRead) -> int:
        home = self._streams.home_of(read.stream)
        if not self._streams.outbox.reaches(home):
            return 0
        self._streams.reads.ask(home, read)
        return home

    def end_read(self, home: int, reader: int, left: int) -> None:
        self._streams.outbox.add(home, ReadEnded(reader, left))

    def reaches_all(self) -> bool:
        return self._streams.reaches_all()

    def acknowledge_read(self, reply: bytes, payload: bytes) -> None:
        self._streams.acknowledge(Requester(""), reply, payload, b"")

    def tell_read(self, read: FarRead, told: ReadTold) -> None:
        self._streams.reads.tell(read, told)
