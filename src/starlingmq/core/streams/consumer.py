"""One consumer of a JetStream stream: which message is delivered next, to which request, and what is acknowledged.

It is pure: requests, acknowledgements and the time go in; messages and statuses to be sent come out, in ``effects``.
The law, which tests/core/streams/consumer_world.py checks against a model:

- Each message that matches is delivered again until it is acknowledged, but no more than ``max_deliver`` times. An
  acknowledged message is not delivered again, unless the node lost the state that was to be stored (``changed``).
- No more than ``max_ack_pending`` messages are pending. While one waits for its acknowledgement no other client
  gets it.
- New messages are delivered in the order of the stream; those that are due again go before them.
- An acknowledgement for a message that is not pending changes nothing, except that the last of several failed
  deliveries is acknowledged late: then the stream may remove it.
- The number of waiting messages counts live messages from ``next`` on up to ``_counted``, which follows the stream.

Work is bounded: ``fill`` delivers as many messages as it may, ``tick`` makes a limited number due. What nats-server
does and the ADRs leave open is as in its server/consumer.go.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from starlingmq.core.messages.message import Message
from starlingmq.core.streams.acknowledgements import ACK, NAK, NEXT, PROGRESS, TERM, kind_of, nak_delay
from starlingmq.core.streams.consumer_policy import (
    ACK_EXPLICIT,
    ACK_NONE,
    ALL,
    BY_START_SEQUENCE,
    BY_START_TIME,
    LAST,
    LAST_PER_SUBJECT,
    ConsumerPolicy,
)
from starlingmq.core.streams.consumer_source import ConsumerSource
from starlingmq.core.streams.consumer_state import ConsumerState, StoredPending, decode_state, encode_state
from starlingmq.core.streams.effects import (
    MAX_DELIVERIES,
    MSG_NAKED,
    MSG_TERMINATED,
    Advisory,
    Deliver,
    Effect,
    flow_control_request,
    idle_heartbeat,
    status,
)
from starlingmq.core.streams.flow_window import FlowWindow, Pace, block_size, headers_of
from starlingmq.core.streams.go_durations import duration_text
from starlingmq.core.streams.pending_messages import Pending, PendingMessages
from starlingmq.core.streams.pull_requests import FOR_QUEUE, PullRequest, PullRequests, read_request
from starlingmq.core.topics.topics import meet
from starlingmq.core.turn.timers import sooner

REMOVED: Final = "Unacknowledged message was deleted"  # why a pending message is terminated
PENDING_MAX: Final = 100_000  # messages that wait for their acknowledgements, where the policy has no limit
WAITING_MAX: Final = 10_000  # requests, whatever the policy has
IDLE_MIN: Final = 0.25  # seconds between two looks whether one with requests is idle
LOOK_EVERY: Final = 1.0  # seconds between two searches for room among the requests


class JetStreamConsumer:
    stream: str
    name: str
    policy: ConsumerPolicy
    effects: list[Effect]  # to be performed in order; the caller takes them
    done: list[int]  # sequences that this consumer needs no more, if ``reports_done``
    reports_done: bool  # the retention of the stream is by interest, or it is a work queue
    changed: bool  # the state is to be stored; the caller takes it back
    ended: bool  # inactive for too long: it is to be deleted
    next: int  # stream sequence to look at next
    delivered: int  # stream sequence delivered last
    number: int  # consumer sequence delivered last
    delivered_at: float  # 0.0: never
    acknowledged_at: float
    pending: PendingMessages
    requests: PullRequests
    active: bool  # push: deliver_to has a subscriber
    _source: ConsumerSource
    _filters: list[bytes]
    _pull: bool
    _room: int  # for messages that are pending
    _room_for_requests: int
    _ack_wait: float  # after the first delivery
    _prefix: str  # of reply topics
    _ahead: int  # live messages that match, from ``next`` to ``_counted``
    _counted: int
    _recount: bool
    _found: int  # by ``_next_new``
    _skip: list[int]  # last_per_subject: what is delivered up to ``_resume`` ...
    _skip_at: int  # ... and how far it is
    _resume: int
    _looked_at: float  # the last search for room among the requests
    _fills: int
    _heartbeat_at: float  # push, with a subscriber; 0.0: none
    _idle_at: float  # when it may end; 0.0: it does not
    _used_at: float  # pull: the last request or delivery
    _paused: bool
    _window: FlowWindow | None
    _pace: Pace | None

    def __init__(self, stream: str, name: str, policy: ConsumerPolicy, source: ConsumerSource) -> None:
        """``begin`` or ``restore`` follows."""
        self.stream = stream
        self.name = name
        self.effects = []
        self.done = []
        self.reports_done = False
        self.changed = False
        self.ended = False
        self.next = 1
        self.delivered = 0
        self.number = 0
        self.delivered_at = 0.0
        self.acknowledged_at = 0.0
        self.pending = PendingMessages()
        self.requests = PullRequests()
        self.active = False
        self._source = source
        self._prefix = f"$JS.ACK.{stream}.{name}."
        self._ahead = 0
        self._counted = 0
        self._recount = True
        self._found = 0
        self._skip = []
        self._skip_at = 0
        self._resume = 0
        self._looked_at = 0.0
        self._fills = 0
        self._heartbeat_at = 0.0
        self._idle_at = 0.0
        self._used_at = 0.0
        self._paused = False
        self._window = None
        self._pace = None
        self._follow(policy)

    def _follow(self, policy: ConsumerPolicy) -> None:
        self.policy = policy
        self._filters = policy.filters
        self._pull = len(policy.deliver_to) == 0
        self._ack_wait = policy.wait(0)
        self._room = policy.max_ack_pending if policy.max_ack_pending > 0 else PENDING_MAX
        if policy.ack == ACK_NONE:
            self._room = 1 << 60
        self._room_for_requests = min(policy.max_waiting, WAITING_MAX)

    # The beginning

    def begin(self, now: float) -> None:
        """A new consumer selects the message that it begins with."""
        first = self._start()
        self.next = first
        self.delivered = first - 1
        self.pending.set_floor(first - 1, 0)
        self.changed = True
        self._run(now)

    def _start(self) -> int:
        policy, source = self.policy, self._source
        after = source.last + 1
        first = after
        if policy.deliver == ALL:
            first = source.first
        elif policy.deliver == LAST:
            first = source.last_matching(self._filters)
        elif policy.deliver == LAST_PER_SUBJECT:
            first = self._skip_to_last(source.last)
        elif policy.deliver == BY_START_SEQUENCE:
            return max(policy.start_seq, source.first, 1)
        elif policy.deliver == BY_START_TIME:
            first = source.first_since(policy.start_time)
            if first != 0 and self._filters:
                first = source.next_from(first, self._filters)
        return max(first, source.first, 1) if 0 < first < after else after

    def _skip_to_last(self, resume: int) -> int:
        """Up to ``resume``, deliver the last message of each topic only. Returns the first one; 0: there is none. After
        a restart, a topic that has a message after ``resume`` gets only that."""
        skip = [each for each in self._source.last_of_each(self._filters) if self.next <= each <= resume]
        if not skip:
            self.next = max(self.next, resume + 1)
            return 0
        self._skip, self._skip_at, self._resume = skip, 0, resume
        return skip[0]

    def _run(self, now: float) -> None:
        """It begins, here or after a restart."""
        policy = self.policy
        self._used_at = now
        self._idle_at = now + policy.inactive if policy.inactive > 0.0 else 0.0
        self._paused = policy.paused_until > now
        if not self._pull and policy.flow_control:
            self._window = FlowWindow(self.stream, self.name)
        if policy.replay_original or policy.rate_limit > 0:
            self._pace = Pace(policy, self._source.last)

    def encode(self) -> bytes:
        pending = self.pending
        pending.find_floor()
        state = ConsumerState()
        state.next = self.next
        state.delivered = self.delivered
        state.number = self.number
        state.floor = pending.floor
        state.floor_number = pending.floor_number
        state.resume = self._resume
        for sequence in pending.all():
            known = pending.get(sequence)
            assert known is not None
            state.pending.append(StoredPending(sequence, known.number))
        state.redelivered = sorted(pending.redelivered.items())
        return encode_state(state)

    def restore(self, data: bytes, now: float) -> None:
        """The state that was stored last. The stream may have lost its end since, or have removed messages."""
        state = decode_state(data)
        source, pending, policy = self._source, self.pending, self.policy
        last = source.last
        start = policy.start_seq if policy.deliver == BY_START_SEQUENCE else 0
        self.next = min(state.next, max(last + 1, start))
        self.delivered = min(state.delivered, self.next - 1)
        self.number = state.number
        pending.set_floor(min(state.floor, self.next - 1), state.floor_number)
        for sequence, count in state.redelivered:
            if source.next_from(sequence, []) == sequence:
                pending.redelivered[sequence] = count
        lost: list[StoredPending] = []
        for each in state.pending:
            if source.next_from(each.sequence, []) == each.sequence:
                self._wait(each.sequence, Pending(each.number, 0.0), now)
            else:
                lost.append(each)
        for each in lost:
            pending.move_floor(Pending(each.number, 0.0), self.delivered, self.number)
            self.changed = True
        if state.resume != 0:
            self._skip_to_last(min(state.resume, last))
        self._run(now)

    # Requests

    def request(self, reply: bytes, payload: bytes, requester: object, now: float) -> None:
        """A request for the next messages, as a client sends it."""
        if not self._pull:
            self.effects.append(status(reply, 409, b"Consumer is push based", requester))
            return
        try:
            asked = read_request(payload)
        except ValueError as error:
            text = str(error).replace("\r", " ").replace("\n", " ")
            self.effects.append(status(reply, 400, text.encode(), requester))
            return
        self.pull(reply, asked.batch, asked.expires, asked.no_wait, asked.max_bytes, asked.heartbeat, requester, now)

    def pull(
        self,
        reply: bytes,
        batch: int,
        expires: float,
        no_wait: bool,
        max_bytes: int,
        heartbeat: float,
        requester: object,
        now: float,
    ) -> None:
        """``expires`` and ``heartbeat`` are durations, 0.0 without. A filling follows."""
        policy, requests = self.policy, self.requests
        if not self._pull:
            self.effects.append(status(reply, 409, b"Consumer is push based", requester))
            return
        refused = ""
        if 0 < policy.max_batch < batch:
            refused = f"Exceeded MaxRequestBatch of {policy.max_batch}"
        elif 0.0 < policy.max_expires < expires:
            refused = f"Exceeded MaxRequestExpires of {duration_text(policy.max_expires)}"
        elif 0 < policy.max_bytes < max_bytes:
            refused = f"Exceeded MaxRequestMaxBytes of {policy.max_bytes}"
        if refused:
            self.effects.append(status(reply, 409, refused.encode(), requester))
            return
        if requests.count >= self._room_for_requests and now - self._looked_at > LOOK_EVERY:
            self._look(False, now)
        self._used_at = now
        if no_wait and not self._has_for(reply, expires, requester, now):
            return
        if requests.count >= self._room_for_requests:
            if heartbeat == 0.0:  # one with heartbeats learns from their absence, and does not ask again at once
                self.effects.append(status(reply, 409, b"Exceeded MaxWaiting", requester))
            return
        until = now + expires if expires > 0.0 else 0.0
        requests.add(PullRequest(reply, batch, max_bytes, until, no_wait, heartbeat, requester, now))

    def pull_for_queue(self, count: int, octets: int, requester: object, now: float) -> None:
        """The request of a work queue's member at another node. The limits of pull requests are not for it."""
        self._used_at = now
        self.requests.add(PullRequest(FOR_QUEUE, count, octets, 0.0, False, 0.0, requester, now))

    def _has_for(self, reply: bytes, expires: float, requester: object, now: float) -> bool:
        """Whether a request that does not wait is accepted."""
        messages = self.waiting_messages() + len(self.pending.due)
        if messages == 0 and expires <= 0.0:
            self.effects.append(status(reply, 404, b"No Messages", requester))
            return False
        if messages > 0 and self.requests.count > 0:
            self._look(False, now)
            if messages < self.requests.asked():
                self.effects.append(status(reply, 408, b"Requests Pending", requester))
                return False
        return True

    def gone(self, requester: object, reply: bytes = b"") -> None:
        """A connection has ended, or its subscription to ``reply``."""
        self.requests.gone(requester, reply)

    def release(self, description: bytes) -> None:
        """The consumer or the node ends: so do all requests."""
        self.requests.release(description, self.effects)

    def _look(self, drained: bool, now: float) -> None:
        self._looked_at = now
        self.requests.look(now, drained, self._source, self.number, self.next - 1, self.effects)

    # Push

    def interest(self, present: bool, now: float) -> None:
        """Whether ``deliver_to`` has a subscriber."""
        if self._pull:
            return
        self.active = present
        inactive = self.policy.inactive
        self._heartbeat_at = now + self.policy.heartbeat if present and self.policy.heartbeat > 0.0 else 0.0
        if present:
            self._idle_at = 0.0
        elif inactive > 0.0 and self._idle_at == 0.0:
            self._idle_at = now + inactive

    def flow(self, subject: bytes) -> None:
        """An answer to a flow control request. A filling follows."""
        if self._window is not None:
            self._window.answered(subject)

    # Delivery

    def fill(self, budget: int, now: float) -> bool:
        """Deliver what can be delivered now, at most ``budget`` messages. Returns whether there is more to do."""
        if self._paused and now < self.policy.paused_until:
            if self.requests.no_wait != 0:
                self._look(True, now)
            return False
        self._paused = False
        self._count()
        self._fills += 1
        number = self.number
        drained = False
        more = False
        while self._ready():
            if self.number - number >= budget:
                more = True
                break
            sequence = self.pending.next_due() if len(self.pending.due) != 0 else 0
            if sequence != 0:
                delivered = self._redeliver(sequence, now)
            elif len(self.pending) >= self._room:
                break
            else:
                message = self._next_new()
                drained = message is None and self._found == 0
                delivered = message is not None and self._deliver_new(message, self._found, now)
            if not delivered:
                break
        if self.number != number:
            self.changed = True
            self.delivered_at = now
            self._used_at = now
            if self._heartbeat_at != 0.0:
                self._heartbeat_at = now + self.policy.heartbeat
        if drained and self.requests.no_wait != 0:
            self._look(True, now)
        return more

    def _ready(self) -> bool:
        """Whether a message has somewhere to go."""
        if self._pull:
            return self.requests.first is not None
        return self.active and (self._window is None or self._window.open())

    def _next_new(self) -> Message | None:
        """The next message that was not delivered yet; its sequence is ``_found``. None: there is none (0), or it is
        still being read."""
        source = self._source
        sequence = self.next
        if sequence <= source.last and len(self._filters) == 0 and self._resume == 0:
            message = source.message(sequence)
            if message is not None:
                self._found = sequence
                return message
        while True:
            self._found = sequence = self._next_live(source)
            if sequence == 0:
                return None
            message = source.message(sequence)
            if message is not None or source.reads_later(sequence):
                return message
            self._pass(sequence)  # it is damaged
            self._ahead = max(0, self._ahead - 1)
            self.changed = True

    def _next_live(self, source: ConsumerSource) -> int:
        while self._skipping():
            sequence = self._skip[self._skip_at]
            if source.next_from(sequence, []) == sequence:
                return sequence
            self._pass(sequence)
            self._ahead = max(0, self._ahead - 1)
        last = source.last
        if self.next > last:
            return 0
        sequence = source.next_from(self.next, self._filters)
        if sequence == 0:
            self.next = last + 1
        return sequence

    def _skipping(self) -> bool:
        return self._resume != 0

    def _pass(self, sequence: int) -> None:
        """The next message is the one after this."""
        self.next = sequence + 1
        if self._resume != 0:
            self._skip_at += 1
            self._end_skip()

    def _end_skip(self) -> None:
        """If nothing is left up to ``_resume``: from there on, all messages are delivered."""
        if self._skip_at >= len(self._skip):
            self._skip = []
            self._skip_at = 0
            self.next = max(self.next, self._resume + 1)
            self._resume = 0

    def _deliver_new(self, message: Message, sequence: int, now: float) -> bool:
        pace = self._pace
        if pace is not None and pace.holds(message, sequence, now):
            return False
        if not self._hand_over(message, sequence, 1, max(0, self._ahead - 1), now):
            return False
        if self._ahead > 0:
            self._ahead -= 1
        self._pass(sequence)
        self.delivered = sequence
        if self.policy.ack == ACK_NONE:
            if self.reports_done:
                self.done.append(sequence)
        else:
            self.pending.wait(sequence, Pending(self.number, 0.0), now + self._ack_wait)
        return True

    def _redeliver(self, sequence: int, now: float) -> bool:
        """False: nothing further can be delivered."""
        pending = self.pending
        message = self._source.message(sequence)
        if message is None:
            if self._source.reads_later(sequence):
                return False
            self.removed(sequence)
            return True
        redeliveries = pending.redelivered.get(sequence, 0) + 1
        if not self._hand_over(message, sequence, redeliveries + 1, self._ahead, now):
            return False
        pending.redelivered[sequence] = redeliveries
        known = pending.take(sequence)
        assert known is not None
        self._wait(sequence, known, now)
        return True

    def _wait(self, sequence: int, known: Pending, now: float) -> None:
        """For its acknowledgement. It is in no table of pending messages."""
        policy = self.policy
        if policy.backoff:
            wait = policy.wait(self.pending.redelivered.get(sequence, 0))
            self.pending.wait_until(sequence, known, now + wait)
        else:
            self.pending.wait(sequence, known, now + self._ack_wait)

    def _hand_over(self, message: Message, sequence: int, deliveries: int, ahead: int, now: float) -> bool:
        """Deliver a message as the next one. False: it has no receiver."""
        number = self.number + 1
        time = int(message.published_at * 1e9)
        reply = f"{self._prefix}{deliveries}.{sequence}.{number}.{time}.{ahead}".encode()
        if self.policy.headers_only:
            message = headers_of(message)
        if self._pull:
            request = self._served(message, reply, now)
            if request is None:
                return False
            self.number = number
            self.effects.append(Deliver(request.reply, message, reply, sequence, request.requester))
            if request.left <= 0:
                if request.octets > 0 or request.reply == FOR_QUEUE:
                    self.effects.append(request.ended(409, b"Batch Completed"))
            elif request.heartbeat > 0.0:
                request.heartbeat_at = now + request.heartbeat
            return True
        window, pace = self._window, self._pace
        to = self.policy.deliver_to
        if pace is not None and pace.rate > 0.0 and pace.slows(_size(message, reply), now):
            return False
        self.number = number
        self.effects.append(Deliver(to, message, reply, sequence, None))
        if window is not None and window.sent(_size(message, reply)):
            self.effects.append(flow_control_request(to, window.ask()))
        return True

    def _served(self, message: Message, reply: bytes, now: float) -> PullRequest | None:
        """The request that gets the message. Those before it that cannot end with a status."""
        requests = self.requests
        request = requests.first
        while request is not None:
            if request.expires != 0.0 and now >= request.expires:
                self.effects.append(request.ended(408, b"Request Timeout"))
                requests.drop()
            elif request.octets > 0 and not self._fits(request, _size(message, reply)):
                self.effects.append(request.ended(409, b"Message Size Exceeds MaxBytes"))
                requests.drop()
            elif request.heard != self._fills and not self._source.listens(request.reply, request.requester):
                requests.drop()
            else:
                request.heard = self._fills
                requests.served()
                return request
            request = requests.first
        return None

    def _fits(self, request: PullRequest, size: int) -> bool:
        if size > request.octets:
            if (request.reply and request.reply != FOR_QUEUE) or request.sent != 0:
                return False
            size = request.octets  # a member of a work queue gets one message of any size
        request.octets -= size
        if request.octets == 0:
            request.left = 1
        return True

    # Acknowledgements

    def acknowledge(
        self,
        sequence: int,
        number: int,
        deliveries: int,
        payload: bytes,
        reply: bytes,
        requester: object,
        now: float,
    ) -> bool:
        """An acknowledgement as a client sends it, with the numbers in its topic. Returns whether its sender is
        answered, if there is a reply topic, with an empty message: when ``changed`` is stored."""
        kind = kind_of(payload)
        if kind == ACK:
            return self._acknowledged(sequence, number, now)
        if kind == NEXT:
            self._acknowledged(sequence, number, now)
            self.request(reply, payload[4:], requester, now)
            return False
        if kind == NAK:
            return self.answer(sequence, number, deliveries, NAK, nak_delay(payload), "", now)
        if kind == TERM:
            reason = payload[5:].strip().decode("utf-8", "replace")
            return self.answer(sequence, number, deliveries, TERM, 0.0, reason, now)
        return self.answer(sequence, number, deliveries, kind, 0.0, "", now)

    def answer(
        self, sequence: int, number: int, deliveries: int, kind: int, delay: float, reason: str, now: float
    ) -> bool:
        """The same, parsed. ``delay``: of a NAK; below 0: at once. ``reason``: of a TERM."""
        if sequence <= 0:
            return False
        if kind == ACK:
            return self._acknowledged(sequence, number, now)
        if kind == NAK:
            self._refused(sequence, number, deliveries, delay, now)
        elif kind == PROGRESS:
            self._progress(sequence, now)
        elif kind == TERM:
            if self.pending.has(sequence):
                self.effects.append(Advisory(MSG_TERMINATED, sequence, number, deliveries, reason))
            return self._acknowledged(sequence, number, now)
        return True

    def _acknowledged(self, sequence: int, number: int, now: float) -> bool:
        policy, pending = self.policy, self.pending
        if sequence <= 0 or sequence >= self.next:
            return False  # it was not delivered, as far as this consumer knows
        if policy.ack == ACK_EXPLICIT:
            known = pending.take(sequence)
            again = pending.redelivered.pop(sequence, 0) if pending.redelivered else 0
            if known is not None:
                pending.move_floor(known, self.delivered, self.number)
            elif again == 0:
                return True
            if self.reports_done:
                self.done.append(sequence)
        elif policy.ack == ACK_NONE:
            return self.reports_done
        elif not self._acknowledged_all(sequence, number):
            return True
        self.acknowledged_at = now
        self.changed = True
        return True

    def _acknowledged_all(self, sequence: int, number: int) -> bool:
        """This message and all before it."""
        pending = self.pending
        pending.find_floor()
        floor = pending.floor
        if number <= pending.floor_number or sequence <= floor or number > self.number:
            return False
        pending.set_floor(sequence, number)
        covered = pending.up_to(sequence) if sequence - floor > len(pending) else list(range(floor + 1, sequence))
        covered.append(sequence)
        for each in covered:
            if pending.take(each) is not None or each == sequence:
                pending.redelivered.pop(each, 0)
                if self.reports_done:
                    self.done.append(each)
        return True

    def _refused(self, sequence: int, number: int, deliveries: int, delay: float, now: float) -> None:
        pending = self.pending
        if number > self.number or not pending.has(sequence):
            return
        self.effects.append(Advisory(MSG_NAKED, sequence, number, deliveries, ""))
        if delay < 0.0 and sequence in pending.due:
            return
        known = pending.take(sequence)
        assert known is not None
        if self._exhausted(sequence, known):
            return
        if delay < 0.0:
            pending.make_due(sequence, known)
        else:
            pending.wait_until(sequence, known, now + delay)

    def _progress(self, sequence: int, now: float) -> None:
        """Its receiver works on it: it waits from now on. If it is due already it stays due."""
        pending = self.pending
        if sequence in pending.due:
            return
        known = pending.take(sequence)
        if known is not None:
            self._wait(sequence, known, now)

    def _exhausted(self, sequence: int, known: Pending) -> bool:
        """Whether the message, which is in no table, was delivered as often as it may be. It is not pending any more
        then, but the stream keeps it."""
        pending, most = self.pending, self.policy.max_deliver
        redeliveries = pending.redelivered.get(sequence, 0)
        if most <= 0 or redeliveries + 1 < most:
            return False
        pending.redelivered[sequence] = max(1, redeliveries)
        pending.move_floor(known, self.delivered, self.number)
        self.effects.append(Advisory(MAX_DELIVERIES, sequence, 0, redeliveries + 1, ""))
        self.changed = True
        return True

    # The stream

    def removed(self, sequence: int, topic: bytes = b"") -> None:
        """The stream has removed this message. ``topic`` spares a count if there are filters."""
        pending = self.pending
        known = pending.take(sequence)
        again = pending.redelivered.pop(sequence, 0)
        if known is not None:
            pending.move_floor(known, self.delivered, self.number)
            self.effects.append(Advisory(MSG_TERMINATED, sequence, known.number, again + 1, REMOVED))
        if known is not None or again != 0:
            self.changed = True
        if self._skipping() and sequence <= self._resume:
            at = bisect_left(self._skip, sequence, self._skip_at)
            if at < len(self._skip) and self._skip[at] == sequence:
                del self._skip[at]
                self._ahead -= 1
                self._end_skip()
        elif self.next <= sequence <= self._counted:
            if not self._filters:
                self._ahead -= 1
            elif not topic:
                self._recount = True
            elif self.matches(topic):
                self._ahead -= 1

    def purged(self) -> None:
        """The stream has removed many messages at once, and ``removed`` was not called for each."""
        source, pending = self._source, self.pending
        for sequence in pending.all():
            if source.next_from(sequence, []) != sequence:
                self.removed(sequence)
        for sequence in list(pending.redelivered):
            if source.next_from(sequence, []) != sequence:
                del pending.redelivered[sequence]
        if self._skipping():
            self._skip = [each for each in self._skip[self._skip_at :] if source.next_from(each, []) == each]
            self._skip_at = 0
            self._end_skip()
        if self.next < source.first:
            self.next = source.first
        if len(pending) == 0 and self.policy.ack != ACK_NONE:
            pending.set_floor(self.next - 1, self.number)
        self.delivered = max(self.delivered, self.next - 1)
        self._recount = True
        self.changed = True

    def matches(self, topic: bytes) -> bool:
        return not self._filters or any(meet(each, topic) == topic for each in self._filters)

    def needs(self, sequence: int) -> bool:
        """Whether a message that matches is to stay in a stream that keeps messages by interest."""
        pending = self.pending
        if sequence in pending.redelivered:
            return True
        if self.policy.ack == ACK_EXPLICIT:
            return sequence >= self.next or pending.has(sequence)
        return sequence > (self.delivered if self.policy.ack == ACK_NONE else pending.floor)

    def _count(self) -> None:
        """Bring ``_ahead`` up to date."""
        source = self._source
        last = source.last
        if self._recount:
            self._recount = False
            start = self.next
            self._ahead = 0
            if self._skipping():
                self._ahead = len(self._skip) - self._skip_at
                start = self._resume + 1
            if start <= last:
                self._ahead += source.waiting(start, self._filters)
            self._counted = last
        elif last > self._counted:
            self._ahead += source.waiting(max(self._counted + 1, self.next), self._filters)
            self._counted = last

    # Time

    def wake_at(self) -> float:
        """When ``tick`` is due; 0.0: never."""
        wake = sooner(self.pending.wake, self.requests.wake)
        wake = sooner(wake, self._heartbeat_at)
        wake = sooner(wake, self._idle_at)
        if self._paused:
            wake = sooner(wake, self.policy.paused_until)
        if self._pace is not None:
            wake = sooner(wake, self._pace.until)
        return wake

    def tick(self, now: float) -> None:
        """A filling follows."""
        pending = self.pending
        if pending.wake != 0.0 and now >= pending.wake:
            for sequence in pending.expired(now):
                known = pending.take(sequence)
                if known is not None and not self._exhausted(sequence, known):
                    pending.make_due(sequence, known)
        if self.requests.wake != 0.0 and now >= self.requests.wake:
            self._look(False, now)
        if self._heartbeat_at != 0.0 and now >= self._heartbeat_at:
            self._heartbeat_at = now + self.policy.heartbeat
            stalled = b"" if self._window is None else self._window.asked()
            self.effects.append(idle_heartbeat(self.policy.deliver_to, self.number, self.next - 1, stalled, None))
        if self._paused and now >= self.policy.paused_until:
            self._paused = False
        if self._pace is not None and now >= self._pace.until:
            self._pace.until = 0.0
        if self._idle_at != 0.0 and now >= self._idle_at:
            self._idle(now)

    def _idle(self, now: float) -> None:
        """It ends, unless it is still in use."""
        inactive = self.policy.inactive
        if not self._pull:
            self.ended = self.ended or not self.active
            self._idle_at = 0.0
            return
        self._idle_at = self._used_at + inactive
        if now < self._idle_at:
            return
        if self.requests.count != 0:
            self._look(False, now)
        latest = self.pending.latest()
        if self.requests.count != 0:
            self._idle_at = now + max(inactive, IDLE_MIN)
        elif latest + inactive > now and latest != 0.0:
            self._idle_at = latest + inactive
        else:
            self.ended = True
            self._idle_at = 0.0

    def stay(self, now: float) -> None:
        """It is in use: it may end when it has been out of use from now on."""
        self.ended = False
        self._used_at = now
        self._idle_at = now + self.policy.inactive if self.policy.inactive > 0.0 else 0.0

    # Changes

    def change(self, policy: ConsumerPolicy, now: float) -> None:
        """Another configuration, of those that an update may have. A filling follows."""
        before = self.policy
        self._follow(policy)
        self._paused = policy.paused_until > now
        self.changed = True
        if policy.filters != before.filters:
            self._recount = True
        if policy.deliver_to != before.deliver_to:
            self.pending.all_due()
        if policy.ack_wait != before.ack_wait or policy.backoff != before.backoff:
            self.pending.spread(policy.ack_wait - before.ack_wait)
        if policy.inactive != before.inactive:
            self._idle_at = now + policy.inactive if policy.inactive > 0.0 and (self._pull or not self.active) else 0.0
        if policy.rate_limit != before.rate_limit:
            self._pace = Pace(policy, self._source.last) if policy.rate_limit > 0 or policy.replay_original else None
        if policy.heartbeat != before.heartbeat:
            self._heartbeat_at = now + policy.heartbeat if policy.heartbeat > 0.0 and self.active else 0.0

    # Views

    def waiting_messages(self) -> int:
        """num_pending: messages that match and were not delivered yet."""
        self._count()
        return max(0, self._ahead)

    def floor(self) -> int:
        """The stream sequence up to which all is acknowledged."""
        if self.policy.ack == ACK_NONE:
            return self.delivered
        self.pending.find_floor()
        return self.pending.floor

    def floor_number(self) -> int:
        if self.policy.ack == ACK_NONE:
            return self.number
        self.pending.find_floor()
        return self.pending.floor_number

    def num_ack_pending(self) -> int:
        return len(self.pending)

    def num_redelivered(self) -> int:
        return 0 if self.policy.max_deliver == 1 else len(self.pending.redelivered)

    def num_waiting(self, now: float) -> int:
        if self.requests.count != 0:
            self._look(False, now)
        return self.requests.count


def _size(message: Message, reply: bytes) -> int:
    """As nats-server counts it against the bytes of a request."""
    return len(message.topic) + len(reply) + block_size(message) + len(message.payload)
