"""Clients that begin a QoS 2 handshake on one node of a cluster, reconnect to another one, and all continue it there at
the same time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec

from bench.frames import CONNACK, PUBCOMP, PUBREC, PUBREL, connect, frame_size, publish, subscribe
from bench.nodes import Node
from bench.wire import SetupError

VERSION = 4
AT_ONCE = 100  # unfinished connections
WINDOW = 0.03  # cluster.handshake_window, by default
ANSWER_S = 60.0
TOPIC = "bench/returning"
FIRST, SECOND, THIRD = 0, 1, 2


class Returning(msgspec.Struct, frozen=True, kw_only=True):
    """``calls`` and the rest are counters of the node to which all reconnected."""

    clients: int
    back_s: float  # until all were connected to the other node
    found: int  # clients with session present
    resolved_s: float  # from the first PUBREL to the last PUBCOMP
    completed: int
    routed: int  # distinct messages that a subscriber on the third node received ...
    doubled: int  # ... and duplicates
    calls: int
    windows: int
    hits: int
    broadcasts: int
    bound: int  # elapsed windows, times the nodes that it may ask
    one_by_one: int


class Person:
    def __init__(self, number: int) -> None:
        self.number = number
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter
        self.data = b""

    async def come(self, port: int) -> bool:
        """Connect; return session present."""
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        self.writer.write(connect(f"bench-returning-{self.number}", VERSION, persistent=True))
        answer = await self.frame()
        if answer[0] != CONNACK or answer[3] != 0:
            raise SetupError(f"CONNECT was answered with {answer.hex()}")
        return bool(answer[2] & 1)

    async def frame(self) -> bytes:
        while not (size := frame_size(self.data)) or len(self.data) < size:
            more = await asyncio.wait_for(self.reader.read(65_536), ANSWER_S)
            if not more:
                raise SetupError("the broker closed a connection")
            self.data += more
        frame, self.data = self.data[:size], self.data[size:]
        return frame

    async def begin(self, port: int) -> None:
        """Send PUBLISH, wait for PUBREC, and drop the connection."""
        await self.come(port)
        self.writer.write(publish(TOPIC, b"%08d" % self.number, 2, 1, VERSION))
        answer = await self.frame()
        if answer[0] != PUBREC:
            raise SetupError(f"PUBLISH was answered with {answer.hex()}")
        self.writer.close()

    async def finish(self) -> bool:
        return (await self.frame())[0] == PUBCOMP

    def release(self) -> None:
        self.writer.write(bytes((PUBREL, 2, 0, 1)))


async def each(people: list[Person], call: Callable[[Person], Awaitable[object]]) -> list[object]:
    """Run it for all clients, a limited number at a time."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(person: Person) -> object:
        async with room:
            return await call(person)

    return list(await asyncio.gather(*[one(person) for person in people]))


class Watcher(Person):
    """A subscriber that counts received messages."""

    async def count(self, got: dict[bytes, int]) -> None:
        while True:
            frame = await self.reader.read(65_536)
            self.data += frame
            while (size := frame_size(self.data)) and len(self.data) >= size and frame:
                payload, self.data = self.data[size - 8 : size], self.data[size:]
                got[payload] = got.get(payload, 0) + 1
            if not frame:
                return


def come_back(nodes: list[Node], clients: int) -> Returning:
    return asyncio.run(_come_back(nodes, clients))


async def _come_back(nodes: list[Node], clients: int) -> Returning:
    people = [Person(number) for number in range(clients)]
    watcher = Watcher(99_999_999)
    await watcher.come(nodes[THIRD].port)
    watcher.writer.write(subscribe(1, [TOPIC], 0, VERSION))
    await watcher.frame()
    got: dict[bytes, int] = {}
    counting = asyncio.create_task(watcher.count(got))
    await each(people, lambda person: person.begin(nodes[FIRST].port))
    began = time.perf_counter()
    found = await each(people, lambda person: person.come(nodes[SECOND].port))
    back_s = time.perf_counter() - began
    before = nodes[SECOND].status()["handshakes"]
    began = time.perf_counter()
    for person in people:
        person.release()
    completed = await asyncio.gather(*[person.finish() for person in people])
    resolved_s = time.perf_counter() - began
    after = nodes[SECOND].status()["handshakes"]
    end = time.perf_counter() + ANSWER_S
    while len(got) < clients and time.perf_counter() < end:
        await asyncio.sleep(0.05)
    counting.cancel()
    for person in (*people, watcher):
        person.writer.close()
    told = {name: after[name] - before[name] for name in after}
    return Returning(
        clients=clients,
        back_s=back_s,
        found=sum(map(bool, found)),
        resolved_s=resolved_s,
        completed=sum(completed),
        routed=len(got),
        doubled=sum(got.values()) - len(got),
        calls=told["calls"],
        windows=told["windows"],
        hits=told["hint_hits"],
        broadcasts=told["broadcasts"],
        bound=(int(resolved_s / WINDOW) + 1) * (len(nodes) - 1),
        one_by_one=told["calls_one_by_one"],
    )
