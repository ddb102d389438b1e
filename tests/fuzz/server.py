"""A broker process that is attacked, and what it is held to: it lives, serves sane clients, and logs no traceback."""

from __future__ import annotations

import atexit
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import IO, Final
from urllib.parse import urlsplit

from starlingmq.wire.mqtt import (
    Ack,
    Connack,
    Connect,
    Packet,
    Publish,
    Suback,
    Subscribe,
    SubscribeRequest,
    decode,
    encode,
    frame_length,
)
from starlingmq.wire.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from tests.fuzz.codec import body_start

PATIENCE: Final = 20.0  # seconds until something that was waited for counts as never going to happen
GROWTH_KB: Final = 200 * 1024  # of a broker's memory over any number of episodes
EXCHANGE: Final = "sane/exchange"
SETTINGS: Final = (
    "mqtt.connect_timeout=1s",
    "mqtt.max_session_expiry=5s",
    "mqtt.session_expiry_v3=5s",
    "limits.publisher_hold=100ms",
    "limits.write_buffer=64KiB",
    "limits.retained_messages=100",
    "limits.log_rate=1",
)


class Sane:
    """A client that keeps to the protocol."""

    def __init__(self, port: int, version: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.version = version
        self.data = b""
        self.send(Connect(version, f"sane {version}"))
        assert isinstance(self.receive(), Connack)
        self.send(Subscribe(1, [SubscribeRequest(EXCHANGE.encode(), 2)]))
        assert isinstance(self.receive(), Suback)

    def send(self, packet: Packet) -> None:
        self.socket.sendall(encode(packet, self.version))

    def receive(self) -> Packet:
        while len(self.data) < 2 or not 0 < frame_length(self.data, 0) <= len(self.data):
            data = self.socket.recv(65536)
            assert data, "a sane client was closed"
            self.data += data
        length = frame_length(self.data, 0)
        frame, self.data = self.data[:length], self.data[length:]
        return decode(frame[0], frame, body_start(frame), length, self.version)


class Server:
    """The broker process, with a listener for MQTT and perhaps another one."""

    def __init__(self, listen: Sequence[str] = (), settings: Sequence[str] = ()) -> None:
        self.log: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in ``stop``
        command = [sys.executable, "-m", "starlingmq", "serve", "--listen", "mqtt://127.0.0.1:0"]
        for url in listen:
            command += ["--listen", url]
        for setting in (*SETTINGS, *settings):
            command += ["--set", setting]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        atexit.register(self.process.kill)
        assert self.process.stdout is not None
        word, *addresses = self.process.stdout.readline().split()
        assert word == "ready", self.logged()
        self.port, *self.other_ports = (urlsplit(address).port or 0 for address in addresses)
        self.sane = [Sane(self.port, version) for version in (4, 5)]
        self.sent = 0
        self.memory_kb = self.memory()

    def memory(self) -> int:
        """Resident, in KiB."""
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    def exchange(self, rng: Random) -> None:
        """One publishes, both receive."""
        assert self.process.poll() is None, f"the broker ended:\n{self.logged()}"
        qos = rng.randrange(3)
        self.sent = self.sent % 65535 + 1
        payload = rng.randbytes(8)
        sender = rng.choice(self.sane)
        sender.send(Publish(EXCHANGE.encode(), payload, qos, packet_id=self.sent if qos else 0))
        for client in sorted(self.sane, key=lambda client: client is not sender):
            open_ends = 1 + (client is sender) * (qos != 0)
            while open_ends:
                open_ends -= self.handle(client, client.receive(), payload)
        assert self.memory() - self.memory_kb < GROWTH_KB, "the broker's memory grows"

    def handle(self, client: Sane, packet: Packet, payload: bytes) -> bool:
        """Go on as the protocol asks; whether a message, or a publication, is finished with this packet."""
        if isinstance(packet, Publish):
            assert packet.payload == payload
            if packet.qos:
                client.send(Ack(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id))
            return packet.qos != 2
        assert isinstance(packet, Ack), packet
        assert packet.reason == 0
        if packet.type in (PUBREC, PUBREL):
            client.send(Ack(PUBREL if packet.type == PUBREC else PUBCOMP, packet.packet_id))
        return packet.type != PUBREC

    def check(self) -> None:
        """There is no traceback in its log."""
        logged = self.logged()
        assert "Traceback" not in logged, logged

    def logged(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def stop(self) -> None:
        """Stop it as its supervisor would; it must be able to, and have logged nothing it should not."""
        for client in self.sane:
            client.socket.close()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE) == 0, self.logged()
        assert self.process.stdout is not None
        self.process.stdout.close()
        Server.check(self)
        self.log.close()
        atexit.unregister(self.process.kill)


def finish(rng: Random, connection: socket.socket) -> None:
    """Read or not, then go: politely, by half, or with a reset."""
    with suppress(OSError):
        connection.setblocking(False)
        if rng.random() < 0.5:
            with suppress(BlockingIOError):
                connection.recv(65536)
        if rng.random() < 0.3:
            connection.shutdown(socket.SHUT_WR)
        if rng.random() < 0.3:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
