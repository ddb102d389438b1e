"""A WebSocket connection, which to the driver is an ordinary transport of MQTT or NATS.

Invariant: ``state`` only ever moves down this list, and the state alone says what bytes mean.

| state | input | ``write`` |
|---|---|---|
| REQUEST | collected until the HTTP request is complete, then answered: OPEN or LINGER | kept: NATS speaks first |
| OPEN | frames; binary payloads go to the driver | one binary frame |
| CLOSING | frames, of which only Close still matters; it ends the connection | nothing |
| LINGER | discarded until the peer closes the connection | nothing |

Frames and MQTT packets are unrelated: a packet may span frames, and a frame may contain several packets [MQTT-6.0.0-2].
Payload is passed on as it arrives, so a frame is never held back until its end, and its announced length costs no
memory. One turn of the event loop handles ``FRAMES_A_TURN`` frames of a connection; further input is not read until the
rest is handled. Time limits: until CONNECT the core's ``connect_timeout`` runs, as for every connection, and it covers
the HTTP request.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from wsproto.frame_protocol import CloseReason, FrameProtocol, Opcode, ParseFailed

from starlingmq.core.limits.address_key import peer_host
from starlingmq.net.listeners.listener_gate import ListenerGate
from starlingmq.net.listeners.socket_connection import ConnectionDriver
from starlingmq.net.listeners.websocket_upgrade import (
    REQUEST_MAX,
    REQUEST_START,
    UpgradeResponse,
    answer,
    not_http,
    request_size,
    too_large,
    too_many,
)

REQUEST: Final = 0
OPEN: Final = 1
CLOSING: Final = 2
LINGER: Final = 3

CLOSE_TIMEOUT: Final = 5.0
"""Seconds that the peer has to read the last output and close the connection."""

FRAMES_A_TURN: Final = 64
"""A frame has at least six bytes, and a read may bring a quarter of a megabyte: tens of thousands of empty frames."""

GO_ON: Final = 0
HUNG_UP: Final = 1
TEXT: Final = 2
BROKEN: Final = 3
MORE: Final = 4


def binary_header(length: int) -> bytes:
    """The header of an unmasked, unfragmented binary frame, as a server sends it (RFC 6455, 5.2)."""
    if length < 126:
        return bytes((0x82, length))
    if length < 65536:
        return b"\x82\x7e" + length.to_bytes(2, "big")
    return b"\x82\x7f" + length.to_bytes(8, "big")


class WebSocketConnection(asyncio.Protocol):
    """One WebSocket connection; also the ``Handle`` that its driver writes to."""

    # fmt: off
    __slots__ = (
        "blocked", "client", "deadline", "driver", "early", "exempt", "frames", "full", "gate", "held",
        "made", "more", "owed_pong", "peer", "request", "resume_handle", "state", "stream",
    )
    # fmt: on

    stream: asyncio.Transport
    frames: FrameProtocol

    def __init__(self, driver: ConnectionDriver, gate: ListenerGate, peer: str, full: int = 0) -> None:
        self.driver = driver
        self.gate = gate
        self.peer = peer
        self.full = full
        self.exempt = gate.exempts(peer)  # until the request names the client
        self.made = False
        self.client: Any = None
        self.state = REQUEST
        self.request = b""
        self.early = b""
        self.blocked = False
        self.owed_pong: bytes | None = None
        self.held = False  # the driver accepts no more for now
        self.more = False  # frames that were read wait for their turn
        self.resume_handle: asyncio.Handle | None = None
        self.deadline: asyncio.TimerHandle | None = None

    # Callbacks of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.stream = cast(asyncio.Transport, transport)
        self.made = True
        self.stream.set_write_buffer_limits(high=self.gate.write_buffer)
        self.client = self.driver.opened(self, self.gate.name, self.peer, self.full)
        if self.gate.identity:
            self.driver.identified(self.client)

    def data_received(self, data: bytes) -> None:
        if self.more:
            self.frames.receive_bytes(data)  # input that TLS had already decrypted when reading was paused
        elif self.state == OPEN:
            self._receive_open(data)
        elif self.state == REQUEST:
            self._receive_request(data)
        elif self.state == CLOSING:
            self._receive_closing(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.state = LINGER
        if self.deadline is not None:
            self.deadline.cancel()
        if self.resume_handle is not None:
            self.resume_handle.cancel()
        self.gate.leave(self.peer, self.exempt)
        if self.client is not None:
            client, self.client = self.client, None
            self.driver.lost(client)

    def pause_writing(self) -> None:
        self.blocked = True
        self.driver.blocked(self.client)

    def resume_writing(self) -> None:
        self.blocked = False
        self._answer_ping()
        self.driver.drained(self.client)

    def pass_to(self, owner: Any) -> None:
        """From now on, bytes and events go there."""
        self.driver = owner

    # Calls of the driver.

    def write(self, data: bytes) -> None:
        if self.state == OPEN:
            self.stream.write(binary_header(len(data)) + data)  # [MQTT-6.0.0-1]
        elif self.state == REQUEST:
            self.early += data

    def can_write_eof(self) -> bool:
        """No: ``close`` ensures the delivery of its last output by the closing handshake."""
        return False

    def write_eof(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        if self.state == OPEN:
            self._close(CloseReason.NORMAL_CLOSURE)
        elif self.state != CLOSING:
            self.stream.close()

    def abort(self) -> None:
        self.state = LINGER
        self.stream.abort()

    def pause_reading(self) -> None:
        self.held = True
        self._flow()

    def resume_reading(self) -> None:
        self.held = False
        self._flow()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.stream.get_extra_info(name, default)

    # REQUEST

    def _receive_request(self, data: bytes) -> None:
        self.request += data
        size = request_size(self.request)
        if size > REQUEST_MAX:
            self._refuse(too_large())
        elif not self.request.startswith(REQUEST_START[: len(self.request)]):
            self._refuse(not_http())
        elif size <= len(self.request):
            rest = self.request[size:]
            self._answer_request(answer(self.request[:size], self.gate, peer_host(self.peer)), rest)

    def _answer_request(self, reply: UpgradeResponse, rest: bytes) -> None:
        if reply.refused:
            self._refuse(reply)
            return
        if self.exempt and not self._reveal(reply.address):
            self.request = b""
            self._last_words(too_many().response)
            return
        self.request = b""
        self.state = OPEN
        self.frames = FrameProtocol(client=False, extensions=[])
        self.stream.write(reply.response)
        if self.early:
            early, self.early = self.early, b""
            self.write(early)
        if rest:
            self._receive_open(rest)

    def _reveal(self, address: str) -> bool:
        """Count for the client's address instead of the proxy's. The port is still that of the proxy's connection."""
        port = self.peer.rpartition(":")[2]
        peer = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
        if not self.gate.reveal(peer):
            return False
        self.peer = peer
        self.exempt = False
        self.driver.readdressed(self.client, peer, self.gate.full(peer))
        return True

    def _refuse(self, reply: UpgradeResponse) -> None:
        self.request = b""
        self.gate.refuse(reply.refused, self.peer, f"{self.gate.name}: {reply.detail}")
        self._last_words(reply.response)

    # OPEN and CLOSING

    def _receive_open(self, data: bytes) -> None:
        payloads: list[bytes] = []
        ending, code = self._read_frames(data, payloads)
        if payloads:
            # One call for all payloads of a read, as with TCP: the driver's work is per read, not per frame.
            self.driver.received(self.client, b"".join(payloads))
        self._answer_ping()
        if ending == MORE:
            self._wait_for_turn()
        elif self.state != OPEN:
            self._finish(ending)
        elif ending == TEXT:
            self.gate.refuse("text_frame", self.peer, f"{self.gate.name}: a text frame; frames must be binary")
            self._close(code)  # [MQTT-6.0.0-1]
            self._finish(ending)
        elif ending == BROKEN:
            self.gate.refuse("bad_frame", self.peer, f"{self.gate.name}: a frame that breaks RFC 6455")
            self._last_words(bytes(self.frames.close(code)))
        elif ending == HUNG_UP:
            self.stream.write(bytes(self.frames.close(code)))
            self._hang_up()

    def _receive_closing(self, data: bytes) -> None:
        ending, _ = self._read_frames(data, [])
        self._finish(ending)

    def _finish(self, ending: int) -> None:
        """Close has been sent: read on for the peer's Close, which may come after a text frame in the same read."""
        if ending == TEXT:
            ending, _ = self._read_frames(b"", [])
        if ending == MORE:
            self._wait_for_turn()
        elif ending != GO_ON:
            self._hang_up()

    def _wait_for_turn(self) -> None:
        self.more = True
        self._flow()

    def _go_on(self) -> None:
        self.resume_handle = None
        if self.held and self.state == OPEN:
            return  # until ``resume_reading``
        self.more = False
        if self.state == OPEN:
            self._receive_open(b"")
        elif self.state == CLOSING:
            self._receive_closing(b"")
        self._flow()

    def _flow(self) -> None:
        """Start or stop reading. States after OPEN read on for the peer's Close, and keep nothing."""
        if self.state == LINGER:
            self.more = False
        held = self.held and self.state <= OPEN
        if self.more and not held and self.resume_handle is None:
            self.resume_handle = asyncio.get_running_loop().call_soon(self._go_on)
        if self.more or held:
            self.stream.pause_reading()
        else:
            self.stream.resume_reading()

    def _read_frames(self, data: bytes, payloads: list[bytes]) -> tuple[int, int]:
        """Collect the payloads in ``data``. Returns what ended the reading, and the status code for the reply."""
        self.frames.receive_bytes(data)
        left = FRAMES_A_TURN
        try:
            for frame in self.frames.received_frames():
                opcode = frame.opcode
                if opcode is Opcode.BINARY:
                    payloads.append(cast(bytes, frame.payload))
                elif opcode is Opcode.PING:
                    # Of several pings only the last needs an answer (RFC 6455, 5.5.3), so pings cost bounded memory.
                    self.owed_pong = cast(bytes, frame.payload)
                elif opcode is Opcode.CLOSE:
                    return HUNG_UP, cast("tuple[int, str]", frame.payload)[0]
                elif opcode is Opcode.TEXT and self.state == OPEN:
                    return TEXT, CloseReason.UNSUPPORTED_DATA
                left -= 1
                if left == 0:
                    return MORE, 0
        except ParseFailed as error:
            return BROKEN, error.code
        return GO_ON, 0

    def _answer_ping(self) -> None:
        if self.owed_pong is not None and self.state == OPEN and not self.blocked:
            pong, self.owed_pong = self.owed_pong, None
            self.stream.write(bytes(self.frames.pong(pong)))

    # Closing

    def _close(self, code: int) -> None:
        """Begin the closing handshake: the peer answers Close with its own, and then the connection is closed."""
        self.state = CLOSING
        self.stream.write(bytes(self.frames.close(code)))
        self._set_deadline()

    def _last_words(self, data: bytes) -> None:
        """Send output that needs no answer, and wait until the peer closes the connection.

        If this side closed first while more input is in flight, the kernel would reset the connection, and the reset
        can overtake ``data``.
        """
        self.state = LINGER
        self.stream.write(data)
        if self.stream.can_write_eof():
            self.stream.write_eof()
            self._set_deadline()
        else:
            self.stream.close()

    def _set_deadline(self) -> None:
        self._flow()
        self.deadline = asyncio.get_running_loop().call_later(CLOSE_TIMEOUT, self.stream.abort)

    def _hang_up(self) -> None:
        self.state = LINGER
        self.stream.close()
