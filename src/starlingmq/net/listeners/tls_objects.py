"""OpenSSL's objects for connections of event loops that make the handshake themselves (``tls_handshake``).

Imported with the first TLS listener: a subclass of a class of ``ssl`` needs OpenSSL, which a broker without TLS does
not load (``starlingmq.cli.late_imports``).
"""

from __future__ import annotations

import ssl
from typing import Any, Final

from starlingmq.net.listeners.tls_handshake import TlsHandshake, current

RECORDS_MAX: Final = 20 * 1024  # bytes for one read of data: a record of the largest size, and some small ones


class TlsObject(ssl.SSLObject):
    """OpenSSL's side of one connection of an event loop that makes the handshake itself.

    A read of OpenSSL does not return while records without data come, such as changes of keys. Event loops give it up
    to 256 KiB at once, again and again. So a client that sends many of them is disconnected.
    """

    handshake: TlsHandshake | None = None
    incoming: ssl.MemoryBIO

    def read(self, len: int = 1024, buffer: Any = None) -> Any:
        before = self.incoming.pending
        try:
            return super().read(len, buffer)
        finally:
            if before - self.incoming.pending > RECORDS_MAX:
                raise ssl.SSLError(ssl.SSLErrorNumber.SSL_ERROR_SSL, "too many records without data")

    def do_handshake(self) -> None:
        handshake = self.handshake
        if handshake is None:
            super().do_handshake()
            return
        if handshake.failure is not None:
            handshake.discard()
            raise ssl.SSLWantReadError
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            handshake.fail(error)
            raise ssl.SSLWantReadError from None
        self.handshake = None


class ServerContext(ssl.SSLContext):
    """A context whose connections belong to the handshake of the task in which they are made. ``whole_subject``:
    clients are named by the subject of their certificate, not by its common name."""

    whole_subject = False

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **keywords: Any) -> ssl.SSLObject:
        handshake = current.get()
        self.sslobject_class = ssl.SSLObject if handshake is None else TlsObject
        wrapped = super().wrap_bio(incoming, outgoing, *args, **keywords)
        if handshake is not None and isinstance(wrapped, TlsObject):
            wrapped.incoming = handshake.incoming = incoming
            wrapped.handshake = handshake
        return wrapped
