"""One connection between two nodes, on either side: whole messages, and whether the other side is alive.

Each side sends a sign of life when it has sent nothing else for half of ``silence``. A side that has received nothing
for twice that time closes the connection: bytes get lost on the way, or the other process stands still. The time is
counted in ticks of the own event loop, so that a process that stood still itself reads first what has arrived. A side
that does not read, because its disk is slow for example, still sends signs of life, and does not count.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from struct import Struct
from typing import Any, Final

from starlingmq.net.broker_loop import client_sockets
from starlingmq.net.peers.peer_protocol import PeerConnectionLost, PeerProtocol
from starlingmq.net.peers.peer_socket import PeerSocket, SocketUser
from starlingmq.net.peers.peer_wire import SIGN_OF_LIFE, MessageReader, OlderError, WireError, ending, framed

TICKS_PER_SILENCE: Final = 2
TICKS_MAX: Final = 4  # without anything from the other side
WRITE_BYTES: Final = 512 * 1024  # in the transport, above which a writer waits
UNREAD_BYTES: Final = 2 * 1024 * 1024  # of messages, above which the socket is not read
SILENT: Final = "nothing has come from it for too long"
CLOSED: Final = "it closed the connection"
RESETS: Final = Struct("ii").pack(1, 0)  # SO_LINGER: the system closes the connection by RST


class PeerConnection(SocketUser):
    """``silence`` in seconds; ``limit``: bytes of a received message.

    Messages go to ``receive`` if that is set, and wait for ``read`` otherwise. ``reason`` is why it has ended, in one
    line, and empty before that. ``on_room`` is called when a writer may go on, ``on_end`` once, after the last message.
    """

    def __init__(self, silence: float, limit: int) -> None:
        self.receive: Callable[[bytes], None] | None = None
        self.on_room: Callable[[], None] | None = None
        self.on_end: Callable[[], None] | None = None
        self.reason = ""
        self.was_refused = False  # ``reason`` is the other side's
        self.by_fin = False  # the other system closed the connection in order
        self.has_room = True
        self.peer = ""  # address of the other side
        self._wire = MessageReader(limit)
        self._interval = silence / TICKS_PER_SILENCE
        self._transport: Any = None
        self._protocol: PeerProtocol | None = None  # while it has a transport of asyncio
        self._timer: asyncio.TimerHandle | None = None
        self._is_older = False
        self._ticks = 0  # since something came
        self._has_sent = False  # since the last tick
        self._is_reading = True
        self._signs = True  # this side sends signs of life
        self._expects = True  # the other side sends them
        self._messages: deque[bytes] = deque()
        self._unread = 0  # bytes of them
        self._news = asyncio.Event()  # a message, room, or the end

    def protocol(self) -> PeerProtocol:
        """Its protocol for a new transport of asyncio."""
        self._protocol = PeerProtocol(self)
        return self._protocol

    def serve_in_rounds(self) -> None:
        """Read and write the socket in the rounds of the event loop from now on (``net/peers/peer_socket.py``), if the
        event loop has rounds. A connection with TLS, or with bytes to write, keeps its transport of asyncio."""
        sockets = client_sockets(asyncio.get_running_loop())
        transport, protocol = self._transport, self._protocol
        if sockets is None or protocol is None or self.reason or transport.is_closing():
            return
        if transport.get_extra_info("sslcontext") is not None or transport.get_write_buffer_size() != 0:
            return
        sock = transport.get_extra_info("socket").dup()
        self._protocol = None
        protocol.user = None
        transport.abort()  # closes its own descriptor only
        self._transport = PeerSocket(sockets, self, sock, WRITE_BYTES)

    # Calls of the event loop

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.peer = str(transport.get_extra_info("peername"))
        self._transport.set_write_buffer_limits(WRITE_BYTES)
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._tick)

    def data_received(self, data: bytes) -> None:
        if self.reason:
            return
        self._ticks = 0
        try:
            messages = self._wire.feed(data)
        except WireError as error:
            self._is_older = isinstance(error, OlderError)
            self.abort(str(error))
            return
        for message in messages:
            receive = self.receive
            if self.reason:  # ``receive`` has ended it
                return
            if receive is not None:
                receive(message)
            else:
                self._messages.append(message)
                self._unread += len(message)
        if self._wire.reason is not None:
            self.was_refused = True
            self.abort(one_line(self._wire.reason))
            return
        if self.receive is None and messages:
            if self._unread > UNREAD_BYTES:
                self._pause()
            self._news.set()

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        if self._protocol is not None:
            self._protocol.user = None
            self._protocol = None
        self.has_room = False
        # uvloop does not call ``eof_received`` at the end of TLS without a close_notify, as of a killed process
        self.by_fin = error is None and not self.reason
        self.reason = self.reason or (one_line(str(error)) if error is not None else CLOSED)
        self._news.set()
        on_end = self.on_end
        self.receive = self.on_room = self.on_end = None  # they refer to this connection
        if on_end is not None:
            on_end()

    def pause_writing(self) -> None:
        self.has_room = False

    def resume_writing(self) -> None:
        self.has_room = not self.reason
        self._news.set()
        if self.on_room is not None:
            self.on_room()

    # Calls of its user

    def set_limit(self, limit: int) -> None:
        """Bytes of a received message from now on."""
        self._wire.limit = limit

    def only_hear(self) -> None:
        """Send no signs of life, so that nothing is unread when the other process ends."""
        self._signs = False

    def only_sign(self) -> None:
        """The other side sends nothing: its system alone shows that it is there, by what it acknowledges."""
        self._expects = False
        option = getattr(socket, "TCP_USER_TIMEOUT", None)
        if option is not None and self._transport is not None:
            self._set_option(socket.IPPROTO_TCP, option, round(TICKS_MAX * self._interval * 1000))

    @property
    def is_of_older_node(self) -> bool:
        """Whether HTTP/2 has come in place of messages."""
        return self._is_older or self._wire.is_settings()

    def send(self, message: bytes) -> None:
        """Send a message, whether or not there is room."""
        if not self.reason and self._transport is not None:
            self._has_sent = True
            self._transport.write(framed(message))

    async def write(self, message: bytes) -> None:
        """Send one message when there is room. Raises PeerConnectionLost."""
        while not self.has_room and not self.reason:
            await self._until_news()
        if self.reason:
            raise PeerConnectionLost(self.reason)
        self.send(message)

    async def read(self) -> bytes | None:
        """The next message; None: the other side closed the connection in order. Raises PeerConnectionLost."""
        while not self._messages:
            if self.reason:
                if self.by_fin:
                    return None
                raise PeerConnectionLost(self.reason)
            await self._until_news()
        message = self._messages.popleft()
        self._took(len(message))
        return message

    def arrived(self) -> list[bytes]:
        """The messages that could be read without waiting."""
        messages = list(self._messages)
        self._messages.clear()
        self._took(sum(map(len, messages)))
        return messages

    def _took(self, size: int) -> None:
        self._unread -= size
        if not self._is_reading and self._unread <= UNREAD_BYTES // 2:
            self._resume()

    async def until_ended(self) -> None:
        while not self.reason:
            await self._until_news()

    def end(self, reason: str) -> None:
        """Close it after what was sent, and tell the other side why; "": without a reason."""
        if self.reason or self._transport is None:
            return
        if reason:
            self._transport.write(ending(reason))
        self.reason = reason or "this node closed the connection"
        self._transport.close()
        self._news.set()

    def abort(self, reason: str) -> None:
        """Close it at once, by RST: FIN is left to processes that end (net/peers/process_watch.py)."""
        if not self.reason:
            self.reason = reason
            self._news.set()
        if self._transport is not None:
            self._set_option(socket.SOL_SOCKET, socket.SO_LINGER, RESETS)
            self._transport.abort()

    def _set_option(self, level: int, option: int, value: int | bytes) -> None:
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            with suppress(OSError):  # it has ended
                sock.setsockopt(level, option, value)

    async def _until_news(self) -> None:
        self._news.clear()
        await self._news.wait()

    def _pause(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._transport.pause_reading()

    def _resume(self) -> None:
        self._is_reading = True
        self._ticks = 0
        if not self.reason:
            self._transport.resume_reading()

    def _tick(self) -> None:
        if self._signs and not self._has_sent and not self._transport.is_closing():
            self._transport.write(SIGN_OF_LIFE)
        self._has_sent = False
        if (self._is_reading and self._expects) or self.reason:  # the socket is not read after the end
            self._ticks += 1
            if self._ticks > TICKS_MAX:
                self.abort(SILENT)
                return
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._tick)


def one_line(text: str) -> str:
    words = " ".join(text[:1000].split())
    return "".join(letter if letter.isprintable() else "?" for letter in words)[:300]
