"""A server with the calls of etcd that nodes use, for the workers of one machine: no etcd has to be installed.

It listens on loopback. Its password is given to the workers, so that other accounts of the machine stay outside. All
requests of a turn are one commit on the disk, in a thread; answers and events go out after it, in its order.

A lease ends when nothing has been heard for its time. When this process was held up, all leases get that time back: the
workers' words may still be unread.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from starlingmq.net.etcd.etcd_calls import (
    AUTHENTICATE,
    COMPACT,
    GRANT,
    KEEP_ALIVE,
    MEMBER_LIST,
    REVOKE,
    STATUS,
    TXN,
    WATCH,
    EtcdMethod,
)
from starlingmq.net.grpc_extra import grpc
from starlingmq.net.local_etcd import FILE
from starlingmq.net.local_etcd.etcd_tables import (
    LEASE_NOT_FOUND,
    Compact,
    Done,
    EndLease,
    EtcdTables,
    GrantLease,
    InvalidRequest,
    LeaseNotFound,
    ReadHistory,
    Request,
    is_between,
)
from starlingmq.net.proto import etcd_pb2 as pb

log = logging.getLogger("starlingmq.etcd")

USER: Final = "worker"
HOST: Final = "127.0.0.1"
VERSION: Final = "local"
MEMBER: Final = 1
TICK: Final = 0.5  # seconds between two looks at the leases
BATCH_MAX: Final = 1000  # requests of one commit
Code = grpc.StatusCode


class LocalEtcdError(Exception):
    """The file cannot be used, or no port is free; one line."""


class LocalEtcd:
    """``directory`` is made if it is not there. Order: ``start`` (then ``address`` and ``password``), ``close``."""

    def __init__(self, directory: Path) -> None:
        self.address = ""
        self.user = USER
        self.password = secrets.token_hex(32)
        self._directory = directory
        self._token = secrets.token_hex(32)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="keys")
        self._tables: EtcdTables | None = None
        self._server: Any = None
        self._waiting: list[tuple[Request, _Watcher | None, asyncio.Future[Done]]] = []
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._watchers: set[_Watcher] = set()
        self._ends: dict[int, float] = {}  # when each lease ends
        self._lives: dict[int, int] = {}  # seconds that it lives without a word
        self._revision = 0

    async def start(self) -> None:
        """Raises LocalEtcdError."""
        loop = asyncio.get_running_loop()
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._tables = await loop.run_in_executor(self._thread, EtcdTables, self._directory / FILE)
        except (OSError, sqlite3.Error) as error:
            raise LocalEtcdError(f"{self._directory / FILE}: {error}") from error
        self._revision = self._tables.revision
        self._lives = await loop.run_in_executor(self._thread, self._tables.leases)
        self._ends = {lease: loop.time() + seconds for lease, seconds in self._lives.items()}
        self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)))
        self._server.add_generic_rpc_handlers(tuple(self._handlers()))
        try:
            self.address = f"{HOST}:{self._server.add_insecure_port(f'{HOST}:0')}"
            await self._server.start()
        except RuntimeError as error:
            raise LocalEtcdError(f"no port is free for the keys of the workers: {error}") from error
        self._tasks = [loop.create_task(self._commit_all()), loop.create_task(self._end_leases())]

    async def close(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._tables is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._tables.close)
        self._thread.shutdown()

    def _handlers(self) -> list[Any]:
        services: dict[str, dict[str, Any]] = {}

        def serve(method: EtcdMethod[Any, Any], handler: Any, kind: Callable[..., Any]) -> None:
            _, service, name = method.path.split("/")
            made = kind(
                handler,
                request_deserializer=method.request.FromString,
                response_serializer=lambda m: m.SerializeToString(),
            )
            services.setdefault(service, {})[name] = made

        serve(AUTHENTICATE, self._authenticate, grpc.unary_unary_rpc_method_handler)
        unary: list[tuple[EtcdMethod[Any, Any], Callable[[Any], Awaitable[Any]]]] = [
            (TXN, self._txn),
            (GRANT, self._grant),
            (REVOKE, self._revoke),
            (MEMBER_LIST, self._member_list),
            (STATUS, self._status),
            (COMPACT, self._compact),
        ]
        for method, answer in unary:
            serve(method, self._checked(answer), grpc.unary_unary_rpc_method_handler)
        serve(WATCH, self._watch, grpc.stream_stream_rpc_method_handler)
        serve(KEEP_ALIVE, self._keep_alive, grpc.stream_stream_rpc_method_handler)
        return [grpc.method_handlers_generic_handler(service, methods) for service, methods in services.items()]

    # Calls

    async def _authenticate(self, request: pb.AuthenticateRequest, context: Any) -> pb.AuthenticateResponse:
        known = request.name == USER and hmac.compare_digest(request.password.encode(), self.password.encode())
        if not known:
            await context.abort(Code.INVALID_ARGUMENT, "etcdserver: authentication failed, invalid user ID or password")
        return pb.AuthenticateResponse(token=self._token)

    async def _check(self, context: Any) -> None:
        token = dict(context.invocation_metadata()).get("token", "")
        if not hmac.compare_digest(str(token).encode(), self._token.encode()):
            await context.abort(Code.UNAUTHENTICATED, "etcdserver: invalid auth token")

    def _checked(self, answer: Callable[[Any], Awaitable[Any]]) -> Any:
        async def call(request: Any, context: Any) -> Any:
            await self._check(context)
            try:
                return await answer(request)
            except LeaseNotFound:
                await context.abort(Code.NOT_FOUND, f"etcdserver: {LEASE_NOT_FOUND}")
            except InvalidRequest as error:
                await context.abort(Code.INVALID_ARGUMENT, f"etcdserver: {error}")
            except sqlite3.Error as error:
                await context.abort(Code.UNAVAILABLE, f"the keys of the workers cannot be stored: {error}")

        return call

    async def _txn(self, request: pb.TxnRequest) -> pb.TxnResponse:
        answer = (await self._done(request)).answer
        assert isinstance(answer, pb.TxnResponse)
        return answer

    async def _grant(self, request: pb.LeaseGrantRequest) -> pb.LeaseGrantResponse:
        lease = (await self._done(GrantLease(request.ttl))).answer
        assert isinstance(lease, int)
        self._lives[lease] = request.ttl
        self._ends[lease] = asyncio.get_running_loop().time() + request.ttl
        return pb.LeaseGrantResponse(id=lease, ttl=request.ttl)

    async def _revoke(self, request: pb.LeaseRevokeRequest) -> pb.LeaseRevokeResponse:
        self._forget(request.id)
        await self._done(EndLease(request.id))
        return pb.LeaseRevokeResponse()

    async def _member_list(self, _: pb.MemberListRequest) -> pb.MembersResponse:
        return pb.MembersResponse(members=[pb.Member(id=MEMBER, name=USER, client_urls=[f"http://{self.address}"])])

    async def _status(self, _: pb.StatusRequest) -> pb.StatusResponse:
        size = (self._directory / FILE).stat().st_size
        header = pb.ResponseHeader(member_id=MEMBER, revision=self._revision)
        return pb.StatusResponse(header=header, version=VERSION, leader=MEMBER, db_size=size)

    async def _compact(self, request: pb.CompactionRequest) -> pb.CompactionResponse:
        await self._done(Compact(request.revision))
        return pb.CompactionResponse()

    async def _keep_alive(self, requests: AsyncIterator[pb.LeaseKeepAliveRequest], context: Any) -> None:
        await self._check(context)
        async for request in requests:
            life = self._lives.get(request.id, 0)
            if life:
                self._ends[request.id] = asyncio.get_running_loop().time() + life
            await context.write(pb.LeaseKeepAliveResponse(id=request.id, ttl=life))

    async def _watch(self, requests: AsyncIterator[pb.WatchRequest], context: Any) -> None:
        """One watch on each stream, as this project's client asks for them."""
        await self._check(context)
        asked = (await anext(aiter(requests))).create_request
        watcher = _Watcher(asked.key, asked.range_end)
        done = await self._done(
            ReadHistory(asked.key, asked.range_end, asked.start_revision or self._revision + 1), watcher
        )
        header = pb.ResponseHeader(revision=done.revision)
        try:
            await context.write(pb.WatchResponse(header=header, created=True))
            if done.answer is None:
                trimmed = self._tables.trimmed + 1 if self._tables is not None else 1
                await context.write(pb.WatchResponse(header=header, canceled=True, compact_revision=trimmed))
                return
            if done.events:
                await context.write(pb.WatchResponse(header=header, events=done.events))
            while True:
                events, revision = await watcher.news.get()
                await context.write(pb.WatchResponse(header=pb.ResponseHeader(revision=revision), events=events))
        finally:
            self._watchers.discard(watcher)

    # Commits

    async def _done(self, request: Request, watcher: _Watcher | None = None) -> Done:
        """``watcher`` gets what is changed after the request. Raises LeaseNotFound, InvalidRequest, sqlite3.Error."""
        future: asyncio.Future[Done] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, watcher, future))
        self._wake.set()
        return await future

    async def _commit_all(self) -> None:
        loop = asyncio.get_running_loop()
        assert self._tables is not None
        while True:
            await self._wake.wait()
            batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
            if not self._waiting:
                self._wake.clear()
            try:
                results = await loop.run_in_executor(self._thread, self._tables.run, [each[0] for each in batch])
            except sqlite3.Error as error:
                log.error("the keys of the workers cannot be stored in %s: %s", self._directory / FILE, error)
                results = [error] * len(batch)
            for (_, watcher, future), result in zip(batch, results, strict=True):
                self._tell(result, watcher, future)

    def _tell(self, result: Done | Exception, watcher: _Watcher | None, future: asyncio.Future[Done]) -> None:
        if isinstance(result, Done) and watcher is None:
            self._revision = result.revision
            for each in self._watchers if result.events else ():
                each.tell(result)
        if watcher is not None and isinstance(result, Done) and not future.done():
            self._watchers.add(watcher)
        if future.done():
            return
        if isinstance(result, Done):
            future.set_result(result)
        else:
            future.set_exception(result)

    # Leases

    def _forget(self, lease: int) -> None:
        self._lives.pop(lease, None)
        self._ends.pop(lease, None)

    async def _end_leases(self) -> None:
        loop = asyncio.get_running_loop()
        looked = loop.time()
        while True:
            await asyncio.sleep(TICK)
            now = loop.time()
            held_up = now - looked - 2 * TICK
            looked = now
            if held_up > 0:
                self._ends = {lease: end + held_up + TICK for lease, end in self._ends.items()}
            for lease in [lease for lease, end in self._ends.items() if end <= now]:
                self._forget(lease)
                try:
                    await self._done(EndLease(lease))
                except LeaseNotFound:
                    continue
                except sqlite3.Error:
                    self._lives[lease], self._ends[lease] = 1, now + TICK  # again, once something can be stored


class _Watcher:
    def __init__(self, key: bytes, end: bytes) -> None:
        self.news: asyncio.Queue[tuple[list[pb.Event], int]] = asyncio.Queue()
        self._key = key
        self._end = end

    def tell(self, done: Done) -> None:
        events = [event for event in done.events if is_between(event.kv.key, self._key, self._end)]
        if events:
            self.news.put_nowait((events, done.revision))
