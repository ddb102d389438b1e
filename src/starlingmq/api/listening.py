"""The HTTP listeners of one broker. They open before the broker serves, and close after it has stopped."""

from __future__ import annotations

import asyncio
import logging
from secrets import token_bytes
from typing import TYPE_CHECKING

from starlingmq.api.authorization import HttpAuthorization
from starlingmq.api.guard import Guard
from starlingmq.api.http_app import make_app
from starlingmq.api.served import Served
from starlingmq.api.server import HttpListener
from starlingmq.config.api_section import API_SCHEMES, NO_LOGIN_YET
from starlingmq.config.settings import Config, ListenerConfig
from starlingmq.log import SparingLog
from starlingmq.net.listeners.listeners import tls_context
from starlingmq.net.listeners.urls import parse_listener

if TYPE_CHECKING:
    from starlingmq.auth.passwords import Hashing

log = logging.getLogger("starlingmq.http")


def is_http(listener: ListenerConfig) -> bool:
    return listener.url.partition("://")[0] in API_SCHEMES


class HttpSide:
    """Raises ConfigError and ListenerError, here and at ``open``."""

    def __init__(self, served: Served) -> None:
        self.served = served
        config = served.local_node.config()
        specs = [parse_listener(each) for each in config.listeners if is_http(each)]
        self._listeners = [HttpListener(spec, tls_context(spec)) for spec in specs]
        self._secret = token_bytes(32)  # sessions outlast a reload
        self._guard = Guard(
            self.prepare(config, served.local_node.hashing()),
            served.local_node.bans,
            config.auth.api.hosts,
            served.local_node.http_refusals,
            SparingLog(log, config.limits.log_rate),
        )
        self._app = make_app(served, self._guard)

    @property
    def addresses(self) -> list[str]:
        return [listener.address for listener in self._listeners if listener.address]

    async def open(self) -> None:
        self._warn()
        timeout = self.served.local_node.config().mqtt.connect_timeout
        for listener in self._listeners:
            await listener.open(self._app, timeout)

    def _warn(self) -> None:
        access, known = self._guard.access, self.served.local_node.table.known is not None
        if self._listeners and known and access.asks and not access.has_login:
            log.warning("the dashboard and the HTTP API refuse all requests of operators: %s", NO_LOGIN_YET)

    def prepare(self, config: Config, hashing: Hashing | None) -> HttpAuthorization:
        """Prepare a reload. Raises ConfigError, and then nothing has changed."""
        return HttpAuthorization(config, hashing, self.served.local_node.table.known, self._secret)

    def use(self, hashing: Hashing | None) -> None:
        """Users that operators made have changed."""
        self._guard.access.use(self.served.local_node.table.known, hashing)
        self._warn()

    def reload(self, config: Config, access: HttpAuthorization) -> None:
        earlier, self._guard.access = self._guard.access, access
        self._guard.hosts = frozenset(host.lower() for host in config.auth.api.hosts)
        self._guard.lines.rate = config.limits.log_rate
        self._warn()
        for listener in self._listeners:
            listener.reload_tls()
        self._closing = asyncio.ensure_future(earlier.close())

    async def close(self) -> None:
        for listener in self._listeners:
            await listener.close()
        await self._guard.access.close()
