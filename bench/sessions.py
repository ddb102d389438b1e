"""Sessions that move between nodes: ``python -m bench.sessions``; two nodes on loopback, figures as JSON and a plot.

*Takeover*: a client with 1,000 queued messages connects to the other node; the time from CONNECT to CONNACK, and to the
last of its messages, compared with its own node. *Storm*: many clients connect to the other node at once, each with a
queued message; the time until the last has its CONNACK and its message, and the number of missing ones.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import time
from pathlib import Path
from statistics import quantiles

import msgspec
from matplotlib.figure import Figure

from bench.frames import connect, frame_size, publish, subscribe
from bench.nodes import Node, cluster
from bench.wire import SetupError, open_connection, read_frame, subscribe_all

VERSION = 4
QUEUED = 1000  # messages of one session
STORM_S_MAX = 60.0
OPENING = 500  # unfinished connections
CONNACK, PUBLISH, PUBACK = 2, 3, 4


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds."""

    p50: float
    p90: float
    p99: float
    max: float


class Takeovers(msgspec.Struct, frozen=True, kw_only=True):
    rounds: int
    queued: int
    connack_ms: Spread
    last_message_ms: Spread
    own_connack_ms: Spread  # on the session's node
    own_last_message_ms: Spread


class Storm(msgspec.Struct, frozen=True, kw_only=True):
    clients: int
    found: int  # CONNACK with session present
    messages: int  # received, one per client
    doubled: int
    refused: int
    connacks_s: float  # until the last one
    messages_s: float
    connack_times_s: list[float]


class Results(msgspec.Struct, frozen=True, kw_only=True):
    takeovers: Takeovers
    storm: Storm


def spread(seconds: list[float]) -> Spread:
    cuts = quantiles(seconds, n=100, method="inclusive")
    p50, p90, p99, most = (1000 * value for value in (cuts[49], cuts[89], cuts[98], max(seconds)))
    return Spread(p50=p50, p90=p90, p99=p99, max=most)


# One session


def fill(port: int, count: int) -> None:
    """Publish messages for the session, and wait until all are acknowledged."""
    sock = open_connection(port, "bench-publisher", VERSION)
    sock.sendall(b"".join(publish("takeover", b"%08d" % n, 1, n % 65535 + 1, VERSION) for n in range(count)))
    for _ in range(count):
        read_frame(sock)
    sock.close()


def come(port: int, count: int) -> tuple[float, float]:
    """Return the seconds from CONNECT until CONNACK, and until the last of its messages."""
    began = time.perf_counter()
    sock = open_connection(port, "bench-roamer", VERSION, persistent=True)
    answered = time.perf_counter() - began
    got: list[int] = []
    acks = bytearray()
    while len(got) < count:
        frame = read_frame(sock)
        if frame[0] >> 4 != PUBLISH:
            raise SetupError(f"{frame[:20].hex()} in place of a message")
        topic = frame[:].index(b"takeover") + 8
        acks += bytes((0x40, 2)) + frame[topic : topic + 2]
        got.append(int(frame[-8:]))
    last = time.perf_counter() - began
    assert got == list(range(count)), "messages are missing or out of order"
    sock.sendall(acks)
    sock.sendall(b"\xc0\x00")  # its answer follows the processing of the acknowledgements
    read_frame(sock)
    sock.sendall(b"\xe0\x00")
    sock.close()
    return answered, last


def takeovers(nodes: list[Node], rounds: int) -> Takeovers:
    first = open_connection(nodes[0].port, "bench-roamer", VERSION, persistent=True)
    subscribe_all(first, ["takeover"], 1, VERSION)
    first.close()
    moved: list[tuple[float, float]] = []
    stayed: list[tuple[float, float]] = []
    home = 0
    for _ in range(rounds):
        fill(nodes[home].port, QUEUED)
        stayed.append(come(nodes[home].port, QUEUED))
        fill(nodes[home].port, QUEUED)
        home = 1 - home
        moved.append(come(nodes[home].port, QUEUED))
    return Takeovers(
        rounds=rounds,
        queued=QUEUED,
        connack_ms=spread([connack for connack, _ in moved]),
        last_message_ms=spread([last for _, last in moved]),
        own_connack_ms=spread([connack for connack, _ in stayed]),
        own_last_message_ms=spread([last for _, last in stayed]),
    )


# Many sessions


class Guest(asyncio.Protocol):
    """One of the clients of a storm. ``connack`` and ``message`` are times of arrival, 0.0: not received."""

    def __init__(self, number: int, subscribes: bool) -> None:
        self.number = number
        self.subscribes = subscribes
        self.present = False
        self.refused = False
        self.connack = self.message = 0.0
        self.messages = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(connect(f"guest{self.number}", VERSION, True))

    def data_received(self, data: bytes) -> None:
        self._rest += data
        while (size := frame_size(self._rest)) and size <= len(self._rest):
            frame, self._rest = self._rest[:size], self._rest[size:]
            self._take(frame)

    def _take(self, frame: bytes) -> None:
        kind = frame[0] >> 4
        if kind == CONNACK:
            self.connack = time.perf_counter()
            self.present, self.refused = frame[2] == 1, frame[3] != 0
            if self.subscribes:
                self.transport.write(subscribe(1, [f"storm/{self.number}"], 1, VERSION))
        elif kind == PUBLISH:
            self.message = time.perf_counter()
            self.messages += 1
            self.transport.write(bytes((0x40, 2)) + frame[-10:-8])
            self._finish()
        else:  # SUBACK
            self._finish()

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish()


async def visit(port: int, clients: int, subscribes: bool) -> list[Guest]:
    loop = asyncio.get_running_loop()
    opening = asyncio.Semaphore(OPENING)

    async def one(number: int) -> Guest:
        async with opening:
            _, guest = await loop.create_connection(lambda: Guest(number, subscribes), "127.0.0.1", port)
        return guest

    guests = await asyncio.gather(*(one(number) for number in range(clients)))
    await asyncio.wait([guest.done for guest in guests], timeout=STORM_S_MAX)
    if not subscribes:
        await asyncio.sleep(1.0)  # time for duplicates to arrive
    return guests


def leave(guests: list[Guest]) -> None:
    for guest in guests:
        guest.transport.abort()


async def storm(nodes: list[Node], clients: int) -> Storm:
    here, there = nodes[0].port, nodes[1].port
    leave(await visit(here, clients, True))
    publisher = open_connection(here, "bench-publisher", VERSION)
    for start in range(0, clients, 500):
        numbers = range(start, min(start + 500, clients))
        publisher.sendall(b"".join(publish(f"storm/{n}", b"%08d" % n, 1, n % 500 + 1, VERSION) for n in numbers))
        for _ in numbers:
            read_frame(publisher)
    began = time.perf_counter()
    guests = await visit(there, clients, False)
    leave(guests)
    publisher.close()
    return Storm(
        clients=clients,
        found=sum(guest.present for guest in guests),
        messages=sum(guest.messages > 0 for guest in guests),
        doubled=sum(guest.messages > 1 for guest in guests),
        refused=sum(guest.refused for guest in guests),
        connacks_s=max(guest.connack for guest in guests) - began,
        messages_s=max(guest.message for guest in guests) - began,
        connack_times_s=sorted(guest.connack - began for guest in guests if guest.connack)[:: max(1, clients // 200)],
    )


def draw(results: Results, path: Path) -> None:
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    found = results.takeovers
    rows = {
        "CONNACK, own node": found.own_connack_ms,
        "CONNACK, other node": found.connack_ms,
        "last message, own node": found.own_last_message_ms,
        "last message, other node": found.last_message_ms,
    }
    for place, each in enumerate(rows.values()):
        left.plot([each.p50, each.p90, each.p99, each.max], [place] * 4, marker="|", markersize=14)
    left.set_yticks(range(len(rows)), list(rows))
    left.set_xlim(left=0)
    left.set_xlabel("ms from CONNECT: p50, p90, p99, max")
    left.set_title(f"A session with {found.queued} queued messages")
    times = results.storm.connack_times_s
    right.plot(times, [100 * (place + 1) / len(times) for place in range(len(times))])
    right.set_xlabel("s")
    right.set_ylabel("% of the clients have CONNACK")
    right.set_title(f"{results.storm.clients} clients come to the other node at once")
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.sessions", description=__doc__)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with cluster(count=2) as nodes:
        one = takeovers(nodes, arguments.rounds)
        many = asyncio.run(storm(nodes, arguments.clients))
    results = Results(takeovers=one, storm=many)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "sessions.json").write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    draw(results, arguments.out / "sessions.png")
    print(f"a session with {one.queued} queued messages, {one.rounds} rounds, ms: CONNACK {told(one.connack_ms)},")
    print(f"  last message {told(one.last_message_ms)}; its own node {told(one.own_connack_ms)},")
    print(f"  {told(one.own_last_message_ms)}")
    print(
        f"{many.clients} clients at once: {many.found} sessions found, {many.messages} messages, {many.doubled} twice,"
    )
    print(f"  {many.refused} refused; CONNACK for all after {many.connacks_s:.2f} s, messages {many.messages_s:.2f} s")


def told(each: Spread) -> str:
    return f"p50 {each.p50:.1f} p90 {each.p90:.1f} p99 {each.p99:.1f} max {each.max:.1f}"


if __name__ == "__main__":
    main()
