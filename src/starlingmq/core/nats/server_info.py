"""INFO, which the server sends to NATS clients first, and again when its content changes.

``connect_urls`` are the listeners with the same protocol as the client's own listener, on this node and on other nodes
that accept clients; configured URLs replace them. A leaving node names only the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlingmq.config.nats_section import NatsConfig
from starlingmq.config.nkeys import server_id
from starlingmq.core.context.context import Context
from starlingmq.core.nats.jetstream_port import API_LEVEL, JetStreamPort
from starlingmq.core.nats.nats_client import NatsClient
from starlingmq.core.nats.nkey_auth import NkeyAuth
from starlingmq.core.session.session import Client
from starlingmq.wire.digests import blake2b
from starlingmq.wire.nats_frames import info_frame

PROTOCOL: Final = 1  # INFO may be sent to clients at any time
PROTOCOL_VERSION: Final = "2.10.0"
"""The nats-server version whose core protocol this broker implements. Client libraries choose features by ``version``,
so the version of StarlingMQ is in ``starlingmq``."""
GO: Final = "none"  # libraries require that a server names its Go version


class ServerInfo:
    """INFO has ``server_name``, ``cluster`` ("" without one) and ``version`` (that of StarlingMQ); ``server_id`` is
    derived from the broker's secret. ``verifying``: URLs of the listeners that require a client certificate."""

    ctx: Context
    keys: NkeyAuth
    config: NatsConfig
    server_id: str
    server_name: str
    cluster: str
    version: str
    verifying: frozenset[str]
    jetstream: JetStreamPort  # set after construction
    _own: dict[str, list[str]]  # host:port of this node's listeners, by protocol ...
    _others: dict[str, list[str]]  # ... and of those of other nodes

    def __init__(self, ctx: Context, keys: NkeyAuth, config: NatsConfig, secret: bytes, version: str) -> None:
        self.ctx = ctx
        self.keys = keys
        self.config = config
        self.server_id = server_id(blake2b(b"nats", key=secret[:64], digest_size=32).digest())
        self.server_name = ""
        self.cluster = ""
        self.version = version
        self.verifying = frozenset()
        self.jetstream = JetStreamPort()
        self._own = {}
        self._others = {}

    def reach(self, own: tuple[str, ...], others: list[str], leaving: bool) -> bool:
        """Set the URLs at which clients reach this node and the others. Returns whether clients must be told."""
        before, others_before = self._own, self._others
        self._own = _by_kind(own)
        self._others = _by_kind(others)
        return others_before != self._others or (before != self._own and not leaving)

    def connect_urls(self, listener: str, leaving: bool) -> list[str]:
        """The servers to which clients of ``listener`` may reconnect: host:port, each once; this node first."""
        if self.config.connect_urls:
            return list(self.config.connect_urls)
        kind = _kind(listener)
        own = [] if leaving else self._own.get(kind, [])
        return list(dict.fromkeys(own + self._others.get(kind, [])))

    def auth_required(self) -> bool:
        ctx = self.ctx
        return ctx.ask_authenticate or not ctx.allow_anonymous or len(self.keys.known) != 0

    def frame(self, client: Client, nats: NatsClient, leaving: bool) -> bytes:
        host, _, port = client.listener.partition("://")[2].partition("/")[0].rpartition(":")
        fields: dict[str, object] = {
            "server_id": self.server_id,
            "server_name": self.server_name or self.server_id,
            "version": PROTOCOL_VERSION,
            "starlingmq": self.version,
            "proto": PROTOCOL,
            "git_commit": self.version,
            "go": GO,
            "host": host.strip("[]"),
            "port": int(port) if port.isdigit() else 0,
            "headers": True,
            "max_payload": self.config.max_payload,
            "client_id": nats.number,
            "client_ip": client.peer.rpartition(":")[0].strip("[]"),
        }
        if self.jetstream.enabled:
            fields["jetstream"] = True
            fields["api_lvl"] = API_LEVEL
        if self.ctx.site:
            fields["starlingmq_site"] = self.ctx.site
        if self.auth_required():
            fields["auth_required"] = True
        nonce = self.keys.nonce(nats.number)
        if nonce:
            fields["nonce"] = nonce
        if nats.tls:
            fields["tls_required"] = True
        if client.listener in self.verifying:
            fields["tls_verify"] = True
        if self.cluster:
            fields["cluster"] = self.cluster
        connect_urls = self.connect_urls(client.listener, leaving)
        if connect_urls:
            fields["connect_urls"] = connect_urls
        if leaving:
            fields["ldm"] = True
        return info_frame(fields)


def _by_kind(urls: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for url in urls:
        found.setdefault(_kind(url), []).append(url.partition("://")[2].partition("/")[0])
    return found


def _kind(url: str) -> str:
    """The protocol of a listener: its scheme, and its path if it has one."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}/{rest.partition('/')[2]}"
