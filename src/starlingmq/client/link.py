"""One connection to a broker as a byte stream, over TCP, TLS, a Unix socket or a WebSocket."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from starlingmq.net.zstd_stream import Compressor, ZstdReader  # loaded with the first compressed link


class Owner(Protocol):
    """Callbacks of a link; all in the event loop, ``link_lost`` exactly once and last."""

    def link_received(self, data: bytes) -> None: ...

    def link_lost(self, link: Any, error: Exception | None) -> None: ...


class Link(asyncio.Protocol):
    """A raw byte stream. ``ready`` is done when MQTT bytes may be written."""

    def __init__(self, owner: Owner) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.owner = owner
        self._transport: asyncio.Transport | None = None
        self._writable: asyncio.Future[None] | None = None
        self.on_writable: Callable[[], None] | None = None  # called when the system accepts more again
        self.heard = False  # the other side has answered; if the link is compressed, in zstd
        self.problem = ""  # why this side has ended a compressed link
        self._ended = False  # nothing more is written
        self._deadline: asyncio.TimerHandle | None = None
        self._compressor: Compressor | None = None
        self._reader: ZstdReader | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport is no subclass
        self._opened()

    def _opened(self) -> None:
        self.ready.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._received(data)

    def _received(self, data: bytes) -> None:
        """Bytes of MQTT, or of the zstd stream that contains them."""
        if self._reader is None:
            self._heard(data)
        else:
            self._reader.feed(data)

    def _heard(self, data: bytes) -> None:
        self.heard = True
        self.owner.link_received(data)

    def compress(self) -> None:
        """Send and expect zstd, from the first byte on: call it before the connection is made. Raises ImportError."""
        from starlingmq.net.zstd_stream import Compressor, ZstdReader

        self._compressor = Compressor()
        loop = asyncio.get_running_loop()
        self._reader = ZstdReader(self._heard, self._broken, self._set_reading, loop.call_soon)

    @property
    def compressed(self) -> bool:
        return self._reader is not None

    def _broken(self, why: str) -> None:
        self.problem = why
        self.abort()

    async def secure(self, context: ssl.SSLContext, host: str) -> None:
        """Go on with TLS, after a server has said so in plain text. Raises OSError."""
        loop = asyncio.get_running_loop()
        if self._transport is None or self._transport.is_closing():  # uvloop would wait for ever
            raise ConnectionResetError("the connection was closed before the TLS handshake")
        secured = await loop.start_tls(self._transport, self, context, server_hostname=host)
        if secured is None:
            raise ConnectionResetError("the connection was closed during the TLS handshake")
        self._transport = secured

    def connection_lost(self, error: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self.resume_writing()
        if self._reader is not None:
            self._reader.stop()
        if not self.ready.done():
            self.ready.set_exception(error or ConnectionResetError("the connection was closed immediately"))
            self.ready.exception()  # marks it as retrieved: a caller need not await it
        if not self.closed.done():
            self.closed.set_result(None)
            self.owner.link_lost(self, error)

    def for_long_lines(self) -> None:
        """Prepare TCP for a line with loss and a long way."""
        from starlingmq.net.long_lines import for_long_line

        if self._transport is not None:
            for_long_line(self._transport)

    def socket(self) -> Any:
        return None if self._transport is None else self._transport.get_extra_info("socket")

    def set_priority(self, level: int) -> None:
        """The class of its packets, 0 to 7: class selectors of DSCP (RFC 2474), and of the system's queues."""
        sock = self.socket()
        if level != 0 and sock is not None and sock.family != socket.AF_UNIX:
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, level << 5)
            if sock.family == socket.AF_INET6:
                with suppress(OSError):
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, level << 5)

    def pause_writing(self) -> None:
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None
        if self.on_writable is not None:
            self.on_writable()

    @property
    def writable(self) -> bool:
        """Whether the system accepts more: false while the transport's write buffer is full, and after the end."""
        return self._writable is None and self._transport is not None and not self._transport.is_closing()

    async def drained(self) -> None:
        """Wait until the system accepts more; the bound is the transport's write buffer."""
        if self._writable is not None:
            await asyncio.shield(self._writable)

    def write(self, data: bytes) -> None:
        self._send(data if self._compressor is None else self._compressor.feed(data))

    def _send(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing() and not self._ended:
            self._transport.write(data)

    def set_reading(self, reading: bool) -> None:
        if self._reader is None:
            self._set_reading(reading)
        else:
            self._reader.hold(not reading)

    def _set_reading(self, reading: bool) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def end(self, seconds: float) -> None:
        """Write nothing more, and close once the other side has closed, after ``seconds`` at the latest.

        A socket that is closed with unread bytes resets the connection (RFC 1122, 4.2.2.13): what the other side has
        not read yet, such as the last acknowledgements, is lost then. TLS waits for the other side by itself.
        """
        if self._transport is None or self._deadline is not None:
            return
        self._deadline = asyncio.get_running_loop().call_later(seconds, self.abort)
        self.set_reading(True)
        if self._transport.is_closing():
            return
        self._ended = self._transport.can_write_eof()
        try:
            if self._ended:
                self._transport.write_eof()
            else:
                self._transport.close()
        except OSError:  # the other side has gone already
            self._transport.abort()

    def close(self) -> None:
        """Close once everything written has been sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
