"""One epoll loop with non-blocking connections: the base of publishers, subscribers and the relay."""

from __future__ import annotations

import select
import socket
import time

import numpy as np

from bench.frames import Bytes

RECEIVE_BYTES = 512 * 1024  # fits into the second-level cache


class Loop:
    """Connections by file descriptor and one receive buffer that all of them share."""

    def __init__(self) -> None:
        self.poll = select.epoll()
        self.connections: dict[int, Connection] = {}
        self.buffer: Bytes = np.zeros(RECEIVE_BYTES, np.uint8)
        self.view = self.buffer.data

    def run_until(self, end: float) -> float:
        """Serves events until ``time.perf_counter()`` passes ``end``; returns the time it then was."""
        connections = self.connections
        while (now := time.perf_counter()) < end:
            for fd, mask in self.poll.poll(end - now, 128):
                connections[fd].ready(mask)
        return now

    def close(self) -> None:
        for connection in self.connections.values():
            connection.sock.close()
        self.poll.close()


class Connection:
    """A socket in the loop. ``rest`` holds the bytes of an incomplete frame, ``out`` bytes that the peer does not
    accept yet.
    """

    def __init__(self, loop: Loop, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.loop = loop
        self.sock = sock
        self.rest = b""
        self.out = bytearray()
        self.mask = select.EPOLLIN
        loop.connections[sock.fileno()] = self
        loop.poll.register(sock.fileno(), self.mask)

    def ready(self, mask: int) -> None:
        if mask & select.EPOLLOUT:
            self.flush()
        if mask & ~select.EPOLLOUT:
            self.receive()

    def receive(self) -> None:
        """Read once into the shared buffer, after the bytes left over, and pass it to ``parse``.

        TCP_QUICKACK is set each time: mosquitto leaves Nagle's algorithm on, and with delayed
        acknowledgements a short window would measure 40 ms timers instead of the broker.
        """
        loop, kept = self.loop, len(self.rest)
        try:
            count = self.sock.recv_into(loop.view[kept:])
        except BlockingIOError:
            return
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        if count == 0:
            raise ConnectionError("the broker closed a connection")
        if kept:
            loop.view[:kept] = self.rest
        end = kept + count
        used = self.parse(loop.buffer, end)
        self.rest = bytes(loop.view[used:end])

    def parse(self, buffer: Bytes, end: int) -> int:
        """Handle the whole frames in ``buffer[:end]``; return their size in bytes."""
        raise NotImplementedError

    def write(self, data: Bytes) -> None:
        """Send as much as the socket accepts and keep the rest."""
        view = data.reshape(-1).data
        if self.out:
            self.out += view
            return
        try:
            sent = self.sock.send(view)
        except BlockingIOError:
            sent = 0
        if sent < len(view):
            self.out += view[sent:]
            self.wait_for(select.EPOLLIN | select.EPOLLOUT)

    def flush(self) -> None:
        try:
            sent = self.sock.send(self.out)
        except BlockingIOError:
            return
        del self.out[:sent]
        if not self.out:
            self.wait_for(select.EPOLLIN)

    def wait_for(self, mask: int) -> None:
        if mask != self.mask:
            self.mask = mask
            self.loop.poll.modify(self.sock.fileno(), mask)
