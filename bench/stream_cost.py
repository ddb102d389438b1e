"""The cost of a message of a stream with NATS: ``python -m bench.stream_cost``, beside nats-server with file storage.

Three loads over plain sockets, whose own cost is not part of the figures: publications that are acknowledged (a window
of them at once), a pull consumer with batches of 100 and explicit acknowledgements, and a key-value bucket that is put
to and read at a given rate. The figure is the broker's processor time for a message, or latency.
"""

from __future__ import annotations

import argparse
import json
import socket
import time
from collections.abc import Iterator
from typing import Any, Final

from bench.peers import Broker, started
from bench.process import scheduled_seconds

PAYLOAD: Final = b"x" * 128
BATCH: Final = 100
CRLF: Final = b"\r\n"


class Connection:
    """A NATS connection that does nothing but what it is told."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rest = b""
        self.ahead = 0  # marks that have come beyond those that were counted
        self.until(CRLF)
        self.send(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nPING\r\n')
        self.until(b"PONG\r\n")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def until(self, mark: bytes) -> bytes:
        while mark not in self.rest:
            self.receive()
        found, _, self.rest = self.rest.partition(mark)
        return found

    def receive(self) -> None:
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the broker has closed the connection")
        self.rest += data

    def counted(self, mark: bytes, count: int) -> bytes:
        """Receive until ``mark`` has come ``count`` times more. Returns all that came, which may have some of the next
        ones."""
        found = self.rest
        have = self.ahead + found.count(mark)
        parts = [found]
        while have < count:
            self.rest = b""
            self.receive()
            tail = parts[-1][-len(mark) + 1 :] + self.rest
            have += tail.count(mark)
            parts.append(self.rest)
        self.rest = b""
        self.ahead = have - count
        return b"".join(parts)

    def ask(self, subject: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
        body = b"" if request is None else json.dumps(request).encode()
        self.send(b"SUB _R.1 9\r\nUNSUB 9 1\r\nPUB %b _R.1 %d\r\n%b\r\n" % (subject.encode(), len(body), body))
        head = self.until(CRLF).split(b" ")
        while head[0] != b"MSG":
            head = self.until(CRLF).split(b" ")
        size = int(head[-1])
        while len(self.rest) < size + 2:
            self.receive()
        answer: dict[str, Any] = json.loads(self.rest[:size])
        self.rest = self.rest[size + 2 :]
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer


def prepared(broker: Broker) -> Connection:
    connection = Connection(broker.port)
    settings = {"name": "S", "subjects": ["s.>"], "storage": "file", "num_replicas": 1}
    connection.ask("$JS.API.STREAM.CREATE.S", settings)
    return connection


def published(broker: Broker, connection: Connection, count: int, window: int) -> float:
    """Seconds of processor time for a message."""
    connection.send(b"SUB _A.* 1\r\n")
    before = scheduled_seconds(broker.pid)
    half = window // 2
    sent = 0
    for at in range(0, count, half):
        connection.send(
            b"".join(
                [b"PUB s.%d _A.%d %d\r\n%b\r\n" % (n % 100, n, len(PAYLOAD), PAYLOAD) for n in range(at, at + half)]
            )
        )
        sent += half
        if sent > half:
            connection.counted(b'"seq":', half)
    connection.counted(b'"seq":', half)
    return (scheduled_seconds(broker.pid) - before) / count


def pulled(broker: Broker, connection: Connection, count: int) -> float:
    consumer = {"durable_name": "c", "ack_policy": "explicit", "deliver_policy": "all", "max_ack_pending": 10_000}
    connection.ask("$JS.API.CONSUMER.DURABLE.CREATE.S.c", {"stream_name": "S", "config": consumer})
    connection.send(b"SUB _P.* 2\r\n")
    before = scheduled_seconds(broker.pid)
    request = json.dumps({"batch": BATCH, "expires": 5_000_000_000}).encode()
    for at in range(0, count, BATCH):
        connection.send(b"PUB $JS.API.CONSUMER.MSG.NEXT.S.c _P.%d %d\r\n%b\r\n" % (at, len(request), request))
        found = connection.counted(PAYLOAD, BATCH)
        replies = [line.split(b" ")[3] for line in found.split(CRLF) if line.startswith(b"MSG ")]
        connection.send(b"".join([b"PUB %b 4\r\n+ACK\r\n" % reply for reply in replies]))
    connection.send(b"PING\r\n")
    connection.until(b"PONG\r\n")
    return (scheduled_seconds(broker.pid) - before) / count


def kept(broker: Broker, connection: Connection, rate: int, seconds: float) -> tuple[float, float]:
    """The 99th percentile of the latency of a put and of a get, in seconds."""
    bucket = {
        "name": "KV_B",
        "subjects": ["$KV.B.>"],
        "max_msgs_per_subject": 1,
        "discard": "new",
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
    }
    connection.ask("$JS.API.STREAM.CREATE.KV_B", bucket)
    connection.send(b"SUB _K.* 3\r\n")
    times: dict[bool, list[float]] = {False: [], True: []}
    begin = time.perf_counter()
    for n, due in enumerate(paced(rate, seconds)):
        while time.perf_counter() - begin < due:
            pass
        key = b"$KV.B.key.%d" % (n // 2 % 1000)
        at = time.perf_counter()
        if n % 2 == 0:
            connection.send(b"PUB %b _K.%d %d\r\n%b\r\n" % (key, n, len(PAYLOAD), PAYLOAD))
            connection.until(b'"seq":')
        else:
            connection.send(b"PUB $JS.API.DIRECT.GET.KV_B.%b _K.%d 0\r\n\r\n" % (key, n))
            connection.until(PAYLOAD)
        times[n % 2 == 1].append(time.perf_counter() - at)
    worst = {kind: sorted(found)[int(len(found) * 0.99)] for kind, found in times.items()}
    return worst[False], worst[True]


def paced(rate: int, seconds: float) -> Iterator[float]:
    for n in range(int(rate * seconds)):
        yield n / rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--peers", default="starlingmq-nats-process,nats-server-jetstream")
    parser.add_argument("--core", type=int, default=0)
    given = parser.parse_args()
    for peer in given.peers.split(","):
        with started(peer, given.core) as broker:
            connection = prepared(broker)
            put = published(broker, connection, given.messages, 1000)
            got = pulled(broker, connection, given.messages)
            puts, gets = kept(broker, connection, 5000, 3.0)
            print(
                f"{peer}: publish {put * 1e6:.2f} us, pull {got * 1e6:.2f} us a message; "
                f"put p99 {puts * 1e6:.0f} us, get p99 {gets * 1e6:.0f} us",
                flush=True,
            )


if __name__ == "__main__":
    main()
