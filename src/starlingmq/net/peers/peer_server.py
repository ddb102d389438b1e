"""The node's listener for other nodes, and one stream to each of them: frames as values above, bytes below.

``A -> B`` uses the stream that A dialled, ``B -> A`` the one that B dialled: each node repairs the stream that it sends
on. A stream begins with a handshake (net/peers/peer_handshake.py) and then carries batches of envelopes
(net/peers/peer_codec.py). Frames that have come are given to the cluster as they are read from the socket.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

from starlingmq._version import __version__
from starlingmq.cluster.links.control_frames import MemberInfo
from starlingmq.cluster.links.peer_frames import Envelope
from starlingmq.config.cluster_section import ClusterConfig, cluster_secret, split_address
from starlingmq.net.peers import peer_codec
from starlingmq.net.peers.peer_connection import PeerConnection
from starlingmq.net.peers.peer_dialling import dial
from starlingmq.net.peers.peer_handshake import COPY, HOLD, JOIN, NONCE_BYTES, Dialling, Identity, Proved, RefusedError
from starlingmq.net.peers.peer_listener import PeerListener
from starlingmq.net.peers.peer_stream import PeerStream, PeerTraffic
from starlingmq.net.peers.peer_tls import peer_tls
from starlingmq.net.peers.pipe import Pipe
from starlingmq.net.peers.process_watch import ProcessWatch

log = logging.getLogger("starlingmq")


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
        self._tls = peer_tls(settings.tls)
        # serves what another node copies to this one, and returns why it ended; None: this node stores no copies
        self.on_copy: Callable[[Proved, Pipe], Awaitable[str]] | None = None
        self._me: Identity | None = None
        self._listener = PeerListener(
            name,
            self._tls.listener,
            settings.member_timeout,
            lambda: self._me,
            self._nonce,
            {JOIN: self._serve_join, HOLD: self._serve_hold, COPY: self._serve_copy},
        )
        self._streams: dict[int, PeerStream] = {}
        self._unsent: dict[PeerStream, None] = {}  # those with envelopes of this turn
        self._watches: dict[int, ProcessWatch] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._inbound: dict[int, tuple[int, PeerConnection]] = {}  # node -> (incarnation, its stream)

    async def start(self) -> None:
        """Starts listening. Raises ListenError."""
        host, port = split_address(self._settings.listen, "cluster.listen")
        shown = f"[{host}]" if ":" in host else host
        try:
            port = await self._listener.start(host, port, self._path)
        except OSError as error:
            raise ListenError(f"cluster.listen: {self._settings.listen}: {error.strerror}") from error
        told = self._settings.advertise
        self.address = f"{told.removesuffix('0')}{port}" if told.endswith(":0") else told or f"{shown}:{port}"

    def introduce(self, number: int, incarnation: int) -> None:
        """Sets this node's identity; nodes that dial before are told to retry. Streams under an earlier identity are
        closed, and ``set_peers`` dials again."""
        for number in list(self._streams):
            self._part_with(number)
        cluster = self._settings.name
        self._me = Identity(cluster, self._name, number, incarnation, __version__, self._secret)

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
        """Queues an envelope for a peer, until ``flush``. Returns False if it was dropped (and counted). Never waits,
        keeps the order."""
        stream = self._streams.get(number)
        if stream is None:
            self.traffic.drop("unconnected")
            return False
        self._unsent[stream] = None
        return stream.send(envelope)

    def flush(self) -> None:
        """Sends the queued envelopes: to each node in one message, if there are not very many."""
        for stream in self._unsent:
            stream.flush()
        self._unsent.clear()

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
        await self._listener.close()

    def _stream(self, me: Identity, member: MemberInfo) -> PeerStream:
        async def join(member: MemberInfo) -> PeerConnection:
            return (await self._dial(me, member, JOIN))[0]

        return PeerStream(member, join, self._chance, 2 * self._settings.link_window, self.traffic, self._tell)

    def _watch(self, me: Identity, member: MemberInfo) -> ProcessWatch:
        return ProcessWatch(member, lambda member: self._dial(me, member, HOLD), self._is_read_from, self._on_gone)

    async def _dial(self, me: Identity, member: MemberInfo, purpose: str) -> tuple[PeerConnection, int]:
        """A proved connection, and the incarnation of the other node. Raises RefusedError, DialError."""
        dialling = Dialling(me, member.number, self._nonce(), purpose)
        # the end of a process shows at a connection of TCP only (net/peers/process_watch.py)
        path = self._path(split_address(member.address, "address")[1]) if purpose == JOIN else ""
        silence = self._settings.member_timeout
        connection = await dial(member.address, dialling, self._tls.dialler, silence, path=path)
        return connection, dialling.incarnation

    def _path(self, port: int) -> str:
        """Of the Unix socket of the node of this machine with that port; "": there is none."""
        directory = self._settings.socket_dir
        return f"{directory}/{port}" if directory and self._tls.dialler is None else ""

    def _nonce(self) -> bytes:
        return self._random_bytes(NONCE_BYTES)

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

    async def _serve_join(self, proved: Proved, connection: PeerConnection) -> str:
        """Serves the stream of another node."""
        self._admit(proved, connection)
        connection.receive = lambda message: self._received(proved, connection, message)
        connection.on_end = lambda: self._forget(proved.number, connection)
        connection.send(proved.accepted)
        connection.serve_in_rounds()
        self._listener.forget_reasons()
        try:
            await connection.until_ended()
        finally:
            if connection.reason:
                self._forget(proved.number, connection)  # it may have ended before ``on_end`` was set
        return ""

    async def _serve_hold(self, proved: Proved, connection: PeerConnection) -> str:
        """Serves the quiet connection of another node, which lasts as long as both processes
        (net/peers/process_watch.py)."""
        connection.only_sign()
        connection.send(proved.accepted)
        await connection.until_ended()
        return ""

    async def _serve_copy(self, proved: Proved, connection: PeerConnection) -> str:
        """Serves the connection on which another node copies its data to this one (net/peers/copy_link.py)."""
        if self.on_copy is None:
            raise RefusedError(f"node {self._name} stores no copies; set cluster.copies on all nodes")
        connection.send(proved.accepted)
        return await self.on_copy(proved, connection)

    @asynccontextmanager
    async def open_copy(self, member: MemberInfo) -> AsyncIterator[Pipe]:
        """A connection on which this node copies its data to another one. Raises RefusedError, DialError."""
        assert self._me is not None, "introduce comes first"
        connection, _ = await self._dial(self._me, member, COPY)
        try:
            yield connection
        finally:
            connection.end("")

    def _admit(self, proved: Proved, connection: PeerConnection) -> None:
        """The newest stream of a node replaces an older one, which may hang on a dead connection."""
        incarnation, older = self._inbound.get(proved.number, (0, None))
        if older is not None:
            if proved.incarnation < incarnation:
                raise RefusedError(f"node {proved.name} has been restarted since")
            older.abort("a newer stream has replaced it")
        self._inbound[proved.number] = (proved.incarnation, connection)
        stream = self._streams.get(proved.number)
        if stream is not None:
            stream.hurry()
        watch = self._watches.get(proved.number)
        if watch is not None:
            watch.hurry()

    def _forget(self, number: int, connection: PeerConnection) -> None:
        if self._inbound.get(number, (0, None))[1] is connection:
            del self._inbound[number]

    def _received(self, proved: Proved, connection: PeerConnection, message: bytes) -> None:
        traffic = self.traffic
        try:
            envelopes = peer_codec.split(message)
        except peer_codec.FrameError as error:
            log.warning("node %s: %s; its stream is closed", proved.name, error)
            connection.abort(str(error))
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
