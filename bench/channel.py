"""A client's end of MQTT over plain TCP, TLS, WebSocket or both, written without the package under test."""

from __future__ import annotations

import base64
import os
import socket
import ssl
from typing import Final

from bench.frames import CONNACK, SUBACK, connect, frame_size, subscribe
from bench.wire import ANSWER_TIMEOUT_S, SetupError

SCHEMES: Final = ("mqtt", "mqtts", "ws", "wss")
PATH: Final = "/mqtt"
BINARY: Final = 0x82
MASK: Final = bytes(4)  # allowed, and needs no computation


def client_context() -> ssl.SSLContext:
    """TLS 1.3 without certificate verification and resumption: every handshake is a full one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


class Channel:
    """Blocking until ``loose`` is called."""

    def __init__(self, scheme: str, port: int, context: ssl.SSLContext) -> None:
        self.sock: socket.socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_TIMEOUT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if scheme in ("mqtts", "wss"):
            self.sock = context.wrap_socket(self.sock)
        self.framed = scheme in ("ws", "wss")
        self.raw = b""  # received bytes of an incomplete WebSocket frame
        self.data = b""  # received MQTT
        if self.framed:
            self.upgrade(port)

    def upgrade(self, port: int) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [f"GET {PATH} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Upgrade: websocket", "Connection: Upgrade"]
        lines += [f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Protocol: mqtt", "", ""]
        self.sock.sendall("\r\n".join(lines).encode())
        while b"\r\n\r\n" not in self.raw:
            part = self.sock.recv(4096)
            if not part:
                raise SetupError("the broker closed the connection instead of an upgrade to WebSocket")
            self.raw += part
        head, _, self.raw = self.raw.partition(b"\r\n\r\n")
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise SetupError(f"the upgrade to WebSocket was answered with {head[:40]!r}")

    def send(self, data: bytes | bytearray) -> None:
        if self.framed:
            size = bytes([0x80 | len(data)]) if len(data) < 126 else b"\xfe" + len(data).to_bytes(2, "big")
            data = bytes([BINARY]) + size + MASK + data
        self.sock.sendall(data)

    def receive(self) -> bytes:
        """Return received MQTT bytes; b"" if there is nothing complete yet."""
        try:
            part = self.sock.recv(65_536)
        except (ssl.SSLWantReadError, BlockingIOError):
            return b""
        if not part:
            raise SetupError("the broker closed the connection")
        return self.unframed(part) if self.framed else part

    def unframed(self, part: bytes) -> bytes:
        raw, found = self.raw + part, b""
        while len(raw) >= 2:
            size, at = raw[1] & 127, 2
            if size == 126:
                size, at = int.from_bytes(raw[2:4], "big"), 4
            if len(raw) < at + size:
                break
            found += raw[at : at + size]
            raw = raw[at + size :]
        self.raw = raw
        return found

    def answer(self, kind: int) -> bytes:
        """Return the next frame, which must be of that kind."""
        while not (size := frame_size(self.data)) or len(self.data) < size:
            self.data += self.receive()
        frame, self.data = self.data[:size], self.data[size:]
        if frame[0] != kind or frame[-1] > 2:
            raise SetupError(f"the broker answered {frame[:16].hex()}")
        return frame

    def open(self, client_id: str, topic: str = "") -> None:
        """Send CONNECT, and SUBSCRIBE if there is a topic."""
        self.send(connect(client_id, 4, keep_alive=300))
        self.answer(CONNACK)
        if topic:
            self.send(subscribe(1, [topic], 0, 4))
            self.answer(SUBACK)

    def loose(self) -> None:
        self.sock.setblocking(False)

    def close(self) -> None:
        self.sock.close()
