"""A client's socket with TLS, served inside the event loop's ``select`` as plain ones are (``net/client_socket.py``).

OpenSSL reads and writes the descriptor itself, without buffers between: a record costs a call to read and one to write.

- ``READ`` is the size of the largest record. A read returns one record at most, so OpenSSL never keeps decrypted bytes
  that the poll object does not know of. After a large record, more are read: a sender in full flood sends many.
- OpenSSL may have encrypted a write that the kernel had no room for. It has to be repeated with the same bytes, and may
  have more after them. So bytes wait in order, and are written in pieces of one record.
- A connection that is closed says so (close_notify), and does not wait for the client's answer.
- Half of a connection cannot be closed.
- A client that asks for a new key while it does not read what was sent is aborted: OpenSSL could not answer it.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from starlingmq.net.client_owner import ClientOwner
from starlingmq.net.client_socket import PUBACK, READABLE, RECEIVER, WRITABLE, ClientSocket
from starlingmq.net.client_sockets import ClientSockets

if TYPE_CHECKING:
    from starlingmq.net.listeners.listener_gate import ListenerGate

READ: Final = 16 * 1024
LARGE: Final = 4 * 1024  # bytes in a record after which another one is read
READS_MAX: Final = 16  # in one round


class TlsClientSocket(ClientSocket):
    """One connection whose handshake is complete. It owns ``sock``."""

    def __init__(
        self, sockets: ClientSockets, owner: ClientOwner, gate: ListenerGate, sock: ssl.SSLSocket, peer: str
    ) -> None:
        super().__init__(sockets, owner, gate, sock, peer)
        self._tls: Any = sock

    def write(self, data: bytes) -> None:
        if self._gone or self._ended:
            return
        if self._outgoing is None:
            try:
                sent = self._encrypt(data)
            except OSError:
                self.abort()
                return
            if self._role == RECEIVER:
                self._sockets.awaits_acknowledgements = True
            if sent == len(data):
                return
            data = data[sent:]
        self._keep(data)

    def can_write_eof(self) -> bool:
        return False

    def write_eof(self) -> None:
        raise NotImplementedError

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
        for _ in range(READS_MAX):
            try:
                data: bytes = self._tls.read(READ)
            except ssl.SSLWantReadError:
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
            self._owner.received(self.client, data)
            if data[0] == PUBACK or self._role != 0:
                self._note(data[0])
            if size < LARGE or not self._reading:
                return

    def _send(self, outgoing: bytearray) -> int:
        return self._encrypt(outgoing)

    def _encrypt(self, data: bytes | bytearray) -> int:
        """Write what the kernel has room for; returns the number of bytes. Raises OSError."""
        size = len(data)
        sent = 0
        try:
            if size <= READ:
                sent = self._tls.write(data)
            else:
                with memoryview(data) as view:
                    while sent < size:
                        sent += self._tls.write(view[sent : sent + READ])
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass
        return sent

    def _finish(self) -> None:
        with suppress(OSError, ValueError):
            self._tls.unwrap()
        self.abort()

    def _release(self) -> None:
        self._tls.close()
