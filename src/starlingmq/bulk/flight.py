"""The bulk reading service for streams: an Arrow Flight server over the files of one node.

gRPC calls it in its own threads. They share the readers, which are created on first use.
"""

from __future__ import annotations

import hmac
import json
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.flight as fl  # type: ignore[import-untyped]

from starlingmq.bulk.arrow import batch_of
from starlingmq.bulk.columns import Columns, TopicFilter
from starlingmq.bulk.protocol import (
    MISSING,
    NODE,
    REPLACED,
    REQUEST_BYTES_MAX,
    TRIMMED,
    USER,
    Bounds,
    Commit,
    Limit,
    Progress,
    Seek,
    StreamProblem,
    Ticket,
    Wanted,
    schema_of,
)
from starlingmq.bulk.reader import Replaced, StreamMissing, StreamReader, Trimmed
from starlingmq.config.streams_section import NAME_PATTERN
from starlingmq.core.topics.topics import valid_filter
from starlingmq.net.control_path import NAME, reachable
from starlingmq.storage.streams.stream_definition import identity


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that the broker passes to the process. ``token``, ``cert`` and ``key`` (PEM) may be empty; ``nice``: the
    increment over the broker's niceness; ``processors``: the CPUs it may use, empty for all.
    """

    data_dir: str
    node: str
    host: str
    port: int
    token: str = ""
    cert: str = ""
    key: str = ""
    nice: int = 0
    processors: tuple[int, ...] = ()
    memory: int = 1 << 30
    calls: int = 256


ASKING_MAX: Final = 4  # connections used at the control socket at once; its others are for operators
BAD_JSON: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class BrokerGone(Exception):
    """The broker does not answer at its control socket."""


class _Token(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._wanted = f"Bearer {token}".encode()

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        shown = (headers.get("authorization") or [""])[0].encode()
        if not hmac.compare_digest(shown, self._wanted):
            raise fl.FlightUnauthenticatedError("the token is missing or wrong; set the option token")


class _Shown(fl.ServerMiddleware):  # type: ignore[misc]
    """The user that a call names: the header ``USER``, "" without."""

    def __init__(self, user: str) -> None:
        self.user = user


class Calls:
    """Counts concurrent calls by the address of the reader. Raises FlightUnavailableError above the limit."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.most_of_one = max(1, most // 4)
        self.running: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def one(self, peer: str) -> Iterator[None]:
        host = peer.rpartition(":")[0]
        with self._lock:
            if self.running.total() >= self.most or self.running[host] >= self.most_of_one:
                raise fl.FlightUnavailableError("too many concurrent calls (streams.calls); try again later")
            self.running[host] += 1
        try:
            yield
        finally:
            with self._lock:
                self.running[host] -= 1
                if not self.running[host]:
                    del self.running[host]


def _peer(context: fl.ServerCallContext) -> str:
    return unquote(context.peer()).partition(":")[2]  # ipv4:127.0.0.1:4711, ipv6:[::1]:4711


class _UserMiddleware(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    def start_call(self, info: Any, headers: dict[str, list[str]]) -> _Shown:
        return _Shown((headers.get(USER) or [""])[0])


class _NodeMiddleware(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses a call addressed to another node."""

    def __init__(self, node: str) -> None:
        self._node = node

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        wanted = (headers.get(NODE) or [self._node])[0]
        if wanted != self._node:
            raise fl.FlightUnavailableError(f"this is node {self._node}, not {wanted[:64]}")


class StreamFlight(fl.FlightServerBase):  # type: ignore[misc]
    def __init__(self, settings: Settings) -> None:
        scheme = "grpc+tls" if settings.cert else "grpc"
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        super().__init__(
            f"{scheme}://{host}:{settings.port}",
            tls_certificates=[(settings.cert, settings.key)] if settings.cert else None,
            middleware={"user": _UserMiddleware(), "node": _NodeMiddleware(settings.node)}
            | ({"token": _Token(settings.token)} if settings.token else {}),
        )
        self._settings = settings
        self._directory = Path(settings.data_dir) / "streams"
        self._readers: dict[str, StreamReader] = {}
        self._lock = threading.Lock()
        self._calls = Calls(settings.calls)
        self._asking = threading.Semaphore(ASKING_MAX)

    # Flight

    def do_get(self, context: fl.ServerCallContext, ticket: fl.Ticket) -> fl.FlightDataStream:
        wanted = _decoded(ticket.ticket, Ticket, "a ticket")
        filters = [filter.encode() for filter in wanted.filters]
        for filter in filters:
            if not valid_filter(filter):
                raise fl.FlightServerError(f"{filter.decode()!r} is not a topic filter")
        try:
            self._permit(context, wanted.stream)
        except BrokerGone as error:
            raise fl.FlightUnavailableError(str(error)) from None
        return fl.GeneratorStream(
            schema_of(wanted.columns), self._batches(_peer(context), wanted, TopicFilter(filters))
        )

    def do_action(self, context: fl.ServerCallContext, action: fl.Action) -> list[fl.Result]:
        act = self.ACTIONS.get(action.type)
        if act is None:
            raise fl.FlightServerError(f"unknown action {action.type[:64]!r}")
        if action.body.size > REQUEST_BYTES_MAX:
            raise fl.FlightServerError(
                f"{action.type}: {action.body.size} bytes are more than the limit of {REQUEST_BYTES_MAX}"
            )
        try:
            with self._calls.one(_peer(context)):
                found = act(self, context, action.body.to_pybytes())
        except (StreamMissing, Replaced, Trimmed) as error:
            raise _problem(error) from None
        except BrokerGone as error:
            raise fl.FlightUnavailableError(str(error)) from None
        except BAD_JSON as error:
            raise fl.FlightServerError(f"{action.type}: {error}") from None
        return [fl.Result(msgspec.json.encode(found))]

    def list_actions(self, context: fl.ServerCallContext) -> list[tuple[str, str]]:
        return [(name, "see starlingmq.bulk.protocol") for name in self.ACTIONS]

    # Permissions

    def _permit(self, context: fl.ServerCallContext, stream: str) -> None:
        """Raises FlightUnauthorizedError if the rules do not allow this caller to read the stream, BrokerGone."""
        user, allowed = self._readable(context, [stream])
        if stream not in allowed:
            who = f"user {user!r}" if user else "an anonymous reader (set the options user and password)"
            raise fl.FlightUnauthorizedError(f"{who} may not read stream {stream}; allow it with a rule in auth.acl")

    def _readable(self, context: fl.ServerCallContext, streams: list[str]) -> tuple[str, list[str]]:
        """Return the caller and the streams that it may read. Raises FlightUnauthenticatedError for wrong credentials,
        BrokerGone.
        """
        arguments = {"user": context.get_middleware("user").user, "peer": _peer(context), "streams": "\n".join(streams)}
        found = self._ask("stream.access", arguments)
        if found["refused"]:
            raise fl.FlightUnauthenticatedError(f"{found['refused']} (options user and password)")
        return found["user"], found["allowed"]

    # Reading

    def _reader(self, name: str) -> StreamReader:
        with self._lock:
            reader = self._readers.get(name)
            if reader is None or not reader.current():
                self._readers.pop(name, None)
                if not re.match(NAME_PATTERN, name):
                    raise StreamMissing(f"there is no stream {name} on this node")
                reader = self._readers[name] = StreamReader(self._directory / name)
            return reader

    def _batches(self, peer: str, wanted: Ticket, filter: TopicFilter) -> Iterator[tuple[pa.RecordBatch, pa.Buffer]]:
        with self._calls.one(peer):
            yield from self._read(wanted, filter)

    def _read(self, wanted: Ticket, filter: TopicFilter) -> Iterator[tuple[pa.RecordBatch, pa.Buffer]]:
        node = self._settings.node
        try:
            reader = self._reader(wanted.stream)
            reader.expect(wanted.id, wanted.end)
            for columns, lost in _forgiving(reader, wanted, filter):
                progress = msgspec.json.encode(Progress(next=columns.next, lost=columns.lost + lost))
                yield batch_of(columns, node, wanted.columns), pa.py_buffer(progress)
        except (StreamMissing, Replaced, Trimmed) as error:
            raise _problem(error) from None

    # Actions

    def _nodes(self, context: fl.ServerCallContext, body: bytes) -> Any:
        self._readable(context, [])
        return self._ask("stream.nodes", {})

    def _streams(self, context: fl.ServerCallContext, body: bytes) -> list[Bounds]:
        names = [path.parent.name for path in sorted(self._directory.glob("*/STREAM"))]
        if body:
            name = msgspec.json.decode(body, type=Wanted).stream
            self._permit(context, name)
            names = [name] if name in names else []
        else:
            names = self._readable(context, names)[1]
        found = []
        for name in names:
            try:
                reader = self._reader(name)
                bounds = (reader.first, reader.next)
            except (StreamMissing, FileNotFoundError):  # deleted meanwhile
                continue
            definition = reader.definition
            found.append(
                Bounds(
                    stream=reader.name,
                    first=bounds[0],
                    next=bounds[1],
                    topics=list(definition.topics),
                    id=identity(definition),
                    begin=definition.begin,
                    earlier=definition.earlier,
                )
            )
        return found

    def _seek(self, context: fl.ServerCallContext, body: bytes) -> int:
        wanted = msgspec.json.decode(body, type=Seek)
        self._permit(context, wanted.stream)
        return self._reader(wanted.stream).offset_at(wanted.when)

    def _limit(self, context: fl.ServerCallContext, body: bytes) -> int:
        wanted = msgspec.json.decode(body, type=Limit)
        self._permit(context, wanted.stream)
        return self._reader(wanted.stream).limit(wanted.start, wanted.bytes)

    def _commit(self, context: fl.ServerCallContext, body: bytes) -> int:
        told = msgspec.json.decode(body, type=Commit)
        self._permit(context, told.stream)
        self._reader(told.stream).expect(told.id, told.next)
        arguments = {"name": told.stream, "consumer": told.consumer, "next": str(told.next)}
        lag: int = self._ask("stream.commit", {**arguments, "pins": "yes" if told.pins else ""})["lag"]
        return lag

    ACTIONS: Final[dict[str, Callable[[StreamFlight, fl.ServerCallContext, bytes], Any]]] = {
        "nodes": _nodes,
        "streams": _streams,
        "seek": _seek,
        "limit": _limit,
        "commit": _commit,
    }

    def _ask(self, action: str, arguments: dict[str, str]) -> Any:
        """Ask the broker of this node. Raises BrokerGone, or FlightServerError with the broker's error."""
        try:
            with self._asking, closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
                connection.settimeout(10.0)
                with reachable(Path(self._settings.data_dir) / NAME) as path:
                    connection.connect(path)
                connection.sendall(json.dumps({"action": action, "arguments": arguments}).encode() + b"\n")
                with connection.makefile("rb") as answers:
                    answer = json.loads(answers.readline() or b"{}")
        except OSError as error:
            raise BrokerGone(f"the broker of node {self._settings.node} does not answer: {error}") from None
        if "result" not in answer:
            raise fl.FlightServerError(answer.get("error", "the broker closed the connection before it answered"))
        return answer["result"]


T = TypeVar("T")


def _decoded(data: bytes, kind: type[T], what: str) -> T:
    """Decode a request. Raises FlightServerError in one line."""
    if len(data) > REQUEST_BYTES_MAX:
        raise fl.FlightServerError(f"{what}: {len(data)} bytes are more than the limit of {REQUEST_BYTES_MAX}")
    try:
        return msgspec.json.decode(data, type=kind)
    except BAD_JSON as error:
        raise fl.FlightServerError(f"{what}: {error}") from None


def _problem(error: StreamMissing | Replaced | Trimmed) -> fl.FlightServerError:
    code = TRIMMED if isinstance(error, Trimmed) else MISSING if isinstance(error, StreamMissing) else REPLACED
    first = error.first if isinstance(error, Trimmed) else 0
    problem = StreamProblem(code=code, message=str(error), first=first)
    return fl.FlightServerError(problem.message, msgspec.json.encode(problem))


def _forgiving(reader: StreamReader, wanted: Ticket, filter: TopicFilter) -> Iterator[tuple[Columns, int]]:
    """Yield columns, each with the number of rows trimmed before it, which are reported if the ticket forgives them."""
    start, lost = wanted.start, 0
    while start < min(wanted.end, reader.next):
        try:
            for columns in reader.read(start, wanted.end, filter):
                yield columns, lost
                start, lost = columns.next, 0
        except Trimmed as error:
            if not wanted.forgive:
                raise
            first = max(start, min(error.first, wanted.end))
            lost += first - start
            start = first
    if lost:
        yield Columns(0, start), lost
