"""JetStream beside the load of ``tests.cluster.chaos_copies``. Each node is the home of a stream, a work queue and a
bucket; clients use them from all nodes, and go to the next node when they are not answered.

The laws, of each stream:

- What was acknowledged is there, at its sequence. A sequence is of one message. What was published with an id until it
  was acknowledged is there once, in order.
- What was acknowledged to a consumer with an answer is not delivered to a later request. Within the answers of one
  request, first deliveries are in the order of the stream.
- A session that reads ``$stream/NAME`` gets all of it, in order, whichever node it is at. Without copies it stays at
  its node.
- Each update of a key names the revision that it expects. The bucket has one key, so that is the one before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from time import monotonic
from typing import Any, Final

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.js.api import ConsumerConfig, RetentionPolicy
from nats.js.client import JetStreamContext
from tests.cluster.jetstream_books import Books, Register
from tests.cluster.real import Node
from tests.patience import slowness, within

import nats
from starlingmq.client import Client, ClientError, Message
from starlingmq.wire.properties import USER_PROPERTY

SECONDS: Final = 90.0
ANSWER_SECONDS: Final = 3.0
ACK_WAIT_SECONDS: Final = 4.0
READ_SECONDS: Final = 5.0  # of a session at one node
PACE_SECONDS: Final = 0.1
AGAIN_SECONDS: Final = 0.1
TOGETHER: Final = 5  # messages without an id that are published at once
ASKED: Final = 25  # messages of a request to a consumer
WORKERS: Final = 2  # of a queue, and of a bucket
LOOKED_BACK: Final = 20  # revisions that a check reads
KEY: Final = "k"
TROUBLE: Final = (nats.errors.Error, nats.js.errors.Error, OSError, EOFError, TimeoutError)
Work = Callable[[JetStreamContext], Awaitable[None]]


@asynccontextmanager
async def jetstream(port: int) -> AsyncIterator[JetStreamContext]:
    connection = await nats.connect(f"nats://127.0.0.1:{port}", allow_reconnect=False, error_cb=_ignore)
    try:
        yield connection.jetstream(timeout=ANSWER_SECONDS * slowness())
    finally:
        with suppress(*TROUBLE):
            async with asyncio.timeout(ANSWER_SECONDS):
                await connection.close()


async def all_of(tasks: list[Coroutine[Any, Any, None]]) -> None:
    """Raise an error once all have ended."""
    for error in await asyncio.gather(*tasks, return_exceptions=True):
        if error is not None:
            raise error


async def _ignore(error: Exception) -> None:
    """The caller hears of it."""


class Jetstreamed:
    def __init__(self, copies: int, ports: Mapping[str, int]) -> None:
        """``ports`` for NATS, by node."""
        self.copies = copies
        self._ports = ports
        self._streams: dict[str, Books] = {}
        self._queues: dict[str, Books] = {}
        self._buckets: dict[str, Register] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._over = False

    async def begin(self, nodes: Sequence[Node]) -> None:
        """Called while all nodes serve."""
        for place, node in enumerate(nodes):
            name, queue, bucket = f"S{place}", f"W{place}", f"B{place}"
            books, queued, register = Books(name), Books(queue), Register(bucket)
            self._streams[name], self._queues[queue], self._buckets[bucket] = books, queued, register
            async with jetstream(self._ports[node.name]) as js:
                consumer = ConsumerConfig(durable_name="c", ack_wait=ACK_WAIT_SECONDS)
                more: dict[str, Any] = {"num_replicas": self.copies, "duplicate_window": 3600}
                await js.add_stream(name=name, subjects=[f"js.{name}.>"], **more)
                await js.add_stream(
                    name=queue, subjects=[f"js.{queue}.>"], retention=RetentionPolicy.WORK_QUEUE, **more
                )
                for stream in (name, queue):
                    await js.add_consumer(stream, consumer)
                await js.create_key_value(bucket=bucket, history=64, replicas=self.copies)
            works = [
                self._publisher(books),
                self._publisher(queued),
                self._author(books),
                self._consumer(books),
                *[self._consumer(queued) for _ in range(WORKERS)],
                *[self._writer(register, number) for number in range(WORKERS)],
            ]
            self._tasks += [asyncio.ensure_future(self._work(work, turn)) for turn, work in enumerate(works, place)]
            self._tasks.append(asyncio.ensure_future(self._read(books, nodes, place)))

    async def end(self) -> None:
        self._over = True  # nats.py may answer a cancellation with an error of its own
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=SECONDS)

    async def _work(self, work: Work, turn: int) -> None:
        ports = list(self._ports.values())
        for place in count(turn):
            if self._over:
                return
            with suppress(*TROUBLE):
                async with jetstream(ports[place % len(ports)]) as js:
                    while not self._over:
                        await work(js)
            await asyncio.sleep(AGAIN_SECONDS)

    def _publisher(self, books: Books) -> Work:
        """Repeats a message until it is acknowledged."""

        async def publish(js: JetStreamContext) -> None:
            payload = b"once:%d" % books.published
            found = await js.publish(f"js.{books.name}.once", payload, headers={"Nats-Msg-Id": payload.decode()})
            books.acknowledge(found.seq, payload)
            books.published += 1
            await asyncio.sleep(PACE_SECONDS)

        return publish

    def _author(self, books: Books) -> Work:
        """Publishes some messages at a time, each once."""
        numbers = count()

        async def publish(js: JetStreamContext) -> None:
            async def one(payload: bytes) -> None:
                books.acknowledge((await js.publish(f"js.{books.name}.any", payload)).seq, payload)

            await all_of([one(b"any:%d" % next(numbers)) for _ in range(TOGETHER)])
            await asyncio.sleep(PACE_SECONDS)

        return publish

    def _consumer(self, books: Books) -> Work:
        async def consume(js: JetStreamContext) -> None:
            asked_at = monotonic()
            pull = await js.pull_subscribe_bind("c", books.name)
            messages = await pull.fetch(ASKED, timeout=ANSWER_SECONDS * slowness())
            last = 0
            for message in messages:
                seq = message.metadata.sequence.stream
                books.deliver(seq, message.data, asked_at)
                if message.metadata.num_delivered == 1:
                    books.follow(last, seq)
                    last = seq

            async def confirm(message: Msg) -> None:
                await message.ack_sync(timeout=ANSWER_SECONDS * slowness())
                books.confirm(message.metadata.sequence.stream, monotonic())

            await all_of([confirm(message) for message in messages])
            await pull.unsubscribe()

        return consume

    def _writer(self, register: Register, writer: int) -> Work:
        numbers = count()

        async def write(js: JetStreamContext) -> None:
            bucket = await js.key_value(register.name)
            latest = register.latest
            try:
                entry = await bucket.get(KEY)
                assert entry.revision is not None
                register.read(entry.revision, entry.value or b"", latest)
                last = entry.revision
            except nats.js.errors.KeyNotFoundError:
                register.read(0, b"", latest)
                last = 0
            value = b"%d:%d:%d" % (writer, next(numbers), last)
            try:
                register.write(await bucket.update(KEY, value, last=last), value)
            except nats.js.errors.KeyWrongLastSequenceError:
                register.refuse(value)
            await asyncio.sleep(PACE_SECONDS)

        return write

    async def _read(self, books: Books, nodes: Sequence[Node], place: int) -> None:
        known = False
        for turn in count():
            node = nodes[place if self.copies == 1 else (place + turn) % len(nodes)]
            with suppress(ClientError, OSError, TimeoutError):
                async with Client(
                    node.url, client_id=f"reader of {books.name}", clean_start=False, session_expiry=3600
                ) as client:
                    if known and not client.session_present:
                        books.wrong.append("the session of the reader was lost")
                    async with asyncio.timeout(READ_SECONDS):
                        known |= await client.subscribe(f"$stream/{books.name}@earliest", qos=1) == [1]
                        async for message in client.messages():
                            books.read(offset_of(message), message.payload)
            await asyncio.sleep(AGAIN_SECONDS)

    async def check(self, node: Node) -> None:
        """Called while all nodes serve."""
        every = [*self._streams.values(), *self._queues.values()]
        acknowledged = [dict(books.acknowledged) for books in every]
        for books, asked in zip(every, acknowledged, strict=True):
            if books.name in self._streams:
                async with within(SECONDS):
                    books.compare(asked, await self._content(node, books.name, max(asked.values(), default=0)))
        for register in self._buckets.values():
            async with within(SECONDS):
                await self._history(register)
        self._judge()
        began = monotonic()
        for books, asked in zip(every, acknowledged, strict=True):
            while missing := self._missing(books, asked):
                assert monotonic() - began < SECONDS * slowness(), f"{books.name}: {missing}"
                self._judge()
                await asyncio.sleep(AGAIN_SECONDS)
        self._judge()

    def _missing(self, books: Books, asked: dict[bytes, int]) -> str:
        """The messages that have not come yet, in words."""
        lost = sorted(asked.keys() - books.came)
        if lost:
            return f"{len(lost)} acknowledged messages were not delivered to its consumer, such as {lost[:5]}"
        if books.name in self._streams and books.expected <= max(asked.values(), default=0):
            return f"its reader waits for {books.expected}"
        return ""

    def _judge(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()
        every: list[Books | Register] = [*self._streams.values(), *self._queues.values(), *self._buckets.values()]
        wrong = [f"{books.name}: {line}" for books in every for line in books.wrong[:3]]
        assert not wrong, "\n".join(wrong)

    @staticmethod
    async def _content(node: Node, stream: str, last: int) -> list[tuple[int, bytes]]:
        """All messages up to that sequence."""
        found: list[tuple[int, bytes]] = []
        async with Client(node.url) as client:
            assert await client.subscribe(f"$stream/{stream}@earliest", qos=1) == [1]
            messages = client.messages()
            while last and (not found or found[-1][0] < last):
                message = await anext(messages)
                found.append((offset_of(message), message.payload))
        return found

    async def _history(self, register: Register) -> None:
        async with jetstream(next(iter(self._ports.values()))) as js:
            bucket = await js.key_value(register.name)
            for revision in range(max(1, register.latest - LOOKED_BACK), register.latest + 1):
                register.at(revision, (await bucket.get(KEY, revision=revision)).value or b"")

    def describe(self) -> str:
        every = [*self._streams.values(), *self._queues.values()]
        return (
            f"{sum(len(books.acknowledged) for books in every):,} stored in streams, "
            f"{sum(len(books.done) for books in every):,} done, "
            f"{sum(register.latest for register in self._buckets.values()):,} updates of keys, "
            f"{sum(register.stale for register in self._buckets.values()):,} reads of an earlier one"
        )


def offset_of(message: Message) -> int:
    pairs = message.properties[USER_PROPERTY]
    assert isinstance(pairs, list)
    return int(next(pair[1] for pair in pairs if isinstance(pair, tuple) and pair[0] == "offset"))
