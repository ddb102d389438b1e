"""The part of NATS that the load generator needs: frames of one fixed size, and a blocking set-up of connections."""

from __future__ import annotations

import json
import socket
from typing import Any

import numpy as np

from bench.frames import Bytes
from bench.wire import ANSWER_TIMEOUT_S, SetupError

OPTIONS = json.dumps({"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1})
PING = b"PING\r\n"
PONG = b"PONG\r\n"
LINE_MAX = 65_536


class NatsLayout:
    """PUB and MSG frames of one cell: the same size for all subjects, so that receivers count by arithmetic.

    ``frame`` is the size of a PUB, ``received`` of the resulting MSG, whose sid is 1; ``payload`` is the offset of the
    payload in a MSG.
    """

    qos = 0

    def __init__(self, payload_size: int) -> None:
        self.payload_size = payload_size
        self.frame = len(self.publish(self.topic(0)))
        self.payload = len(f"MSG {self.topic(0)} 1 {payload_size}\r\n")
        self.received = self.payload + payload_size + 2

    def topic(self, number: int) -> str:
        return f"b.{number:07d}"

    def publish(self, subject: str) -> bytes:
        return f"PUB {subject} {self.payload_size}\r\n{'.' * self.payload_size}\r\n".encode()

    def publishes(self, subjects: list[str], count: int) -> Bytes:
        """``count`` frames one after the other, the subjects in turn; shape (count, frame)."""
        rows = np.frombuffer(b"".join(map(self.publish, subjects)), np.uint8).reshape(len(subjects), self.frame)
        return np.ascontiguousarray(np.resize(rows, (count, self.frame)))


class NatsSetup:
    """An accepted connection, blocking. ``close`` hands the socket over for the measurement."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_TIMEOUT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.data = b""
        if not self.line().startswith(b"INFO "):
            raise SetupError("the server did not begin with INFO")
        self.say(f"CONNECT {OPTIONS}")
        self.flush()

    def say(self, line: str) -> None:
        self.sock.sendall(line.encode() + b"\r\n")

    def line(self) -> bytes:
        while b"\r\n" not in self.data:
            more = self.sock.recv(LINE_MAX)
            if not more:
                raise SetupError("the server closed the connection")
            self.data += more
        line, _, self.data = self.data.partition(b"\r\n")
        return line

    def flush(self) -> None:
        """Wait until all earlier commands are executed. Messages are discarded."""
        self.say("PING")
        while (line := self.line()) != b"PONG":
            if line.startswith(b"-ERR"):
                raise SetupError(f"the server said {line.decode()}")

    def request(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request to JetStream's API. Raises SetupError if it is refused."""
        data = json.dumps(body)
        self.say("SUB _INBOX.setup 9\r\nUNSUB 9 1")
        self.say(f"PUB {subject} _INBOX.setup {len(data)}\r\n{data}")
        while not (line := self.line()).startswith(b"MSG _INBOX.setup "):
            if line.startswith((b"-ERR", b"HMSG")):
                raise SetupError(f"{subject} was answered with {line.decode()}")
        answer: dict[str, Any] = json.loads(self.line())
        if "error" in answer:
            raise SetupError(f"{subject}: {answer['error'].get('description')}")
        return answer

    def close(self) -> socket.socket:
        self.flush()
        return self.sock


def subscribed(port: int, subject: str, queue: str = "") -> socket.socket:
    """Return a connection with one subscription that the server has processed."""
    setup = NatsSetup(port)
    setup.say(f"SUB {subject} {queue} 1")
    return setup.close()
