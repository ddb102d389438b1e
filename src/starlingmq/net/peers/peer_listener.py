"""The listening side of the cluster port: it accepts connections, and gives those that have proved themselves to who
serves them.

Connections without a proof have ``STRANGER_SECONDS`` for it and are ``STRANGERS_MAX`` at most,
``STRANGERS_PER_ADDRESS`` of one address. A new connection above that takes the place of an older one, so that silent
strangers keep no node out: a node needs milliseconds for its proof. Until the proof, a connection may send messages of
the handshake's size only. Those of nodes do not count.

| the new connection is above | it takes the place of |
|---|---|
| ``STRANGERS_PER_ADDRESS`` of its address | the oldest of its address |
| ``STRANGERS_MAX``, and an address has more than ``STRANGERS_FEW`` | the oldest of the address with the most |
| ``STRANGERS_MAX``, and no address has | the oldest of all |
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from starlingmq.core.limits.address_key import network_key
from starlingmq.net.listeners.sockets import SocketFile, listen_unix
from starlingmq.net.peers.peer_connection import PeerConnection
from starlingmq.net.peers.peer_dialling import MESSAGE_BYTES_MAX
from starlingmq.net.peers.peer_handshake import MESSAGE_BYTES_MAX as HANDSHAKE_BYTES_MAX
from starlingmq.net.peers.peer_handshake import Answering, Identity, Proved, RefusedError
from starlingmq.net.peers.peer_protocol import PeerConnectionLost
from starlingmq.net.peers.peer_stream import STARTING

log = logging.getLogger("starlingmq")

STRANGERS_MAX: Final = 256  # connections without a proof at once, so that strangers leave descriptors to others
STRANGERS_PER_ADDRESS: Final = 64  # IPv6: of one /64
STRANGERS_FEW: Final = 16  # so many may be those of the nodes at one address
STRANGER_SECONDS: Final = 5.0
BACKLOG: Final = 128
EVERYWHERE: Final = "::"
LOCAL: Final = "local"  # in place of the address of a connection through a Unix socket
OLDER: Final = (
    "node {name} speaks a newer protocol between nodes than the node that connects to it; upgrade the connecting node"
)
ACCEPT_AGAIN: Final = 0.1  # seconds after an error, such as no descriptor being left
CROWDED: Final = (
    "so many connections have not proved that they know the cluster secret that new ones take their places; let only "
    "nodes reach the cluster port"
)
ABSENT: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # as addresses of a host name may be, such as ::1
REASONS_MAX: Final = 64  # reasons for refusal that are remembered
REASON_AGAIN: Final = 60.0  # seconds after which a reason that is still met is logged again
REFUSALS_LOGGED: Final = 1.0  # seconds between two log lines; refusals in between are counted

Serve = Callable[[Proved, PeerConnection], Awaitable[str]]
"""Serves a connection until it ends, and returns the reason for closing it, or ""."""


class PeerListener:
    """``name``: of this node; ``me`` returns its identity, or None while its number is not known. ``silence``: as of
    ``PeerConnection``. ``serve``: by purpose of the connection; it sends ``accepted``, or raises RefusedError.
    Order: ``start``, ``close``."""

    def __init__(
        self,
        name: str,
        context: ssl.SSLContext | None,
        silence: float,
        me: Callable[[], Identity | None],
        nonce: Callable[[], bytes],
        serve: Mapping[str, Serve],
    ) -> None:
        self._name = name
        self._context = context
        self._silence = silence
        self._me = me
        self._nonce = nonce
        self._serve = serve
        self._sockets: list[socket.socket] = []
        self._file: SocketFile | None = None
        self._accepting: list[asyncio.Task[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._strangers: dict[asyncio.Task[None], str] = {}  # connections without a proof, oldest first: address
        self._reasons: dict[str, float] = {}  # when each was logged
        self._refusal_logged = -REFUSALS_LOGGED
        self._refusals_unlogged = 0

    async def start(self, host: str, port: int, path: Callable[[int], str]) -> int:
        """Starts listening, at all addresses if ``host`` is empty, and at the Unix socket that ``path`` returns for the
        port ("": none). Returns the port. Raises OSError."""
        absent: OSError | None = None
        for family, address in await _addresses(host, port):
            if self._sockets and not port:
                address = (address[0], self._port, *address[2:])
            try:
                self._sockets.append(_listening(family, address))
            except OSError as error:
                if error.errno not in ABSENT:
                    raise
                absent = error
        if absent is not None and not self._sockets:
            raise absent
        if file := path(self._port):
            sock, self._file = listen_unix(file)
            self._sockets.append(sock)
        loop = asyncio.get_running_loop()
        self._accepting = [loop.create_task(self._accept(sock)) for sock in self._sockets]
        return self._port

    @property
    def _port(self) -> int:
        return int(self._sockets[0].getsockname()[1])

    async def close(self) -> None:
        for tasks in (self._accepting, self._tasks):  # in this order: a connection that has begun closes its socket
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
        for sock in self._sockets:
            sock.close()
        if self._file is not None:
            self._file.remove()

    def forget_reasons(self) -> None:
        """The same reasons are logged again."""
        self._reasons.clear()

    async def _accept(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(0)  # ``sock_accept`` does not wait while connections wait
            try:
                accepted, peer = await loop.sock_accept(sock)
            except OSError:
                await asyncio.sleep(ACCEPT_AGAIN)
                continue
            address = network_key(str(peer[0])) if sock.family != socket.AF_UNIX else LOCAL
            self._make_room(address)
            task = loop.create_task(self._talk(accepted, address))
            self._strangers[task] = address
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _make_room(self, address: str) -> None:
        """End the connection whose place a new one from ``address`` takes, if there is no room for both."""
        by_address = Counter(self._strangers.values())
        crowded = address
        if by_address[address] < STRANGERS_PER_ADDRESS:
            if len(self._strangers) < STRANGERS_MAX:
                return
            crowded, most = by_address.most_common(1)[0]
            if most <= STRANGERS_FEW:
                crowded = next(iter(self._strangers.values()))
        oldest = next(task for task, of in self._strangers.items() if of == crowded)
        del self._strangers[oldest]
        oldest.cancel()
        self.note_refusal(CROWDED, address)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._strangers.pop(task, None)

    async def _talk(self, sock: socket.socket, address: str) -> None:
        """One connection from its first byte to its end."""
        connection = PeerConnection(self._silence, HANDSHAKE_BYTES_MAX)
        reason = ""
        try:
            async with asyncio.timeout(STRANGER_SECONDS):
                await asyncio.get_running_loop().connect_accepted_socket(connection.protocol, sock, ssl=self._context)
                proved = await self._shake_hands(connection)
            task = asyncio.current_task()
            assert task is not None
            del self._strangers[task]
            connection.set_limit(MESSAGE_BYTES_MAX)
            reason = await self._serve[proved.purpose](proved, connection)
        except RefusedError as error:
            reason = str(error)
            self.note_refusal(reason, address)
        except OSError:  # a TimeoutError is one
            if connection.is_of_older_node:
                self.note_refusal(OLDER.format(name=self._name), address)
        except Exception:
            log.exception("internal error in a connection of a node; it is closed")
        finally:
            connection.end(reason)

    async def _shake_hands(self, connection: PeerConnection) -> Proved:
        hello = await _message(connection)
        me = self._me()
        if me is None:
            raise RefusedError(f"node {self._name} {STARTING}")
        answering = Answering(me, self._nonce())
        await connection.write(answering.challenge(hello))
        proof = await _message(connection)
        if me is not self._me():
            raise RefusedError(f"node {self._name} {STARTING}")
        return answering.admit(proof)

    def note_refusal(self, reason: str, address: str) -> None:
        """Logs each reason once in ``REASON_AGAIN``, and at most one line per ``REFUSALS_LOGGED``: strangers choose the
        text.
        """
        now = asyncio.get_running_loop().time()
        logged = self._reasons.get(reason)
        if now - self._refusal_logged < REFUSALS_LOGGED or (logged is not None and now - logged < REASON_AGAIN):
            self._refusals_unlogged += 1
            return
        if len(self._reasons) >= REASONS_MAX:
            self._reasons.clear()
        self._reasons[reason] = now
        more = f" (and {self._refusals_unlogged} more that were not logged)" if self._refusals_unlogged else ""
        self._refusal_logged, self._refusals_unlogged = now, 0
        log.log(
            logging.INFO if reason.endswith(STARTING) else logging.WARNING,
            "refused the connection of a node from %s: %s%s",
            address,
            reason,
            more,
        )


async def _message(connection: PeerConnection) -> bytes:
    message = await connection.read()
    if message is None:
        raise PeerConnectionLost(connection.reason)
    return message


async def _addresses(host: str, port: int) -> list[tuple[int, tuple[Any, ...]]]:
    """Families and addresses to listen at. Raises OSError."""
    if not host and socket.has_dualstack_ipv6():
        return [(socket.AF_INET6, (EVERYWHERE, port))]
    host = host or "0.0.0.0"  # noqa: S104 - the operator names no address
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _listening(family: int, address: tuple[Any, ...]) -> socket.socket:
    """Raises OSError."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != EVERYWHERE)
        sock.setblocking(False)
        sock.bind(address)
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock
