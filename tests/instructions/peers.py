"""The clients of a cell: each one knows what it sends next from what the broker has written to it.

Frames have one fixed size, so a client finds packet ids by arithmetic. Nothing here is counted.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Final

from starlingmq.core.session.session import Client
from starlingmq.wire.mqtt import Connect, Publish, Subscribe, SubscribeRequest, ack_frame, encode

PAYLOAD: Final = b"." * 64
ID_AT: Final = 4 + len("t/000")  # where the packet id stands in a PUBLISH
PUBACK, PUBREC, PUBREL, PUBCOMP = 0x40, 0x50, 0x62, 0x70


class Transport:
    """The broker's output goes to a list."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.write: Callable[[bytes], None] = self.written.append

    def take(self) -> bytes:
        data = b"".join(self.written)
        self.written.clear()
        return data

    def get_extra_info(self, name: str) -> Any:
        return None

    def pause_reading(self) -> None:
        raise AssertionError("a client of a cell is held back: the cell measures something else")


class SocketTransport(Transport):
    """The client's end of a real connection."""

    def __init__(self, end: socket.socket) -> None:
        super().__init__()
        end.setblocking(False)
        self.end = end

    def send(self, data: bytes) -> None:
        self.end.sendall(data)

    def take(self) -> bytes:
        try:
            return self.end.recv(65536)
        except BlockingIOError:
            return b""


class Peer:
    """One client. ``read`` is what it sends in the next turn, ``heard`` gets what the broker wrote in the last one."""

    client: Client
    delivered = 0
    clean = True

    def __init__(self, number: int) -> None:
        self.number = number
        self.transport = Transport()

    def greetings(self) -> list[bytes]:
        """The client's first packets, one read each."""
        return [encode(Connect(4, f"{type(self).__name__}{self.number}", self.clean, 0), 4)]

    def read(self) -> bytes:
        return b""

    def heard(self, data: bytes) -> None:
        pass


class Publisher(Peer):
    """Sends ``burst`` messages a turn, and at QoS 2 releases those of the turn before."""

    def __init__(self, number: int, qos: int, burst: int) -> None:
        super().__init__(number)
        self.qos = qos
        self.burst = burst
        self.first = 1
        self.released = b""

    def read(self) -> bytes:
        ids = range(self.first, self.first + self.burst)
        self.first = 1 if self.first > 20_000 else self.first + self.burst
        topic = f"t/{self.number:03d}".encode()
        frames = [encode(Publish(topic, PAYLOAD, self.qos, False, False, id if self.qos else 0), 4) for id in ids]
        released, self.released = self.released, b""
        return released + b"".join(frames)

    def heard(self, data: bytes) -> None:
        frames = [data[at : at + 4] for at in range(0, len(data), 4)]
        self.released = b"".join(b"\x62" + frame[1:] for frame in frames if frame[0] == PUBREC)
        if self.qos and not self.released and frames:
            assert self.qos == 1 and len(frames) == self.burst, frames


class Subscriber(Peer):
    """Acknowledges in the next turn all that it has got."""

    def __init__(self, number: int, qos: int, topic: int, lasting: bool = False) -> None:
        super().__init__(number)
        self.clean = not lasting
        self.topic = topic
        self.qos = qos
        self.answers = b""

    def greetings(self) -> list[bytes]:
        request = SubscribeRequest(f"t/{self.topic:03d}".encode(), self.qos)
        return [*super().greetings(), encode(Subscribe(1, [request]), 4)]

    def read(self) -> bytes:
        answers, self.answers = self.answers, b""
        return answers

    def heard(self, data: bytes) -> None:
        answers = []
        at = 0
        while at < len(data):
            first = data[at]
            if first & 0xF0 == 0x30:
                self.delivered += 1
                if self.qos:
                    id = data[at + ID_AT] << 8 | data[at + ID_AT + 1]
                    answers.append(ack_frame(PUBACK if self.qos == 1 else PUBREC, id))
            elif first == PUBREL:
                answers.append(ack_frame(PUBCOMP, data[at + 2] << 8 | data[at + 3]))
            at += data[at + 1] + 2
        self.answers = b"".join(answers)


class NatsPublisher(Peer):
    def __init__(self, number: int, burst: int, subject: int = -1) -> None:
        """``subject``: the number of the subject it publishes to; -1: its own."""
        super().__init__(number)
        self.subject = number if subject < 0 else subject
        self.frames = b"PUB t.%03d %d\r\n%b\r\n" % (self.subject, len(PAYLOAD), PAYLOAD) * burst

    def greetings(self) -> list[bytes]:
        return [b'CONNECT {"verbose":false,"pedantic":false}\r\n', b"PING\r\n"]

    def read(self) -> bytes:
        return self.frames


class NatsSubscriber(NatsPublisher):
    """``queue``: the name of its queue group."""

    def __init__(self, number: int, subject: int = -1, queue: bytes = b"") -> None:
        super().__init__(number, 0, subject)
        self.queue = queue

    def greetings(self) -> list[bytes]:
        return [*super().greetings(), b"SUB t.%03d %b 1\r\n" % (self.subject, self.queue)]

    def read(self) -> bytes:
        return b""

    def heard(self, data: bytes) -> None:
        self.delivered += data.count(b"MSG t.")
