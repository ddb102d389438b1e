"""Opens the link to a broker, or reports in one sentence why it cannot."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from typing import Final

from starlingmq.client.endpoint import Endpoint, Tls
from starlingmq.client.errors import ConnectFailed
from starlingmq.client.link import Link, Owner

NOT_YET_VALID, EXPIRED, OTHER_HOST, OTHER_ADDRESS = 9, 10, 62, 64  # X509_V_ERR_* of OpenSSL
REMEDIES: Final = {
    NOT_YET_VALID: "correct the clock of this machine or of the one that made the certificate",
    EXPIRED: "renew it at the server",
    OTHER_HOST: "connect by a name that is in it",
    OTHER_ADDRESS: "connect by a name or address that is in it",
}


async def open_link(endpoint: Endpoint, tls: Tls, owner: Owner, compress: bool = False) -> Link:
    """Return a link that is ready, with ``compress`` one of zstd both ways (``starlingmq.client.compression``). Raises
    ConnectFailed with a sentence; on errors nothing stays open."""
    if compress:
        try:
            import starlingmq.net.zstd_stream  # noqa: F401
        except ImportError:
            raise ConnectFailed("compression needs zstd: install the extra [zstd]") from None
    context: ssl.SSLContext | None = None
    if endpoint.secure:
        try:
            context = tls.context()
        except (OSError, ssl.SSLError) as error:
            raise ConnectFailed(f"cannot use the TLS files: {error}") from error
    try:
        return await _open(endpoint, context, owner, compress)
    except OSError as error:
        raise ConnectFailed(_sentence(endpoint, error)) from error


async def secure_link(link: Link, endpoint: Endpoint, tls: Tls) -> None:
    """Begin TLS on an open link. Raises ConnectFailed with a sentence."""
    try:
        context = tls.context()
    except (OSError, ssl.SSLError) as error:
        raise ConnectFailed(f"cannot use the TLS files: {error}") from error
    try:
        await link.secure(context, endpoint.host)
    except OSError as error:
        raise ConnectFailed(_sentence(endpoint, error)) from error


async def _open(endpoint: Endpoint, context: ssl.SSLContext | None, owner: Owner, compress: bool) -> Link:
    loop = asyncio.get_running_loop()

    def make() -> Link:
        if endpoint.web:
            from starlingmq.client.weblink import WebLink  # its imports take longer than the rest of a short command

            made: Link = WebLink(owner, endpoint)
        else:
            made = Link(owner)
        if compress:
            made.compress()
        return made

    link: Link
    if endpoint.scheme == "unix":
        _, link = await loop.create_unix_connection(make, endpoint.path)
        return link
    _, link = await loop.create_connection(make, endpoint.host, endpoint.port, ssl=context)
    try:
        await link.ready
    except BaseException:
        link.abort()
        raise
    return link


def _sentence(endpoint: Endpoint, error: OSError) -> str:
    """Describe the error and its remedy, in one line."""
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = REMEDIES.get(error.verify_code, "name its CA certificate")
        return f"the certificate of {endpoint} is not trusted: {error.verify_message}; {remedy}"
    if isinstance(error, ssl.SSLError):
        return f"TLS handshake with {endpoint} failed: {error.reason or error}"
    if isinstance(error, socket.gaierror):
        return f"host {endpoint.host!r} not found: {error.strerror}"
    if endpoint.scheme == "unix" and isinstance(error, FileNotFoundError):
        return f"socket {endpoint.path} does not exist; is the broker running?"
    # asyncio joins the errors of several addresses of one name into a text without an errno
    if isinstance(error, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in str(error):
        return (
            f"no broker listens at {endpoint}; start one there (starlingmq serve), or give another address "
            "with -h and -p"
        )
    return f"cannot connect to {endpoint}: {error.strerror or str(error) or type(error).__name__}"
