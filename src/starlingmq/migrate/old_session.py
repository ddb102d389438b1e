"""A connection to the old broker under the client id of a client that moves, and what its session there sends.

MQTT 5, also for clients of 3.1.1: User Properties show which messages have come over the bridge.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from starlingmq.client.client_frames import Frames
from starlingmq.client.dial import open_link
from starlingmq.client.endpoint import Tls, parse_url
from starlingmq.client.errors import ConnectFailed, explain
from starlingmq.client.link import Link
from starlingmq.config.bridges_section import BridgeConfig
from starlingmq.wire.mqtt import Connack, Connect, Disconnect, Packet, decode, encode
from starlingmq.wire.properties import RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL
from starlingmq.wire.reasons import MqttError

SECONDS: Final = 30.0  # for each answer
KEEP_ALIVE: Final = 0


class OldBrokerError(Exception):
    """The old broker did not answer, refused, or closed the connection. The message is a sentence."""


class OldConnection:
    """Use ``open``; ``close`` in any case. ``present``: whether the broker had a session."""

    def __init__(self) -> None:
        self.present = False
        self._link: Link | None = None
        self._packets: asyncio.Queue[Packet | None] = asyncio.Queue()
        self._frames = Frames()

    @classmethod
    async def open(cls, config: BridgeConfig, client_id: str, clean: bool, expiry: int) -> OldConnection:
        """Connect with the login of the bridge. Raises OldBrokerError."""
        self = cls()
        tls = config.tls
        files = Tls(ca=tls.ca, cert=tls.cert, key=tls.key, insecure=tls.insecure, alpn=tls.alpn)
        password = config.credentials.password
        try:
            if config.credentials.password_file:
                password = Path(config.credentials.password_file).read_text().removesuffix("\n")
            async with asyncio.timeout(SECONDS):
                self._link = await open_link(parse_url(config.servers[0]), files, self)
        except (ConnectFailed, OSError, TimeoutError) as error:
            raise OldBrokerError(str(error) or f"no connection within {SECONDS:g} s") from error
        connect = Connect(
            5,
            client_id,
            clean,
            KEEP_ALIVE,
            config.credentials.username,
            None if password is None else password.encode(),
            properties={SESSION_EXPIRY_INTERVAL: expiry, RECEIVE_MAXIMUM: 65_535},
        )
        self.send(connect)
        try:
            connack = await self.next()
            if not isinstance(connack, Connack):
                raise OldBrokerError("the answer to CONNECT is no CONNACK")
            if connack.reason:
                raise OldBrokerError(f"refused the connection: {explain(connack.reason, connack.properties)}")
        except OldBrokerError:
            self.close()
            raise
        self.present = connack.session_present
        return self

    def send(self, *packets: Packet) -> None:
        if self._link is not None:
            self._link.write(b"".join(encode(packet, 5) for packet in packets))

    async def next(self, seconds: float | None = SECONDS) -> Packet:
        """The next packet. Raises OldBrokerError at the end, and where none comes in time."""
        try:
            async with asyncio.timeout(seconds):
                packet = await self._packets.get()
        except TimeoutError:
            raise OldBrokerError(f"sent nothing for {seconds:g} s") from None
        if packet is None or isinstance(packet, Disconnect):
            raise OldBrokerError("closed the connection")
        return packet

    def ready(self) -> bool:
        """Whether ``next`` would return at once."""
        return not self._packets.empty()

    def close(self) -> None:
        """The session stays there."""
        link, self._link = self._link, None
        if link is not None:
            link.abort()

    async def end_session(self) -> None:
        """Disconnect, and end the session there."""
        link = self._link
        if link is not None:
            self.send(Disconnect(0, {SESSION_EXPIRY_INTERVAL: 0}))
            try:
                async with asyncio.timeout(SECONDS):
                    await link.closed
            except TimeoutError:
                link.abort()
            self._link = None

    def link_received(self, data: bytes) -> None:
        """Of ``client.link.Owner``."""
        try:
            for first, whole, start, end in self._frames.feed(data):
                self._packets.put_nowait(decode(first, whole, start, end, 5))
        except MqttError:
            self._packets.put_nowait(None)
            self.close()

    def link_lost(self, link: Link, error: Exception | None) -> None:
        """Of ``client.link.Owner``."""
        self._packets.put_nowait(None)
