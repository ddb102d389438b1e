"""JetStream in the monitoring pages of nats-server, in its JSON: that of this broker, which has one account, ``$G``.

A member of a cluster tells of the streams that it has; one of ``--workers`` has none, and says so as a server without
JetStream does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from starlingmq.core.nats.jetstream_port import API_LEVEL
from starlingmq.jetstream.usage import counts, usage

if TYPE_CHECKING:
    from starlingmq.admin.local_node import LocalNode
    from starlingmq.core.jetstream.hub import JetStream

Json = dict[str, Any]

ACCOUNT: Final = "$G"  # nats-server's name for the account that exists where none are configured
UNLIMITED: Final = -1


class Details(NamedTuple):
    """Lists beside the figures: accounts, streams, consumers, each of which includes those before it. ``config``: with
    the settings of streams and consumers."""

    accounts: bool = False
    streams: bool = False
    consumers: bool = False
    config: bool = False


class JetStreamMonitor:
    def __init__(self, local_node: LocalNode) -> None:
        self._local_node = local_node

    @property
    def enabled(self) -> bool:
        return self._hub.enabled

    @property
    def _hub(self) -> JetStream:
        return self._local_node.state.jetstream

    def varz(self) -> Json:
        """Its part of ``varz``; {} without JetStream."""
        return {"config": self._config(), "stats": self._stats()} if self.enabled else {}

    def statsz(self) -> Json:
        """The same for servers of the cluster, which are not told the directory."""
        told = {name: value for name, value in self._config().items() if name != "store_dir"}
        return {"config": told, "stats": self._stats()} if self.enabled else {}

    def jsz(self, details: Details) -> Json:
        streams = list(self._hub.streams.values()) if self.enabled else []
        found = {
            **self._stats(),
            **({} if self.enabled else {"disabled": True}),
            "config": self._config(),
            **counts(streams),
            "messages": sum(stream.index.count for stream in streams),
            "bytes": sum(stream.index.octets for stream in streams),
            "total": int(self.enabled),
        }
        if self.enabled and any(details[:3]):
            found["account_details"] = [self._account(details)]
        return found

    def _config(self) -> Json:
        if not self.enabled:
            return {"max_memory": 0, "max_storage": 0}
        data_dir = self._local_node.config().node.data_dir
        if not data_dir:
            return {"max_memory": UNLIMITED, "max_storage": 0, "strict": True}
        store_dir = f"{data_dir}/streams"
        return {"max_memory": UNLIMITED, "max_storage": UNLIMITED, "store_dir": store_dir, "strict": True}

    def _stats(self) -> Json:
        enabled = self.enabled
        used = usage(self._hub.streams.values() if enabled else ())
        level = {"level": API_LEVEL if enabled else 0}
        return {**used, "accounts": int(enabled), "ha_assets": 0, "api": level | self._requests()}

    def _requests(self) -> dict[str, int]:
        """How many were answered; the service that counts them is loaded with the first stream or request."""
        total = errors = 0
        if self._hub.adviser is not None:
            from starlingmq.jetstream.jetstream_service import JetStreamService

            assert isinstance(self._hub.adviser, JetStreamService)
            total, errors = self._hub.adviser.api.total, self._hub.adviser.api.errors
        return {"total": total, "errors": errors}

    def _account(self, details: Details) -> Json:
        account = {"name": ACCOUNT, "id": ACCOUNT, **self._stats()}
        if details.streams or details.consumers:
            account["stream_detail"] = [self._stream(name, details) for name in sorted(self._hub.streams)]
        return account

    def _stream(self, name: str, details: Details) -> Json:
        from starlingmq.jetstream.api_requests import consumers_of
        from starlingmq.jetstream.consumer_api import consumer_fields
        from starlingmq.jetstream.stream_api import stream_fields

        stream, now = self._hub.streams[name], self._local_node.driver.clock()
        leader = self._local_node.state.nats.info.server_name or self._local_node.state.nats.info.server_id
        found = {"name": name, "cluster": {"leader": leader}, **stream_fields(stream, now)}
        if details.consumers:
            found["consumer_detail"] = [
                consumer_fields(stream, consumer, now) for _, consumer in sorted(consumers_of(stream).items())
            ]
        for each in (found, *found.get("consumer_detail", ())) if not details.config else ():
            del each["config"]
        return found
