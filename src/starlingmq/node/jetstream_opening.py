"""JetStream of a broker: what it needs is loaded with the first stream, or for the first request."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from starlingmq._version import __version__
from starlingmq.core.context.ready import SystemRequest
from starlingmq.core.jetstream.hub import REQUEST
from starlingmq.net.driver import Driver

log = logging.getLogger("starlingmq")

if TYPE_CHECKING:
    from starlingmq.cluster.cluster_state import ClusterState
    from starlingmq.cluster.streams.far_requester import FarRequester
    from starlingmq.cluster.streams.stream_frames import ApiCall
    from starlingmq.jetstream.cluster_requests import ClusterRequests
    from starlingmq.jetstream.jetstream_service import JetStreamService
    from starlingmq.storage.streams.stream_admin import StreamAdmin


class LazyService:
    """``others`` takes the requests that are not for JetStream. ``cluster``: that of the node; None: it is alone."""

    def __init__(self, driver: Driver, streams: StreamAdmin | None, cluster: ClusterState | None) -> None:
        self._cluster = cluster
        self._driver = driver
        self._streams = streams
        self._others = driver.on_request
        self._service: JetStreamService | None = None
        self._requests: ClusterRequests | None = None

    def load(self) -> JetStreamService:
        if self._service is None:
            from starlingmq.jetstream.api_requests import Api
            from starlingmq.jetstream.jetstream_service import JetStreamService

            kind = Api
            if self._cluster is not None:
                from starlingmq.jetstream.cluster_requests import ClusterApi

                kind = ClusterApi
            self._service = JetStreamService(self._driver, self._streams, __version__, kind)
            if self._cluster is None:
                self._service.start()
            else:
                self._begin(self._service, self._cluster)
        return self._service

    def _begin(self, service: JetStreamService, cluster: ClusterState) -> None:
        from starlingmq.jetstream.cluster_requests import ClusterRequests

        settings = cluster.config
        self._requests = service.cluster = ClusterRequests(service, cluster.streams, settings.name, settings.copies)
        service.start()
        self._requests.follow()

    def follow(self) -> None:
        """The registry of streams has changed, or this node has joined."""
        from starlingmq.cluster.streams.stream_registry import Registration

        assert self._cluster is not None
        streams = self._cluster.streams
        if self._requests is not None:
            self._requests.follow()
        elif any(entry.home == streams.name for entry in streams.registry.entries.values()):
            self.load()
        elif not streams.is_registered():
            streams.change(Registration(streams))

    def called(self, requester: FarRequester, call: ApiCall) -> None:
        """By a client of another node."""
        self.load()
        assert self._requests is not None
        try:
            self._requests.called(requester, call, self._driver.clock())
        except Exception:  # as for a client of this node: others go on
            log.exception("a request of a client of another node failed: %s", call.subject)

    def take(self, request: SystemRequest) -> None:
        if request.kind == REQUEST:
            self.load().take(request)
        elif self._others is not None:
            self._others(request)


def open_jetstream(driver: Driver, streams: StreamAdmin | None, cluster: ClusterState | None) -> None:
    """``cluster``: before the node joins it; None: the broker is no member of one. Workers of one machine have no
    JetStream: a stream would be gone with the worker that has it when there are fewer of them."""
    jetstream = driver.state.jetstream
    if cluster is not None and cluster.config.one_machine:
        if jetstream.streams:
            log.warning("streams of JetStream get no messages with --workers: %s", ", ".join(jetstream.streams))
        return
    service = LazyService(driver, streams, cluster)
    driver.on_request = service.take
    if cluster is not None:
        cluster.streams.on_call = service.called
        cluster.streams.on_change = service.follow
        cluster.streams.open()
    if jetstream.streams:
        service.load()
    jetstream.enabled = True
