"""Very many queue groups over three nodes: ``python -m bench.many_groups``; figures as JSON.

Each group has two members, on two nodes. *Subscribed*: time of the last SUBACK; *elected*: time when all nodes know the
primaries of all groups. *Idle*: processor time of each idle node, with groups and before. *Memory*: increase of a
node's memory. *Round*: a message for each group, published on the third node; then the same again, when the primaries
know that messages are published there.
"""

from __future__ import annotations

import argparse
import select
import socket
import time
from pathlib import Path

import msgspec

from bench.frames import frame_size, publish
from bench.load import own_stall
from bench.nodes import NODES, Node, cluster
from bench.process import PROC
from bench.wire import SetupError, open_connection, subscribe_all

VERSION = 4
LIMIT_S = 300.0
SILENCE_S = 5.0  # silence that ends the waiting
PUBLISH = 3


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, and for each node per cent of a core and bytes per group."""

    groups: int
    subscribed_s: float
    elected_s: float
    idle_before: list[float]
    idle: list[float]
    bytes_per_group: list[float]
    rounds_s: list[float]
    missing: int
    doubled: int
    stall_max_ms: list[float | None]


def rss(node: Node) -> int:
    """Resident memory of the node alone, without its etcd."""
    for line in (PROC / str(node.pid) / "status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return 1024 * int(line.split()[1])
    raise SetupError(f"{node.name} does not run")


def idle(nodes: list[Node], seconds: float) -> list[float]:
    before = [node.cpu() for node in nodes]
    time.sleep(seconds)
    return [100 * (node.cpu() - was) / seconds for node, was in zip(nodes, before, strict=True)]


def without_primary(node: Node) -> tuple[int, int]:
    """Return how many groups a node knows, and how many of them without a known primary."""
    from starlingmq.cli.control import ask_broker

    groups = ask_broker(node.folder / "data", "groups", {}, lambda *_: None)["groups"]
    return len(groups), sum(1 for group in groups if not group["primary"])


def until_elected(nodes: list[Node], count: int) -> None:
    limit = time.monotonic() + LIMIT_S
    for node in nodes:
        while (found := without_primary(node)) != (count, 0):
            if time.monotonic() > limit:
                raise SetupError(f"{node.name} knows {found[0]} groups, and of {found[1]} no primary")
            time.sleep(0.5)


def spread(author: socket.socket, members: list[socket.socket], count: int) -> tuple[float, int, int]:
    """Return the seconds until a message for each group was received, the number missing, and the number of
    duplicates.
    """
    began = last = time.perf_counter()
    author.sendall(b"".join(publish(f"many/{n}", b"x" * 64, 0, 0, VERSION) for n in range(count)))
    buffers = {sock: bytearray() for sock in members}
    got = 0
    while got < count and time.perf_counter() < last + SILENCE_S:
        for sock in select.select(members, [], [], 0.1)[0]:
            buffer = buffers[sock]
            buffer += sock.recv(1 << 20)
            at = 0
            while (size := frame_size(buffer, at)) and at + size <= len(buffer):
                got += buffer[at] >> 4 == PUBLISH
                at += size
            del buffer[:at]
            last = time.perf_counter()
    return last - began, max(0, count - got), max(0, got - count)


def measure(nodes: list[Node], count: int, seconds: float) -> Results:
    before, empty = idle(nodes, seconds), [rss(node) for node in nodes]
    began = time.perf_counter()
    members = []
    for place, node in enumerate(nodes):
        filters = [f"$share/g{n}/many/{n}" for n in range(count) if (n + place) % NODES != 2]
        members.append(open_connection(node.port, f"members{place}", VERSION))
        members[-1].settimeout(LIMIT_S)
        subscribe_all(members[-1], filters, 0, VERSION)
    subscribed = time.perf_counter() - began
    until_elected(nodes, count)
    elected = time.perf_counter() - began
    time.sleep(2.0)
    after = idle(nodes, seconds)
    held = [(rss(node) - was) / count for node, was in zip(nodes, empty, strict=True)]
    author = open_connection(nodes[-1].port, "author", VERSION)
    rounds = [spread(author, members, count) for _ in range(3)]
    return Results(
        groups=count,
        subscribed_s=subscribed,
        elected_s=elected,
        idle_before=before,
        idle=after,
        bytes_per_group=held,
        rounds_s=[each[0] for each in rounds],
        missing=sum(each[1] for each in rounds),
        doubled=sum(each[2] for each in rounds),
        stall_max_ms=[own_stall(node.port) for node in nodes],
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.many_groups", description=__doc__)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=10.0, help="of doing nothing, twice")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="folder for many_groups.json")
    options = parser.parse_args()
    with cluster() as nodes:
        results = measure(nodes, options.groups, options.seconds)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "many_groups.json").write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    print(msgspec.json.format(msgspec.json.encode(results)).decode())


if __name__ == "__main__":
    main()
