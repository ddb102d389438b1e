"""Calls to the members of one etcd: choice of the endpoint, TLS, authentication, and the meaning of errors.

One endpoint is used at a time. When it does not answer, or has no leader, the next call goes to the next one. A call is
repeated automatically only if it changes nothing: the outcome of a failed call is unknown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from starlingmq.config.cluster_section import EtcdTlsConfig
from starlingmq.net.etcd.call_problems import in_words
from starlingmq.net.grpc_extra import grpc, task_is_cancelled
from starlingmq.net.proto import etcd_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf.message import Message

log = logging.getLogger("starlingmq.etcd")

Q = TypeVar("Q", bound="Message")
A = TypeVar("A", bound="Message")

OPTIONS: Final[Sequence[tuple[str, Any]]] = (
    ("grpc.keepalive_time_ms", 6000),  # etcd's default accepts at most one in 5 s
    ("grpc.keepalive_timeout_ms", 3000),
    ("grpc.http2.ping_timeout_ms", 3000),  # the default is a minute, and the keepalive waits for such a ping
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


class EtcdError(Exception):
    """One line with the reason. ``elsewhere``: another member may be able to answer."""

    def __init__(self, reason: str, code: str = "", elsewhere: bool = False) -> None:
        super().__init__(reason)
        self.code = code
        self.elsewhere = elsewhere


@dataclass(frozen=True)
class EtcdMethod(Generic[Q, A]):
    path: str
    request: type[Q]
    answer: type[A]


TXN: Final = EtcdMethod("/etcdserverpb.KV/Txn", pb.TxnRequest, pb.TxnResponse)
COMPACT: Final = EtcdMethod("/etcdserverpb.KV/Compact", pb.CompactionRequest, pb.CompactionResponse)
WATCH: Final = EtcdMethod("/etcdserverpb.Watch/Watch", pb.WatchRequest, pb.WatchResponse)
GRANT: Final = EtcdMethod("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse)
REVOKE: Final = EtcdMethod("/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeRequest, pb.LeaseRevokeResponse)
KEEP_ALIVE: Final = EtcdMethod(
    "/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse
)
MEMBER_LIST: Final = EtcdMethod("/etcdserverpb.Cluster/MemberList", pb.MemberListRequest, pb.MembersResponse)
MEMBER_ADD: Final = EtcdMethod("/etcdserverpb.Cluster/MemberAdd", pb.MemberAddRequest, pb.MemberAddResponse)
MEMBER_REMOVE: Final = EtcdMethod("/etcdserverpb.Cluster/MemberRemove", pb.MemberRequest, pb.MembersResponse)
MEMBER_PROMOTE: Final = EtcdMethod("/etcdserverpb.Cluster/MemberPromote", pb.MemberRequest, pb.MembersResponse)
MOVE_LEADER: Final = EtcdMethod("/etcdserverpb.Maintenance/MoveLeader", pb.MoveLeaderRequest, pb.MoveLeaderResponse)
STATUS: Final = EtcdMethod("/etcdserverpb.Maintenance/Status", pb.StatusRequest, pb.StatusResponse)
AUTHENTICATE: Final = EtcdMethod("/etcdserverpb.Auth/Authenticate", pb.AuthenticateRequest, pb.AuthenticateResponse)


class EtcdCalls:
    """``endpoints``: ``host:port`` each; ``timeout``: seconds for each call. Raises OSError for files of ``tls``."""

    def __init__(
        self,
        endpoints: Sequence[str],
        timeout: float = 3.0,
        tls: EtcdTlsConfig | None = None,
        username: str = "",
        password: str = "",
    ) -> None:
        self.endpoints = self._given = tuple(endpoints)
        self.timeout = timeout
        self.on_moved: Callable[[], None] = lambda: None  # another endpoint is used from now on
        self._credentials = None if tls is None else _credentials(tls)
        self._user = (username, password)
        self._token = ""
        self._current = 0
        self._channels: dict[str, grpc.aio.Channel] = {}

    @property
    def endpoint(self) -> str:
        return self.endpoints[self._current % len(self.endpoints)]

    async def call(self, method: EtcdMethod[Q, A], request: Q, endpoint: str = "") -> A:
        """Calls once (a second time only when etcd has refused the token). Raises EtcdError."""
        asked = endpoint or self.endpoint
        for attempt in range(2):
            try:
                unary = self._channel(asked).unary_unary(
                    method.path, method.request.SerializeToString, method.answer.FromString
                )
                answer: A = await unary(request, timeout=self.timeout, metadata=await self._metadata(asked))
                return answer
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNAUTHENTICATED and self._token and not attempt:
                    self._token = ""
                    continue
                raise self.failed(asked, error) from None
        raise AssertionError("unreachable")

    async def ask(self, method: EtcdMethod[Q, A], request: Q) -> A:
        """For calls that change nothing or may be repeated: tries one endpoint after the other until one answers."""
        for left in reversed(range(len(self.endpoints))):
            try:
                return await self.call(method, request)
            except EtcdError as error:
                if not left or not error.elsewhere:
                    raise
        raise EtcdError("no etcd endpoint is known; set cluster.etcd.endpoints")

    async def open(self, method: EtcdMethod[Q, A]) -> EtcdStream[Q, A]:
        """A stream to the current endpoint. Raises EtcdError."""
        asked = self.endpoint
        try:
            metadata = await self._metadata(asked)
        except grpc.aio.AioRpcError as error:
            raise self.failed(asked, error) from None
        channel = self._channel(asked)
        stream = channel.stream_stream(method.path, method.request.SerializeToString, method.answer.FromString)
        return EtcdStream(self, asked, method, stream(metadata=metadata))

    def failed(self, endpoint: str, error: grpc.aio.AioRpcError) -> EtcdError:
        """The error as an EtcdError. If the current endpoint has failed, the next one is used from now on."""
        code = error.code()
        if code is grpc.StatusCode.UNAUTHENTICATED:
            self._token = ""
        elsewhere = code in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DEADLINE_EXCEEDED,
            grpc.StatusCode.CANCELLED,
            grpc.StatusCode.UNKNOWN,
        )
        if elsewhere:
            self.leave(endpoint)
        return EtcdError(f"etcd at {endpoint}: {in_words(error.details() or code.name)}", code.name, elsewhere)

    def leave(self, endpoint: str) -> None:
        """Uses another endpoint from now on, if this is the current one."""
        if endpoint == self.endpoint and len(self.endpoints) > 1:
            self._current += 1
            self._token = ""
            self.on_moved()

    def also(self, found: Sequence[str]) -> None:
        """Adds endpoints to the given ones, for when those do not answer."""
        current = self.endpoint
        self.endpoints = tuple(dict.fromkeys([*self._given, *found]))
        if current in self.endpoints:
            self._current = self.endpoints.index(current)
        else:  # it is no member any more
            self._current = 0
            self._token = ""
            self.on_moved()

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        await asyncio.gather(*(channel.close() for channel in channels.values()))

    def _channel(self, endpoint: str) -> grpc.aio.Channel:
        channel = self._channels.get(endpoint)
        if channel is None:
            if self._credentials is None:
                channel = grpc.aio.insecure_channel(endpoint, options=OPTIONS)
            else:
                channel = grpc.aio.secure_channel(endpoint, self._credentials, options=OPTIONS)
            self._channels[endpoint] = channel
        return channel

    async def _metadata(self, endpoint: str) -> tuple[tuple[str, str], ...]:
        """Metadata of a call: requires a leader, so that an isolated member refuses instead of waiting; and
        authenticates."""
        name, password = self._user
        if name and not self._token:
            request = pb.AuthenticateRequest(name=name, password=password)
            method = AUTHENTICATE
            unary = self._channel(endpoint).unary_unary(
                method.path, method.request.SerializeToString, method.answer.FromString
            )
            self._token = (await unary(request, timeout=self.timeout)).token
        leader = ("hasleader", "true")
        return (leader, ("token", self._token)) if self._token else (leader,)


class EtcdStream(Generic[Q, A]):
    """A stream to one endpoint. Everything that ends it raises an EtcdError. Its code is MOVED after ``cancel``,
    which is called when another endpoint is asked.

    ``task_is_cancelled`` is asked at each write and read: otherwise a watch that has to move while it begins would end
    its task without a word, and the node would never hear of a change again.
    """

    def __init__(self, calls: EtcdCalls, endpoint: str, method: EtcdMethod[Q, A], call: Any) -> None:
        self.endpoint = endpoint
        self._calls = calls
        self._method = method
        self._call = call
        self._cancelled = False
        self._limit: asyncio.Timeout | None = None

    async def begin(self, request: Q) -> A:
        """Sends the request. Returns the first answer, within the timeout of a call."""
        try:
            async with asyncio.timeout(self._calls.timeout) as self._limit:
                try:
                    await self._call.write(request)
                    return await self.read()
                finally:
                    self._limit = None
        except TimeoutError:
            if self._cancelled:
                raise _moved() from None
            self._calls.leave(self.endpoint)
            raise EtcdError(f"etcd at {self.endpoint}: no answer in time", elsewhere=True) from None
        except grpc.aio.AioRpcError as error:
            raise self._calls.failed(self.endpoint, error) from None
        except asyncio.CancelledError:
            if task_is_cancelled():
                raise
            raise _moved() from None
        except asyncio.InvalidStateError:  # the stream ended before the write
            raise self._ended(await self._call.details()) from None

    async def read(self) -> A:
        try:
            answer = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise self._calls.failed(self.endpoint, error) from None
        except asyncio.CancelledError:
            # If the stream is cancelled here, gRPC raises the same error as when the task is cancelled.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise _moved() from None
        if not isinstance(answer, self._method.answer):
            raise self._ended("")
        return answer

    def cancel(self) -> None:
        self._cancelled = True
        self._call.cancel()
        # The write of a call that is cancelled before it is connected never returns.
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(0.0)

    def _ended(self, details: str) -> EtcdError:
        if self._cancelled:
            return _moved()
        self._calls.leave(self.endpoint)
        return EtcdError(f"etcd at {self.endpoint}: {in_words(details) or 'the stream was closed'}", elsewhere=True)


def _moved() -> EtcdError:
    return EtcdError("changed to another endpoint", "MOVED", elsewhere=True)


def _credentials(tls: EtcdTlsConfig) -> grpc.ChannelCredentials:
    ca, key, cert = (Path(path).read_bytes() for path in (tls.ca, tls.key, tls.cert))
    return grpc.ssl_channel_credentials(ca, key, cert)
