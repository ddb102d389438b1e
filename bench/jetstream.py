"""A work queue of JetStream under load: ``python -m bench.jetstream`` with a Spec of ``bench.nats_generator`` on stdin.

The stream stores messages in files until a member has acknowledged them. Publishers request JetStream's
acknowledgements and count them; members are a queue group with push delivery, and acknowledge each message. A whole
block of messages is parsed and acknowledged in one step.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from typing import Any

import msgspec
import numpy as np

from bench import generator
from bench.flow import Group, Publisher, Subscriber, UnexpectedBytesError
from bench.frames import Bytes
from bench.loop import Loop
from bench.nats_flow import PONG_BYTES
from bench.nats_frames import PING, NatsLayout, NatsSetup, subscribed
from bench.nats_generator import Outcome, Spec

STREAM = "BENCH"
CONSUMER = "members"
DELIVERY = "bench.delivery"
UNACKNOWLEDGED_MAX = 100_000
STREAM_CONFIG: dict[str, Any] = {
    "name": STREAM,
    "retention": "workqueue",
    "storage": "file",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_age": 0,
    "num_replicas": 1,
    "discard": "old",
}
CONSUMER_CONFIG: dict[str, Any] = {
    "durable_name": CONSUMER,
    "deliver_subject": DELIVERY,
    "deliver_group": CONSUMER,
    "deliver_policy": "all",
    "ack_policy": "explicit",
    "replay_policy": "instant",
    "max_ack_pending": UNACKNOWLEDGED_MAX,
}


class JetLayout(NatsLayout):
    def __init__(self, payload_size: int, publisher: int = 0) -> None:
        self.acknowledged = f"bench.acknowledged.{publisher:03d}"
        super().__init__(payload_size)

    def publish(self, subject: str) -> bytes:
        return f"PUB {subject} {self.acknowledged} {self.payload_size}\r\n{'.' * self.payload_size}\r\n".encode()


class Member(Subscriber):
    """Acknowledges received messages at their reply subjects, which have no fixed size."""

    def __init__(self, loop: Loop, sock: socket.socket, layout: JetLayout, group: Group) -> None:
        super().__init__(loop, sock, layout, group)  # type: ignore[arg-type]
        size = layout.payload_size
        self.message = re.compile(rb"MSG \S+ 1 (\S+) %d\r\n.{%d}\r\n" % (size, size))

    def parse(self, buffer: Bytes, end: int) -> int:
        data = bytes(buffer[:end])
        if data.startswith(PING):
            self.write(PONG_BYTES)
            return len(PING)
        found = list(self.message.finditer(data))
        if not found:
            return 0
        if found[0].start() != 0:
            raise UnexpectedBytesError(f"expected MSG only, found {data[:64]!r}")
        self.delivered += len(found)
        answer = b"".join([b"PUB %b 0\r\n\r\n" % one[1] for one in found])
        self.write(np.frombuffer(answer, np.uint8))
        self.group.refill()
        return found[-1].end()


class Asker(Publisher):
    """Publishes, and counts the messages that JetStream reports as stored."""

    def __init__(self, loop: Loop, sock: socket.socket, layout: JetLayout, subject: str, group: Group) -> None:
        super().__init__(loop, sock, layout, [subject], group)  # type: ignore[arg-type]
        self.kept = 0

    def parse(self, buffer: Bytes, end: int) -> int:
        data = bytes(buffer[:end])
        if b'"error"' in data:
            raise UnexpectedBytesError(f"JetStream refused: {data[:200]!r}")
        self.kept += data.count(b'"seq":')
        return data.rfind(b"\n") + 1


def set_up(spec: Spec, subject: str) -> None:
    setup = NatsSetup(spec.port)
    setup.request(f"$JS.API.STREAM.CREATE.{STREAM}", {**STREAM_CONFIG, "subjects": [subject]})
    body = {"stream_name": STREAM, "config": CONSUMER_CONFIG}
    setup.request(f"$JS.API.CONSUMER.DURABLE.CREATE.{STREAM}.{CONSUMER}", body)
    setup.close().close()


def build(spec: Spec, loop: Loop) -> list[Group]:
    layout = JetLayout(spec.payload)
    subject = layout.topic(0)
    group = Group(spec.window, shared=True)
    set_up(spec, subject)
    for _ in range(spec.subscribers):
        Member(loop, subscribed(spec.port, DELIVERY, CONSUMER), layout, group)
    for number in range(spec.publishers):
        own = JetLayout(spec.payload, number)
        Asker(loop, subscribed(spec.port, own.acknowledged), own, subject, group)
    return [group]


def run(spec: Spec) -> Outcome:
    loop = Loop()
    groups = build(spec, loop)
    measured = generator.measure(spec, loop, groups)
    members = tuple(item.delivered for item in groups[0].subscribers)
    return Outcome(**msgspec.structs.asdict(measured), members=members)


def main() -> None:
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=Spec)
    os.sched_setaffinity(0, {spec.core})
    sys.stdout.buffer.write(msgspec.json.encode(run(spec)))


if __name__ == "__main__":
    main()
