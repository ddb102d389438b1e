"""The node's listener for other nodes, and one stream to each of them: frames as values above, gRPC below.

``A -> B`` uses the stream that A dialled, ``B -> A`` the one that B dialled: each node repairs the stream that it sends
on. A stream begins with a handshake (net/peers/peer_handshake.py) and then carries batches of envelopes
(net/peers/peer_codec.py). gRPC is used without generated services, and messages are bytes to it, so that they are
copied and parsed only once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from starlingmq._version import __version__
from starlingmq.cluster.links.peer_frames import Envelope, MemberInfo
from starlingmq.config.cluster_section import ClusterConfig, ClusterTlsConfig, cluster_secret, split_address
from starlingmq.net.grpc_extra import grpc
from starlingmq.net.listeners.tls import TlsError
from starlingmq.net.peers import peer_codec
from starlingmq.net.peers.call_pipe import CallPipe, Pipe
from starlingmq.net.peers.peer_handshake import (
    ACCEPTED,
    METADATA_BYTES_MAX,
    NONCE_BYTES,
    SEAL_BYTES,
    Answering,
    Identity,
    Proved,
    RefusedError,
    parts,
)
from starlingmq.net.peers.peer_stream import (
    CHALLENGE_METHOD,
    COPY_METHOD,
    HANDSHAKE_SECONDS,
    JOIN_METHOD,
    SERVICE,
    STARTING,
    PeerStream,
    PeerTraffic,
    explain,
    shake_hands,
)
from starlingmq.net.peers.process_watch import HOLD_METHOD, ProcessWatch

log = logging.getLogger("starlingmq")

MESSAGE_BYTES_MAX: Final = 320 * 1024 * 1024  # above the largest MQTT packet; only after the proof
STREAMS_MAX: Final = 512  # at once; those without a proof end in the same turn
CONNECTIONS_MAX: Final = 256  # accepted at once, so that strangers leave descriptors to others
STREAMS_PER_CONNECTION: Final = 4  # a node has two
WINDOW_BYTES: Final = 64 * 1024  # of a connection and of each of its streams, until the handler reads
STRANGER_SECONDS: Final = 5.0  # for a connection without a stream, or with a stalled TLS handshake
STRANGERS_MAX: Final = 64  # reasons for refusal that are remembered
REFUSALS_LOGGED: Final = 1.0  # seconds between two log lines; refusals in between are counted


class ListenError(Exception):
    """The listener for nodes cannot be opened; one line."""


class PeerServer:
    """Callbacks run on the event loop. ``on_connected`` and ``on_disconnected`` report the stream *to* a peer,
    ``on_gone`` the end of its process, by number and incarnation. ``chance`` returns numbers in [0, 1),
    ``random_bytes`` unguessable bytes. Order: ``start`` (then ``address`` is the address for other nodes),
    ``introduce``, ``set_peers`` whenever the members change, ``close``."""

    def __init__(
        self,
        settings: ClusterConfig,
        name: str,
        on_envelope: Callable[[Envelope], None],
        on_connected: Callable[[int], None],
        on_disconnected: Callable[[int], None],
        on_gone: Callable[[int, int], None],
        chance: Callable[[], float],
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self.address = ""
        self.traffic = PeerTraffic()
        self._settings = settings
        self._name = name
        self._secret = cluster_secret(settings)
        self._on_envelope = on_envelope
        self._on_connected = on_connected
        self._on_disconnected = on_disconnected
        self._on_gone = on_gone
        self._chance = chance
        self._random_bytes = random_bytes
        self._options = _options(settings)
        self._files = _read_files(settings.tls)
        # serves what another node copies to this one, and returns why it ended; None: this node stores no copies
        self.on_copy: Callable[[Proved, Pipe], Awaitable[str]] | None = None
        self._me: Identity | None = None
        self._answering: Answering | None = None
        self._server: Any = None
        self._streams: dict[int, PeerStream] = {}
        self._watches: dict[int, ProcessWatch] = {}
        self._closing: set[asyncio.Task[None]] = set()
        # node -> (incarnation, the task that serves its stream)
        self._inbound: dict[int, tuple[int, asyncio.Task[Any]]] = {}
        self._strangers: set[str] = set()
        self._refusal_logged = -REFUSALS_LOGGED
        self._refusals_unlogged = 0

    async def start(self) -> None:
        """Starts listening. Raises ListenError."""
        host, port = split_address(self._settings.listen, "cluster.listen")
        shown = f"[{host}]" if ":" in host else host
        options = _server_options(self._settings)
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=STREAMS_MAX)
        handlers: dict[str, Any] = {
            method.rpartition("/")[2]: grpc.stream_stream_rpc_method_handler(serve)
            for method, serve in self.methods().items()
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        listen = f"{shown or '[::]'}:{port}"
        try:
            if self._files is None:
                port = self._server.add_insecure_port(listen)
            else:
                key, chain, authorities = self._files
                credentials = grpc.ssl_server_credentials([(key, chain)], authorities, require_client_auth=True)
                port = self._server.add_secure_port(listen, credentials)
            await self._server.start()
        except RuntimeError as error:
            raise ListenError(f"cluster.listen: {self._settings.listen}: {explain(error)}") from error
        told = self._settings.advertise
        self.address = f"{told.removesuffix('0')}{port}" if told.endswith(":0") else told or f"{shown}:{port}"

    def methods(self) -> dict[str, Callable[[object, Any], Awaitable[None]]]:
        """All calls that the port answers. None of them reads a message before the node's proof."""
        return {
            CHALLENGE_METHOD: self._serve_challenge,
            JOIN_METHOD: self._serve_join,
            HOLD_METHOD: self._serve_hold,
            COPY_METHOD: self._serve_copy,
            f"/{SERVICE}/Connect": self._serve_older,
        }

    def introduce(self, number: int, incarnation: int) -> None:
        """Sets this node's identity; nodes that dial before are told to retry. Streams under an earlier identity are
        closed, and ``set_peers`` dials again."""
        for number in list(self._streams):
            self._part_with(number)
        cluster = self._settings.name
        self._me = Identity(cluster, self._name, number, incarnation, __version__, self._secret)
        self._answering = Answering(self._me, self._random_bytes(SEAL_BYTES))

    def set_peers(self, members: Iterable[MemberInfo]) -> None:
        """The nodes to connect to; this node is ignored. A node with another address is dialled again."""
        assert self._me is not None, "introduce comes first"
        wanted = {member.number: member for member in members if member.number != self._me.number}
        for number, stream in list(self._streams.items()):
            if number not in wanted or wanted[number].address != stream.member.address:
                self._part_with(number)
            elif wanted[number].incarnation != stream.member.incarnation:
                stream.member = wanted[number]
                stream.hurry()
                if number in self._watches:
                    self._watches[number].renew()
        for number, member in wanted.items():
            if number not in self._streams:
                self._streams[number] = self._stream(self._me, member)
                if self._settings.watch_processes:
                    self._watches[number] = self._watch(self._me, member)

    def send(self, number: int, envelope: Envelope) -> bool:
        """Queues an envelope for a peer. Returns False if it was dropped (and counted). Never waits, keeps the
        order."""
        stream = self._streams.get(number)
        if stream is None:
            self.traffic.drop("unconnected")
            return False
        return stream.send(envelope)

    def quiet(self) -> None:
        """This node is stopping: streams that end are not reported any more."""
        for stream in self._streams.values():
            stream.quiet = True

    def connected(self) -> list[int]:
        return [number for number, stream in self._streams.items() if stream.connected]

    async def close(self) -> None:
        for number in list(self._streams):
            self._part_with(number)
        if self._closing:
            await asyncio.wait(self._closing)
        if self._server is not None:
            await self._server.stop(None)
        if self._inbound:
            await asyncio.wait([task for _, task in self._inbound.values()])

    def _stream(self, me: Identity, member: MemberInfo) -> PeerStream:
        return PeerStream(
            me,
            member,
            self._open_channel,
            self._chance,
            lambda: self._random_bytes(NONCE_BYTES),
            2 * self._settings.link_window,
            self.traffic,
            self._tell,
        )

    def _watch(self, me: Identity, member: MemberInfo) -> ProcessWatch:
        def open_call(channel: Any) -> Awaitable[tuple[Any, int]]:
            return shake_hands(channel, me, member.number, self._random_bytes(NONCE_BYTES), HOLD_METHOD)

        return ProcessWatch(member, self._open_channel, open_call, self._is_read_from, self._on_gone)

    def _is_read_from(self, number: int, incarnation: int) -> bool:
        """Whether the stream of that incarnation is open, or has ended with unread frames."""
        return self._inbound.get(number, (0, None))[0] == incarnation

    def _tell(self, number: int, up: bool) -> None:
        if up:
            self._on_connected(number)
        # an old stream to a node that has moved may end after the new one has started
        elif number not in self.connected():
            self._on_disconnected(number)

    def _part_with(self, number: int) -> None:
        self._close_later(self._streams.pop(number))
        if number in self._watches:
            self._close_later(self._watches.pop(number))

    def _close_later(self, stream: PeerStream | ProcessWatch) -> None:
        task = asyncio.ensure_future(stream.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _open_channel(self, address: str) -> Any:
        if self._files is None:
            return grpc.aio.insecure_channel(address, self._options)
        key, chain, authorities = self._files
        return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(authorities, key, chain), self._options)

    async def _serve_older(self, _: object, context: Any) -> None:
        """A node of protocol version 1 is dialling; its handshake was part of the messages."""
        reason = (
            f"node {self._name} speaks a newer protocol between nodes than the node that connects to it; "
            "upgrade the connecting node"
        )
        await self._refuse(context, reason)

    async def _serve_challenge(self, _: object, context: Any) -> None:
        now = asyncio.get_running_loop().time()
        told = parts(context.invocation_metadata())
        try:
            answer = self._listening().challenge(told, context.peer(), self._random_bytes(NONCE_BYTES), now)
        except RefusedError as error:
            await self._refuse(context, str(error))
            return
        await context.send_initial_metadata(tuple(answer.items()))
        with suppress(TimeoutError):  # with a status just behind it, gRPC's client may take the answer for empty
            async with asyncio.timeout(STRANGER_SECONDS):
                await _until_ended(context)

    async def _serve_join(self, _: object, context: Any) -> None:
        """Serves the stream of another node, starting with its proof."""
        now = asyncio.get_running_loop().time()
        try:
            proved = self._listening().admit(parts(context.invocation_metadata()), context.peer(), now)
            self._admit(proved)
        except RefusedError as error:
            await self._refuse(context, str(error))
            return
        try:
            await context.send_initial_metadata(((ACCEPTED, proved.accepted),))
            self._strangers.clear()
            await self._read_all(proved, context)
        except asyncio.CancelledError:
            if self._counts(proved.number):
                raise
            # A newer stream has replaced it. gRPC reports an end to the dialler, but not a cancelled handler.
        finally:
            if self._counts(proved.number):
                del self._inbound[proved.number]

    async def _serve_hold(self, _: object, context: Any) -> None:
        """Serves the quiet connection of another node, which lasts as long as both processes
        (net/peers/process_watch.py)."""
        now = asyncio.get_running_loop().time()
        try:
            proved = self._listening().admit(parts(context.invocation_metadata()), context.peer(), now)
        except RefusedError as error:
            await self._refuse(context, str(error))
            return
        await context.send_initial_metadata(((ACCEPTED, proved.accepted),))
        await _until_ended(context)

    async def _serve_copy(self, _: object, context: Any) -> None:
        """Serves the connection on which another node copies its data to this one (net/peers/copy_link.py)."""
        now = asyncio.get_running_loop().time()
        try:
            proved = self._listening().admit(parts(context.invocation_metadata()), context.peer(), now)
            if self.on_copy is None:
                raise RefusedError(f"node {self._name} stores no copies; set cluster.copies on all nodes")
        except RefusedError as error:
            await self._refuse(context, str(error))
            return
        await context.send_initial_metadata(((ACCEPTED, proved.accepted),))
        reason = await self.on_copy(proved, CallPipe(context))
        if reason:
            context.set_code(grpc.StatusCode.FAILED_PRECONDITION)
            context.set_details(reason)

    @asynccontextmanager
    async def open_copy(self, member: MemberInfo) -> AsyncIterator[Pipe]:
        """A connection on which this node copies its data to another one. Raises RefusedError, TimeoutError, and errors
        of gRPC."""
        assert self._me is not None, "introduce comes first"
        channel = self._open_channel(member.address)
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                nonce = self._random_bytes(NONCE_BYTES)
                call, _ = await shake_hands(channel, self._me, member.number, nonce, COPY_METHOD)
            yield CallPipe(call)
        finally:
            await channel.close()

    def _listening(self) -> Answering:
        if self._answering is None:
            raise RefusedError(f"node {self._name} {STARTING}")
        return self._answering

    async def _refuse(self, context: Any, reason: str) -> None:
        self._note_refusal(reason)
        context.set_code(grpc.StatusCode.FAILED_PRECONDITION)
        context.set_details(reason)

    def _counts(self, number: int) -> bool:
        """Whether the current task serves the current stream of that node."""
        return self._inbound.get(number, (0, None))[1] is asyncio.current_task()

    def _admit(self, proved: Proved) -> None:
        """The newest stream of a node replaces an older one, which may hang on a dead connection."""
        task = asyncio.current_task()
        assert task is not None
        incarnation, older = self._inbound.get(proved.number, (0, None))
        if older is not None:
            if proved.incarnation < incarnation:
                raise RefusedError(f"node {proved.name} has been restarted since")
            older.cancel()
        self._inbound[proved.number] = (proved.incarnation, task)
        stream = self._streams.get(proved.number)
        if stream is not None:
            stream.hurry()
        watch = self._watches.get(proved.number)
        if watch is not None:
            watch.hurry()

    async def _read_all(self, proved: Proved, context: Any) -> None:
        traffic = self.traffic
        while isinstance(message := await context.read(), bytes):
            try:
                envelopes = peer_codec.split(message)
            except peer_codec.FrameError as error:
                log.warning("node %s: %s; its stream is closed", proved.name, error)
                return
            traffic.reads += 1
            traffic.bytes_in += len(message)
            for envelope in envelopes:
                # A frame directly from a node proves that the path works: no other node may claim that for it.
                own = envelope.source == proved.number and envelope.incarnation == proved.incarnation
                if not own and not envelope.relayed:
                    traffic.drop("foreign")
                    continue
                traffic.envelopes_in += 1
                try:
                    self._on_envelope(envelope)
                except Exception:
                    log.exception("internal error in a message of node %s", proved.name)

    def _note_refusal(self, reason: str) -> None:
        """Logs each reason once, and at most one line per ``REFUSALS_LOGGED``: strangers choose the text."""
        if reason in self._strangers:
            return
        now = asyncio.get_running_loop().time()
        if now - self._refusal_logged < REFUSALS_LOGGED:
            self._refusals_unlogged += 1
            return
        if len(self._strangers) >= STRANGERS_MAX:
            self._strangers.clear()
        self._strangers.add(reason)
        more = f" (and {self._refusals_unlogged} more that were not logged)" if self._refusals_unlogged else ""
        self._refusal_logged, self._refusals_unlogged = now, 0
        log.log(
            logging.INFO if reason.endswith(STARTING) else logging.WARNING,
            "refused the connection of a node: %s%s",
            reason,
            more,
        )


async def _until_ended(context: Any) -> None:
    """Until the dialler ends this call, or its connection."""
    while isinstance(await context.read(), bytes):
        pass


def _server_options(settings: ClusterConfig) -> list[tuple[str, int]]:
    """The connection of a node always has a stream. One without a stream belongs to a stranger, and is closed."""
    milliseconds = int(STRANGER_SECONDS * 1000)
    return [
        *_options(settings),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION),
        ("grpc.max_allowed_incoming_connections", CONNECTIONS_MAX),
        ("grpc.server_handshake_timeout_ms", milliseconds),
        ("grpc.max_connection_idle_ms", milliseconds),
    ]


def _options(settings: ClusterConfig) -> list[tuple[str, int]]:
    """A silent connection is probed after ``member_timeout`` and closed after another one."""
    milliseconds = max(int(settings.member_timeout * 1000), 100)
    return [
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.keepalive_time_ms", milliseconds),
        ("grpc.keepalive_timeout_ms", milliseconds),
        # the default is a minute, and the keepalive waits for such a ping
        ("grpc.http2.ping_timeout_ms", milliseconds),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", milliseconds // 2),  # the listener's limit
        # Large frames need few reads and writes: a third more bytes per second than with the defaults.
        ("grpc.http2.max_frame_size", 1 << 20),
        ("grpc.http2.write_buffer_size", 1 << 20),
        ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
        ("grpc.http2.bdp_probe", 0),  # would let a stranger send 4 MiB on each connection
        ("grpc.so_reuseport", 0),  # a port that is in use is an error, not silently shared
        ("grpc.enable_http_proxy", 0),
        ("grpc.enable_retries", 0),
        ("grpc.use_local_subchannel_pool", 1),  # each attempt opens a new connection, without gRPC's own back-off
    ]


def _read_files(tls: ClusterTlsConfig) -> tuple[bytes, bytes, bytes] | None:
    """Key, certificate chain and authorities; None without TLS. Raises TlsError."""
    if tls.cert is None or tls.key is None or tls.ca is None:
        return None
    contents = []
    for path in (tls.key, tls.cert, tls.ca):
        try:
            contents.append(Path(path).read_bytes())
        except OSError as error:
            raise TlsError(f"cluster.tls: {path}: {error.strerror}") from error
        if b"-----BEGIN " not in contents[-1]:
            raise TlsError(f"cluster.tls: {path} is not a PEM file")
    key, chain, authorities = contents
    return key, chain, authorities
