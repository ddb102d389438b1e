"""A NATS client without a network: bytes go straight into the core, and what the core says is read frame by frame."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tests.harness import FakeClient, World

from starlingmq.wire.mqtt import Suback, Subscribe, SubscribeRequest

LISTENER = "nats://127.0.0.1:4222"


def subscribe(client: FakeClient, filter: str, qos: int = 0) -> None:
    """Of an MQTT client."""
    client.send(Subscribe(1, [SubscribeRequest(filter.encode(), qos)]))
    assert client.expect(Suback).reasons == [qos]


class Msg(NamedTuple):
    subject: str
    sid: str
    payload: bytes
    reply: str = ""
    headers: str = ""  # the lines without the first and the last


def frames(data: bytes) -> list[str | Msg]:
    """The server's frames: messages, and every other frame as its line. AssertionError for half a frame."""
    found: list[str | Msg] = []
    while data:
        line, end, data = data.partition(b"\r\n")
        assert end, "half a line"
        words = line.decode(errors="surrogateescape").split(" ")  # a sid may be any bytes
        if words[0] not in ("MSG", "HMSG"):
            found.append(line.decode(errors="surrogateescape"))
            continue
        total = int(words[-1])
        head = int(words[-2]) if words[0] == "HMSG" else 0
        assert len(words) in ((4, 5) if words[0] == "MSG" else (5, 6)), line
        reply = words[3] if len(words) == (5 if words[0] == "MSG" else 6) else ""
        body, data = data[:total], data[total:]
        assert len(body) == total and data.startswith(b"\r\n"), "half a message"
        data = data[2:]
        headers = body[:head].decode()
        if headers:
            assert headers.startswith("NATS/1.0") and headers.endswith("\r\n\r\n")
            headers = headers.removeprefix("NATS/1.0").removeprefix("\r\n").removesuffix("\r\n\r\n")
        found.append(Msg(words[1], words[2], body[head:], reply, headers))
    return found


class NatsPeer:
    """One end of a NATS connection. ``info`` is what the server said first."""

    def __init__(self, world: World, listener: str = LISTENER) -> None:
        self.world = world
        self.client = world.state.open(listener, f"peer:{len(world.clients)}", world.now)
        self.fake = FakeClient(world, self.client, 0, "")
        world.clients.append(self.fake)
        world._by_client[self.client] = self.fake
        self._seen = 0
        world.run()
        first = self.heard()
        self.info: dict[str, Any] = {}
        if first and isinstance(first[0], str) and first[0].startswith("INFO "):
            self.info = json.loads(first[0][5:])
            self._rest = first[1:]

    @property
    def closed(self) -> bool:
        return self.fake.closed

    def send(self, *lines: str | bytes) -> NatsPeer:
        """Lines, each with its end, in one read."""
        self.send_raw(b"".join((line if isinstance(line, bytes) else line.encode()) + b"\r\n" for line in lines))
        return self

    def send_raw(self, data: bytes) -> None:
        self.fake.send(data)

    def heard(self) -> list[str | Msg]:
        """Everything since the last look."""
        data = self.fake.output[self._seen :]
        self._seen = len(self.fake.output)
        return frames(data)

    def said(self, *lines: str | bytes) -> list[str | Msg]:
        self.send(*lines)
        return self.heard()

    def pub(self, subject: str, payload: bytes = b"", reply: str = "") -> None:
        words = " ".join(word for word in (subject, reply, str(len(payload))) if word)
        self.send(f"PUB {words}", payload)

    def hpub(self, subject: str, headers: str, payload: bytes = b"", reply: str = "") -> None:
        block = f"NATS/1.0\r\n{headers}\r\n\r\n".encode()
        words = " ".join(word for word in (subject, reply, str(len(block)), str(len(block) + len(payload))) if word)
        self.send(f"HPUB {words}", block + payload)


def connect(world: World, **options: object) -> NatsPeer:
    """A client that is in, quiet unless ``verbose`` is given."""
    peer = NatsPeer(world)
    options.setdefault("verbose", False)
    options.setdefault("pedantic", False)
    options.setdefault("headers", True)
    options.setdefault("no_responders", True)
    peer.send("CONNECT " + json.dumps(options), "PING")
    answer = peer.heard()
    assert answer[-1:] == ["PONG"], answer
    return peer
