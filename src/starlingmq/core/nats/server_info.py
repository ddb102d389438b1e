"""What the server tells NATS clients of itself: INFO, first and again when something in it changes.

``connect_urls`` are the listeners that speak what the client's own listener does, here and at the other nodes that want
clients; what is configured counts instead. A node that leaves names only the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

from starlingmq.config.nats_section import NatsConfig
from starlingmq.core.context import Context
from starlingmq.core.nats.nats_client import NatsClient
from starlingmq.core.nats.nkey_auth import NkeyAuth
from starlingmq.core.session.session import Client
from starlingmq.nkeys import server_id
from starlingmq.wire.nats_frames import info_frame

PROTOCOL: Final = 1  # clients may be sent INFO at any time
PROTOCOL_VERSION: Final = "2.10.0"
"""The nats-server whose core protocol is spoken. Client libraries decide by ``version`` which features they use, so
our own version stands beside it, as ``starlingmq``."""
GO: Final = "none"  # libraries take it for granted that a server names its version of Go


class ServerInfo:
    """``server_name``, ``cluster`` ("" outside of one) and ``version`` (ours) are told in INFO; ``server_id`` is made
    from the broker's secret. ``verifying``: URLs of the listeners that require a client certificate."""

    ctx: Context
    keys: NkeyAuth
    config: NatsConfig
    server_id: str
    server_name: str
    cluster: str
    version: str
    verifying: frozenset[str]
    _own: dict[str, list[str]]  # host:port of this node's listeners, by what they speak ...
    _others: dict[str, list[str]]  # ... and of the other nodes'

    def __init__(self, ctx: Context, keys: NkeyAuth, config: NatsConfig, secret: bytes, version: str) -> None:
        self.ctx = ctx
        self.keys = keys
        self.config = config
        self.server_id = server_id(hashlib.blake2b(b"nats", key=secret[:64], digest_size=32).digest())
        self.server_name = ""
        self.cluster = ""
        self.version = version
        self.verifying = frozenset()
        self._own = {}
        self._others = {}

    def reach(self, own: tuple[str, ...], others: list[str], leaving: bool) -> bool:
        """URLs at which clients reach this node and the others; whether that is news for them."""
        before, others_before = self._own, self._others
        self._own = _by_kind(own)
        self._others = _by_kind(others)
        return others_before != self._others or (before != self._own and not leaving)

    def connect_urls(self, listener: str, leaving: bool) -> list[str]:
        """Where clients of ``listener`` may reconnect to: host:port, each once; this node's own first."""
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
    """What a listener speaks: its scheme, and its path if there is one."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}/{rest.partition('/')[2]}"
