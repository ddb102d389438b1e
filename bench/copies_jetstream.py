"""Messages that three nodes store, per second of their CPU: ``python -m bench.copies_jetstream``. A stream of
StarlingMQ with ``cluster.copies: 3``, by MQTT and by JetStream, beside a file stream of nats-server with three replicas
(R3), one after the other.

One publisher at the node that leads, or has the stream, keeps ``WINDOW`` messages unacknowledged. An acknowledgement
means stored by the nodes that each of them asks for (nats-server: by a majority). Both leave it to the system when
files are synced. The CPU is that of the three brokers, without StarlingMQ's etcds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from bench.copies import all_in_step, client, until
from bench.fetched_peers import CACHE
from bench.frames import publish
from bench.nodes import Node, cluster
from bench.process import PROC
from bench.wire import read_exactly
from starlingmq.cli.local_cluster import free_ports

PAYLOAD: Final = 100
WINDOW: Final = 1_000
TOPIC: Final = "bench/stored"
SUBJECT: Final = "bench.stored"
CONF: Final = """\
server_name: n{number}
listen: 127.0.0.1:{port}
jetstream {{ store_dir: "{folder}" }}
cluster {{ name: bench, listen: 127.0.0.1:{route}, routes: [{routes}] }}
"""


def cpu(pid: int) -> float:
    """Seconds of all threads."""
    tasks = (PROC / str(pid) / "task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def of_starlingmq(messages: int) -> float:
    """CPU in microseconds of all nodes for a message."""
    options = {
        "STARLINGMQ_CLUSTER__COPIES": "3",
        "STARLINGMQ_STREAMS__DEFINE": f'[{{"name": "bench", "topics": ["{TOPIC}"]}}]',
    }
    with cluster(options) as nodes:
        until(lambda: all_in_step(nodes, 3), "all are in step")
        writer, _ = client(nodes[0], "writer")
        frame = bytearray(publish(TOPIC, b"." * PAYLOAD, 1, 1, 4))
        at = len(frame) - PAYLOAD - 2
        before = sum(node.cpu() for node in nodes)
        waiting = 0
        for number in range(messages):
            frame[at : at + 2] = (number % 65_535 + 1).to_bytes(2, "big")
            writer.sendall(frame)
            waiting += 1
            if waiting == WINDOW:
                read_exactly(writer, 4 * WINDOW // 2)
                waiting -= WINDOW // 2
        read_exactly(writer, 4 * waiting)
        used = sum(node.cpu() for node in nodes) - before
        writer.close()
        _check_stored(nodes, messages)
        return used * 1e6 / messages


def _check_stored(nodes: list[Node], messages: int) -> None:
    from starlingmq.cli.control import ask_broker

    found = ask_broker(nodes[0].folder / "data", "stream.list", {}, lambda *_: None)
    stored = max(each["next"] - each["first"] for each in found["streams"])
    if stored != messages:
        raise AssertionError(f"{stored} of {messages} messages are in the stream")


@contextlib.contextmanager
def jetstreams(binary: Path) -> Iterator[list[tuple[int, int]]]:
    """Process id and port of three servers."""
    with tempfile.TemporaryDirectory(prefix="starlingmq-bench-") as name, contextlib.ExitStack() as stack:
        ports = free_ports(6)
        routes = ", ".join(f"nats://127.0.0.1:{port}" for port in ports[3:])
        found = []
        for number in range(3):
            folder = Path(name) / str(number)
            folder.mkdir()
            conf = folder / "nats.conf"
            conf.write_text(
                CONF.format(
                    number=number + 1,
                    port=ports[number],
                    route=ports[3 + number],
                    routes=routes,
                    folder=folder / "data",
                )
            )
            process = subprocess.Popen(
                [binary, "-c", conf], stdout=subprocess.DEVNULL, stderr=(folder / "log").open("wb")
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
            found.append((process.pid, ports[number]))
        yield found


async def make_stream(ports: list[int]) -> int:
    """Make the stream, and return the place of its leader."""
    from nats.js.api import StorageType

    import nats

    connection = await nats.connect(
        f"nats://127.0.0.1:{ports[0]}", max_reconnect_attempts=-1, reconnect_time_wait=0.2, error_cb=_ignore
    )
    jetstream = connection.jetstream()
    async with asyncio.timeout(60):
        while True:
            try:
                await jetstream.add_stream(
                    name="bench", subjects=[SUBJECT], num_replicas=3, storage=StorageType.FILE, max_age=0
                )
                break
            except (nats.errors.Error, OSError):
                await asyncio.sleep(0.2)  # the three have not elected a leader yet
        while (state := (await jetstream.stream_info("bench")).cluster) is None or state.leader is None:
            await asyncio.sleep(0.1)
    await connection.close()
    return int(state.leader[1:])


async def _ignore(error: Exception) -> None:
    """The servers may not listen yet."""


def of_jetstream(binary: Path | None, messages: int) -> float:
    """Of nats-server, or without a binary of StarlingMQ."""
    if binary is None:
        with cluster({"STARLINGMQ_CLUSTER__COPIES": "3"}, nats=True) as nodes:
            until(lambda: all_in_step(nodes, 3), "all are in step")
            return _published([(node.pid, node.nats_port) for node in nodes], messages)
    with jetstreams(binary) as servers:
        return _published(servers, messages)


def _published(servers: list[tuple[int, int]], messages: int) -> float:
    """CPU in microseconds of all of them for a message."""
    leader = asyncio.run(make_stream([port for _, port in servers]))
    writer = socket.create_connection(("127.0.0.1", servers[leader - 1][1]), timeout=30.0)
    writer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    writer.sendall(b'CONNECT {"verbose":false}\r\nSUB _INBOX.b 1\r\nPING\r\n')
    inbox = b""
    while b"PONG\r\n" not in inbox:
        inbox += writer.recv(65_536)
    frame = b"PUB %b _INBOX.b %d\r\n%b\r\n" % (SUBJECT.encode(), PAYLOAD, b"." * PAYLOAD)
    before = sum(cpu(pid) for pid, _ in servers)
    acknowledged = 0
    inbox = b""
    for sent in range(1, messages + 1):
        writer.sendall(frame)
        while sent - acknowledged >= WINDOW:
            inbox, count = _acknowledgements(writer, inbox)
            acknowledged += count
    while acknowledged < messages:
        inbox, count = _acknowledgements(writer, inbox)
        acknowledged += count
    used = sum(cpu(pid) for pid, _ in servers) - before
    writer.close()
    return used * 1e6 / messages


def _acknowledgements(reader: socket.socket, inbox: bytes) -> tuple[bytes, int]:
    """The rest of the bytes, and the number of acknowledgements, of which each has a sequence."""
    inbox += reader.recv(1 << 20)
    whole, end, rest = inbox.rpartition(b"}\r\n")
    if b'"error"' in whole:
        raise AssertionError(whole[-300:].decode(errors="replace"))
    return rest if end else inbox, (whole + end).count(b'"seq":')


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.copies_jetstream", description=__doc__)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3, help="of both, in turns; the median counts")
    parser.add_argument("--nats-server", type=Path, default=CACHE / "bin" / "nats-server")
    given = parser.parse_args()
    if not given.nats_server.exists():
        sys.exit(f"error: there is no {given.nats_server}; name one with --nats-server")
    loads: dict[str, Callable[[], float]] = {
        "StarlingMQ, copies 3, MQTT": lambda: of_starlingmq(given.messages),
        "StarlingMQ, copies 3, JetStream": lambda: of_jetstream(None, given.messages),
        "nats-server, R3": lambda: of_jetstream(given.nats_server, given.messages),
    }
    found: dict[str, list[float]] = {name: [] for name in loads}
    for number in range(given.rounds):
        print(f"round {number + 1} of {given.rounds}", file=sys.stderr, flush=True)
        for name, load in loads.items():
            found[name].append(load())
    medians = {name: statistics.median(values) for name, values in found.items()}
    for name, value in medians.items():
        print(f"{name}: {value:.1f} us of CPU a message, {1e6 / value:,.0f} messages per second of CPU")
    by_mqtt, ours, theirs = medians.values()
    print(
        f"messages per second of CPU, StarlingMQ to nats-server: {theirs / by_mqtt:.2f}, JetStream {theirs / ours:.2f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
