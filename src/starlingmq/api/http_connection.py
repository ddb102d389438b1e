"""One HTTP connection: uvicorn's HTTP/1.1 protocol with time limits, and with strict request framing.

| awaited | limit |
|---|---|
| the TLS handshake | ``mqtt.connect_timeout`` |
| the head of the first request | ``HEAD_SECONDS`` |
| the first byte of the next one | ``IDLE_SECONDS``, then ``HEAD_SECONDS`` for its head |
| the body | ``BODY_SECONDS`` of ``api.body`` |
| that the client reads the reply | ``WRITE_SECONDS`` without a byte |

Besides, a waiting connection may be closed to make room for a new one (``api.connection_limit``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import count
from typing import Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from starlingmq.api.asgi import HEAD_BYTES_MAX
from starlingmq.api.framing import BoundedConnection, framing_fault
from starlingmq.config.networks import Network

HEAD_SECONDS: Final = 10.0
IDLE_SECONDS: Final = 30
WRITE_SECONDS: Final = 30.0

_quiet = logging.getLogger("starlingmq.http.protocol")
_quiet.setLevel(logging.ERROR)

_order = count()


class HttpConnection(H11Protocol):
    """Created when the connection is accepted: until there is a transport, ``beginning`` is the task of its TLS
    handshake.

    ``address`` is the key for limits per address, and ``leave`` is called at the end. Input of clients is not logged.
    """

    beginning: asyncio.Task[None] | None = None

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        trusted_proxies: tuple[Network, ...],
        address: str,
        leave: Callable[[HttpConnection], None],
    ) -> None:
        super().__init__(config, state, {"trusted_proxies": trusted_proxies})
        self.conn = BoundedConnection(HEAD_BYTES_MAX)
        self.logger = _quiet
        self.access_log = False
        self.address = address
        self._leave = leave
        self._head: asyncio.TimerHandle | None = None  # until the head of the present request is complete
        self._writing: asyncio.TimerHandle | None = None  # while the client does not read the reply
        self._raw = b""  # bytes of the head that is being read
        self._since = next(_order)

    def waits_since(self) -> int | None:
        """The time since when it waits, as a rising number; None while a complete request is handled."""
        cycle = self.cycle
        return self._since if cycle is None or cycle.response_complete or cycle.more_body else None

    def evict(self) -> None:
        if self.transport is not None:
            self.transport.abort()
        elif self.beginning is not None:
            self.beginning.cancel()

    # Callbacks of the transport.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head = self.loop.call_later(HEAD_SECONDS, transport.abort)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        if self.conn.their_state is h11.IDLE:
            self._raw += data
        super().data_received(data)
        if self.cycle is not before:
            self._begun()
        elif self._head is None and (before is None or before.response_complete) and not self.transport.is_closing():
            self._head = self.loop.call_later(HEAD_SECONDS, self.transport.abort)
        self._watch_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_time()
        self._unset_keepalive_if_required()
        self._taken()
        super().connection_lost(exc)
        self._leave(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writing()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._taken()

    # Overrides of uvicorn's protocol.

    def on_response_complete(self) -> None:
        before = self.cycle
        self._since = next(_order)
        self._raw = self.conn.trailing_data[0]  # bytes of the next request, if the client did not wait for the reply
        super().on_response_complete()
        if self.cycle is not before:
            self._begun()
        self._watch_writing()

    def timeout_keep_alive_handler(self) -> None:
        """``_watch_writing`` handles a client that has not read the last reply."""
        if self._unwritten():
            self._watch_writing()
        else:
            super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """Sends a response only where one may begin: when a body turns out to be invalid, its request may have been
        answered."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # further output of the application is not sent
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            # Without a body, because for h11 this may still be the reply to a HEAD request.
            headers = [(b"connection", b"close"), (b"content-length", b"0")]
            response = self.conn.send(h11.Response(status_code=400, headers=headers, reason=b"Bad Request"))
            self.transport.write((response or b"") + (self.conn.send(h11.EndOfMessage()) or b""))
        self.transport.close()

    # Own methods.

    def _begun(self) -> None:
        """A head is complete. Its request is handled from the next turn of the event loop on."""
        self._in_time()
        self.scope["state"]["fault"] = framing_fault(self._raw)
        self._raw = b""

    def _in_time(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _unwritten(self) -> int:
        """Bytes that wait for the client. Nothing waits after an abort; if the reply ends in the same turn, uvicorn
        closes the transport too, and asyncio's transport with TLS has no size then (Python 3.11)."""
        try:
            return self.transport.get_write_buffer_size()
        except AttributeError:
            return 0

    def _watch_writing(self) -> None:
        size = self._unwritten()
        if self._writing is None and (size or self.transport.is_closing()):
            self._writing = self.loop.call_later(WRITE_SECONDS, self._check_writing, size)

    def _check_writing(self, before: int) -> None:
        """Nothing has been written meanwhile: the reply is complete, or its rest waits for ``resume_writing``."""
        self._writing = None
        size = self._unwritten()
        if size < before:
            self._watch_writing()
        elif size or self.transport.is_closing():
            self.transport.abort()

    def _taken(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
