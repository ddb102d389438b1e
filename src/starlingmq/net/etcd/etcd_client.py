"""Carries out the requests of ``cluster.etcd.etcd_requests``: transactions, watches that resume, and the one lease of
the node.

- A transaction is sent once. Without an answer from etcd, the result says that the outcome is unknown. So it does once
  the members of etcd have elected another leader meanwhile: what the former one had under way may be lost with it, and
  no member would answer it.
- An interrupted watch resumes after the last reported change, or after the revision of a progress notification.
- The lease is kept alive each third of its time; that also detects that etcd is unavailable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Final

from starlingmq.cluster.etcd.etcd_requests import (
    Answer,
    EtcdState,
    LeaseLost,
    Put,
    Request,
    Revoke,
    Txn,
    TxnAnswer,
    Watch,
    WatchLost,
)
from starlingmq.config.cluster_section import EtcdTlsConfig
from starlingmq.net.etcd.etcd_calls import (
    GRANT,
    KEEP_ALIVE,
    REVOKE,
    STATUS,
    TXN,
    WATCH,
    A,
    EtcdCalls,
    EtcdError,
    EtcdMethod,
    EtcdStream,
    Q,
)
from starlingmq.net.etcd.etcd_members import addresses, members
from starlingmq.net.etcd.etcd_messages import txn_answer, txn_request, watch_event, watch_request
from starlingmq.net.proto import etcd_pb2 as pb

log = logging.getLogger("starlingmq.etcd")

RETRY: Final = 0.2  # seconds between attempts
DISCOVER_SECONDS: Final = 30.0
OPEN_MAX: Final = 1024  # outstanding transactions; more are refused
LATE_SECONDS: Final = 0.1  # after which the member is asked, again and again, whether it has another leader since
ANOTHER_LEADER: Final = "ANOTHER_LEADER"


class EtcdClient:
    """``on_answer`` is called on the event loop, never from within ``submit``. ``discover``: other members are asked
    too, at the addresses that they announce, when those of ``endpoints`` do not answer."""

    def __init__(
        self,
        endpoints: Sequence[str],
        on_answer: Callable[[Answer], None],
        *,
        discover: bool = False,
        lease_ttl: int = 10,
        request_timeout: float = 3.0,
        tls: EtcdTlsConfig | None = None,
        username: str = "",
        password: str = "",
    ) -> None:
        self.calls = EtcdCalls(endpoints, request_timeout, tls, username, password)
        self.calls.on_moved = self._moved
        self.lease = 0
        self._discover = discover
        self._discovered = -inf
        self._lease_ttl = lease_ttl
        self._on_answer = on_answer
        self._granted = asyncio.Event()
        self._doubted = asyncio.Event()  # there is a reason to believe that the lease is gone
        self._failures = 0
        self._available: bool | None = None
        self._lease_task: asyncio.Task[None] | None = None
        self._txns: set[asyncio.Task[None]] = set()
        self._term = 0  # of the leader of etcd, as far as answers have told
        self._look: asyncio.Task[None] | None = None  # at the term
        self._watches: dict[bytes, asyncio.Task[None]] = {}
        self._streams: dict[bytes, EtcdStream[pb.WatchRequest, pb.WatchResponse]] = {}

    async def start(self) -> None:
        """Starts looking for etcd; an ``EtcdState`` reports whether it is available."""
        self._lease_task = asyncio.create_task(self._keep_lease())

    def submit(self, request: Request) -> None:
        loop = asyncio.get_running_loop()
        if isinstance(request, Watch):
            former = self._watches.pop(request.prefix, None)
            if former is not None:
                former.cancel()
            task = self._watches[request.prefix] = loop.create_task(self._watch(request))
            task.add_done_callback(partial(self._watch_ended, request))
        elif isinstance(request, Revoke):
            self._keep(loop.create_task(self._revoke(request)))
        elif len(self._txns) >= OPEN_MAX:
            loop.call_soon(self._on_answer, TxnAnswer(request.tag, False, 0, error="too many requests to etcd"))
        else:
            self._keep(loop.create_task(self._txn(request)))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._txns.add(task)
        task.add_done_callback(self._txns.discard)

    async def close(self, revoke: bool = True) -> None:
        """Ends all outstanding requests without an answer. ``revoke``: revokes the lease, so that its keys are deleted
        at once."""
        watches, self._watches = self._watches, {}
        tasks = [*self._txns, *watches.values()]
        if self._lease_task is not None:
            tasks.append(self._lease_task)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if revoke and self.lease and self._available:
            try:
                async with asyncio.timeout(self.calls.timeout):
                    await self._end_lease(self.lease)
            except (EtcdError, TimeoutError) as error:
                log.info(
                    "revoking the etcd lease failed, so the node counts as online until the lease expires: %s",
                    error or "no answer in time",
                )
        if self._look is not None:
            self._look.cancel()
        await self.calls.close()

    # Transactions

    async def _txn(self, txn: Txn) -> None:
        try:
            await self._leased(txn)
            response = await self._unless_lost(TXN, txn_request(txn, self.lease))
        except EtcdError as error:
            if error.code == "NOT_FOUND":  # the lease of the write
                self._doubted.set()
            elif error.code != ANOTHER_LEADER:
                self._failed(error)
            self._on_answer(TxnAnswer(txn.tag, False, 0, error=str(error)))
        else:
            self._term = max(self._term, response.header.raft_term)
            self._answered()
            self._on_answer(txn_answer(txn, response))

    async def _unless_lost(self, method: EtcdMethod[Q, A], request: Q) -> A:
        """The answer. Raises EtcdError, also once etcd has another leader than when it was asked."""
        term, endpoint = self._term, self.calls.endpoint
        call = asyncio.ensure_future(self.calls.call(method, request))
        try:
            while not (await asyncio.wait((call,), timeout=LATE_SECONDS))[0]:
                if self._look is None or self._look.done():
                    self._look = asyncio.create_task(self._look_at_term(endpoint))
                    self._keep(self._look)
                await asyncio.wait((call, self._look), timeout=LATE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if term and self._term > term and not call.done():
                    raise EtcdError(f"etcd at {endpoint}: another leader was elected meanwhile", ANOTHER_LEADER, True)
            return call.result()
        finally:
            call.cancel()

    async def _look_at_term(self, endpoint: str) -> None:
        with suppress(EtcdError):
            status = await self.calls.call(STATUS, pb.StatusRequest(), endpoint)
            if status.leader:
                self._term = max(self._term, status.header.raft_term)

    async def _leased(self, txn: Txn) -> None:
        if self._granted.is_set() or not any(
            isinstance(each, Put) and each.leased for each in txn.success + txn.failure
        ):
            return
        try:
            async with asyncio.timeout(self.calls.timeout):
                await self._granted.wait()
        except TimeoutError:
            raise EtcdError("etcd has not granted a lease yet", elsewhere=True) from None

    async def _revoke(self, revoke: Revoke) -> None:
        """Again and again while no member can do it, as long as the lease would last without."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._lease_ttl
        while True:
            try:
                await self._end_lease(revoke.lease)
                return
            except EtcdError as error:  # perhaps another node was faster, or the lease has expired by itself
                log.debug("a lease was not ended: %s", error)
                if not error.elsewhere or loop.time() >= until:
                    return
            await asyncio.sleep(RETRY)

    async def _end_lease(self, lease: int) -> None:
        """Raises EtcdError."""
        while True:
            try:
                await self._unless_lost(REVOKE, pb.LeaseRevokeRequest(id=lease))
                return
            except EtcdError as error:
                if error.code != ANOTHER_LEADER:
                    raise

    # Watches

    async def _watch(self, watch: Watch) -> None:
        revision = watch.revision
        while True:
            try:
                stream = await self.calls.open(WATCH)
                self._streams[watch.prefix] = stream
                try:
                    response = await stream.begin(watch_request(watch, revision))
                    while not response.compact_revision:
                        if response.canceled:
                            raise EtcdError(f"etcd cancelled the watch: {response.cancel_reason}")
                        if response.events:
                            event = watch_event(watch, response)
                            revision = event.revision + 1
                            self._answered()
                            self._on_answer(event)
                        elif not response.created:
                            revision = max(revision, response.header.revision + 1)
                        response = await stream.read()
                finally:
                    stream.cancel()
                self._on_answer(WatchLost(watch.prefix, response.compact_revision))
                return
            except EtcdError as error:
                if error.code != "MOVED":
                    self._failed(error)
            await asyncio.sleep(RETRY)

    def _watch_ended(self, watch: Watch, task: asyncio.Task[None]) -> None:
        """A watch ends when it is replaced or when etcd has compacted what it needs. Any other end is an error of this
        program: it is logged, and everything below the prefix is read again, which also starts the watch again."""
        if self._watches.get(watch.prefix) is not task:
            return
        del self._watches[watch.prefix]
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:
            log.error(
                "the watch of %r at etcd ended unexpectedly (%r), so its keys are read again; please report this",
                watch.prefix,
                error,
            )
            self._keep(asyncio.get_running_loop().create_task(self._lose(watch)))

    async def _lose(self, watch: Watch) -> None:
        await asyncio.sleep(RETRY)
        self._on_answer(WatchLost(watch.prefix, 0))

    def _moved(self) -> None:
        """Moves the watches to the endpoint that answers: the previous one may be silent without reporting an error."""
        for stream in self._streams.values():
            if stream.endpoint != self.calls.endpoint:
                stream.cancel()

    # The lease

    async def _keep_lease(self) -> None:
        pause = 0.0
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._doubted.wait()
            self._doubted.clear()
            try:
                ttl = await self._extend() if self.lease else 0
                if not ttl:
                    ttl = await self._grant()
            except EtcdError as error:
                self._failed(error)
                pause = RETRY
            else:
                self._answered()
                pause = min(ttl, self._lease_ttl) / 3
                if self._discover:
                    await self._look_around()

    async def _look_around(self) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._discovered + DISCOVER_SECONDS:
            return
        with suppress(EtcdError):  # the lease detects members that do not answer
            self.calls.also(addresses(await members(self.calls)))
            self._discovered = now

    async def _grant(self) -> int:
        """Requests a lease; its predecessor is gone, if there was one. Returns its duration in seconds."""
        response = await self.calls.call(GRANT, pb.LeaseGrantRequest(ttl=self._lease_ttl))
        first, self.lease = not self.lease, response.id
        self._granted.set()
        if not first:
            self._on_answer(LeaseLost(self.lease))
        return response.ttl

    async def _extend(self) -> int:
        """Extends the lease. Returns its remaining seconds; 0: it is gone."""
        stream = await self.calls.open(KEEP_ALIVE)
        try:
            return (await stream.begin(pb.LeaseKeepAliveRequest(id=self.lease))).ttl
        finally:
            stream.cancel()

    # Availability

    def _answered(self) -> None:
        self._failures = 0
        self._tell(True)

    def _failed(self, error: EtcdError) -> None:
        """etcd counts as unavailable when as many calls in a row have failed as there are endpoints."""
        self._failures += 1
        if self._failures >= len(self.calls.endpoints):
            self._tell(False, str(error))

    def _tell(self, available: bool, reason: str = "") -> None:
        if available is not self._available:
            self._available = available
            if available:
                log.info("connected to etcd at %s", self.calls.endpoint)
            else:
                log.warning("etcd does not answer: %s", reason)
            self._on_answer(EtcdState(available, reason))
