"""The nodes of a stream, as a reader finds and asks them."""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.flight as fl  # type: ignore[import-untyped]

from starlingmq.bulk.protocol import (
    MISSING,
    TRIMMED,
    USER,
    Bounds,
    Commit,
    Limit,
    Nodes,
    Progress,
    Seek,
    StreamProblem,
    Ticket,
    Wanted,
)
from starlingmq.spark.read_options import Options

log = logging.getLogger("starlingmq.spark")

T = TypeVar("T")
CALL_SECONDS: Final = 10.0
AGAIN_SECONDS: Final = 0.25


class StreamError(Exception):
    """Why a stream can not be read; one line for who runs the query."""


class NodeAway(Exception):
    """A node does not answer. ``patience`` may help."""


class LostRows(StreamError):
    """Rows that were to be read are not kept any more, or are damaged."""


class NodeConnection:
    """To one node, at its address."""

    def __init__(self, address: str, options: Options) -> None:
        self.address = address
        self._headers = [(b"authorization", f"Bearer {options.token}".encode())] if options.token else []
        if options.user:
            shown = base64.b64encode(f"{options.user}:{options.password}".encode())
            self._headers.append((USER.encode(), b"Basic " + shown))
        scheme = "grpc+tls" if options.ca else "grpc"
        self._client = fl.FlightClient(f"{scheme}://{address}", tls_root_certs=options.ca.encode() or None)

    def close(self) -> None:
        self._client.close()

    def _options(self, timeout: float | None = None) -> fl.FlightCallOptions:
        return fl.FlightCallOptions(headers=self._headers, timeout=timeout)

    def ask(self, action: str, body: msgspec.Struct | None, kind: type[T]) -> T:
        """Raises NodeAway, StreamError."""
        data = b"" if body is None else msgspec.json.encode(body)
        try:
            (result,) = self._client.do_action(fl.Action(action, data), self._options(CALL_SECONDS))
        except fl.FlightError as error:
            raise explained(error, self.address) from None
        return msgspec.json.decode(result.body.to_pybytes(), type=kind)

    def rows(self, ticket: Ticket) -> Iterator[tuple[pa.RecordBatch, Progress]]:
        """Raises NodeAway, StreamError."""
        try:
            reader = self._client.do_get(fl.Ticket(msgspec.json.encode(ticket)), self._options())
            for chunk in reader:
                yield chunk.data, msgspec.json.decode(chunk.app_metadata.to_pybytes(), type=Progress)
        except (fl.FlightError, pa.ArrowInvalid) as error:
            raise explained(error, self.address) from None


def explained(error: Exception, address: str) -> Exception:
    """What a call raised, as what it means for a reader."""
    text = str(error).partition(". Detail:")[0].partition("gRPC client debug")[0].strip()
    if isinstance(error, fl.FlightUnavailableError | fl.FlightTimedOutError | fl.FlightCancelledError):
        return NodeAway(f"{address} does not answer: {text}")
    extra = getattr(error, "extra_info", b"")
    if extra:
        problem = msgspec.json.decode(extra, type=StreamProblem)
        if problem.code == TRIMMED:
            return LostRows(problem.message)
        if problem.code == MISSING:
            return StreamError(f"{address}: {problem.message}")
    return StreamError(f"{address}: {text}")


class NodeBook:
    """Where the nodes are. It is asked for by any of them; what was known once stays known."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.addresses: dict[str, str] = {}
        self._open: dict[str, NodeConnection] = {}

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    def at(self, address: str) -> NodeConnection:
        connection = self._open.get(address)
        if connection is None:
            connection = self._open[address] = NodeConnection(address, self.options)
        return connection

    def look(self) -> dict[str, str]:
        """All nodes that are known, with what those who answer know now. Raises NodeAway if none does, StreamError."""
        away: list[str] = []
        answered = False
        for address in dict.fromkeys([*self.options.servers, *self.addresses.values()]):
            try:
                found = self.at(address).ask("nodes", None, Nodes)
            except NodeAway as error:
                away.append(str(error))
                continue
            answered = True
            for place in found.nodes:
                if place.address:
                    self.addresses[place.name] = place.address
            self.addresses[found.node] = address
        if not answered:
            raise NodeAway("; ".join(away))
        return self.addresses

    def patiently(self, what: Callable[[], T]) -> T:
        """Try again for as long as ``patience`` says. Raises StreamError then."""
        until = time.monotonic() + self.options.patience
        while True:
            try:
                return what()
            except NodeAway as error:
                if time.monotonic() >= until:
                    waited = f"for {self.options.patience:g} s, option patience"
                    raise StreamError(f"stream {self.options.stream}: {error} ({waited})") from None
            time.sleep(AGAIN_SECONDS)

    def ask(self, node: str, action: str, body: msgspec.Struct | None, kind: type[T]) -> T:
        """Ask a node by its name, patiently. Raises StreamError."""
        return self.patiently(lambda: self._ask_now(node, action, body, kind))

    def _ask_now(self, node: str, action: str, body: msgspec.Struct | None, kind: type[T]) -> T:
        if node not in self.addresses:
            self.look()
        address = self.addresses.get(node)
        if address is None:
            raise NodeAway(
                f"node {node} has a part of the stream, but no server knows its address; start it, or add it "
                "to the option servers"
            )
        try:
            return self.at(address).ask(action, body, kind)
        except NodeAway as error:
            self.look()  # it may be back somewhere else
            raise NodeAway(f"node {node}: {error}") from None

    def bounds(self, expected: dict[str, int]) -> dict[str, tuple[int, int]]:
        """First and next offset on every node that has the stream, those ``expected`` at least, but for nodes that the
        query goes on without. Raises StreamError."""
        self.patiently(self.look)
        found: dict[str, tuple[int, int]] = {}
        for node in dict.fromkeys([*self.addresses, *expected]):
            if node in self.options.without:
                continue
            wanted = Wanted(stream=self.options.stream)
            mine = next(iter(self.ask(node, "streams", wanted, list[Bounds])), None)
            if mine is not None:
                found[node] = (mine.first, mine.next)
            elif node in expected:
                raise LostRows(f"stream {self.options.stream} has been deleted on node {node}")
        if not found:
            known = ", ".join(self.addresses)
            raise StreamError(
                f"there is no stream {self.options.stream} on {known}; create it with starlingmq ctl stream create"
            )
        return found

    def seek(self, node: str, when: float) -> int:
        return self.ask(node, "seek", Seek(stream=self.options.stream, when=when), int)

    def limit(self, node: str, start: int, size: int) -> int:
        return self.ask(node, "limit", Limit(stream=self.options.stream, start=start, bytes=size), int)

    def commit(self, node: str, next: int) -> None:
        """Say how far we are. That it fails does no harm."""
        options = self.options
        told = Commit(stream=options.stream, consumer=options.consumer, next=next, pins=options.pins)
        try:
            self._ask_now(node, "commit", told, Any)
        except (NodeAway, StreamError) as error:
            log.warning("could not report the progress of the query to node %s: %s", node, error)
