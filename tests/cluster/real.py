"""A cluster of real processes on this machine: ``starlingmq serve`` for each node, with an etcd of its own, and links
that go through proxies, so that they can be cut in either direction.

Nothing here is asyncio's but the waiting: one ``Cluster`` serves tests that wait and tests that await, and loops that
come and go. Everything it starts ends with this process, however that ends.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

import psutil
import yaml
from tests.cluster.trouble import Trouble
from tests.patience import slowness

from starlingmq.cli.local_cluster import HOST, free_ports, prepare
from starlingmq.demo.proxy import BACK, OUT, Proxy
from starlingmq.net.control_path import NAME, reachable
from starlingmq.net.process import ending_with_us

PATIENCE: Final = 60.0  # seconds after which what is waited for counts as never going to happen
POLL: Final = 0.05
ASK_SECONDS: Final = 5.0
ROUTES_MAX: Final = 10_000


class AwayError(Exception):
    """A node that was asked for something is not there."""


class Node:
    """One node: its settings, its process if it runs, and what it said in all its lives."""

    def __init__(self, settings: Path) -> None:
        self.settings = settings
        self.name = settings.parent.name
        self.data_dir = settings.parent / "data"
        self.log = settings.parent / "log"
        self.url = ""  # for clients
        self.port = 0
        self.frozen = False
        self.process: subprocess.Popen[bytes] | None = None
        self.trouble = Trouble()
        self.no_etcd = Trouble()  # when no etcd answered, as far as a fault did that
        self._out: IO[bytes] | None = None
        self._said = 0

    def configure(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Write other settings."""
        settings = yaml.safe_load(self.settings.read_text())
        change(settings)
        self.settings.write_text(yaml.safe_dump(settings, sort_keys=False))
        self.url = settings["listeners"][0]
        self.port = int(self.url.rpartition(":")[2])

    # Its life

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Begin a life. It serves when it says so: ``is_ready``."""
        assert not self.runs
        command = [sys.executable, "-m", "starlingmq", "serve", "-c", str(self.settings), "--set", "log.format=text"]
        self._said = self.said_bytes()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                ending_with_us(command, signal.SIGKILL),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.frozen = False

    def is_ready(self) -> bool:
        """Whether clients are let in. Fails when it has ended."""
        said = self.said(self._said)
        assert self.runs, f"{self.name} has ended:\n{said[-3000:]}"
        return "\nready " in f"\n{said}"

    def kill(self) -> None:
        """As a crash of the machine would, but for what the system has of its files. Its etcd dies with it."""
        if self.process is not None:
            self.trouble.killed()
            self.process.kill()
            self.process.wait(PATIENCE * slowness())

    def stop(self) -> int:
        """As an operator would; the exit status."""
        assert self.process is not None
        self.thaw()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE * slowness())

    def freeze(self) -> None:
        assert self.process is not None
        self.trouble.begins()
        self.process.send_signal(signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        if self.frozen and self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.trouble.ends()
        self.frozen = False

    def etcd(self) -> psutil.Process | None:
        """Its own etcd, if that runs now."""
        with suppress(psutil.NoSuchProcess):
            if self.process is not None:
                for child in psutil.Process(self.process.pid).children():
                    if child.name() == "etcd":
                        return child
        return None

    def said(self, since: int = 0) -> str:
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(since)
            return log.read().decode(errors="replace")

    def said_bytes(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0

    def owns_port(self, port: int) -> bool:
        """Whether a connection of its process comes from there."""
        with suppress(psutil.Error):
            if self.process is not None:
                connections = psutil.Process(self.process.pid).net_connections("tcp")
                return any(connection.laddr and connection.laddr[1] == port for connection in connections)
        return False

    # The node's answers

    def ask(self, action: str, **arguments: str) -> dict[str, Any]:
        """The answer to a ``ctl`` action, without a process for it. Raises AwayError."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(ASK_SECONDS * slowness())
        with closing(connection):
            try:
                with reachable(self.data_dir / NAME) as path:
                    connection.connect(path)
                connection.sendall(json.dumps({"action": action, "arguments": arguments}).encode() + b"\n")
                with connection.makefile("rb") as lines:
                    answers = [json.loads(line) for line in lines]
            except OSError as error:
                raise AwayError(f"{self.name}: {error}") from error
        if not answers or "result" not in answers[-1]:
            raise AwayError(f"{self.name}: {answers[-1:]}")
        result: dict[str, Any] = answers[-1]["result"]
        return result

    def status(self) -> dict[str, Any]:
        return self.ask("cluster.status")

    def serves(self) -> bool:
        """Whether it is there and not isolated."""
        try:
            return bool(self.status()["serving"])
        except AwayError:
            return False

    def whole(self, count: int) -> bool:
        """Whether it serves and has direct connections to all others, with nothing on the way to them."""
        try:
            status = self.status()
        except AwayError:
            return False
        members = status["members"]
        return (
            status["serving"]
            and len(members) == count
            and all(each["state"] == "registered" and each["connected"] and each["online"] for each in members)
            and not any(each["through"] or each["behind"] or each["queued"] for each in members)
        )

    def sees(self, other: Node) -> bool:
        """Whether it counts the other as connected. Raises AwayError."""
        return any(member["name"] == other.name and member["connected"] for member in self.status()["members"])

    def owes(self) -> int:
        """Messages, and whatever else lines carry, that other nodes have not stored yet. Raises AwayError."""
        return sum(member["queued"] + member["unacknowledged"] for member in self.status()["members"])

    def is_behind(self) -> bool:
        """Whether other nodes have not taken what it told them about owners and wills. Raises AwayError."""
        return any(member["behind"] for member in self.ask("cluster.shares")["nodes"])

    def routes(self) -> list[dict[str, Any]]:
        """The routes of every node, as this one knows them."""
        found: list[dict[str, Any]] = self.ask("cluster.routes", limit=str(ROUTES_MAX))["nodes"]
        return found


class Cluster:
    """``with Cluster(directory, 3) as cluster``: the nodes run at once, ``whole`` waits until they serve."""

    def __init__(
        self,
        directory: Path,
        count: int,
        settings: dict[str, Any] | None = None,
        storage: dict[str, Any] | None = None,
        proxies: bool = True,
    ) -> None:
        """``settings`` are more of ``cluster``, ``storage`` of that section, for all nodes. Without ``proxies`` nodes
        reach each other directly: no way can be cut, and they see when a process has ended."""
        self.more = settings or {}
        self._proxied = proxies
        self.storage = storage or {}
        self._stack = ExitStack()
        self.proxies: dict[str, Proxy] = {}
        self.nodes = [Node(path) for path in prepare(directory, count, 0)]

    def __enter__(self) -> Cluster:
        for node in self.nodes:
            self._connect(node)
        for node in self.nodes:
            node.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for node in self.nodes:
            node.kill()
        self._stack.close()
        if kind is not None:
            for node in self.nodes:
                print(f"--- {node.name} said at last:\n{node.said()[-4000:]}", file=sys.stderr)

    def __getitem__(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def _connect(self, node: Node) -> None:
        """Have the others reach it through a proxy."""

        def change(settings: dict[str, Any]) -> None:
            section = settings["cluster"]
            if self._proxied:
                proxy = Proxy(HOST, int(section["listen"].rpartition(":")[2]), self._caller)
                self.proxies[node.name] = self._stack.enter_context(proxy)
                section["advertise"] = proxy.address
            section.update({"copies": 1} | self.more)
            # Subscribers are away for long, with thousands of messages a second for them: nothing is to be dropped.
            settings["mqtt"] = {"max_mqueue_len": 0}
            settings["limits"] = {"queue_bytes": 0, "log_rate": 0}
            # With a checkpoint after each segment: a start does not take long.
            settings["storage"] = {"segment_size": "2MiB", **self.storage}

        node.configure(change)

    def _caller(self, port: int) -> str:
        return next((node.name for node in self.nodes if node.owns_port(port)), "nobody")

    def add(self, name: str) -> Node:
        """A node that joins; its etcd becomes a member of the one that is there."""
        first = self.nodes[0]
        mqtt, peers, etcd_client, etcd_peer = free_ports(4)
        settings = yaml.safe_load(first.settings.read_text())
        etcds = [yaml.safe_load(node.settings.read_text())["cluster"]["etcd"]["client_port"] for node in self.nodes]
        directory = first.settings.parent.parent / name
        directory.mkdir()
        settings["node"] = {"name": name, "data_dir": str(directory / "data")}
        settings["listeners"] = [f"mqtt://{HOST}:{mqtt}"]
        settings["cluster"]["listen"] = f"{HOST}:{peers}"
        settings["cluster"]["etcd"] = {
            "client_port": etcd_client,
            "peer_port": etcd_peer,
            "join": [f"{HOST}:{port}" for port in etcds],
        }
        path = directory / first.settings.name
        path.write_text(yaml.safe_dump(settings, sort_keys=False))
        node = Node(path)
        self._connect(node)
        self.nodes.append(node)
        node.start()
        return node

    # Faults of the ways between nodes

    def cut(self, source: Node, target: Node) -> None:
        """Nothing that ``source`` sends arrives at ``target``: neither on streams that it dialled nor as answers."""
        for node in (source, target):
            node.trouble.begins()
        self.proxies[target.name].cut(OUT, caller=source.name)
        self.proxies[source.name].cut(BACK, caller=target.name)

    def part(self, one: Node, other: Node) -> None:
        """Nothing arrives in either direction."""
        self.cut(one, other)
        self.cut(other, one)

    def isolate(self, *away: Node) -> None:
        """These from all others."""
        for node in away:
            for other in self.nodes:
                if other not in away:
                    self.part(node, other)

    async def cut_off(self, *away: Node) -> None:
        """Isolate these, and wait until both sides have noticed: who has not would still lose the others for a moment
        after all is healed."""
        self.isolate(*away)
        pairs = [(node, other) for node in self.nodes for other in self.nodes if (node in away) != (other in away)]
        await self.until(lambda: not any(node.sees(other) for node, other in pairs), "they miss each other")

    def heal(self) -> None:
        for proxy in self.proxies.values():
            proxy.heal()
        for node in self.nodes:
            if not node.frozen:
                node.trouble.ends()

    # Waiting

    async def until(self, condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> float:
        """Look again and again, beside the event loop; the seconds that it took. Fails after ``seconds``."""
        began = time.monotonic()
        while not await asyncio.to_thread(condition):
            assert time.monotonic() - began < seconds * slowness(), (
                f"not within {seconds:.0f} s: {what}\n{self.describe()}"
            )
            await asyncio.sleep(POLL)
        return time.monotonic() - began

    async def whole(self, nodes: Iterable[Node] | None = None) -> float:
        """Wait until all nodes let clients in, are connected directly and owe each other nothing, with equal routes."""
        members = list(self.nodes if nodes is None else nodes)
        took = await self.until(lambda: all(node.is_ready() for node in members), "all nodes are ready")
        took += await self.until(lambda: all(node.whole(len(members)) for node in members), "the cluster is whole")
        return took + await self.until(lambda: self.equal_routes(members), "the routes of all nodes are equal")

    def equal_routes(self, nodes: Iterable[Node] | None = None) -> bool:
        try:
            tables = [node.routes() for node in (self.nodes if nodes is None else nodes)]
        except AwayError:
            return False
        return all(table == tables[0] for table in tables)

    def describe(self) -> str:
        """How each node is, as it says."""
        lines = []
        for node in self.nodes:
            try:
                status = node.status()
            except AwayError as error:
                lines.append(str(error))
                continue
            members = [
                f"{each['name']}"
                f"{'' if each['connected'] else ' away'}{'' if each['online'] else ' offline'}"
                f"{' through ' + each['through'] if each['through'] else ''}{' behind' if each['behind'] else ''}"
                f"{' owed ' + str(each['queued']) if each['queued'] else ''}"
                for each in status["members"]
                if not each["this"]
            ]
            state = "serves" if status["serving"] else f"waits: {status['waits_for']}"
            lines.append(f"{node.name} {state}; sees {', '.join(members)}")
        return "\n".join(lines)

    def complaints(self) -> list[str]:
        """The log lines that no node may ever write."""
        return [f"{node.name}: {complaint}" for node in self.nodes for complaint in complaints_in(node.said())]


def complaints_in(log: str) -> list[str]:
    """A traceback is one complaint, with the line before it and the error at its end."""
    found: list[str] = []
    lines = log.splitlines()
    traceback = False
    for before, line in zip(["", *lines], lines, strict=False):
        if traceback:
            found[-1] += f"\n    {line}"
            traceback = line.startswith(" ")
        elif line.startswith("Traceback"):
            traceback = True
            found.append(f"{before}\n    {line}")
        elif any(word in line for word in ("Traceback", "Error:", " CRITICAL ", "never retrieved")):
            found.append(line)
    return found
