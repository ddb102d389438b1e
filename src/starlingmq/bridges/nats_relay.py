"""A bridge to a NATS server as pure state: two NATS clients, each of which publishes what the other one receives.

The *near* client is connected to this broker, the *far* one to the other server. As in NATS, a message is carried at
most once: nothing is kept, neither here nor for a server that is away.

::

    GREETING   the far INFO is awaited
    SECURING   the shell makes the far connection one of TLS
    LOGGING_IN CONNECT and PING were sent; PONG says that the login was accepted
    JOINING    the shell opens the near connection; then both subscribe
    RUNNING    messages pass: both servers have answered the PING behind the subscriptions
    ENDED      ``problem`` says why; the shell closes both connections

The law, which ``NATS_TABLE`` spells for each phase and event:

1. The far side comes first: only with a login there does this broker give messages away.
2. Neither client gets its own messages back (``echo``), and a message that has been at a site is not carried there
   again (``site_mark``).
3. A message with a reply subject gets one of the bridge's own (``passed_requests``), so that the reply comes back.
4. The status 503, no responders, passes only if it is true for the whole request: no other client of this broker has
   received it, or the bridge was chosen as the member of a queue group. Otherwise a service beside the bridge would be
   contradicted before it answers.
5. A permission that is missing is a complaint; every other -ERR ends the connection, as with nats-server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from starlingmq.bridges.bridge_relay import BridgeCounts
from starlingmq.bridges.passed_requests import NEVER, PassedRequests
from starlingmq.bridges.site_mark import SITES_MAX, headed, sites_in
from starlingmq.bridges.subject_maps import AS_IT_IS, SubjectMap
from starlingmq.wire.nats import NatsError
from starlingmq.wire.nats_frames import PING_FRAME, PONG_FRAME
from starlingmq.wire.nats_server_frames import ERR, INFO, MSG, OK, PING, ServerFrame, ServerFrames

GREETING: Final = 0
SECURING: Final = 1
LOGGING_IN: Final = 2
JOINING: Final = 3
RUNNING: Final = 4
ENDED: Final = 5
PHASES: Final = ("greeting", "securing", "logging in", "joining", "running", "ended")

FAR_INFO: Final = 0
FAR_SECURED: Final = 1  # the TLS handshake is done
FAR_PONG: Final = 2
NEAR_INFO: Final = 3
NEAR_PONG: Final = 4
EVENTS: Final = ("INFO", "the end of the handshake", "PONG", "INFO", "PONG")

GREET: Final = 0
LOG_IN: Final = 1
JOIN: Final = 2
SUBSCRIBE: Final = 3
SETTLE: Final = 4
NOTE: Final = 5  # its servers, or that it leaves
GO_ON: Final = 6
WRONG: Final = 7  # the protocol excludes it; it ends the connections

NATS_TABLE: Final[dict[tuple[int, int], int]] = {
    (GREETING, FAR_INFO): GREET,
    (GREETING, FAR_SECURED): WRONG,
    (GREETING, FAR_PONG): WRONG,  # nothing was asked
    (GREETING, NEAR_INFO): WRONG,  # there is no near connection
    (GREETING, NEAR_PONG): WRONG,
    (SECURING, FAR_INFO): WRONG,  # it would be in plain text
    (SECURING, FAR_SECURED): LOG_IN,
    (SECURING, FAR_PONG): WRONG,
    (SECURING, NEAR_INFO): WRONG,
    (SECURING, NEAR_PONG): WRONG,
    (LOGGING_IN, FAR_INFO): NOTE,
    (LOGGING_IN, FAR_SECURED): WRONG,
    (LOGGING_IN, FAR_PONG): JOIN,
    (LOGGING_IN, NEAR_INFO): WRONG,
    (LOGGING_IN, NEAR_PONG): WRONG,
    (JOINING, FAR_INFO): NOTE,
    (JOINING, FAR_SECURED): WRONG,
    (JOINING, FAR_PONG): SETTLE,
    (JOINING, NEAR_INFO): SUBSCRIBE,
    (JOINING, NEAR_PONG): SETTLE,
    (RUNNING, FAR_INFO): NOTE,
    (RUNNING, FAR_SECURED): WRONG,
    (RUNNING, FAR_PONG): GO_ON,  # of the keep-alive
    (RUNNING, NEAR_INFO): GO_ON,
    (RUNNING, NEAR_PONG): WRONG,  # nothing was asked
    **{(ENDED, event): GO_ON for event in range(len(EVENTS))},
}

PINGS_MAX: Final = 2  # without an answer
BEGIN_SECONDS: Final = 30.0  # from the start to RUNNING
COMPLAINTS_MAX: Final = 16
SAID_MAX: Final = 200  # characters of an error of a server, in logs and views
SITE_MAX: Final = 64  # of the name that a server has in the mark
URL_MAX: Final = 255
CONTROL_LINE: Final = 4096  # every server accepts so many bytes unless it is set to fewer; INFO does not tell
LINE_ROOM: Final = 128  # for the verb, an inbox of the bridge and the sizes
URLS_MAX: Final = 32  # of connect_urls
NO_RESPONDERS: Final = b"NATS/1.0 503"
COMPLAINTS: Final = (b"permissions violation", b"invalid subject", b"invalid publish subject", b"maximum subscriptions")
ORIGINAL: Final = b"Nats-Subject"  # JetStream's header for the subject of a message that comes under another one


class NatsLeg:
    """One of the two connections. ``subjects`` and ``replies`` are for what comes from it."""

    frames: ServerFrames
    subjects: SubjectMap
    replies: PassedRequests
    site: str  # of its server
    max_payload: int
    line_max: int  # of its server, for subject, reply subject and the rest
    out: list[bytes]  # to be written to its server
    settled: bool  # its server knows the subscriptions

    def __init__(
        self, subjects: SubjectMap, inbox: bytes, site: str, line_max: int = CONTROL_LINE, salt: bytes = b""
    ) -> None:
        self.frames = ServerFrames()
        self.subjects = subjects
        self.replies = PassedRequests(inbox, salt)
        self.site = site
        self.max_payload = 0
        self.line_max = line_max
        self.out = []
        self.settled = False


Info = dict[str, object]


class NatsRelay:
    """One attempt: from two fresh connections to their end. ``log_in`` makes the options of the far CONNECT from INFO,
    or raises ValueError with a sentence; ``alone`` says whether only the bridge has received a subject of this
    broker."""

    far: NatsLeg
    near: NatsLeg
    phase: int
    problem: str
    complaints: list[str]
    urls: list[str]  # host:port of the servers of the far cluster ...
    news: bool  # ... and whether INFO has named them since the shell last looked
    counts: BridgeCounts
    _secure: bool
    _keep_alive: float
    _log_in: Callable[[Info], dict[str, object]]
    _alone: Callable[[bytes], bool]
    _info: Info
    _ping_at: float
    _pings: int
    _begin_until: float

    def __init__(
        self,
        far: NatsLeg,
        near: NatsLeg,
        log_in: Callable[[Info], dict[str, object]],
        alone: Callable[[bytes], bool],
        secure: bool,
        keep_alive: float,
        counts: BridgeCounts,
        now: float,
    ) -> None:
        self.far = far
        self.near = near
        self.phase = GREETING
        self.problem = ""
        self.complaints = []
        self.urls = []
        self.news = False
        self.counts = counts
        self._secure = secure
        self._keep_alive = keep_alive
        self._log_in = log_in
        self._alone = alone
        self._info = {}
        self._ping_at = NEVER
        self._pings = 0
        self._begin_until = now + BEGIN_SECONDS

    # Events of the shell

    def received(self, leg: NatsLeg, data: bytes, now: float) -> None:
        """Bytes have come from the server of ``leg``."""
        if leg is self.far:
            self._pings = 0
            self._ping_at = now + self._keep_alive
        other = self.near if leg is self.far else self.far
        try:
            for frame in leg.frames.read(data):
                if self.phase == ENDED:
                    return
                if frame.kind == MSG:
                    self._message(leg, other, frame, now)
                else:
                    self._control(leg, frame, now)
        except NatsError as error:
            self.lost(f"{self._whose(leg)} broke the protocol: {error.text}")

    def secured(self, now: float) -> None:
        if self.far.frames.waiting():  # plain text must not become the beginning of a protected frame
            self.lost("the other server sent more than INFO before TLS")
            return
        self._step(self.far, FAR_SECURED, now)

    def tick(self, now: float) -> None:
        """Time has passed."""
        if self.phase != RUNNING:
            if now >= self._begin_until:
                self.lost("the other server does not answer")
            return
        if now >= self._ping_at:
            if self._pings >= PINGS_MAX:
                self.lost("the other server does not answer PING")
                return
            self._pings += 1
            self._ping_at = now + self._keep_alive
            self.far.out.append(PING_FRAME)
        for leg in (self.far, self.near):
            leg.replies.tick(now)
        self._forget()

    def held(self, now: float) -> None:
        """The far server is not read, so PONG cannot come: this broker takes nothing now."""
        self._pings = 0

    def wake_at(self) -> float:
        """When ``tick`` is due."""
        if self.phase != RUNNING:
            return self._begin_until
        return min(self._ping_at, self.far.replies.due_at(), self.near.replies.due_at())

    def lost(self, why: str) -> None:
        """The bridge ends, because of this."""
        if self.phase != ENDED:
            self.phase = ENDED
            self.problem = why

    def joins(self) -> bool:
        """Whether the near connection is to be opened, if it is not."""
        return self.phase == JOINING

    def runs(self) -> bool:
        """Whether messages pass."""
        return self.phase == RUNNING

    def ended(self) -> bool:
        return self.phase == ENDED

    def take(self, leg: NatsLeg) -> bytes:
        """The bytes to write to the server of ``leg`` now."""
        data = b"".join(leg.out)
        leg.out.clear()
        return data

    # Frames

    def _whose(self, leg: NatsLeg) -> str:
        return "the other server" if leg is self.far else "this broker"

    def _control(self, leg: NatsLeg, frame: ServerFrame, now: float) -> None:
        if frame.kind == PING:
            leg.out.append(PONG_FRAME)
        elif frame.kind == ERR:
            self._error(leg, frame.payload)
        elif frame.kind == INFO:
            try:
                info = msgspec.json.decode(frame.payload, type=dict[str, object])
            except (msgspec.DecodeError, RecursionError):
                raise NatsError("INFO is not JSON") from None
            largest = info.get("max_payload")
            leg.max_payload = largest if isinstance(largest, int) else 0
            if leg is self.far:
                self._info = info
            self._step(leg, FAR_INFO if leg is self.far else NEAR_INFO, now)
        elif frame.kind != OK:
            self._step(leg, FAR_PONG if leg is self.far else NEAR_PONG, now)

    def _error(self, leg: NatsLeg, text: bytes) -> None:
        shown = "".join(each if each.isprintable() else "?" for each in text[:SAID_MAX].decode(errors="replace"))
        said = f"{self._whose(leg)}: {shown}"
        if not text.lower().startswith(COMPLAINTS):
            self.lost(said)
            return
        self.counts.refused += 1
        if said not in self.complaints and len(self.complaints) < COMPLAINTS_MAX:
            self.complaints.append(said)

    def _step(self, leg: NatsLeg, event: int, now: float) -> None:
        action = NATS_TABLE[self.phase, event]
        if action == GREET:
            self._greet()
        elif action == LOG_IN:
            self._send_login()
        elif action == JOIN:
            self.phase = JOINING
        elif action == SUBSCRIBE:
            self._subscribe()
        elif action == SETTLE:
            leg.settled = True
            if self.far.settled and self.near.settled:
                self.phase = RUNNING
                self._ping_at = now + self._keep_alive
        elif action == NOTE:
            self._note()
        elif action == WRONG:
            self.lost(f"{self._whose(leg)} sent {EVENTS[event]} while {PHASES[self.phase]}")

    # Beginning

    def _greet(self) -> None:
        info = self._info
        if info.get("headers") is not True:
            self.lost("the other server has no headers; the bridge needs nats-server 2.2 or later")
        elif self._secure and not (info.get("tls_required") or info.get("tls_available")):
            self.lost("the other server offers no TLS")
        elif self._secure or info.get("tls_required"):
            self.phase = SECURING
        else:
            self._send_login()

    def _send_login(self) -> None:
        info = self._info
        for name in ("server_id", "starlingmq_site"):
            site = info.get(name)
            if isinstance(site, str) and 0 < len(site) <= SITE_MAX and len(site.split()) == 1:
                self.far.site = site
        self._note()
        if self.phase == ENDED:
            return
        try:
            options = self._log_in(info)
        except ValueError as error:
            self.lost(str(error))
            return
        self._connect(self.far, options)
        self.far.out.append(PING_FRAME)
        self.phase = LOGGING_IN

    def _note(self) -> None:
        urls = self._info.get("connect_urls")
        if isinstance(urls, list):
            self.urls = [url for url in urls if isinstance(url, str) and len(url) <= URL_MAX][:URLS_MAX]
            self.news = True
        if self._info.get("ldm") is True:
            self.lost("the other server shuts down (lame duck mode)")

    def _connect(self, leg: NatsLeg, options: dict[str, object]) -> None:
        fixed: dict[str, object] = {
            "verbose": False,
            "pedantic": False,
            "echo": False,
            "headers": True,
            "no_responders": True,
            "protocol": 1,
        }
        leg.out.append(b"CONNECT %b\r\n" % msgspec.json.encode({**options, **fixed}))

    def _subscribe(self) -> None:
        """At this broker also to all inboxes: nodes of a cluster learn of each new subscription only after a while."""
        self._connect(self.near, {})
        self.near.out.append(b"SUB %b* r\r\n" % self.near.replies.prefix)
        for leg in (self.near, self.far):
            for subject, group, sid in leg.subjects.wanted:
                leg.out.append(b"SUB %b %b %b\r\n" % (subject, group, sid))
            leg.out.append(PING_FRAME)

    # Messages

    def _message(self, leg: NatsLeg, other: NatsLeg, frame: ServerFrame, now: float) -> None:
        if self.phase < JOINING:
            self.lost(f"{self._whose(leg)} sent a message while {PHASES[self.phase]}")
        elif frame.sid.startswith(b"r"):
            self._reply(leg, other, frame, now)
        elif not frame.subject.startswith(leg.replies.prefix):
            self._carry(leg, other, frame, now)

    def _carry(self, leg: NatsLeg, other: NatsLeg, frame: ServerFrame, now: float) -> None:
        index, subject = leg.subjects.find(frame.subject)
        if subject and leg.subjects.entry_of(frame.sid) != index:
            return  # it comes for that entry as well
        sites = sites_in(frame.headers)
        seen = other.site in sites or leg.site in sites or len(sites) >= SITES_MAX
        headers = headed(frame.headers, leg.site)
        if not subject or seen or not _fits(other, subject, frame, headers):
            self.counts.kept_out += 1
            return
        alone = False
        if frame.reply:
            alone = leg.subjects.groups[index] != b"" or (leg is self.near and self._alone(frame.subject))
        self._publish(leg, other, frame, subject, headers, alone, now)

    def _reply(self, leg: NatsLeg, other: NatsLeg, frame: ServerFrame, now: float) -> None:
        prefix = leg.replies.prefix
        number = frame.subject.removeprefix(prefix) if leg is self.near else frame.sid[1:]
        waiting = leg.replies.find(number)
        headers = frame.headers
        if not frame.subject.startswith(prefix):
            lines = headers[:-2] if headers else b"NATS/1.0\r\n"
            headers = b"%b%b: %b\r\n\r\n" % (lines, ORIGINAL, frame.subject)
        if waiting is None or not _fits(other, waiting.subject, frame, headers):
            self.counts.kept_out += 1
            return
        refused = not frame.payload and frame.headers.startswith(NO_RESPONDERS)
        more = frame.reply != b"" or frame.headers.startswith(b"NATS/1.0 1")
        leg.replies.replied(number, more, now)
        self._forget()
        if refused and not waiting.alone:
            return
        self._publish(leg, other, frame, waiting.subject, headers, True, now)

    def _publish(
        self, leg: NatsLeg, other: NatsLeg, frame: ServerFrame, subject: bytes, headers: bytes, alone: bool, now: float
    ) -> None:
        reply = _allowed(frame.reply)
        if reply and not reply.startswith(AS_IT_IS):
            number = other.replies.ask(reply, alone, now)
            reply = other.replies.prefix + number
            if other is self.far:
                other.out.append(b"SUB %b r%b\r\n" % (reply, number))
            self._forget()
        payload = frame.payload
        size = len(headers) + len(payload)
        if headers:
            other.out.append(b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject, reply, len(headers), size, headers, payload))
        else:
            other.out.append(b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, size, payload))
        if leg is self.far:
            self.counts.messages_in += 1
            self.counts.bytes_in += len(payload)
        else:
            self.counts.messages_out += 1
            self.counts.bytes_out += len(payload)

    def _forget(self) -> None:
        """End the subscriptions of requests that are over; those of this broker have one together."""
        for number in self.far.replies.ended:
            self.far.out.append(b"UNSUB r%b\r\n" % number)
        self.far.replies.ended.clear()
        self.near.replies.ended.clear()


def _fits(leg: NatsLeg, subject: bytes, frame: ServerFrame, headers: bytes) -> bool:
    """Whether the server of ``leg`` accepts it; any other message would end the connection for all."""
    if len(subject) + len(frame.reply) + LINE_ROOM > leg.line_max:
        return False
    return leg.max_payload == 0 or len(headers) + len(frame.payload) <= leg.max_payload


def _allowed(reply: bytes) -> bytes:
    """The reply subject, or b"": the bridge publishes replies with its own rights, here with those of this broker, and
    subjects that begin with ``$`` are answered by servers themselves."""
    if not reply.startswith(b"$"):
        return reply
    return reply if reply.startswith(AS_IT_IS) and len(reply.split()) == 1 else b""
