"""Blocking set-up of connections, before anything is measured: connect, subscribe, wait for the answers."""

from __future__ import annotations

import socket

from bench.frames import CONNACK, SUBACK, connect, frame_size, subscribe

ANSWER_TIMEOUT_S = 30.0
PUBLISH = 3
FILTERS_PER_PACKET = 2_000


class SetupError(Exception):
    """A broker refused the set-up, or did not answer in time."""


def open_connection(
    port: int, client_id: str, version: int, persistent: bool = False, login: tuple[str, str] | None = None
) -> socket.socket:
    """Return an accepted MQTT connection, blocking."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_TIMEOUT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(connect(client_id, version, persistent, login))
    answer = read_frame(sock)
    if answer[0] != CONNACK or answer[3] != 0:
        raise SetupError(f"CONNECT was answered with {answer.hex()}")
    return sock


def subscribe_all(sock: socket.socket, filters: list[str], qos: int, version: int) -> None:
    """Subscribes in packets of at most 2,000 filters, one after the other."""
    for start in range(0, len(filters), FILTERS_PER_PACKET):
        part = filters[start : start + FILTERS_PER_PACKET]
        sock.sendall(subscribe(1, part, qos, version))
        check_suback(read_suback(sock), len(part), version)


def read_suback(sock: socket.socket) -> bytes:
    """Return the next SUBACK; a cluster node may send retained messages before it."""
    while (frame := read_frame(sock))[0] >> 4 == PUBLISH:
        pass
    return frame


def check_suback(answer: bytes, count: int, version: int) -> None:
    codes = answer[-count:]
    if answer[0] != SUBACK or max(codes) > 2:
        raise SetupError(f"SUBSCRIBE was answered with {answer[:40].hex()}")


def read_frame(sock: socket.socket) -> bytes:
    """Read exactly one frame, byte by byte, so that no following bytes are taken from the socket."""
    data = bytearray()
    while not (size := frame_size(data)):
        data += read_exactly(sock, 1)
    return bytes(data) + read_exactly(sock, size - len(data))


def read_exactly(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        try:
            part = sock.recv(count - len(data))
        except TimeoutError:
            raise SetupError(f"no answer within {sock.gettimeout()} s") from None
        if not part:
            raise SetupError("the broker closed the connection")
        data += part
    return bytes(data)
