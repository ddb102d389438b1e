"""A minimal broker that measures the load generator's capacity: ``python -m bench.relay --qos Q --version V ...``.

It implements only the MQTT of one cell, knows the frame size in advance, forwards whole blocks to the subscribers of a
publisher's one topic and writes acknowledgements a block at a time. The generator's throughput against it is a lower
bound of the generator's capacity; the relay itself uses the other core, like a broker.
"""

from __future__ import annotations

import argparse
import socket
import time

import numpy as np

from bench.flow import acks, identifiers_at, split
from bench.frames import ACK_SIZE, PUBACK, PUBCOMP, PUBREC, PUBREL, Bytes, Layout, frame_size
from bench.loop import Connection, Loop

SEND_BUFFER_BYTES = 1024 * 1024


class Relay:
    """Subscribers by topic."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.loop = Loop()
        self.topics: dict[bytes, list[Peer]] = {}


class Listener(Connection):
    def __init__(self, relay: Relay, sock: socket.socket) -> None:
        super().__init__(relay.loop, sock)
        self.relay = relay

    def receive(self) -> None:
        sock, _ = self.sock.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        Peer(self.relay, sock)


class Peer(Connection):
    """One client: set-up frame by frame; its first PUBLISH makes it a publisher, SUBSCRIBE a subscriber."""

    def __init__(self, relay: Relay, sock: socket.socket) -> None:
        super().__init__(relay.loop, sock)
        self.relay = relay
        self.receivers: list[Peer] = []
        self.subscribed = False

    def ready(self, mask: int) -> None:
        try:
            super().ready(mask)
        except ConnectionError:
            self.loop.poll.unregister(self.sock.fileno())
            del self.loop.connections[self.sock.fileno()]
            self.sock.close()

    def send_all(self, data: Bytes) -> None:
        """Blocking: the generator always reads, and a full subscriber slows its publishers down."""
        self.sock.settimeout(10.0)
        self.sock.sendall(data.reshape(-1).data)
        self.sock.setblocking(False)

    def parse(self, buffer: Bytes, end: int) -> int:
        if self.receivers:
            return self.forward(buffer, end)
        if self.subscribed:
            return self.acknowledged(buffer, end)
        return self.set_up(bytes(buffer[:end]))

    def set_up(self, data: bytes) -> int:
        size = frame_size(data)
        if not size or size > len(data):
            return 0
        if data[0] == 0x10:
            self.sock.send(b"\x20\x02\0\0" if self.relay.layout.version == 4 else b"\x20\x03\0\0\0")
        elif data[0] == 0x82:
            at = 4 if self.relay.layout.version == 4 else 5
            self.relay.topics.setdefault(data[at + 2 : size - 1], []).append(self)
            self.subscribed = True
            self.sock.send(bytes((0x90, at - 1)) + data[2:at] + data[size - 1 : size])
        else:
            self.receivers = self.relay.topics[data[4 : 4 + self.relay.layout.topic_size]]
            return self.forward(np.frombuffer(data, np.uint8), len(data))
        return size

    def forward(self, buffer: Bytes, end: int) -> int:
        layout = self.relay.layout
        if layout.qos == 2:
            return self.forward_mixed(buffer, end)
        count = end // layout.frame
        used = count * layout.frame
        if layout.qos:
            rows = buffer[:used].reshape(count, layout.frame)
            self.send_all(acks(PUBACK, rows[:, layout.packet_id : layout.packet_id + 2]))
        for receiver in self.receivers:
            receiver.send_all(buffer[:used])
        return used

    def forward_mixed(self, buffer: Bytes, end: int) -> int:
        layout = self.relay.layout
        publishes, releases, used = split(buffer, end, layout)
        if releases.size:
            self.send_all(acks(PUBCOMP, identifiers_at(buffer, releases + 2)))
        if publishes.size:
            self.send_all(acks(PUBREC, identifiers_at(buffer, publishes + layout.packet_id)))
            whole = buffer[:used]
            if releases.size:
                whole = buffer[publishes[:, None] + np.arange(layout.frame)]
            for receiver in self.receivers:
                receiver.send_all(whole)
        return used

    def acknowledged(self, buffer: Bytes, end: int) -> int:
        used = end // ACK_SIZE * ACK_SIZE
        if self.relay.layout.qos == 2:
            rows = buffer[:used].reshape(-1, ACK_SIZE)
            received = rows[rows[:, 0] == PUBREC]
            if len(received):
                self.send_all(acks(PUBREL, received[:, 2:4]))
        return used


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--qos", type=int, required=True)
    parser.add_argument("--version", type=int, default=4)
    parser.add_argument("--payload", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    relay = Relay(Layout(options.qos, options.version, options.payload))
    Listener(relay, socket.create_server(("127.0.0.1", options.port), backlog=256))
    relay.loop.run_until(time.perf_counter() + options.seconds)


if __name__ == "__main__":
    main()
