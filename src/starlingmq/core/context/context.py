"""State that all parts of the core share: settings, counters, the time, the sessions, and the Ready being filled."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final

from starlingmq.config.settings import LimitsConfig, MqttConfig
from starlingmq.core.context.cluster_port import ClusterPort
from starlingmq.core.context.connect_admission import ConnectAdmission
from starlingmq.core.context.quotas import Quotas
from starlingmq.core.context.ready import FACT_DELETE, FACT_PUT, Event, Notice, Ready, Refusal, Write
from starlingmq.core.context.storage_report import StorageReport
from starlingmq.core.limits.access import Rights
from starlingmq.core.messages.outgoing import Outgoing
from starlingmq.core.observe.audit import Audit
from starlingmq.core.observe.counters import Counters
from starlingmq.core.session.connection import CLOSED, TURN_OVER
from starlingmq.core.session.queue import MessageQueue
from starlingmq.core.session.session import BRIDGE_LISTENER, Client, Session, Subscription
from starlingmq.core.session.session_user import BY_USER
from starlingmq.core.turn.base_context import BaseContext
from starlingmq.core.turn.job import Job
from starlingmq.core.turn.timers import TimerWheel

TURN_WORK: Final = 8192  # messages received and sent in one turn before other tasks run: a few milliseconds
HEAVY: Final = TURN_WORK // 4  # work for the bytes of one read from which on a client comes after the others
PROPERTY_SHIFT: Final = 4  # so many bytes of properties or headers, as a power of two, are a unit of work
SEQUENCE_SHIFT: Final = 40  # a message's sequence: incarnation << 40 | counter
REFUSAL_WORK: Final = 2  # for a line of the log, most of which are left out

# The retained messages that a session of a bridge between StarlingMQs has yet to get:
DONE: Final = 0  # nothing but what comes
REPLAYING: Final = 1  # the rest of a replay that has begun; all, if that was interrupted
OWED: Final = 2  # all: it has missed some
LINK_FACT: Final = b"stamp/s/"  # and a client id: the name of a fact, one of these
LINKED_MAX: Final = 1000  # beyond them the oldest without a session are forgotten
MADE_GOOD: Final = (
    "queue_full",
    "retention",
    "lost_in_storage",
    "storage_failing",
    "slow_receiver_qos0",
    "offline_qos0",
)
"""Why a retained message is not delivered that the receiver gets later all the same."""

ISOLATED: Final = "this node is isolated from the majority of its cluster"


def everything(client: Client) -> Rights | None:
    return None


def welcome(client: Client) -> int:
    return 0


class Context(BaseContext):
    mqtt: MqttConfig
    limits: LimitsConfig
    counters: Counters
    ready: Ready
    sessions: dict[str, Session]
    quotas: Quotas
    client_wheel: TimerWheel
    session_wheel: TimerWheel
    jobs: deque[Job]  # long work, one piece per turn
    resumable: deque[Client]  # clients that are no longer halted and have bytes to be handled
    resumable_last: deque[Client]  # those of them whose last bytes cost a large part of a turn
    next_number: int  # number of the next session
    rules: int  # version of the rules: counts their changes
    refusing: bool  # nothing can be stored at the moment
    storage: StorageReport  # the state of the storage
    # clients to which something is to be sent that exceeds their maximum packet size [MQTT-3.1.2-24]
    unsendable: list[Client]
    sequence: int  # sequence of the last message forwarded to another node
    cluster: ClusterPort  # interface to the rest of the cluster
    connect_admission: ConnectAdmission
    audit: Audit | None  # reports the events of each message, where events are wanted
    isolated: bool  # this node has no quorum
    serves_until: float  # the time when the quorum ends if no other node is heard before
    catching_up: bool  # the routes of a new node are incomplete: nothing is published until they are
    # the messages handled now were accepted at another node, which could not know the limits of queues here: those do
    # not count them (core.session.queue)
    releasing: bool  # a message of QoS 2 is released, and nothing of it may leave before that is stored
    promised: bool
    beyond_limits: int  # messages that queues have beyond their limits, as last counted, and those taken since
    full_peers: int  # number of nodes whose buffers are full
    full_streams: int  # number of streams that refuse messages
    want_events: bool
    ask_authenticate: bool
    ask_publish: bool
    ask_subscribe: bool
    allow_anonymous: bool
    rights_of: Callable[[Client], Rights | None]  # the rights of a client by the present rules; None: all
    # the reason code with which the present rules would refuse a client; 0: they would not
    standing_of: Callable[[Client], int]
    session_owner: int  # one of ``core.session.session_user.RULES``
    site: str  # the name of this broker or cluster for bridges of others; "": they are not told
    bridge_bounds: dict[str, tuple[int, int]]  # messages and bytes that may wait, by client id of a bridge
    bridge_holds: set[str]  # client ids of bridges that hold publishers back while messages wait for them
    linked: dict[str, int]  # sessions of bridges between StarlingMQs, by client id (DONE, REPLAYING or OWED)
    stamping: bool  # retained messages get stamps (core.retained.stamps): there are bridges, here or to here
    # copies for the hot path
    max_queue: int
    max_queue_bytes: int
    write_buffer: int
    store_qos0: bool
    hold_seconds: float
    retry_interval: float
    max_packet: int
    connect_size: int
    max_qos: int
    retain_available: bool
    max_awaiting_rel: int
    await_rel_timeout: float

    def __init__(self, mqtt: MqttConfig, limits: LimitsConfig, now: float) -> None:
        super().__init__(now)
        self.mqtt = mqtt
        self.limits = limits
        self.counters = Counters()
        self.ready = Ready()
        self.sessions = {}
        self.quotas = Quotas(limits, now)
        self.client_wheel = TimerWheel()
        self.session_wheel = TimerWheel()
        self.jobs = deque()
        self.resumable = deque()
        self.resumable_last = deque()
        self.next_number = 1
        self.rules = 1
        self.refusing = False
        self.storage = StorageReport()
        self.unsendable = []
        self.work = TURN_WORK
        self.sequence = 0
        self.cluster = ClusterPort()
        self.connect_admission = ConnectAdmission()
        self.audit = None
        self.isolated = False
        self.serves_until = math.inf
        self.catching_up = False
        self.releasing = False
        self.promised = False
        self.beyond_limits = 0
        self.full_peers = 0
        self.full_streams = 0
        self.want_events = False
        self.ask_authenticate = False
        self.ask_publish = False
        self.ask_subscribe = False
        self.allow_anonymous = True
        self.rights_of = everything
        self.standing_of = welcome
        self.session_owner = BY_USER
        self.site = ""
        self.bridge_bounds = {}
        self.bridge_holds = set()
        self.linked = {}
        self.stamping = False
        self.configure(mqtt, limits)

    def configure(self, mqtt: MqttConfig, limits: LimitsConfig) -> None:
        """Apply new settings. What was agreed with connected clients stays."""
        self.mqtt = mqtt
        self.limits = limits
        self.quotas.configure(limits, self.now)
        self.max_queue = mqtt.max_mqueue_len
        self.max_queue_bytes = limits.queue_bytes
        self.write_buffer = limits.write_buffer
        self.store_qos0 = mqtt.mqueue_store_qos0
        self.hold_seconds = limits.publisher_hold
        self.retry_interval = mqtt.retry_interval
        self.max_packet = limits.max_packet_size
        self.connect_size = min(limits.max_packet_size, limits.connect_size)
        self.max_qos = mqtt.max_qos
        self.retain_available = mqtt.retain_available
        self.max_awaiting_rel = mqtt.max_awaiting_rel
        self.await_rel_timeout = mqtt.await_rel_timeout

    # Inputs from outside the core

    def at(self, now: float) -> None:
        """Set the time. Required before any call of the core outside of a turn."""
        self.now = now

    def record(self, recording: bool) -> None:
        """Set whether a store keeps the writes."""
        self.recording = recording

    def storage_failed(self, stored_before: int, written_before: int) -> None:
        """From now on nothing can be stored. For the offsets, which matter when this begins, see StorageReport."""
        if not self.refusing:
            self.storage.stored_before = stored_before
            self.storage.written_before = written_before
        self.refusing = True

    def storage_works(self) -> None:
        self.refusing = False

    def streams_full(self, count: int) -> None:
        """Set the number of streams that refuse messages."""
        self.full_streams = count

    def counted_beyond_limits(self, count: int) -> None:
        """Set the number of messages that queues have beyond their limits."""
        self.beyond_limits = count

    def peers_full(self, count: int) -> None:
        """Set the number of nodes whose buffers are full."""
        self.full_peers = count

    def isolate(self) -> None:
        """This node has lost its quorum."""
        self.isolated = True
        self.serves_until = math.inf

    def serve(self, until: float) -> None:
        """This node has a quorum, which lasts until then if no other node is heard before."""
        self.isolated = False
        self.serves_until = until

    def use_hooks(self, publish: bool, subscribe: bool, events: bool) -> None:
        """Set which hooks are called, and whether events are wanted."""
        self.ask_publish = publish
        self.ask_subscribe = subscribe
        self.use_events(events)

    def use_events(self, events: bool) -> None:
        """Set whether events are wanted."""
        self.want_events = events

    def admit_by(self, ask: bool, anonymous: bool, session_owner: int) -> None:
        """Set how a CONNECT is decided: whether ``authenticate`` is called, and if not, whether all clients are
        admitted; and whose session a client may have (one of ``core.session.session_user.RULES``)."""
        self.ask_authenticate = ask
        self.allow_anonymous = anonymous
        self.session_owner = session_owner

    def decide(self, rights_of: Callable[[Client], Rights | None], standing_of: Callable[[Client], int]) -> None:
        """Set the functions that give a client's rights and decide whether it would be admitted.
        ``BrokerState.entitle`` applies them to connected clients."""
        self.rights_of = rights_of
        self.standing_of = standing_of

    def may_hold(self, session: Session) -> bool:
        """Whether publishers may be held back for this session: its client is there, or it is a bridge's that asks."""
        return session.client is not None or (len(self.bridge_holds) != 0 and session.client_id in self.bridge_holds)

    def holds_nobody(self, client_id: str) -> bool:
        """Whether no publisher is held back for this session: one of a bridge that was not asked to."""
        return client_id in self.bridge_bounds and client_id not in self.bridge_holds

    def bridge(self, site: str, bounds: dict[str, tuple[int, int]], holds: set[str] | None = None) -> None:
        """Set the name of this broker or cluster for bridges, and by client id of its own ones, how many messages and
        bytes may wait for each."""
        self.site = site
        self.bridge_bounds = bounds
        self.bridge_holds = holds or set()
        self.stamping = len(bounds) != 0 or len(self.linked) != 0
        for client_id, (length, octets) in bounds.items():
            session = self.sessions.get(client_id)
            if session is not None and session.queue is not None:
                session.queue.max_length, session.queue.max_bytes = length, octets

    def stamp_site(self) -> str:
        """The site in stamps of this node: nodes of one cluster may give stamps in the same millisecond."""
        return self.site if self.node == 0 else f"{self.site}-{self.node}"

    def link(self, client_id: str, state: int) -> None:
        """Set which retained messages the session of a linked bridge has yet to get: DONE, REPLAYING or OWED."""
        if self.linked.get(client_id, -1) == state:
            return
        if client_id not in self.linked and len(self.linked) >= LINKED_MAX:
            gone = next((known for known in self.linked if not self._has_session(known)), "")
            if not gone:
                return  # any client may say that it is a bridge: those that are do not go for it
            self.unlink(gone)
        self.linked[client_id] = state
        self.stamping = True
        if self.recording:
            self.write(Write(FACT_PUT, topic=LINK_FACT + client_id.encode(), value=bytes((state,))))

    def _has_session(self, client_id: str) -> bool:
        session = self.sessions.get(client_id)
        return session is not None and not session.ended

    def unlink(self, client_id: str) -> None:
        """The bridge with this client id goes to a broker of another kind now."""
        if self.linked.pop(client_id, -1) >= 0:
            self.stamping = len(self.bridge_bounds) != 0 or len(self.linked) != 0
            if self.recording:
                self.write(Write(FACT_DELETE, topic=LINK_FACT + client_id.encode()))

    def owe_link(self, client_id: str, reason: str) -> None:
        """A retained message was dropped for this session."""
        if reason in MADE_GOOD and client_id in self.linked:
            self.link(client_id, OWED)

    def restore_links(self, facts: dict[bytes, bytes]) -> None:
        """Remove the links from the facts of the store, and use them."""
        for fact in [fact for fact in facts if fact.startswith(LINK_FACT)]:
            self.linked[fact[len(LINK_FACT) :].decode()] = facts.pop(fact)[0]
            self.stamping = True

    def unbound(self, client_id: str) -> None:
        """Any number of messages may wait for this session, which is no client's, until ``rebound``."""
        self.bridge_bounds[client_id] = (0, 0)

    def rebound(self, client_id: str) -> None:
        self.bridge_bounds.pop(client_id, None)

    def new_queue(self, session: Session) -> MessageQueue:
        """An empty queue."""
        if session.node != 0:
            return MessageQueue(0, 0)  # accepted messages for another node are not dropped
        bounds = self.bridge_bounds.get(session.client_id) if self.bridge_bounds else None
        if bounds is not None:
            return MessageQueue(bounds[0], bounds[1])
        return MessageQueue(self.max_queue, self.max_queue_bytes)

    def standing(self, client: Client) -> int:
        """The reason code with which the present rules would refuse this client; 0: they would not."""
        return 0 if client.listener == BRIDGE_LISTENER else self.standing_of(client)

    def granted(self, client: Client) -> Rights | None:
        """The rights of this client by the present rules; None: all."""
        return None if client.listener == BRIDGE_LISTENER else self.rights_of(client)

    def give_rights(self, client: Client, rights: Rights | None) -> None:
        """From now on the client has these rights, and this broker's turns pay for their decisions."""
        client.rights = rights
        if rights is not None:
            rights.ctx = self

    def spend(self, work: int) -> None:
        """Count work against the limit of this turn."""
        self.work -= work

    def next_sequence(self) -> int:
        """The sequence of a message or a will for other nodes."""
        self.sequence += 1
        return self.sequence

    def new_session(self, client_id: str) -> Session:
        session = Session(client_id, self.next_number)
        self.next_number += 1
        self.sessions[client_id] = session
        return session

    def numbers_from(self, number: int) -> None:
        """Numbers below this one may be stored: no new session gets one."""
        if number > self.next_number:
            self.next_number = number

    # The lanes

    def send(self, client: Client, frame: bytes) -> None:
        """Add a frame to the lane that is sent now (or after frames of this connection that wait for storage)."""
        if client.max_packet != 0 and len(frame) > client.max_packet:
            self.unsendable.append(client)
            return
        if client.waiting != 0 and client.stored_from < 0:
            client.stored_from = 0
        client.frames.append(frame)
        client.size += len(frame)
        if not client.dirty:
            client.dirty = True
            self.ready.dirty.append(client)

    def hold_frames(self, subscriptions: list[Subscription]) -> None:
        """The frames that these have got in this turn are sent when its writes are stored. NATS, which promises less,
        does not wait."""
        for subscription in subscriptions:
            client = subscription.session.client
            if client is not None and client.protocol_handler is None and client.frames and client.stored_from < 0:
                client.stored_from = 0

    def hold(self, client: Client) -> None:
        """Later frames for this client are sent when the writes of this turn are stored."""
        if client.stored_from < 0 and self.recording:
            client.stored_from = len(client.frames)

    def send_stored(self, client: Client, frame: bytes) -> None:
        """Add a frame to the lane that is sent only after the writes of this turn are stored."""
        if client.max_packet != 0 and len(frame) > client.max_packet:
            self.unsendable.append(client)
            return
        if client.stored_from < 0 and (self.recording or client.waiting != 0):
            client.stored_from = len(client.frames)
        client.frames.append(frame)
        client.size += len(frame)
        if not client.dirty:
            client.dirty = True
            self.ready.dirty.append(client)

    def write(self, write: Write) -> None:
        self.ready.write(write)

    def note(self, kind: int, session: Session, outgoing: Outgoing) -> None:
        """Record a QUEUE_PUT, QUEUE_DELETE or WINDOW_PUT, if the session is stored."""
        if self.recording and session.expiry != 0:
            self.ready.deliver(kind, session, outgoing)

    def done(self, session: Session, packet_id: int) -> None:
        """A window entry is complete. This most frequent write is only a number in a list."""
        acknowledged = session.acknowledged
        if acknowledged is None:
            session.acknowledged = [packet_id]
            self.ready.acknowledged.append(session)
        else:
            acknowledged.append(packet_id)

    def spill(self, session: Session) -> None:
        """Make this session's queue release its messages once they are stored."""
        if not session.spilling:
            session.spilling = True
            self.ready.spills.append(session)

    def load(self, session: Session) -> None:
        """Request the messages that this session needs next from the store."""
        queue = session.queue
        if queue is not None:
            if queue.loading:
                return
            queue.loading = True
        self.ready.reads.append(session)

    def halt(self, client: Client, why: int) -> None:
        """Stop reading this connection, for one of the reasons in core.session.connection."""
        if client.halted == 0:
            self.ready.pause.append(client)
        client.halted |= why

    def turn_over(self, client: Client) -> None:
        """Handle the rest of what the client has sent in another turn."""
        self.halt(client, TURN_OVER)
        if client.heavy:
            self.resumable_last.append(client)
        else:
            self.resumable.append(client)

    def unhalt(self, client: Client, why: int) -> None:
        """Remove one reason. After the last one, bytes that were read meanwhile are handled in one of the next
        turns."""
        if client.halted & why == 0:
            return
        client.halted &= ~why
        if client.halted == 0 and client.state != CLOSED:
            client.halted = TURN_OVER  # until then, new bytes are appended to those that were read before
            self.resumable.append(client)

    def event(self, kind: str, client_id: str, detail: str = "") -> None:
        if self.want_events:
            self.ready.events.append(Event(kind, client_id, detail))

    def drop(self, reason: str, client_id: str, count: int = 1, topic: bytes = b"") -> None:
        """Count a dropped message for (or from) this client by reason, and report it."""
        self.counters.drop_of(client_id, reason, count, topic)
        if self.want_events:
            self.ready.events.append(Event("dropped", client_id, reason))

    def notice(self, reason: str, client: Client, detail: str, closing: bool = True) -> None:
        if closing:
            self.counters.error(reason)
        else:
            self.counters.note(reason)
        self.ready.notices.append(Notice(reason, client.client_id, client.peer, detail, closing, client.username))

    def refused(
        self,
        reason: str,
        client: Client,
        topic: bytes,
        qos: int = 0,
        retain: bool = False,
        group: bytes = b"",
        detail: str = "",
    ) -> None:
        """Have a refused PUBLISH or SUBSCRIBE counted and logged, as ``Refusal`` has it."""
        self.work -= REFUSAL_WORK
        self.counters.note(reason)
        self.ready.notices.append(Refusal(reason, client, topic, qos, retain, group, detail))

    def arm(self, session: Session, when: float) -> None:
        """Have the timer wheel check a session at ``when`` at the latest."""
        if session.armed_at == 0.0 or when < session.armed_at:
            self.disarm(session)
            session.armed_at = when
            self.session_wheel.add(session, when)

    def disarm(self, session: Session) -> None:
        """Remove a session from the timer wheel, which has it at most once."""
        if session.armed_at != 0.0:
            self.session_wheel.remove(session, session.armed_at)
            session.armed_at = 0.0
