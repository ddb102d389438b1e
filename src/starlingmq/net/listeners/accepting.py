"""Accepting: from a listening socket to a protocol object; all limits are checked before anything else happens.

1. ``accept``. Without descriptors for clients the socket is closed, and accepting pauses
   (``net/listeners/descriptors.py``).
2. The connection is counted, or closed (``net/listeners/connection_counts.py``).
3. With ``proxy_protocol``, the header of the proxy is read, and the connection counts for the client's address.
4. TLS, within the time for a handshake (``net/listeners/tls_handshake.py``). Handshakes take turns; while many wait,
   accepting pauses (``net/listeners/handshake_queue.py``).
5. ``connection_made``, or ``ClientSocket.open`` where the event loop serves clients' sockets itself. From now on the
   protocol object leaves the gate, in its ``connection_lost``.

A connection that waits between 2 and 5 is a task of the ``Acceptor``, which ends it when the listener is closed. The
servers of asyncio and uvloop count nothing before 5, and cannot pause.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final, Protocol

from starlingmq.net.broker_loop import client_sockets
from starlingmq.net.listeners.listener_gate import ListenerGate
from starlingmq.net.listeners.proxy_protocol import ProxyError, ProxyHeader, parse
from starlingmq.net.listeners.tls_handshake import HandshakeError, Secured, TlsBuffers, explained, handshake, linger
from starlingmq.net.tls_handshake_socket import Ended, HandshakeSocket

log = logging.getLogger("starlingmq")

ACCEPTS_PER_TURN: Final = 64  # of one socket per turn of the event loop: about two milliseconds
HANDSHAKE_SECONDS: Final = 0.001  # of CPU time, where the event loop makes the handshake itself
TLS_CLOSE_TIMEOUT: Final = 5.0
"""Seconds that a closing TLS connection waits for the close of its peer."""

# errors of one connection: the next accept(2) may succeed
_GONE: Final = (errno.ECONNABORTED, errno.EPROTO, errno.EPERM)


class Arriving(Protocol):
    """A protocol object; ``made`` is True from ``connection_made`` on."""

    made: bool


Adopt = Callable[[socket.socket, str, int, Secured | None], Arriving]


class _Arrival:
    """A counted connection without a protocol object."""

    __slots__ = ("exempt", "full", "peer", "protocol", "sock")

    def __init__(self, sock: socket.socket, peer: str, exempt: bool) -> None:
        self.sock = sock
        self.peer = peer
        self.exempt = exempt
        self.full = 0
        self.protocol: Arriving | None = None

    @property
    def made(self) -> bool:
        return self.protocol is not None and self.protocol.made


class Acceptor:
    """Accepts on the sockets of one listener. ``make`` gets the peer, and the reason code for its refusal, or 0.
    ``adopt`` gets the socket too, and opens a connection without a transport of asyncio; None: not on this event loop.

    ``context`` may be replaced at any time. ``handshake_timeout`` is in seconds.
    """

    def __init__(
        self,
        sockets: Iterable[socket.socket],
        gate: ListenerGate,
        make: Callable[[str, int], Any],
        context: ssl.SSLContext | None,
        handshake_timeout: float,
        adopt: Adopt | None = None,
    ) -> None:
        self.gate = gate
        self.context = context
        self._sockets = list(sockets)
        self._make = make
        self._adopt = adopt
        self._handshake_timeout = handshake_timeout
        self._buffers: TlsBuffers | None = None  # made for the first connection with TLS
        self._loop = asyncio.get_running_loop()
        self._arriving: dict[asyncio.Task[None], _Arrival] = {}
        self._handshakes: dict[_Arrival, HandshakeSocket] = {}  # those without a task

    def open(self) -> None:
        """Begin to accept."""
        self.gate.admission.descriptors.add(self)

    def close(self) -> None:
        """Stop accepting, and end unfinished connections. Finished ones stay. May be called again."""
        self.gate.admission.descriptors.remove(self)
        self.gate.admission.handshakes.remove(self)
        self.pause()
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()
        for task, arrival in self._arriving.items():
            if not arrival.made:  # otherwise uvloop would close it without notice
                task.cancel()
        for under_way in list(self._handshakes.values()):
            under_way.abort()

    def pause(self) -> None:
        for sock in self._sockets:
            self._loop.remove_reader(sock.fileno())

    def resume(self) -> None:
        for sock in self._sockets:
            self._loop.add_reader(sock.fileno(), self._accept, sock)

    def accept_again(self) -> None:
        """Fewer handshakes wait."""
        if not self.gate.admission.descriptors.paused:
            self.resume()

    def _accept(self, listening: socket.socket) -> None:
        descriptors = self.gate.admission.descriptors
        for _ in range(ACCEPTS_PER_TURN):
            if self.context is not None and self.gate.admission.handshakes.hold(self):
                return
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _GONE:
                    continue
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    log.error("%s: cannot accept connections: %s", self.gate.name, error.strerror or error)
                descriptors.ran_out()  # whatever the error is, trying again at once could loop forever
                return
            descriptor = sock.fileno()
            if descriptors.allow(descriptor):
                self._arrive(sock, _peer(address))
            else:
                sock.close()
                self.gate.refuse("descriptors")
            if not descriptors.allow(descriptor + 1):
                descriptors.ran_out()
                return

    def _arrive(self, sock: socket.socket, peer: str) -> None:
        gate = self.gate
        behind_proxy = bool(gate.proxies)
        if behind_proxy and not gate.is_proxy(peer):
            gate.refuse(
                "not_a_proxy",
                peer,
                "its address is not in listeners[].proxy_protocol, so it may not send a PROXY header",
            )
            sock.close()
            return
        exempt = behind_proxy or gate.exempts(peer)
        if not gate.enter(peer, exempt):
            sock.close()
            return
        arrival = _Arrival(sock, peer, exempt)
        arrival.full = gate.full(peer, exempt)
        if self._adopt is not None and not behind_proxy:
            if self.context is None:
                self._adopted(self._adopt, arrival, None)
            else:
                self._shake_hands(arrival, partial(self._secured, self._adopt, arrival))
            return
        if behind_proxy:
            self._begin(arrival, self._behind_proxy(arrival))
        else:
            self._begin(arrival, self._plain(arrival) if self.context is None else self._secure(arrival))

    def _begin(self, arrival: _Arrival, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._arriving[task] = arrival
        task.add_done_callback(partial(self._arrived, arrival))

    def _shake_hands(self, arrival: _Arrival, ended: Ended) -> None:
        sockets = client_sockets(self._loop)
        assert sockets is not None and self.context is not None
        arrival.sock.setblocking(False)
        queue = self.gate.admission.handshakes
        if self._buffers is None:
            self._buffers = TlsBuffers()
        under_way = HandshakeSocket(sockets, arrival.sock, self.context, self._buffers, queue, ended)
        self._handshakes[arrival] = under_way
        under_way.begin(self._handshake_timeout)

    def _secured(self, adopt: Adopt, arrival: _Arrival, secured: Secured | None, error: Exception | None) -> None:
        """Its handshake has ended."""
        del self._handshakes[arrival]
        if error is None:
            self._adopted(adopt, arrival, secured)
        elif isinstance(error, ssl.SSLError):
            self._begin(arrival, _refused(arrival.sock, error))
        else:
            self._settle(arrival, explained(error))

    def _adopted(self, adopt: Adopt, arrival: _Arrival, secured: Secured | None) -> None:
        """Open a connection for which nothing is waited."""
        error: BaseException | None = None
        try:
            arrival.protocol = adopt(arrival.sock, arrival.peer, arrival.full, secured)
        except Exception as raised:
            error = raised
        self._settle(arrival, error)

    def _arrived(self, arrival: _Arrival, task: asyncio.Task[None]) -> None:
        del self._arriving[task]
        self._settle(arrival, None if task.cancelled() else task.exception())

    def _settle(self, arrival: _Arrival, error: BaseException | None) -> None:
        if not arrival.made:
            arrival.sock.close()
            self.gate.leave(arrival.peer, arrival.exempt)
        if isinstance(error, HandshakeError):
            self.gate.refuse(error.reason, arrival.peer if error.detail else "", error.detail)
        elif error is not None and not isinstance(error, OSError):  # the connection is closed already
            log.error("%s: opening a connection failed; the connection is closed", self.gate.name, exc_info=error)

    def _protocol(self, arrival: _Arrival) -> Any:
        arrival.protocol = self._make(arrival.peer, arrival.full)
        return arrival.protocol

    async def _behind_proxy(self, arrival: _Arrival) -> None:
        gate = self.gate
        try:
            async with asyncio.timeout(self._handshake_timeout):
                header = await self._header(arrival.sock)
        except TimeoutError:
            gate.refuse("proxy_header", arrival.peer, "no PROXY header within mqtt.connect_timeout")
            return
        except ProxyError as error:
            gate.refuse("proxy_header", arrival.peer, str(error))
            return
        if header is None:
            return
        peer = header.peer or arrival.peer
        if not gate.exempts(peer):
            if not gate.reveal(peer):
                return
            arrival.exempt = False
            arrival.full = gate.full(peer)
        arrival.peer = peer
        await (self._plain(arrival) if self.context is None else self._secure(arrival))

    async def _header(self, sock: socket.socket) -> ProxyHeader | None:
        """The header of a proxy, without any byte after it; None if the connection ends before, as a probe's may.
        Raises ProxyError."""
        sock.setblocking(False)
        data = b""
        while True:
            header = parse(data)
            if isinstance(header, ProxyHeader):
                return header
            more = await self._loop.sock_recv(sock, header)
            if not more:
                return None
            data += more

    async def _plain(self, arrival: _Arrival) -> None:
        if self._adopt is not None:
            arrival.protocol = self._adopt(arrival.sock, arrival.peer, arrival.full, None)
            return
        await self._loop.connect_accepted_socket(partial(self._protocol, arrival), arrival.sock)

    async def _secure(self, arrival: _Arrival) -> None:
        if self._adopt is not None:
            future: asyncio.Future[Secured] = self._loop.create_future()
            self._shake_hands(arrival, partial(_settle_future, future))
            try:
                secured = await future
            except ssl.SSLError as error:
                await _refused(arrival.sock, error)
            except OSError as error:
                raise explained(error) from None
            else:
                arrival.protocol = self._adopt(arrival.sock, arrival.peer, arrival.full, secured)
            finally:
                self._handshakes.pop(arrival).abort()
            return
        await self.gate.admission.handshakes.run(_nothing, HANDSHAKE_SECONDS)
        upgrade = self._loop.connect_accepted_socket(
            partial(self._protocol, arrival),
            arrival.sock,
            ssl=self.context,
            ssl_handshake_timeout=self._handshake_timeout,
            ssl_shutdown_timeout=TLS_CLOSE_TIMEOUT,
        )
        await handshake(upgrade, arrival.sock)


async def _refused(sock: socket.socket, error: ssl.SSLError) -> None:
    """The alert is sent: wait until the client has read it. Raises HandshakeError."""
    await linger(sock)
    raise explained(error) from None


def _settle_future(future: asyncio.Future[Secured], secured: Secured | None, error: Exception | None) -> None:
    if future.done():
        return
    if secured is not None:
        future.set_result(secured)
    else:
        future.set_exception(error or ConnectionResetError())


def _nothing() -> None:
    """The event loop does it later."""


def _peer(address: Any) -> str:
    """``host:port`` of the peer, IPv6 in brackets; ``unix`` if there is no address."""
    if not isinstance(address, tuple):
        return "unix"
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
