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

from starlingmq.bridges.bridge import DIAL_SECONDS, NearHandle, RelayBridge, reason_of
from starlingmq.bridges.far_line import FarLine
from starlingmq.bridges.nats_credentials import login
from starlingmq.bridges.nats_relay import GREETING, SECURING, NatsLeg, NatsRelay
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


class NatsBridge(RelayBridge[NatsRelay]):
    keeps = "no message is kept"
    _turns = 0  # attempts so far
    _others: tuple[str, ...] = ()  # URLs of servers that INFO named
    _greeted: asyncio.Event  # INFO has come, or the attempt is over

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
            relay = self._relay = self._new_relay(endpoint)
            self._over = asyncio.get_running_loop().create_future()
            self._reads = True
            async with asyncio.timeout(DIAL_SECONDS):
                await self._connect(relay, endpoint)
            self._flush()
            await self._over
            ran = self.state == "connected"
            self._note_problem(relay.problem)
        except (ConnectFailed, TimeoutError, OSError, ValueError) as error:
            late = f"{server} did not answer within {DIAL_SECONDS:g} s"
            self._note_problem(late if isinstance(error, TimeoutError) else reason_of(error))
        finally:
            self._close()
        return ran

    async def _connect(self, relay: NatsRelay, endpoint: Endpoint) -> None:
        """Open the far connection. TLS begins after INFO, which says whether it is required."""
        files = self.config.tls
        tls = Tls(ca=files.ca, cert=files.cert, key=files.key, insecure=files.insecure, alpn=files.alpn)
        link = self._link = await open_link(endpoint, tls, self)
        link.on_writable = lambda: self._has_room(link)
        self._server = str(endpoint)
        self._flush()
        await self._greeted.wait()
        if relay.phase == SECURING:
            await secure_link(link, endpoint, tls)
            relay.secured(self._driver.clock())

    def _new_relay(self, endpoint: Endpoint) -> NatsRelay:
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

    def near_lost(self, handle: NearHandle) -> None:
        if handle is self._near and handle.blocked:
            self._end("the other server takes messages too slowly; those that waited are lost")
        super().near_lost(handle)

    def _has_room(self, link: Link | FarLine) -> None:
        self._watch_room(link)
        self.set_reading()

    def _may_read(self, relay: NatsRelay, link: Link | FarLine) -> bool:
        """A server that asks (PING) and does not read the answers is not read either."""
        return link.writable

    def _take(self, relay: NatsRelay, now: float) -> tuple[bytes, bytes]:
        return relay.take(relay.far), relay.take(relay.near)

    def _join(self, relay: NatsRelay, now: float) -> None:
        near = self._near = NearHandle(self)
        near.client = self._driver.opened(near, BRIDGE_LISTENER, self.label)
        self._driver.state.nats.open(near.client)

    def _flushed(self, relay: NatsRelay) -> None:
        if relay.phase != GREETING:
            self._greeted.set()
        if relay.news:
            relay.news = False
            scheme = self._server.partition("://")[0]
            self._others = tuple(f"{scheme}://{url}" for url in relay.urls)

    def _end(self, problem: str) -> None:
        if self._relay is not None:
            self._relay.lost(problem)
            self._greeted.set()
        super()._end(problem)


def nats_endpoint(server: str) -> Endpoint:
    parts = urlsplit(server)
    return Endpoint(parts.scheme, parts.hostname or "localhost", parts.port or PORT, "")
