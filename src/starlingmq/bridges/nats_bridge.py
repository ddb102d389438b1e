"""The shell around ``nats_relay``: a bridge whose other side is a NATS server.

The near connection is one of this broker's NATS clients, without a socket, as in ``bridge``; it has no session that
outlives it. Other servers of the far cluster, as INFO names them, are tried after those of the settings.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Final
from urllib.parse import urlsplit

from starlingmq.bridges.bridge import DIAL_SECONDS, Bridge, NearHandle, reason_of
from starlingmq.bridges.nats_credentials import login
from starlingmq.bridges.nats_relay import GREETING, RUNNING, SECURING, NatsLeg, NatsRelay
from starlingmq.bridges.subject_maps import SubjectMap
from starlingmq.client.dial import open_link, secure_link
from starlingmq.client.endpoint import Endpoint, Tls
from starlingmq.client.errors import ConnectFailed
from starlingmq.client.link import Link
from starlingmq.core.session.session import BRIDGE_LISTENER
from starlingmq.wire.nats_subjects import topic_of
from starlingmq.wire.reasons import MqttError

log = logging.getLogger("starlingmq")

PORT: Final = 4222
INBOX_BYTES: Final = 11  # of the random part of its inboxes
SALT_BYTES: Final = 16


class NatsBridge(Bridge):
    keeps = "no message is kept"
    _flow: NatsRelay | None = None
    _turns = 0  # attempts so far
    _others: tuple[str, ...] = ()  # URLs of servers that INFO named
    _greeted: asyncio.Event  # INFO has come, or the attempt is over

    def look(self) -> None:
        if self._flow is not None and not self._elected():
            self._end("")
        super().look()

    def _has_work(self) -> bool:
        return True

    def _begin_session(self) -> None:
        """It has none: nothing is kept for it."""

    # Attempts

    async def _attempt(self, server: str) -> bool:
        servers = list(dict.fromkeys([*self.config.servers, *self._others]))
        server = servers[self._turns % len(servers)]
        self._turns += 1
        self._becomes("connecting")
        ran = False
        try:
            endpoint = nats_endpoint(server)
            self._greeted = asyncio.Event()
            flow = self._flow = self._new_flow(endpoint)
            self._over = asyncio.get_running_loop().create_future()
            self._reads = True
            async with asyncio.timeout(DIAL_SECONDS):
                await self._connect(flow, endpoint)
            self._flush()
            await self._over
            ran = self.state == "connected"
            self._note_problem(flow.problem)
        except (ConnectFailed, TimeoutError, OSError, ValueError) as error:
            late = f"{server} did not answer within {DIAL_SECONDS:g} s"
            self._note_problem(late if isinstance(error, TimeoutError) else reason_of(error))
        finally:
            self._close()
        return ran

    async def _connect(self, flow: NatsRelay, endpoint: Endpoint) -> None:
        """Open the far connection. TLS begins after INFO, which says whether it is required."""
        files = self.config.tls
        tls = Tls(ca=files.ca, cert=files.cert, key=files.key, insecure=files.insecure, alpn=files.alpn)
        link = self._link = await open_link(endpoint, tls, self)
        link.on_writable = lambda: self._has_room(link)
        self._server = str(endpoint)
        self._flush()
        await self._greeted.wait()
        if flow.phase == SECURING:
            await secure_link(link, endpoint, tls)
            flow.secured(self._driver.clock())

    def _new_flow(self, endpoint: Endpoint) -> NatsRelay:
        config = self.config
        inbox = f"_INBOX.{secrets.token_hex(INBOX_BYTES)}.".encode()
        far = NatsLeg(
            SubjectMap(config.topics, outwards=False), inbox, str(endpoint), salt=secrets.token_bytes(SALT_BYTES)
        )
        line_max = self._driver.state.nats.config.max_control_line
        near = NatsLeg(
            SubjectMap(config.topics, outwards=True), inbox, self._site, line_max, secrets.token_bytes(SALT_BYTES)
        )
        return NatsRelay(
            far,
            near,
            lambda info: login(config, self._site, info),
            self._alone,
            endpoint.scheme == "tls",
            config.keep_alive,
            self.counts,
            self._driver.clock(),
        )

    def _alone(self, subject: bytes) -> bool:
        near = self._near
        try:
            route = self._driver.state.router.resolve(topic_of(subject))
        except MqttError:
            return True
        own = None if near is None or near.client is None else near.client.session
        others = any(each.session is not own for each in route.subscriptions)
        return not others and not any(group.has_members() for group in route.groups)

    # Connections

    def link_received(self, data: bytes) -> None:
        flow = self._flow
        if flow is not None:
            flow.received(flow.far, data, self._driver.clock())
            self._flush()

    def near_received(self, handle: NearHandle, data: bytes) -> None:
        flow = self._flow
        if flow is not None and handle is self._near:
            flow.received(flow.near, data, self._driver.clock())
            if not self._flushing and not self._flushes:  # the driver is in its turn, and must not be called now
                self._flushes = True
                asyncio.get_running_loop().call_soon(self._flush)

    def near_lost(self, handle: NearHandle) -> None:
        if handle is self._near and handle.blocked:
            self._end("the other server takes messages too slowly; those that waited are lost")
        super().near_lost(handle)

    def _has_room(self, link: Link) -> None:
        self._watch_room(link)
        self.set_reading()

    def set_reading(self) -> None:
        """A server that asks (PING) and does not read the answers is not read either."""
        if self._link is None:
            return
        reads = self._link.writable and (self._near is None or self._near.reads)
        if reads != self._reads:
            self._reads = reads
            self._link.set_reading(reads)

    def _flush(self) -> None:
        """Write what the relay has for both servers, until it has no more."""
        self._flushes = False
        flow, link = self._flow, self._link
        if flow is None or link is None or self._flushing:
            return
        self._flushing = True
        try:
            while True:
                if self._near is None and flow.joins():
                    self._open_near()
                far, near = flow.take(flow.far), flow.take(flow.near)
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
        if flow.phase != GREETING:
            self._greeted.set()
        if flow.phase == RUNNING and self.state != "connected":
            self._passes(flow)
        if flow.news:
            flow.news = False
            scheme = self._server.partition("://")[0]
            self._others = tuple(f"{scheme}://{url}" for url in flow.urls)
        if flow.ended():
            self._end(flow.problem)
        else:
            self._arm(flow.wake_at())

    def _open_near(self) -> None:
        near = self._near = NearHandle(self)
        near.client = self._driver.opened(near, BRIDGE_LISTENER, self.label)
        self._driver.state.nats.open(near.client)

    def _passes(self, flow: NatsRelay) -> None:
        """Messages pass."""
        self._becomes("connected")
        self._connected_at = self._driver.clock()
        self.problem = ""
        self.complaints = flow.complaints
        for complaint in flow.complaints:
            log.warning("%s: %s", self.label, complaint)
        log.info("%s: connected to %s", self.label, self._server)

    def _tick(self) -> None:
        self._timer = None
        if self._flow is not None:
            self._flow.tick(self._driver.clock())
            self._flush()

    def _end(self, problem: str) -> None:
        if self._flow is not None:
            self._flow.lost(problem)
            self._greeted.set()
        super()._end(problem)

    def _close(self) -> None:
        flow, link = self._flow, self._link
        self._flow = None
        if flow is not None and link is not None and not flow.problem:
            link.close()
            self._link = None
        super()._close()


def nats_endpoint(server: str) -> Endpoint:
    parts = urlsplit(server)
    return Endpoint(parts.scheme, parts.hostname or "localhost", parts.port or PORT, "")
