"""A cluster of three nodes for measurements, as ``starlingmq cluster up`` creates it, and the status that its nodes
report.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from bench.peers import ROOT, START_TIMEOUT_S, PeerError, stop
from bench.process import PROC, family

NODES = 3
CATCH_UP_S = 30.0
POLL_S = 0.01


class Node(msgspec.Struct, frozen=True):
    """A running member. ``etcd`` is the process id of its own etcd, which is not counted as the broker's."""

    name: str
    pid: int
    etcd: int
    port: int
    folder: Path
    nats_port: int = 0

    def status(self) -> dict[str, Any]:
        """Return the output of ``ctl cluster status --json``, read from the control socket."""
        from starlingmq.cli.control import ask_broker

        return ask_broker(self.folder / "data", "cluster.status", {}, lambda *_: None)

    def pin(self, cores: set[int]) -> None:
        """Pin all its threads, present and future."""
        for task in (PROC / str(self.pid) / "task").iterdir():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(task.name), cores)

    def cpu(self) -> float:
        """Its CPU time without that of its etcd, in seconds; more precise than a clock tick."""
        return (
            sum(int((task / "schedstat").read_text().split()[0]) for task in (PROC / str(self.pid) / "task").iterdir())
            / 1e9
        )


@contextlib.contextmanager
def cluster(options: dict[str, str] | None = None, count: int = NODES, nats: bool = False) -> Iterator[list[Node]]:
    """Provide serving nodes, on any core; stopped at the end. ``options`` are settings in the environment. Without them
    no node has copies of another one. ``nats``: they speak it, too."""
    with tempfile.TemporaryDirectory(prefix="starlingmq-bench-") as name:
        folder = Path(name) / "cluster"
        without = ["--no-http", "--no-streams", *([] if nats else ["--no-nats"])]
        command = ["cluster", "up", "--nodes", str(count), "--dir", str(folder), "--base-port", "0", *without]
        with (Path(name) / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "starlingmq", *command, "--log-level", "warning"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "STARLINGMQ_CLUSTER__COPIES": "1", **(options or {})},
            )
        try:
            assert process.stdout is not None
            word, *addresses = process.stdout.readline().decode().split() or [""]
            if word != "ready":
                said = (Path(name) / "log").read_text(errors="replace").strip().splitlines()[-1:]
                raise PeerError(f"the cluster did not start: {said[0] if said else 'it said nothing'}")
            found = [urlsplit(address) for address in addresses]
            ports = [each.port or 0 for each in found if each.scheme == "mqtt"]
            nodes = [find(folder / f"n{number}", process.pid, port) for number, port in enumerate(ports, start=1)]
            of_nats = [each.port or 0 for each in found if each.scheme == "nats"]
            if nats:
                pairs = zip(nodes, of_nats, strict=True)
                nodes = [msgspec.structs.replace(node, nats_port=port) for node, port in pairs]
            yield nodes
        finally:
            stop(process)


def find(folder: Path, parent: int, port: int) -> Node:
    """Return the node whose settings are in that folder, among the children of a process."""
    settings = str(folder / "starlingmq.yaml").encode()
    for pid in family(parent):
        if settings in (PROC / str(pid) / "cmdline").read_bytes().split(b"\0"):
            etcd = [child for child in family(pid) if (PROC / str(child) / "comm").read_text().strip() == "etcd"]
            return Node(folder.name, pid, etcd[0], port, folder)
    raise PeerError(f"{folder.name} does not run")


def end(node: Node) -> None:
    """Stop one node gracefully."""
    os.kill(node.pid, signal.SIGTERM)
    limit = time.monotonic() + START_TIMEOUT_S
    while running(node.pid) and time.monotonic() < limit:
        time.sleep(POLL_S)


def running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in (PROC / str(pid) / "status").read_text()
    except OSError:
        return False


@contextlib.contextmanager
def again(node: Node) -> Iterator[Node]:
    """Restart a stopped node on its data. It serves when the block begins, and is stopped at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "starlingmq", "serve", "-c", str(node.folder / "starlingmq.yaml")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
    )
    try:
        assert process.stdout is not None
        if not process.stdout.readline().startswith(b"ready"):
            raise PeerError(f"{node.name} did not start again")
        yield find(node.folder, process.pid, node.port)
    finally:
        stop(process)


def data_frames(nodes: list[Node]) -> int:
    """Return the number of frames with messages that all nodes have sent to others."""
    return sum(int(node.status()["frames"]["data"]) for node in nodes)


def until_routes(nodes: list[Node], owner: str, count: int, limit: float = CATCH_UP_S) -> float:
    """Wait until all have so many routes of a node; return the time by ``time.perf_counter``."""
    end = time.perf_counter() + limit
    missing = list(nodes)
    while missing:
        if time.perf_counter() > end:
            raise PeerError(f"{', '.join(node.name for node in missing)} did not get {count} routes of {owner}")
        members = {member["name"]: member for member in missing[0].status()["members"]}
        if members[owner]["routes"] == count:
            del missing[0]
        else:
            time.sleep(POLL_S)
    return time.perf_counter()
