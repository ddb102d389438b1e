"""The nodes of a stream: a reader's discovery of them, and its requests."""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.flight as fl  # type: ignore[import-untyped]

from starlingmq.bulk.protocol import (
    MISSING,
    NODE,
    REPLACED,
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
from starlingmq.spark.secret_reference import secret_text

log = logging.getLogger("starlingmq.spark")

T = TypeVar("T")
CALL_SECONDS: Final = 10.0
AGAIN_SECONDS: Final = 0.25


class StreamError(Exception):
    """A stream cannot be read; one line for the user of the query."""


class NodeAway(Exception):
    """A node does not answer. Waiting for ``node_timeout`` may help."""


class LostRows(StreamError):
    """Rows to be read have been deleted or are damaged."""


class NoSuchStream(StreamError):
    """The node has no stream of this name."""


class StreamReplaced(LostRows):
    """The stream is not the one that was read before."""


class NodeConnection:
    """The connection to one node, at its address."""

    def __init__(self, address: str, options: Options) -> None:
        self.address = address
        token = secret_text(options.token)
        self._headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
        if options.user:
            shown = base64.b64encode(f"{options.user}:{secret_text(options.password)}".encode())
            self._headers.append((USER.encode(), b"Basic " + shown))
        scheme = "grpc+tls" if options.ca else "grpc"
        self._client = fl.FlightClient(f"{scheme}://{address}", tls_root_certs=options.ca.encode() or None)

    def close(self) -> None:
        self._client.close()

    def _options(self, node: str, timeout: float | None = None) -> fl.FlightCallOptions:
        aimed = [(NODE.encode(), node.encode())] if node else []
        return fl.FlightCallOptions(headers=self._headers + aimed, timeout=timeout)

    def ask(self, action: str, body: msgspec.Struct | None, kind: type[T], node: str = "") -> T:
        """Send a request. ``node``: the node that must answer; "": any. Raises NodeAway, StreamError."""
        data = b"" if body is None else msgspec.json.encode(body)
        try:
            (result,) = self._client.do_action(fl.Action(action, data), self._options(node, CALL_SECONDS))
        except fl.FlightError as error:
            raise explained(error, self.address) from None
        return msgspec.json.decode(result.body.to_pybytes(), type=kind)

    def rows(self, ticket: Ticket, node: str = "") -> Iterator[tuple[pa.RecordBatch, Progress]]:
        """Read rows. Raises NodeAway, StreamError."""
        try:
            reader = self._client.do_get(fl.Ticket(msgspec.json.encode(ticket)), self._options(node))
            for chunk in reader:
                yield chunk.data, msgspec.json.decode(chunk.app_metadata.to_pybytes(), type=Progress)
        except (fl.FlightError, pa.ArrowInvalid) as error:
            raise explained(error, self.address) from None


def explained(error: Exception, address: str) -> Exception:
    """Convert the error of a call to an exception for readers."""
    text = str(error).partition(". Detail:")[0].partition("gRPC client debug")[0].strip()
    text = text.removeprefix("Flight returned unavailable error, with message: ")
    if "Socket closed" in text or "Trying to connect an http1.x server" in text:
        text += "; servers needs the port of streams.listen, with tlsCa if that has TLS"
    if isinstance(error, fl.FlightUnavailableError | fl.FlightTimedOutError | fl.FlightCancelledError):
        return NodeAway(f"{address} does not answer: {text}")
    extra = getattr(error, "extra_info", b"")
    if extra:
        problem = msgspec.json.decode(extra, type=StreamProblem)
        if problem.code == TRIMMED:
            return LostRows(problem.message)
        if problem.code == REPLACED:
            return StreamReplaced(f"{address}: {problem.message}")
        if problem.code == MISSING:
            return NoSuchStream(f"{address}: {problem.message}")
    return StreamError(f"{address}: {text}")


class NodeBook:
    """The nodes of a stream and their addresses. Any node reports the others; a known address is kept. ``away``:
    members of the cluster that no node is connected to. ``silent``: servers that did not answer, if the nodes are not
    one cluster that knows all its members: each may be a node with a partition of the stream.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.addresses: dict[str, str] = {}
        self.away: set[str] = set()
        self.silent: set[str] = set()
        self.without: set[str] = set()  # nodes on which the stream was deleted, as the log says
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

    def _drop(self, address: str) -> None:
        """Reconnect at the next call; gRPC by itself would delay each attempt longer."""
        connection = self._open.pop(address, None)
        if connection is not None:
            connection.close()

    def look(self) -> dict[str, str]:
        """Ask all known nodes and return all nodes, with those newly reported. Raises NodeAway if none answers,
        StreamError.
        """
        why: list[str] = []
        answered: dict[str, str] = {}  # by address, the node that answered
        told: dict[str, str] = {}
        away: set[str] = set()
        clustered = False
        for address in dict.fromkeys([*self.options.servers, *self.addresses.values()]):
            try:
                found = self.at(address).ask("nodes", None, Nodes)
            except NodeAway as error:
                why.append(str(error))
                self._drop(address)
                continue
            answered[address] = found.node
            clustered |= found.cluster
            told |= {each.name: each.address for each in found.nodes if each.address}
            away |= {each.name for each in found.nodes if each.away}
        if not answered:
            raise NodeAway("; ".join(why))
        for node, address in told.items():
            if answered.get(address, node) == node:
                self.addresses[node] = address
        self.addresses |= {node: address for address, node in answered.items()}
        for node, address in list(self.addresses.items()):
            if answered.get(address, node) != node:  # another node has this address now
                del self.addresses[node]
        self.away = away - set(told) - set(answered.values())
        self.silent = set() if clustered else set(self.options.servers) - set(self.addresses.values()) - set(answered)
        return self.addresses

    def patiently(self, what: Callable[[], T]) -> T:
        """Retry for the node timeout; then raise StreamError."""
        until = time.monotonic() + self.options.node_timeout
        while True:
            try:
                return what()
            except NodeAway as error:
                if time.monotonic() >= until:
                    waited = f"for {self.options.node_timeout:g} s, option nodeTimeout"
                    raise StreamError(f"stream {self.options.stream}: {error} ({waited})") from None
            time.sleep(AGAIN_SECONDS)

    def ask(self, node: str, action: str, body: msgspec.Struct | None, kind: type[T]) -> T:
        """Send a request to a node by name, with retries. Raises StreamError."""
        return self.patiently(lambda: self._ask_now(node, action, body, kind))

    def address(self, node: str) -> str:
        """Return the address of a node by name. One that was just lost has none until it is back, or until another node
        serves its copy: that is waited for. Raises StreamError.
        """
        return self.patiently(lambda: self._address_now(node))

    def _address_now(self, node: str) -> str:
        if node not in self.addresses:
            self.look()
        address = self.addresses.get(node)
        if address is None:
            raise NodeAway(
                f"node {node} has a part of the stream, but none of {', '.join(self.options.servers)} knows its "
                "address; start it, or add it to the option servers"
            )
        return address

    def _ask_now(self, node: str, action: str, body: msgspec.Struct | None, kind: type[T]) -> T:
        address = self._address_now(node)
        try:
            return self.at(address).ask(action, body, kind, node)
        except NodeAway as error:
            self.look()  # it may have returned at another address
            raise NodeAway(f"node {node}: {error}") from None

    def bounds(self, expected: Iterable[str] = ()) -> dict[str, Bounds]:
        """Return the readable range of each node that has the stream. Waits for nodes that are ``expected``; any other
        node that does not answer is ``away``; nodes in ``excludedNodes`` are omitted. Empty while a stream that has
        been read is deleted, unless ``failOnDataLoss``. Raises StreamError.
        """
        return self.patiently(lambda: self._bounds_now(expected))

    def _bounds_now(self, expected: Iterable[str]) -> dict[str, Bounds]:
        self.look()
        wanted = Wanted(stream=self.options.stream)
        found: dict[str, Bounds] = {}
        awaited = set(expected)
        for node in dict.fromkeys([*self.addresses, *expected]):
            if node in self.options.excluded_nodes:
                continue
            try:
                ask = self.ask if node in awaited else self._ask_now
                told = ask(node, "streams", wanted, list[Bounds])
            except NodeAway:
                self.away.add(node)
                continue
            if told:
                found[node] = told[0]
        if not found:
            if missing := self.missing():
                raise NodeAway(f"{', '.join(sorted(missing))} may have the stream and does not answer")
            if not set(self.addresses) - set(self.options.excluded_nodes):
                raise StreamError(
                    f"excludedNodes: lists all nodes of stream {self.options.stream}, so no node is left; remove one"
                )
            if awaited and not self.options.fail_on_loss:
                return found
            known = ", ".join(self.addresses)
            raise StreamError(
                f"there is no stream {self.options.stream} on {known}; create it with starlingmq ctl stream create"
            )
        return found

    def missing(self) -> set[str]:
        """Names of nodes, or addresses of servers, that may have a partition of the stream and did not answer last
        time.
        """
        return (self.away | self.silent) - set(self.options.excluded_nodes)

    def all_bounds(self) -> dict[str, Bounds]:
        """Return the bounds of all nodes; none may be missing. Raises StreamError."""

        def look() -> dict[str, Bounds]:
            found = self._bounds_now(())
            if missing := self.missing():
                raise NodeAway(
                    f"{', '.join(sorted(missing))} may have a part of the stream and does not answer; start it, or "
                    "name it in the option excludedNodes"
                )
            return found

        return self.patiently(look)

    def seek(self, node: str, when: float) -> int:
        return self.ask(node, "seek", Seek(stream=self.options.stream, when=when), int)

    def limit(self, node: str, start: int, size: int) -> int:
        return self.ask(node, "limit", Limit(stream=self.options.stream, start=start, bytes=size), int)

    def commit(self, node: str, next: int, id: str = "") -> None:
        """Report the progress of the query. A failure is harmless."""
        options = self.options
        told = Commit(stream=options.stream, consumer=options.consumer, next=next, pins=options.pins, id=id)
        try:
            self._ask_now(node, "commit", told, Any)
        except (NodeAway, StreamError) as error:
            log.warning("could not report the progress of the query to node %s: %s", node, error)
