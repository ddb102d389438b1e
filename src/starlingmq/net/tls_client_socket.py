"""A client's socket with TLS, served inside the event loop's ``select`` as plain ones are (``net/client_socket.py``).

What comes is decrypted, and what is written is encrypted, through two buffers that all connections of a listener share;
the descriptor is read and written like a plain one. The rules:

- The buffers are empty between two calls of OpenSSL for different connections. OpenSSL takes all that it is given: a
  record of which a part has come is kept in its own memory. So a connection has no buffers while it is idle.
- OpenSSL never reads the descriptor itself. It would not return while records come that contain no data, such as
  changes of keys, and a client could stop the event loop with them. Each read is limited instead, and the limit is the
  lowest one again after two reads without any data.
- All data of one read is given to the driver together, whether it pauses reading or not.
- Only encrypted bytes wait for the kernel, so OpenSSL never has to repeat a write.
- The end of what is sent is marked (close_notify), after everything that was written. It does not end what is received.
- OpenSSL answers some records by itself (a request for new keys). A client that sends them and does not read the
  answers is aborted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from starlingmq.net.client_owner import ClientOwner
from starlingmq.net.client_socket import PUBACK, READ, READ_MORE, READABLE, WRITABLE, ClientSocket
from starlingmq.net.client_sockets import ClientSockets
from starlingmq.net.listeners.tls_handshake import Secured

if TYPE_CHECKING:
    import socket

    from starlingmq.net.listeners.listener_gate import ListenerGate

log = logging.getLogger("starlingmq")

READ_MOST: Final = 64 * 1024
RECORD: Final = 16 * 1024  # bytes of data in a record, at most
PIECE: Final = 64 * 1024  # encrypted bytes after which they are written
NO_DATA_READS: Final = 2  # in a row, after which the smallest size is read
ANSWERS_MAX: Final = 4 * 1024  # bytes that OpenSSL has answered by itself and that wait for the kernel

_read: Final = os.read


class TlsClientSocket(ClientSocket):
    """One connection whose handshake is complete."""

    def __init__(
        self,
        sockets: ClientSockets,
        owner: ClientOwner,
        gate: ListenerGate,
        sock: socket.socket,
        peer: str,
        secured: Secured,
    ) -> None:
        super().__init__(sockets, owner, gate, sock, peer)
        self._tls: Any = secured.tls
        self._openssl: Any = getattr(secured.tls, "_sslobj", secured.tls)  # the same methods without a call of Python
        self._incoming: Any = secured.buffers.incoming
        self._encrypted: Any = secured.buffers.outgoing
        self._early = secured.early
        if secured.unsent:
            self._outgoing = bytearray(secured.unsent)
        self._without_data = 0  # reads in a row that brought no data
        self._answers = 0  # bytes

    def open(self, driver: Any, full: int) -> None:
        super().open(driver, full)
        early = self._early
        self._early = b""
        if not early or self._gone:
            return
        try:
            self._last = len(early)
            self._decrypt(early)
        except Exception:
            log.exception("internal error in serving a connection; the connection is closed; please report it")
            self.abort()

    def write(self, data: bytes) -> None:
        if self._gone or self._ended or self._closing:
            return
        size = len(data)
        try:
            sent: int = self._openssl.write(data) if size <= RECORD else 0
            if sent < size:
                with memoryview(data) as view:
                    while sent < size:
                        sent += self._openssl.write(view[sent : sent + RECORD])
                        if self._encrypted.pending >= PIECE:
                            super().write(self._encrypted.read())
            super().write(self._encrypted.read())
        except OSError:
            self._discard()
            self.abort()
        except BaseException:
            self._discard()
            raise

    def write_eof(self) -> None:
        if self._gone or self._ended or self._closing:
            return
        self._mark_end()
        super().write_eof()

    def close(self) -> None:
        if self._gone or self._closing:
            return
        if not self._ended:
            self._mark_end()
        super().close()

    def _mark_end(self) -> None:
        with suppress(OSError):  # the client has not marked its own end yet
            self._tls.unwrap()
        super().write(self._encrypted.read())

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name in ("ssl_object", "sslcontext", "peercert"):
            if self._gone:
                return default
            if name == "ssl_object":
                return self._tls
            return self._tls.context if name == "sslcontext" else self._tls.getpeercert()
        return super().get_extra_info(name, default)

    def on_events(self, mask: int) -> None:
        if self._outgoing is not None and mask & WRITABLE != 0:
            self._flush()
        if mask & READABLE == 0:
            return
        if not self._reading:
            if not self._gone:
                self._watch()
            return
        try:
            if self._last < READ or self._without_data >= NO_DATA_READS:
                data = _read(self._descriptor, READ)
            elif self._last < READ_MORE:
                data = _read(self._descriptor, READ_MORE)
            else:
                data = _read(self._descriptor, READ_MOST)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.abort()
            return
        size = len(data)
        if size == 0:
            self.close()
            return
        self._sockets.bytes_read += size
        self._last = size
        self._decrypt(data)

    def _decrypt(self, data: bytes) -> None:
        """Give the driver what is in these bytes, and in a part of a record that came before."""
        size = READ if len(data) <= READ else RECORD
        incoming = self._incoming
        received = b""
        more: list[bytes] = []
        ended = False
        failed = False
        incoming.write(data)
        try:
            while True:
                part: bytes = self._openssl.read(size)
                if len(part) == 0:
                    ended = True
                    break
                if len(received) == 0:
                    received = part
                else:
                    more.append(part)
                if len(part) != size and incoming.pending == 0:
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:  # the client has marked its end after this side has
            ended = True
        except OSError:
            failed = True
        except BaseException:
            self._discard()
            raise
        if ended or failed:
            incoming.read()
        if self._encrypted.pending != 0:
            self._answer()
        if len(received) == 0:
            self._without_data += 1
        else:
            self._without_data = 0
            if more:
                received += b"".join(more)
            if not self._gone:
                self._owner.received(self.client, received)
                if received[0] == PUBACK or self._role != 0:
                    self._note(received[0])
        if failed:
            self.abort()
        elif ended:
            self._reading = False
            asyncio.get_running_loop().call_soon(self.close)  # after the turn, which may answer the last data

    def _discard(self) -> None:
        """Leave nothing of this connection to another one."""
        self._incoming.read()
        self._encrypted.read()

    def _answer(self) -> None:
        """Write what OpenSSL says by itself."""
        answer = self._encrypted.read()
        if self._outgoing is None:
            self._answers = 0
        self._answers += len(answer)
        if self._answers > ANSWERS_MAX:
            self.abort()
        else:
            super().write(answer)
