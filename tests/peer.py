"""A client of nothing but packets, over a real socket: for what no well-behaved client would do, byte by byte."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from starlingmq.wire.mqtt import (
    Ack,
    Connack,
    Connect,
    Packet,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
    decode,
    encode,
    frame_length,
)
from starlingmq.wire.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from tests.patience import within

P = TypeVar("P", bound=Packet)

PATIENCE = 10.0
"""Seconds after which something that was waited for counts as never going to happen."""


class Peer:
    """One connection to a broker. ``reader`` and ``writer`` are for those who want to misbehave."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: int) -> None:
        self.reader = reader
        self.writer = writer
        self.version = version
        self._aside: deque[Publish] = deque()  # messages that came while something else was waited for

    @classmethod
    async def open(cls, address: str, version: int = 5, tls: ssl.SSLContext | None = None) -> Self:
        """A connection that has not said anything yet."""
        url = urlsplit(address)
        reader, writer = await asyncio.open_connection(url.hostname, url.port, ssl=tls)
        return cls(reader, writer, version)

    @classmethod
    async def connect(cls, address: str, client_id: str = "", version: int = 5, **fields: Any) -> Self:
        """A connection that was accepted; ``fields`` are those of ``Connect``."""
        peer = await cls.open(address, version)
        peer.send(Connect(version, client_id, **{"clean_start": True, **fields}))
        assert (await peer.expect(Connack)).reason == 0
        return peer

    def send(self, *packets: Packet | bytes) -> None:
        """Write packets (or raw bytes) in one go."""
        self.writer.write(b"".join(p if isinstance(p, bytes) else encode(p, self.version) for p in packets))

    async def receive(self) -> Packet | None:
        """The next packet; None at the end of the connection."""
        async with within(PATIENCE):
            head = await self.reader.read(1)
            while head and (len(head) < 2 or head[-1] & 0x80):
                head += await self.reader.readexactly(1)
            if not head:
                return None
            frame = head + await self.reader.readexactly(frame_length(head, 0) - len(head))
        return decode(frame[0], frame, len(head), len(frame), self.version)

    async def expect(self, kind: type[P]) -> P:
        """The next packet, which must be of this class."""
        packet = await self.receive()
        assert isinstance(packet, kind), f"no {kind.__name__} but {packet!r}"
        return packet

    async def _answer(self, kind: type[P]) -> P:
        """The next packet that is no message; it must be of this class."""
        while isinstance(packet := await self.receive(), Publish):
            self._aside.append(packet)
        assert isinstance(packet, kind), f"no {kind.__name__} but {packet!r}"
        return packet

    async def ended(self) -> bool:
        """Wait for the broker to close the connection without another word."""
        packet = await self.receive()
        assert packet is None, f"not the end but {packet!r}"
        return True

    async def subscribe(self, *filters: str, qos: int = 0) -> list[int]:
        """The reason codes of the SUBACK."""
        self.send(Subscribe(1, [SubscribeRequest(filter.encode(), qos) for filter in filters]))
        return (await self._answer(Suback)).reasons

    async def publish(self, topic: str, payload: bytes = b"x", qos: int = 1, **fields: Any) -> int:
        """Publish, with its handshake; the reason code of the first answer (QoS 0 has none: 0)."""
        self.send(Publish(topic.encode(), payload, qos, packet_id=1 if qos else 0, **fields))
        if qos == 0:
            return 0
        ack = await self._answer(Ack)
        assert (ack.type, ack.packet_id) == (PUBACK if qos == 1 else PUBREC, 1)
        if qos == 2 and ack.reason < 0x80:
            self.send(Ack(PUBREL, 1))
            assert (await self._answer(Ack)).type == PUBCOMP
        return ack.reason

    async def message(self) -> Publish:
        """The next message, acknowledged if it is QoS 1."""
        message = self._aside.popleft() if self._aside else await self.expect(Publish)
        if message.qos == 1:
            self.send(Ack(PUBACK, message.packet_id))
        return message

    async def close(self) -> None:
        self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)

    def abort(self) -> None:
        """Cut the connection, as a crash would."""
        self.writer.transport.abort()
