"""What the server tells NATS clients of itself: INFO, first and again when something in it changes."""

from __future__ import annotations

import hashlib
from typing import Final

from starlingmq.config_nats import NatsConfig
from starlingmq.core.client import Client
from starlingmq.core.context import Context
from starlingmq.core.nats_client import NatsClient
from starlingmq.core.nats_keys import NatsKeys
from starlingmq.wire.nats_frames import info_frame

PROTOCOL: Final = 1  # clients may be sent INFO at any time


class NatsInfo:
    """``server_name`` and ``version`` are told in INFO; ``server_id`` is made from the broker's secret."""

    ctx: Context
    keys: NatsKeys
    config: NatsConfig
    server_id: str
    server_name: str
    version: str

    def __init__(self, ctx: Context, keys: NatsKeys, config: NatsConfig, secret: bytes, version: str) -> None:
        self.ctx = ctx
        self.keys = keys
        self.config = config
        self.server_id = hashlib.blake2b(b"nats", key=secret[:64], digest_size=16).hexdigest().upper()
        self.server_name = ""
        self.version = version

    def frame(self, client: Client, nats: NatsClient, leaving: bool) -> bytes:
        ctx = self.ctx
        host, _, port = client.listener.partition("://")[2].partition("/")[0].rpartition(":")
        fields: dict[str, object] = {
            "server_id": self.server_id,
            "server_name": self.server_name or self.server_id,
            "version": self.version,
            "proto": PROTOCOL,
            "host": host.strip("[]"),
            "port": int(port) if port.isdigit() else 0,
            "headers": True,
            "max_payload": self.config.max_payload,
            "client_id": nats.number,
            "client_ip": client.peer.rpartition(":")[0].strip("[]"),
        }
        if ctx.ask_authenticate or not ctx.allow_anonymous or self.keys.known:
            fields["auth_required"] = True
        nonce = self.keys.nonce(nats.number)
        if nonce:
            fields["nonce"] = nonce
        if nats.tls:
            fields["tls_required"] = True
        if self.config.connect_urls:
            fields["connect_urls"] = list(self.config.connect_urls)
        if leaving:
            fields["ldm"] = True
        return info_frame(fields)
