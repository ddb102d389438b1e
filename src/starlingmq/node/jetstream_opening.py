"""JetStream of a broker alone: what it needs is loaded with the first stream, or for the first request."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from starlingmq._version import __version__
from starlingmq.core.context.ready import SystemRequest
from starlingmq.core.jetstream.hub import REQUEST
from starlingmq.net.driver import Driver

log = logging.getLogger("starlingmq")

if TYPE_CHECKING:
    from starlingmq.jetstream.jetstream_service import JetStreamService
    from starlingmq.storage.streams.stream_admin import StreamAdmin


class LazyService:
    """``others`` takes the requests that are not for JetStream."""

    def __init__(self, driver: Driver, streams: StreamAdmin | None) -> None:
        self._driver = driver
        self._streams = streams
        self._others = driver.on_request
        self._service: JetStreamService | None = None

    def load(self) -> JetStreamService:
        if self._service is None:
            from starlingmq.jetstream.jetstream_service import JetStreamService

            self._service = JetStreamService(self._driver, self._streams, __version__)
            self._service.start()
        return self._service

    def take(self, request: SystemRequest) -> None:
        if request.kind == REQUEST:
            self.load().take(request)
        elif self._others is not None:
            self._others(request)


def open_jetstream(driver: Driver, streams: StreamAdmin | None, alone: bool) -> None:
    """``alone``: the broker is no member of a cluster."""
    if not alone:
        if driver.state.jetstream.streams:
            names = ", ".join(driver.state.jetstream.streams)
            log.warning("streams of JetStream get no messages, and are not read, in a cluster: %s", names)
        return
    service = LazyService(driver, streams)
    driver.on_request = service.take
    if driver.state.jetstream.streams:
        service.load()
    driver.state.jetstream.enabled = True
