"""Pull requests that wait for messages, and the statuses that end them.

The law: requests take turns, one message each; a request ends when it has as many messages as it asked for, or with
one status that says why it has fewer, or silently if its replies reach no client. A status tells what was not used.

One timer serves all requests: ``wake`` is no later than the first deadline, and a look at all of them finds the next.
With many requests the looks are spaced, so that they cost little whatever the deadlines are.
"""

from __future__ import annotations

from typing import Final

import msgspec

from starlingmq.core.streams.consumer_source import ConsumerSource
from starlingmq.core.streams.effects import Effect, idle_heartbeat, status, unfinished
from starlingmq.core.streams.go_durations import BILLION, INT64_MAX
from starlingmq.core.turn.timers import sooner

PER_REQUEST: Final = 1e-6  # seconds between two looks, for each request that waits
COUNT_MAX: Final = 1 << 31
FOR_QUEUE: Final = b"$queue"  # the reply topic of a request for a work queue's member at another node
HEARTBEAT_MIN: Final = 0.1  # seconds; that of push consumers in nats-server


class PullRequest:
    """``left`` is below 1 in a request without a batch, which gets one message."""

    reply: bytes
    left: int  # messages
    octets: int  # that its messages may still have; 0: no limit
    expires: float  # 0.0: never
    no_wait: bool  # it ends when there is no message
    heartbeat: float  # 0.0: none
    requester: object
    sent: int
    heartbeat_at: float
    heard: int  # the last filling in which its replies reached a client
    next: PullRequest | None

    def __init__(
        self,
        reply: bytes,
        left: int,
        octets: int,
        expires: float,
        no_wait: bool,
        heartbeat: float,
        requester: object,
        now: float,
    ) -> None:
        self.reply = reply
        self.left = left
        self.octets = octets
        self.expires = expires
        self.no_wait = no_wait
        self.heartbeat = heartbeat
        self.requester = requester
        self.sent = 0
        self.heartbeat_at = now + heartbeat if heartbeat > 0.0 else 0.0
        self.heard = 0
        self.next = None

    def is_of(self, requester: object, reply: bytes) -> bool:
        return self.requester is requester and (not reply or self.reply == reply)

    def ended(self, code: int, description: bytes) -> Effect:
        return unfinished(self.reply, code, description, self.left, self.octets, self.requester)


class PullRequests:
    """A queue. ``first`` is served next."""

    first: PullRequest | None
    count: int
    no_wait: int  # number of those that do not wait
    wake: float  # 0.0: no request has a deadline
    _last: PullRequest | None

    def __init__(self) -> None:
        self.first = None
        self.count = 0
        self.no_wait = 0
        self.wake = 0.0
        self._last = None

    def add(self, request: PullRequest) -> None:
        self._append(request)
        self.count += 1
        if request.no_wait:
            self.no_wait += 1
        self.wake = sooner(self.wake, sooner(request.expires, request.heartbeat_at))

    def _append(self, request: PullRequest) -> None:
        last = self._last
        request.next = None
        if last is None:
            self.first = request
        else:
            last.next = request
        self._last = request

    def drop(self) -> None:
        """The first one has ended."""
        request = self.first
        assert request is not None
        self.first = request.next
        if request.next is None:
            self._last = None
        request.next = None
        self.count -= 1
        if request.no_wait:
            self.no_wait -= 1

    def served(self) -> None:
        """The first one has got a message, and it is the next one's turn."""
        request = self.first
        assert request is not None
        request.sent += 1
        request.left -= 1
        if request.left <= 0:
            self.drop()
        elif request.next is not None:
            self.first = request.next
            self._append(request)

    def rotate(self, count: int) -> None:
        """The first ones are served after all others."""
        for _ in range(count):
            request = self.first
            if request is None or request.next is None:
                return
            self.first = request.next
            self._append(request)

    def gone(self, requester: object, reply: bytes) -> None:
        """Its connection has ended, and its requests with it; with a ``reply`` only those that it gets there."""
        request = self.first
        while request is not None:
            if request.is_of(requester, reply):
                break
            request = request.next
        if request is not None:
            for each in self._taken():
                if not each.is_of(requester, reply):
                    self._keep(each)

    def release(self, description: bytes, effects: list[Effect]) -> None:
        for request in self._taken():
            effects.append(status(request.reply, 409, description, request.requester))
        self.wake = 0.0

    def withdraw(self) -> list[object]:
        """Requests of work queues, which have no reply subject, are over. Returns their requesters."""
        over: list[object] = []
        request = self.first
        while request is not None:
            if not request.reply:
                over.append(request.requester)
            request = request.next
        if over:
            for each in self._taken():
                if each.reply:
                    self._keep(each)
        return over

    def asked(self) -> int:
        """Messages that all of them may still get."""
        total = 0
        request = self.first
        while request is not None:
            total += request.left
            request = request.next
        return total

    def look(
        self, now: float, drained: bool, source: ConsumerSource, number: int, sequence: int, effects: list[Effect]
    ) -> None:
        """End requests that are over, and send heartbeats, which name the last consumer and stream sequence.
        ``drained``: there is no message to deliver."""
        wake = 0.0
        for request in self._taken():
            if request.expires != 0.0 and now >= request.expires:
                effects.append(request.ended(408, b"Request Timeout"))
            elif drained and request.no_wait and (request.expires == 0.0 or request.sent > 0):
                effects.append(status(request.reply, 404, b"No Messages", request.requester))
            elif source.listens(request.reply, request.requester):
                self._keep(request)
                if request.heartbeat_at != 0.0 and now >= request.heartbeat_at:
                    effects.append(idle_heartbeat(request.reply, number, sequence, b"", request.requester))
                    request.heartbeat_at = now + request.heartbeat
                wake = sooner(wake, sooner(request.expires, request.heartbeat_at))
        self.wake = wake if wake == 0.0 else max(wake, now + self.count * PER_REQUEST)

    def _taken(self) -> list[PullRequest]:
        """All of them. The queue is empty afterwards."""
        found: list[PullRequest] = []
        request = self.first
        while request is not None:
            found.append(request)
            request = request.next
        self.first = self._last = None
        self.count = self.no_wait = 0
        return found

    def _keep(self, request: PullRequest) -> None:
        self._append(request)
        self.count += 1
        if request.no_wait:
            self.no_wait += 1


class PullContent:
    """The content of a pull request."""

    batch: int
    expires: float
    no_wait: bool
    max_bytes: int
    heartbeat: float

    def __init__(self, batch: int, expires: float, no_wait: bool, max_bytes: int, heartbeat: float) -> None:
        self.batch = batch
        self.expires = expires
        self.no_wait = no_wait
        self.max_bytes = max_bytes
        self.heartbeat = heartbeat


def read_request(payload: bytes) -> PullContent:
    """Empty, the number of messages, or JSON; anything else counts as empty. Raises ValueError with the description
    that nats-server's status has."""
    text = payload.strip()
    if not text.startswith(b"{"):
        digits = text[1:] if text[:1] in (b"-", b"+") else text
        return PullContent(int(text) if digits.isdigit() and len(digits) <= 10 else 1, 0.0, False, 0, 0.0)
    try:
        fields = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"Bad Request - {error}") from None
    assert isinstance(fields, dict)
    heartbeat = _number(fields, "idle_heartbeat")
    expires = _number(fields, "expires")
    if heartbeat > 0 and heartbeat * 2 > expires:
        raise ValueError("Bad Request - heartbeat value too large")
    _check_priority(fields)
    no_wait = fields.get("no_wait", False)
    if not isinstance(no_wait, bool):
        raise ValueError("Bad Request - no_wait is no boolean")
    batch = max(-COUNT_MAX, min(COUNT_MAX, _number(fields, "batch")))
    max_bytes = max(0, min(COUNT_MAX, _number(fields, "max_bytes")))
    beat = max(heartbeat / BILLION, HEARTBEAT_MIN) if heartbeat > 0 else 0.0
    return PullContent(batch, expires / BILLION, no_wait, max_bytes, beat)


def _check_priority(fields: dict[str, object]) -> None:
    """Consumers have no priority groups here, and a request for one is refused as by a consumer without."""
    if _number(fields, "min_pending") != 0 or _number(fields, "min_ack_pending") != 0:
        raise ValueError("Bad Request - Not a Overflow Priority consumer")
    if fields.get("id"):
        raise ValueError("Bad Request - Not a Pinned Client Priority consumer")
    if not 0 <= _number(fields, "priority") <= 9:
        raise ValueError("Bad Request - Priority must be between 0 and 9")


def _number(fields: dict[str, object], name: str) -> int:
    value = fields.get(name)
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"Bad Request - {name} is no integer")
    if not -INT64_MAX <= value <= INT64_MAX:
        raise ValueError(f"Bad Request - {name} is out of range")
    return value
