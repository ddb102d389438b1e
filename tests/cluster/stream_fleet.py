"""Nodes of one cluster with JetStream, without a network or a disk: streams are in memory, their clients anywhere."""

from __future__ import annotations

import json
from typing import Any

from tests.cluster.fleet import Fleet, NodeWorld
from tests.nats.talk import Msg, NatsPeer, connect

from starlingmq.core.context.ready import Ready, SystemRequest
from starlingmq.node.jetstream_opening import open_jetstream


class DriverOfWorld:
    """The part of a driver that JetStream uses."""

    def __init__(self, node: NodeWorld) -> None:
        self.state = node.state
        self.on_request: Any = None
        self.asked = False
        self._node = node

    def clock(self) -> float:
        return self._node.fleet.now

    def request_turn(self) -> None:
        self.asked = True


class StreamNode(NodeWorld):
    def __init__(self, fleet: Fleet, name: str, **settings: Any) -> None:
        super().__init__(fleet, name, **settings)
        self.driver = DriverOfWorld(self)
        driver: Any = self.driver
        open_jetstream(driver, self.make_admin(), self.cluster)

    def make_admin(self) -> Any:
        """None: streams are in memory."""
        return None

    def carry_out(self, ready: Ready) -> None:
        requests: list[SystemRequest] = ready.requests[:]
        super().carry_out(ready)
        for request in requests:
            self.driver.on_request(request)

    def turn(self) -> bool:
        asked, self.driver.asked = self.driver.asked, False
        return super().turn() or asked or self.driver.asked


class StreamFleet(Fleet):
    kind: type[StreamNode] = StreamNode


class JetStreamPeer:
    """A NATS client that asks JetStream."""

    def __init__(self, fleet: Fleet, place: int, name: str = "") -> None:
        self.fleet = fleet
        self.peer: NatsPeer = connect(fleet[place])
        self.inbox = f"_INBOX.{name or place}-{len(fleet[place].clients)}"
        self.messages: list[Msg] = []
        self._asked = 0
        self._answers: dict[str, Msg] = {}
        self.peer.send(f"SUB {self.inbox}.* 1", f"SUB {self.inbox} 2")

    def ask(self, subject: str, content: object = b"", seconds: float = 5.0) -> Any:
        """The JSON of the answer of the API, or of a PubAck; None: none came in time."""
        reply = self.request(subject, content)
        if not self.wait(lambda: reply in self._answers, seconds):
            return None
        answer = self._answers[reply]
        return json.loads(answer.payload) if answer.payload else answer

    def api(self, subject: str, content: object = b"", seconds: float = 5.0) -> Any:
        return self.ask(f"$JS.API.{subject}", content, seconds)

    def request(self, subject: str, content: object = b"", headers: str = "") -> str:
        """Returns the reply subject."""
        self._asked += 1
        reply = f"{self.inbox}.{self._asked}"
        payload = content if isinstance(content, bytes) else json.dumps(content).encode()
        if headers:
            self.peer.hpub(subject, headers, payload, reply)
        else:
            self.peer.pub(subject, payload, reply)
        return reply

    def answer(self, reply: str) -> Msg | None:
        self.look()
        return self._answers.get(reply)

    def wait(self, done: Any, seconds: float) -> bool:
        end = self.fleet.now + seconds
        self.look()
        while not done() and self.fleet.now < end:
            self.fleet.advance(0.02)
            self.look()
        return bool(done())

    def look(self) -> None:
        for each in self.peer.heard():
            if isinstance(each, Msg):
                if each.sid == "1" and each.subject.startswith(self.inbox):
                    self._answers[each.subject] = each
                else:
                    self.messages.append(each)

    def pull(self, stream: str, consumer: str, batch: int, seconds: float = 2.0) -> list[Msg]:
        """Up to ``batch`` messages."""
        self.look()
        self.messages.clear()
        asked = json.dumps({"batch": batch, "expires": int(seconds * 1e9)}).encode()
        self.peer.pub(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", asked, self.inbox)
        self.wait(lambda: len(self.messages) >= batch, seconds + 1.0)
        return [each for each in self.messages if each.reply]

    def make(self, name: str, *subjects: str, **config: Any) -> Any:
        return self.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": subjects, "storage": "memory"} | config)

    def consume(self, stream: str, name: str, **config: Any) -> Any:
        settings = {"durable_name": name, "ack_policy": "explicit"} | config
        return self.api(f"CONSUMER.DURABLE.CREATE.{stream}.{name}", {"stream_name": stream, "config": settings})
