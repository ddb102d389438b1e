"""The processes of the demo: starts them, reads their output, and ends them with all their child processes."""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

import msgspec

from starlingmq.cli.children import Child, first_of, how_it_ended, ready_or_ended
from starlingmq.cli.control import ask_broker
from starlingmq.cli.declare import CommandError
from starlingmq.cli.local_cluster import HOST
from starlingmq.demo import callers, leftovers
from starlingmq.demo.proxy import BACK, OUT, Proxy
from starlingmq.demo.stage import SHUTDOWN_SECONDS, Stage
from starlingmq.demo.told import Order, Told

POLL: Final = 0.2
PIPELINE_SECONDS: Final = 10.0  # for Spark to stop
LEFTOVER_SECONDS: Final = 5.0
LINE_BYTES_MAX: Final = 64 << 20  # an audit in JSON has a total per client and topic
WHY_MAX: Final = 300  # characters of a process's last line in an error
SAID_MAX: Final = 5  # last lines of a process kept for an error
FLEET: Final = ("starlingmq.demo.fleet",)
WORKERS: Final = ("starlingmq.demo.nats_workers",)
PIPELINE: Final = ("starlingmq", "pipeline")
SERVE: Final = ("starlingmq", "serve")


class Cast:
    """``on_told`` receives the messages of the fleet and the workers. Proxies between the nodes are created before the
    nodes: ``reached_at`` is for ``stage.build``.
    """

    def __init__(self, on_told: Callable[[Told], None]) -> None:
        self.nodes: dict[str, Child] = {}
        self.output_lines: dict[str, deque[str]] = {}  # last lines of each process
        self._on_told = on_told
        self._proxies: dict[str, Proxy] = {}
        self._children: dict[str, Child] = {}
        self._logs: dict[str, IO[str]] = {}
        self._sessions: list[int] = []  # session ids (setsid): each process leads its own
        self._decoder: msgspec.json.Decoder[Told] = msgspec.json.Decoder(Told)
        self._stage: Stage

    # Links between nodes

    def reached_at(self, name: str, port: int) -> str:
        proxy = self._proxies[name] = Proxy(HOST, port, self._caller)
        proxy.__enter__()
        return proxy.address

    def _caller(self, port: int) -> str:
        pids = {child.pid: name for name, child in self.nodes.items() if not child.ended.is_set()}
        return pids.get(callers.owner(port, pids), "nobody")

    def cut(self, one: str, other: str) -> None:
        """Stop all traffic between two nodes without closing their connections."""
        for source, target in ((one, other), (other, one)):
            self._proxies[target].cut(OUT, BACK, caller=source)

    def heal(self) -> None:
        for proxy in self._proxies.values():
            proxy.heal()

    # Start

    async def start_nodes(self, stage: Stage) -> None:
        """Start the nodes and wait until all accept clients. Raises CommandError."""
        self._stage = stage
        (stage.directory / "log").mkdir()
        for name in stage.settings:
            self.nodes[name] = await self._start(name, ("-c", str(stage.settings[name])), SERVE)
        served = await asyncio.gather(*(ready_or_ended(child) for child in self.nodes.values()))
        if not all(served):
            failed = next(child for child in self.nodes.values() if child.ended.is_set())
            raise CommandError(self.why(failed))

    async def start_again(self, name: str) -> None:
        """Restart a killed node. Raises CommandError."""
        child = self.nodes[name]
        await child.start()
        self._sessions.append(child.pid)
        if not await ready_or_ended(child):
            raise CommandError(self.why(child))

    async def start_fleet(self, order: Order) -> Child:
        return await self._start("fleet", (msgspec.json.encode(order).decode(),), FLEET)

    async def start_workers(self) -> Child:
        return await self._start("workers", self._stage.nats, WORKERS)

    async def start_pipeline(self, name: str) -> Child:
        words = ("run", "--master", "local[1]", "--json", str(self._stage.directory / f"{name}.yaml"))
        return await self._start(name, words, PIPELINE)

    async def audit(self, stream: str) -> dict[str, Any]:
        """Run the delivery audit over the brokers' events. Raises CommandError."""
        servers = [word for address in self._stage.streams for word in ("--server", address)]
        token = ("--token-file", str(self._stage.token))
        child = await self._start("audit", ("audit", "--stream", stream, *servers, *token, "--json"), PIPELINE)
        await child.ended.wait()
        for line in self.output_lines["audit"]:
            if line.startswith("{"):
                found: dict[str, Any] = msgspec.json.decode(line)
                return found
        raise CommandError(self.why(child))

    async def _start(self, name: str, words: tuple[str, ...] | list[str], program: tuple[str, ...]) -> Child:
        self._logs[name] = (self._stage.directory / "log" / name).open("a", encoding="utf-8")
        self.output_lines[name] = deque(maxlen=SAID_MAX)
        child = Child(name, words, self._line_received, self._stage.environment, program, line_bytes=LINE_BYTES_MAX)
        self._children[name] = child
        await child.start()
        self._sessions.append(child.pid)
        return child

    def _line_received(self, name: str, line: str) -> None:
        if name in ("fleet", "workers") and line.startswith("{"):
            with suppress(msgspec.MsgspecError):
                self._on_told(self._decoder.decode(line))
                return
        self.output_lines[name].append(line)
        self._logs[name].write(f"{line}\n")
        self._logs[name].flush()

    def why(self, child: Child) -> str:
        """Return how a process has ended, with its last error line."""
        said = self.output_lines[child.name]
        errors = [line for line in said if "error" in line.lower()] or list(said)
        return f"{child.name} {how_it_ended(child)}: {(errors[-1][:WHY_MAX] if errors else 'it logged nothing')}"

    # Status

    async def status(self, name: str) -> dict[str, Any] | None:
        """Return the cluster status of this node; None if the node does not answer."""
        data = self._stage.directory / name / "data"
        try:
            return await asyncio.to_thread(ask_broker, data, "cluster.status", {}, _no_report)
        except (CommandError, OSError, ValueError):
            return None

    async def whole(self) -> bool:
        """Whether all nodes serve and are directly connected to all others."""
        found = [await self.status(name) for name in self.nodes]
        return all(
            each is not None and each["serving"] and all(m["connected"] and not m["through"] for m in each["members"])
            for each in found
        )

    async def until_whole(self) -> None:
        while not await self.whole():
            await asyncio.sleep(POLL)

    async def until_apart(self, one: str, other: str) -> str:
        """Wait until a node has lost its direct connection to another one. Returns the relay node."""
        while True:
            found = await self.status(one)
            for member in found["members"] if found is not None else ():
                if member["name"] == other and member["through"]:
                    return str(member["through"])
            await asyncio.sleep(POLL)

    # End

    async def stop(self, hurry: asyncio.Event) -> list[int]:
        """End all processes, clients first; immediately when ``hurry`` is set. Returns the ids of those that had to be
        killed.
        """
        stopping = asyncio.ensure_future(self._stop_in_order())
        hurrying = asyncio.ensure_future(hurry.wait())
        await first_of(stopping, hurrying)
        if not stopping.done():
            for child in self._children.values():
                child.signal(signal.SIGKILL)
        await stopping
        hurrying.cancel()
        for proxy in self._proxies.values():
            proxy.__exit__(None, None, None)
        left = await asyncio.to_thread(leftovers.end, self._sessions, LEFTOVER_SECONDS)
        for log in self._logs.values():
            log.close()
        return left

    async def _stop_in_order(self) -> None:
        others = [child for name, child in self._children.items() if name not in self.nodes]
        await asyncio.gather(*(child.stop(PIPELINE_SECONDS) for child in others))
        await asyncio.gather(*(child.stop(SHUTDOWN_SECONDS) for child in self.nodes.values()))


def _no_report(what: str, done: int, total: int, unit: str) -> None:
    """Ignore progress reports, because this takes no time."""


def said_in(directory: Path) -> Path:
    """Return the directory with the output of all processes."""
    return directory / "log"
