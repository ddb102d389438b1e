"""The shells of bridges: ``Bridge`` has the attempts, the near connection and the view of each kind, ``RelayBridge``
the far connection and the loop around a relay. ``MqttBridge`` is the shell of ``bridge_relay``.

The far connection is a link of ``starlingmq.client``. The near one is no socket: bytes go straight to the driver, as
those of any client do, and come back by ``NearHandle``. So the session of a bridge is kept, copied, taken over by
other nodes and bounded like every other session.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

from starlingmq.bridges.bridge_relay import MARKER, RUNNING, BridgeCounts, BridgeRelay, Leg, NearSession
from starlingmq.bridges.bridge_sessions import (
    far_options,
    knows_links,
    near_options,
    near_session,
    site_in,
    state_frame,
)
from starlingmq.bridges.far_line import FarLine, Gathering, gathering_of, in_rounds
from starlingmq.bridges.link_view import LinkState, LinkView
from starlingmq.bridges.topic_maps import TopicMap
from starlingmq.client.compression import Compression
from starlingmq.client.dial import open_link
from starlingmq.client.endpoint import Endpoint, Tls, parse_url
from starlingmq.client.errors import ConnectFailed
from starlingmq.client.events import Completed, Connected
from starlingmq.client.link import Link
from starlingmq.client.options import NEVER_EXPIRES, QOS, V5, V311, ConnectOptions, Subscription
from starlingmq.client.state import CONNECTED, ClientState
from starlingmq.config.bridges_section import BridgeConfig
from starlingmq.config.links_section import LinkConfig
from starlingmq.core.messages.link_marks import name_of
from starlingmq.core.publish.bridges import session_of
from starlingmq.core.session.session import BRIDGE_LISTENER, Client, Session
from starlingmq.net.driver import Driver
from starlingmq.wire.properties import MAXIMUM_QOS
from starlingmq.wire.reasons import Reason

log = logging.getLogger("starlingmq")

BACKOFF: Final = (0.2, 30.0)  # seconds before the first attempt after a failure, and at most
RESTARTS_MAX: Final = 3  # attempts at once for a clean start; a broker may say that a session is there all the same
DIAL_SECONDS: Final = 30.0  # for a connection with TLS, and for CONNACK: a slow broker is not one that is away
LINGER_SECONDS: Final = 60.0  # a lazy bridge stays connected for so long without messages
LOOK_SECONDS: Final = 1.0  # between two looks whether this node carries it, or a lazy one has something to do
BRIEF_SECONDS: Final = 5.0  # a connection that ends sooner is followed by longer and longer pauses ...
BRIEF_MAX: Final = 4  # ... but only up to this power of two of the first one
REMIND_SECONDS: Final = 60.0  # until the same problem is logged again
UNANSWERED_MAX: Final = 2
SETTLED: Final = MARKER.encode()
TRYING: Final = frozenset(["connecting", "waiting"])  # in attempts and between them: one state for its duration


class NearHandle:
    """The near connection, as the driver sees it (``net.listeners.socket_connection.Handle``)."""

    def __init__(self, bridge: Bridge) -> None:
        self.bridge = bridge
        self.client: Client | None = None
        self.reads = True  # the broker accepts more from the far side
        self.blocked = False  # the driver was told so
        self._closed = False

    def write(self, data: bytes) -> None:
        if not self._closed:
            self.bridge.near_received(self, data)

    def can_write_eof(self) -> bool:
        return False

    def write_eof(self) -> None:
        self.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            asyncio.get_running_loop().call_soon(self.bridge.near_lost, self)

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None:
        self.reads = False
        self.bridge.set_reading()

    def resume_reading(self) -> None:
        self.reads = True
        self.bridge.set_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class FirstSession(NearHandle):
    """A connection that begins the session of a bridge here, so that messages wait although the other broker has never
    answered. Retained ones are sent when it has."""

    def __init__(self, bridge: Bridge, filters: dict[bytes, int]) -> None:
        super().__init__(bridge)
        self.subscriptions = [
            Subscription(filter=filter.decode(), qos=QOS[qos], no_local=True, retain_handling=2)
            for filter, qos in filters.items()
        ]
        self.state = ClientState(
            ConnectOptions(client_id=bridge.client_id, clean_start=False, keep_alive=0, session_expiry=NEVER_EXPIRES)
        )

    def write(self, data: bytes) -> None:
        for event in self.state.receive(data, self.bridge.clock()):
            if isinstance(event, Connected) and not event.session_present:
                self.state.subscribe(self.subscriptions)
            elif isinstance(event, Connected | Completed):
                self.state.disconnect()
        asyncio.get_running_loop().call_soon(self.bridge.send_first, self)  # the driver must not be called in its turn


class Bridge:
    """The attempts of a bridge, with any kind of far side. ``site`` names this broker or cluster; ``elected``: whether
    this node is to carry the bridge now."""

    keeps = "messages wait"  # for the log

    def __init__(
        self, config: BridgeConfig, driver: Driver, site: str, elected: Callable[[], bool], counts: BridgeCounts
    ) -> None:
        self.config = config
        self.paused = False
        self.state: LinkState = "connecting"
        self.problem = ""
        self.complaints: list[str] = []
        self.left: int | None = None  # see LinkView
        self.moved = 0
        self.counts = counts
        self._driver = driver
        self._loop = asyncio.get_running_loop()
        self._site = site
        self._elected = elected
        self._since = self._connected_at = driver.clock()
        self._logged = ""  # the last problem in the log
        self._logged_at = 0.0
        self._server = ""
        self._near: NearHandle | None = None
        self._over: asyncio.Future[None] | None = None  # done when the attempt is to end
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        if self._elected():
            self._begin_session()  # before clients can publish
        self._task = asyncio.ensure_future(self._run())

    @property
    def kind(self) -> Literal["bridge", "link", "rule"]:
        return "link" if isinstance(self.config, LinkConfig) else "bridge"

    @property
    def label(self) -> str:
        """For the log."""
        return f"{self.kind} {self.config.name}"

    @property
    def client_id(self) -> str:
        """Of its session at this broker."""
        return session_of(self.config)

    @property
    def session(self) -> Session | None:
        return self._driver.state.ctx.sessions.get(self.client_id)

    def view(self) -> LinkView:
        session, counts = self.session, self.counts
        queue = None if session is None else session.queue
        return LinkView(
            self.config.name,
            self.kind,
            self.state,
            self._server,
            round(max(0.0, self._driver.clock() - self._since), 1),
            self.problem,
            list(self.complaints),
            0 if queue is None else len(queue),
            0 if queue is None else queue.bytes,
            0 if session is None or session.window is None else len(session.window.entries),
            counts.messages_out,
            counts.messages_in,
            counts.bytes_out,
            counts.bytes_in,
            counts.refused,
            counts.kept_out,
            counts.again,
            0 if session is None else session.dropped,
            left=self.left,
            moved=self.moved,
        )

    def pause(self, paused: bool) -> None:
        """Close the connections until it is resumed; messages wait meanwhile."""
        self.paused = paused
        self._changed.set()
        if paused:
            self._end("")

    def look(self) -> None:
        """Look again whether this node carries it, and whether a lazy bridge has something to do."""
        if not self._elected():
            self._end("")
        self._changed.set()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def finish(self) -> None:
        """Stop for good once nothing waits or is in flight, as ``start: once`` does."""
        while (view := self.view()).waiting or view.in_flight:
            await asyncio.sleep(LOOK_SECONDS)
        self._end("")
        await self.stop()
        self._becomes("done")

    # Attempts

    def _servers(self) -> tuple[str, ...]:
        """Those that are tried one after the other."""
        return self.config.servers

    async def _run(self) -> None:
        servers = self._servers()
        at = failures = restarts = 0
        while True:
            await self._wait_for_turn()
            ran = await self._attempt(servers[at])
            if self.config.start == "once" and ran:
                self._becomes("done")
                return
            restarts = 0 if ran or self.problem else restarts + 1
            if not self.problem and restarts <= RESTARTS_MAX:
                failures = 0
                continue  # also at once, with a clean start
            at = (at + 1) % len(servers)
            failures = self._failures(failures, ran)
            if failures % len(servers) == 0:
                self._becomes("waiting")
                await self._pause_after(failures // len(servers))

    def _failures(self, before: int, ran: bool) -> int:
        """Attempts in a row that failed, with this one. One that ran counts, if only for a moment."""
        if not ran:
            return before + 1
        if self._driver.clock() - self._connected_at >= BRIEF_SECONDS:
            return 1
        return min(before + 1, BRIEF_MAX * len(self._servers()))

    async def _pause_after(self, rounds: int) -> None:
        """All servers have failed so many times in a row."""
        least, most = BACKOFF
        seconds = min(most, least * 2 ** min(rounds, 10)) * random.uniform(0.5, 1.0)  # noqa: S311
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._paused()

    async def _paused(self) -> None:
        while not self.paused:
            self._changed.clear()
            await self._changed.wait()

    async def _wait_for_turn(self) -> None:
        while True:
            if not self._elected():
                self._becomes("elsewhere")
            elif self.paused:
                self._becomes("paused")
            elif not self._has_work():
                self._becomes("idle")
            else:
                self._begin_session()
                return
            self._changed.clear()
            await self._changed.wait()

    def _begin_session(self) -> None:
        filters = TopicMap(self.config.topics, outwards=True).filters()
        if self.session is None and filters:
            first = FirstSession(self, filters)
            first.client = self._driver.opened(first, BRIDGE_LISTENER, self.label)
            first.state.connection_made(self.clock())
            self.send_first(first)

    def send_first(self, first: FirstSession) -> None:
        data = first.state.take(self.clock())
        if data and first.client is not None:
            self._driver.received(first.client, data)

    def clock(self) -> float:
        return self._driver.clock()

    def _has_work(self) -> bool:
        session = self.session
        if self.config.start != "lazy" or session is None:
            return True
        if all(filter != SETTLED for filter, _ in session.subscriptions()):
            return True
        window = session.window
        return bool(session.queue) or (window is not None and bool(window.entries))

    def _becomes(self, state: LinkState) -> None:
        if state != self.state and not {state, self.state} <= TRYING:
            self._since = self._driver.clock()
        self.state = state

    async def _attempt(self, server: str) -> bool:
        """Connect and carry until the end. Returns whether it ran."""
        raise NotImplementedError

    def _note_problem(self, problem: str) -> None:
        now = self._driver.clock()
        if problem and (problem != self._logged or now - self._logged_at >= REMIND_SECONDS):
            log.warning("%s: %s; %s, and it tries again", self.label, problem, self.keeps)
            self._logged, self._logged_at = problem, now
        self.problem = problem

    def _end(self, problem: str) -> None:
        """The attempt is to end, if it has not."""
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    # The near connection

    def near_received(self, handle: NearHandle, data: bytes) -> None:
        """This broker has sent this. The driver may be in its turn, and must not be called now."""
        raise NotImplementedError

    def near_lost(self, handle: NearHandle) -> None:
        if handle.client is not None:
            self._driver.lost(handle.client)
            handle.client = None
        if handle is self._near:
            self._near = None
            self._end("this broker closed the session of the bridge")

    def set_reading(self) -> None:
        """``NearHandle.reads`` has changed, or another reason to read what comes from the far side, or not to."""
        raise NotImplementedError


class RelayState(Protocol):
    """A state machine between a far and a near connection."""

    problem: str
    complaints: list[str]
    far: Any  # its two legs
    near: Any

    def received(self, leg: Any, data: bytes, now: float) -> None: ...

    def tick(self, now: float) -> None: ...

    def held(self, now: float) -> None: ...

    def wake_at(self) -> float: ...

    def joins(self) -> bool: ...

    def runs(self) -> bool: ...

    def ended(self) -> bool: ...


AnyRelay = TypeVar("AnyRelay", bound=RelayState)


class RelayBridge(Bridge, Generic[AnyRelay]):
    """A bridge that is a relay between its two connections."""

    def __init__(
        self, config: BridgeConfig, driver: Driver, site: str, elected: Callable[[], bool], counts: BridgeCounts
    ) -> None:
        self._relay: AnyRelay | None = None
        self._link: Link | FarLine | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = inf  # when the timer fires, by the driver's clock
        self._flushing = False
        self._flushes = False  # it will be called soon
        self._complained = 0  # complaints that are in the log
        self._reads = True  # the far connection is read
        super().__init__(config, driver, site, elected, counts)

    # For each kind

    def _join(self, relay: AnyRelay, now: float) -> None:
        """Connect to this broker."""
        raise NotImplementedError

    def _take(self, relay: AnyRelay, now: float) -> tuple[bytes, bytes]:
        """The bytes to write to the far and to the near connection."""
        raise NotImplementedError

    def _may_read(self, relay: AnyRelay, link: Link | FarLine) -> bool:
        raise NotImplementedError

    def _flushed(self, relay: AnyRelay) -> None:
        """The relay has no more for now."""

    def _take_leave(self, relay: AnyRelay, link: Link | FarLine) -> None:
        """Write what comes last when the far connection ends in order."""

    # Connections

    def link_received(self, data: bytes) -> None:
        """Of ``client.link.Owner``."""
        relay = self._relay
        if relay is not None:
            relay.received(relay.far, data, self._driver.clock())
            self._flush()

    def link_lost(self, link: Link | FarLine, error: Exception | None) -> None:
        """Of ``client.link.Owner``."""
        if link is self._link:
            why = error or link.problem
            self._end(f"the other broker closed the connection{f': {why}' if why else ''}")

    def near_received(self, handle: NearHandle, data: bytes) -> None:
        relay = self._relay
        if relay is not None and handle is self._near:
            relay.received(relay.near, data, self._driver.clock())
            if not self._flushing and not self._flushes:  # the driver is in its turn, and must not be called now
                self._flushes = True
                self._loop.call_soon(self._flush)

    def set_reading(self) -> None:
        relay, link, near = self._relay, self._link, self._near
        if link is None or relay is None:
            return
        reads = (near is None or near.reads) and self._may_read(relay, link)
        if reads != self._reads:
            self._reads = reads
            link.set_reading(reads)

    def _watch_room(self, link: Link | FarLine) -> None:
        """While the system takes nothing more for the far broker, this one keeps what comes in the session's queue."""
        near = self._near if link is self._link else None  # an earlier one may last until all is written
        if near is not None and near.client is not None and near.blocked == link.writable:
            near.blocked = not near.blocked
            if near.blocked:
                self._driver.blocked(near.client)
            else:
                self._driver.drained(near.client)

    def _flush(self) -> None:
        """Write what the relay has for both sides, until it has no more."""
        self._flushes = False
        relay, link = self._relay, self._link
        if relay is None or link is None or self._flushing:
            return
        self._flushing = True
        try:
            while True:
                now = self._driver.clock()
                if self._near is None and relay.joins():
                    self._join(relay, now)
                if relay.runs() and self.state != "connected":
                    self._runs(relay)
                far, near = self._take(relay, now)
                if not far and not near:
                    break
                if far:
                    link.write(far)
                    self._watch_room(link)
                if near and self._near is not None and self._near.client is not None:
                    self._driver.received(self._near.client, near)
            self.set_reading()
        finally:
            self._flushing = False
        self._flushed(relay)
        if relay.complaints is self.complaints and len(relay.complaints) > self._complained:
            self._tell_complaints()
        if relay.ended():
            self._end(relay.problem)
        else:
            self._arm(relay.wake_at())

    def _runs(self, relay: AnyRelay) -> None:
        """Messages pass."""
        self._becomes("connected")
        self._connected_at = self._driver.clock()
        self.problem = ""
        self.complaints = relay.complaints
        self._complained = 0
        self._tell_complaints()
        log.info("%s: connected to %s", self.label, self._server)

    def _tell_complaints(self) -> None:
        for complaint in self.complaints[self._complained :]:
            log.warning("%s: %s", self.label, complaint)
        self._complained = len(self.complaints)

    def _arm(self, due: float) -> None:
        """Keep one timer. One that is early costs a look."""
        if due == inf or (self._timer is not None and self._due <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_later(max(0.0, due - self._driver.clock()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        relay, link = self._relay, self._link
        if relay is not None:
            if not self._reads and link is not None and link.writable:
                relay.held(self._driver.clock())
            relay.tick(self._driver.clock())
            self._flush()

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        link, near, relay = self._link, self._near, self._relay
        self._link = self._near = self._relay = None
        if link is not None:
            if relay is not None and not relay.problem:
                self._take_leave(relay, link)
                link.close()
            else:
                link.abort()
        if near is not None:
            near.close()


class MqttBridge(RelayBridge[BridgeRelay]):
    def __init__(
        self, config: BridgeConfig, driver: Driver, site: str, elected: Callable[[], bool], counts: BridgeCounts
    ) -> None:
        self.compression: Compression | None = None  # of connections that are to be compressed
        if isinstance(config, LinkConfig) and config.compression == "zstd":
            self.compression = Compression()
        self._says_bridge = True  # the far broker has not refused mosquitto's bit for bridges
        self._unanswered = 0  # CONNECTs in a row
        self._clean = False
        self._unsure = True  # see BridgeRelay
        self._gathering: Gathering | None = None
        super().__init__(config, driver, site, elected, counts)

    async def _attempt(self, server: str) -> bool:
        config = self.config
        self._becomes("connecting")
        ran = False
        try:
            endpoint = parse_url(server)
            self._server = str(endpoint)
            options = self._far_options()
            relay = self._new_relay(options, endpoint)
            tls = Tls(
                ca=config.tls.ca,
                cert=config.tls.cert,
                key=config.tls.key,
                insecure=config.tls.insecure,
                alpn=config.tls.alpn,
            )
            self._over = asyncio.get_running_loop().create_future()
            async with asyncio.timeout(DIAL_SECONDS):
                opened = await open_link(endpoint, tls, self, self._compresses())
            opened.for_long_lines()
            opened.set_priority(config.priority)
            link = self._link = in_rounds(opened, endpoint, self)
            self._gathering = gathering_of(link)
            self._reads = True
            self._relay = relay
            link.on_writable = lambda: self._watch_room(link)
            relay.far.state.connection_made(self._driver.clock())
            self._flush()
            if config.start == "lazy":
                await self._until_idle(relay, self._over)
            else:
                await self._over
            ran = relay.phase == RUNNING or self.state == "connected"
            self._note_problem(relay.problem)
            self._note_bit(relay)
            self._clean, self._unsure = relay.begin_clean, relay.unsure
        except (ConnectFailed, TimeoutError, OSError, ValueError) as error:
            late = f"{endpoint_text(server)} did not answer within {DIAL_SECONDS:g} s"
            self._note_problem(late if isinstance(error, TimeoutError) else reason_of(error))
        finally:
            if self.compression is not None and self._link is not None and not self._link.heard:
                self.compression.failed()
            self._close()
        return ran

    def _compresses(self) -> bool:
        if self.compression is None or not self.compression.wanted(self._driver.clock()):
            return False
        try:
            import starlingmq.net.zstd_stream  # noqa: F401
        except ImportError:
            self.compression = None
            log.info("%s: not compressed: install the extra [zstd]", self.label)
            return False
        return True

    async def _until_idle(self, relay: BridgeRelay, over: asyncio.Future[None]) -> None:
        seen = -1
        while not over.done():
            carried = relay.counts.messages_in + relay.counts.messages_out
            if carried == seen and relay.phase == RUNNING and not self._has_work():
                return
            seen = carried
            await asyncio.wait([over], timeout=LINGER_SECONDS)

    def _note_bit(self, relay: BridgeRelay) -> None:
        """Some brokers refuse a CONNECT with mosquitto's bit, or close its connection without an answer. So does the
        proxy of a broker that is being restarted: this must happen twice, and is taken back."""
        if relay.far.version != V311 or relay.far.state.phase == CONNECTED:
            self._unanswered = 0
            return
        self._unanswered += 1
        if relay.refused == Reason.UNSUPPORTED_PROTOCOL_VERSION or self._unanswered >= UNANSWERED_MAX:
            self._says_bridge = not self._says_bridge
            self._unanswered = 0

    def _far_options(self) -> ConnectOptions:
        config = self.config
        password = config.credentials.password
        if config.credentials.password_file:
            password = Path(config.credentials.password_file).read_text().removesuffix("\n")
        return far_options(
            config,
            self._site,
            password,
            clean=self._clean,
            says_bridge=self._says_bridge,
            max_packet=self._driver.state.ctx.max_packet,
            timeout=DIAL_SECONDS,
        )

    def _new_relay(self, options: ConnectOptions, endpoint: Endpoint) -> BridgeRelay:
        config = self.config
        far = Leg(ClientState(options), options.version, TopicMap(config.topics, outwards=False), str(endpoint))
        near = Leg(ClientState(ConnectOptions()), V5, TopicMap(config.topics, outwards=True), self._site)
        relay = BridgeRelay(far, near, self._look_at_session, self._clean, config.retain, self.counts)
        relay.renews = self._unsure
        relay.learns = isinstance(config, LinkConfig) and config.filters == "learned"
        return relay

    def _look_at_session(self) -> NearSession:
        return near_session(self.session)

    # Connections

    def link_received(self, data: bytes) -> None:
        if self._gathering is not None:
            self._gathering.came(len(data), self._in_flight())
        super().link_received(data)

    def _in_flight(self) -> int:
        near = self._near
        session = None if near is None or near.client is None else near.client.session
        return 0 if session is None or session.window is None else len(session.window.entries)

    def near_received(self, handle: NearHandle, data: bytes) -> None:
        relay, link = self._relay, self._link
        if relay is None or link is None or handle is not self._near:
            return
        now = self._driver.clock()
        relay.received(relay.near, data, now)
        if self._flushing or self._flushes:
            return
        if self.state == "connected" and relay.runs():  # the far side may be written to in the driver's turn
            far = relay.take(relay.far, now)
            if far:
                link.write(far)
                self._watch_room(link)
            if not relay.near.out:
                return
        self._flushes = True
        self._loop.call_soon(self._flush)

    def _may_read(self, relay: BridgeRelay, link: Link | FarLine) -> bool:
        return relay.reads()

    def _take(self, relay: BridgeRelay, now: float) -> tuple[bytes, bytes]:
        return relay.take(relay.far, now), relay.take(relay.near, now)

    def _join(self, relay: BridgeRelay, now: float) -> None:
        """The far broker has said what it takes."""
        server = relay.far.state.server
        site = site_in(server)
        knows = site != "" and knows_links(server)
        if isinstance(self.config, LinkConfig) and (not knows or server.get(MAXIMUM_QOS, 2) != 2):
            lacks = "allows no QoS 2, which links need" if knows else "is no StarlingMQ with links; use bridges for it"
            relay.lost(relay.far, f"the other broker {lacks}")
            return
        relay.far.site = site or relay.far.site
        relay.near.state = ClientState(near_options(self.config, server))
        near = self._near = NearHandle(self)
        near.client = self._driver.opened(near, BRIDGE_LISTENER, self.label)
        relay.near.state.connection_made(now)

    def _runs(self, relay: BridgeRelay) -> None:
        super()._runs(relay)
        if self.compression is not None and self.compression.answered(self._connected_at):
            log.warning("%s: %s does not take zstd: not compressed", self.label, self._server)
        if self.config.notifications != "off":
            relay.near.out.append(state_frame(self.config.name, V5))
        if self.config.notifications == "both":
            relay.far.out.append(state_frame(name_of(relay.far.state.client_id), relay.far.version))

    def _close(self) -> None:
        if self._gathering is not None:
            self._gathering.stop()
            self._gathering = None
        super()._close()

    def _end(self, problem: str) -> None:
        relay = self._relay
        if relay is not None and not relay.ended():
            relay.lost(relay.far, problem)
        super()._end(problem)

    def _take_leave(self, relay: BridgeRelay, link: Link | FarLine) -> None:
        state = relay.far.state
        if self.config.notifications == "both":  # DISCONNECT deletes the will
            link.write(state_frame(name_of(state.client_id), relay.far.version, b"0"))
        state.disconnect(Reason.SUCCESS)
        link.write(state.take(self._driver.clock()))


def endpoint_text(server: str) -> str:
    return str(parse_url(server))


def reason_of(error: Exception) -> str:
    """The error as one sentence, without what only the command line can do about it."""
    cause = error.__cause__
    if isinstance(cause, ConnectionRefusedError):
        return str(error).partition(";")[0]
    return str(error)
