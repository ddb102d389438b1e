"""A client's socket until its TLS handshake is complete, served inside the event loop's ``select``
(``net/client_sockets.py``). ``net/tls_client_socket.py`` follows, and has the rules of the two buffers.

A handshake in a task of asyncio cost as much again as its cryptography. Here each message of the client costs a read, a
call of OpenSSL and a write, in the round in which it came.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from starlingmq.net.client_socket import OUT, READABLE, WRITABLE
from starlingmq.net.client_sockets import IN, ClientSockets, PolledSocket
from starlingmq.net.listeners.tls_handshake import Secured, TlsBuffers

if TYPE_CHECKING:
    import socket

    from starlingmq.net.listeners.handshake_queue import HandshakeQueue

RECEIVED: Final = 16 * 1024  # bytes at once

_read: Final = os.read
_write: Final = os.write

Ended = Callable[[Secured | None, Exception | None], None]


class HandshakeSocket(PolledSocket):
    """``ended`` is called once: with the secured connection, within a round, or with an OSError (which includes
    ssl.SSLError and TimeoutError), in a callback of asyncio. The descriptor belongs to the caller before and after it.
    """

    def __init__(
        self,
        sockets: ClientSockets,
        sock: socket.socket,
        context: ssl.SSLContext,
        buffers: TlsBuffers,
        queue: HandshakeQueue,
        ended: Ended,
    ) -> None:
        self._sockets = sockets
        self._descriptor: int = sock.fileno()
        self._buffers = buffers
        self._incoming: Any = buffers.incoming
        self._encrypted: Any = buffers.outgoing
        self._tls: Any = context.wrap_bio(buffers.incoming, buffers.outgoing, server_side=True)
        self._queue = queue
        self._ended = ended
        self._watched = 0  # the events registered with epoll
        self._unsent = b""  # of the last answer
        self._over = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, timeout: float) -> None:
        """The socket must not block."""
        self._sockets.add(self._descriptor, self)
        self._watch(IN)
        self._timer = asyncio.get_running_loop().call_later(timeout, self._expire)

    def _expire(self) -> None:
        self._fail(TimeoutError())

    def is_new(self) -> bool:
        return True  # its CONNECT may come with the end of the handshake

    def is_sending(self) -> bool:
        """Whether a part of an answer waits for the kernel."""
        return len(self._unsent) != 0

    def on_events(self, mask: int) -> None:
        if len(self._unsent) != 0:
            if mask & WRITABLE != 0:
                self._send(self._unsent)
        elif mask & READABLE != 0:
            self._queue.call(self._go_on, self._wait, self._sockets.rounds)

    def _wait(self) -> None:
        """Other handshakes are first."""
        self._watch(0)

    def _go_on(self) -> None:
        """Continue with what has come. The buffers are empty before and after."""
        if self._over:
            return
        try:
            data = _read(self._descriptor, RECEIVED)
        except (BlockingIOError, InterruptedError):
            self._watch(IN)
            return
        except OSError as error:
            self._fail(error)
            return
        if len(data) == 0:
            self._fail(ConnectionResetError())
            return
        self._sockets.bytes_read += len(data)
        complete = False
        failure: Exception | None = None
        self._incoming.write(data)
        try:
            self._tls.do_handshake()
            complete = True
        except ssl.SSLWantReadError:
            pass
        except OSError as error:
            failure = error
        finally:
            early: bytes = self._incoming.read()
            answer: bytes = self._encrypted.read()
        if len(answer) != 0:
            self._send(answer)
        if failure is not None:
            self._fail(failure)  # with an alert as its answer
        elif complete and not self._over:
            self._complete(early)
        elif not self._over and len(self._unsent) == 0:
            self._watch(IN)

    def _complete(self, early: bytes) -> None:
        unsent = self._unsent
        self._end()
        self._ended(Secured(self._tls, self._buffers, early, unsent), None)

    def _send(self, data: bytes) -> None:
        try:
            sent = _write(self._descriptor, data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._fail(error)
            return
        self._unsent = data[sent:]
        self._watch(IN if sent == len(data) else OUT)

    def _fail(self, error: Exception) -> None:
        """Not within a round: the caller closes the descriptor, whose number may then be another connection's."""
        if not self._over:
            self._end()
            asyncio.get_running_loop().call_soon(self._ended, None, error)

    def abort(self) -> None:
        self._fail(ConnectionResetError())

    def _end(self) -> None:
        self._over = True
        self._watch(0)
        self._sockets.remove(self._descriptor)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch(self, wanted: int) -> None:
        watched = self._watched
        if wanted == watched:
            return
        self._watched = wanted
        epoll = self._sockets.epoll
        if watched == 0:
            epoll.register(self._descriptor, wanted)
        elif wanted == 0:
            epoll.unregister(self._descriptor)
        else:
            epoll.modify(self._descriptor, wanted)
