"""Listening sockets, bound and listening before any event loop knows them: all failures to bind show here."""

from __future__ import annotations

import errno
import os
import select
import socket
import stat
from collections.abc import Sequence
from typing import Any, Final

BACKLOG: Final = 8192
"""Connections that the kernel may queue before they are accepted; the kernel uses the lower of this and its own
limit."""

PORT_ATTEMPTS: Final = 16
"""Number of further attempts if a port is free on the first address of a host but not on the next."""

_NO_SUCH_ADDRESS: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)

_HUNG_UP: Final = getattr(select, "POLLRDHUP", 0)  # other systems report only POLLHUP and POLLERR

Address = tuple[int, tuple[Any, ...]]
"""A socket family and an address, as ``getaddrinfo`` returns them."""


class BorrowedSocket(socket.socket):
    """Calls on the descriptor of a connection. The descriptor stays open when this object is freed."""

    def __del__(self) -> None:
        self.detach()


def listen_tcp(addresses: Sequence[Address], port: int, shared: bool = False) -> list[socket.socket]:
    """Listen on one port of each address; 0 finds a port that is free on all. Raises OSError with nothing left open.

    ``shared``: other processes that say so, too, may listen there as well, and the kernel distributes connections.

    An address that this machine does not have (``::1`` of localhost without IPv6) is skipped if there is another one.
    """
    for _ in range(PORT_ATTEMPTS - 1 if port == 0 else 0):
        try:
            return _listen_on_each(addresses, port, shared)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    return _listen_on_each(addresses, port, shared)


def hold_shared(addresses: Sequence[Address], port: int) -> list[socket.socket]:
    """Keep a port (0: a free one) for processes that will share it: bound, not listening, so that no other process
    takes it.

    Raises OSError if a process listens there already, shared or not.
    """
    alone = listen_tcp(addresses, port)
    names = [(sock.family, sock.getsockname()) for sock in alone]
    for sock in alone:
        sock.close()
    held: list[socket.socket] = []
    try:
        for family, address in names:
            sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            held.append(sock)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            # For the bind: otherwise the last connections of a killed broker would block the port for a minute. Not
            # afterwards:
            # otherwise another process could take the port from one that does not listen yet.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError:
        for sock in held:
            sock.close()
        raise
    return held


def _listen_on_each(addresses: Sequence[Address], port: int, shared: bool) -> list[socket.socket]:
    listening: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, address in addresses:
            try:
                sock = _listen_on(family, (address[0], port, *address[2:]), shared)
            except OSError as error:
                if error.errno not in _NO_SUCH_ADDRESS:
                    raise
                missing = error
                continue
            listening.append(sock)
            port = sock.getsockname()[1]
    except OSError:
        for sock in listening:
            sock.close()
        raise
    if missing is not None and not listening:
        raise missing
    return listening


def _listen_on(family: int, address: tuple[Any, ...], shared: bool) -> socket.socket:
    # The protocol is named because accepted sockets inherit it, and asyncio sets TCP_NODELAY only for TCP.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # Accepted sockets inherit it: so a vanished client without keep-alive is found in the end.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if family == socket.AF_INET6:
            # Otherwise [::] also takes the port of 0.0.0.0, and binding both fails.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


class SocketFile:
    """The file of a Unix socket that this process listens on."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._identity = _identity(path)

    def remove(self) -> None:
        """Remove the file, unless it belongs to another process by now."""
        if _identity(self.path) == self._identity is not None:
            os.unlink(self.path)


def listen_unix(path: str) -> tuple[socket.socket, SocketFile]:
    """Listen on a Unix socket, replacing a file that a dead process left. Raises OSError.

    The mode of the file (by the umask: usually its owner only) and of its directory decide who may connect.
    """
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.bind(path)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock, SocketFile(path)


def _remove_stale(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "a file exists there that is not a socket")
    if _somebody_listens(path):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    os.unlink(path)


def _somebody_listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        # Only a refusal proves that no process listens: a listener with a full backlog answers EAGAIN.
        return probe.connect_ex(path) != errno.ECONNREFUSED


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def hung_up(transport: Any) -> bool:
    """Whether the other end of a connection is closed, even if it is not being read. Asks the kernel."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return False
    try:
        poll = select.poll()
        poll.register(sock.fileno(), _HUNG_UP)
        return bool(poll.poll(0))
    except (OSError, ValueError):  # closed by this process
        return True
