"""Which streams a reader may read. The bulk service asks the broker this for each call of a reader."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Sequence

from msgspec import Struct

from starlingmq.auth.chain import Chain
from starlingmq.wire.reasons import Reason


class ReaderAccess(Struct, frozen=True):
    """The name of the reader, the streams that it may read, and why it was refused altogether ("" if it was not)."""

    user: str
    allowed: list[str]
    refused: str


class StreamReaders:
    """``chain`` returns the authorization in force, None where everything is allowed. ``timeout`` is in seconds."""

    def __init__(self, chain: Callable[[], Chain | None], timeout: Callable[[], float | None]) -> None:
        self._chain = chain
        self._timeout = timeout

    async def access(self, credentials: str, peer: str, streams: Sequence[str]) -> ReaderAccess:
        """``credentials`` are those of an HTTP header (``Basic ...``), "" for an anonymous reader; ``peer`` is
        host:port."""
        name, password = name_and_password(credentials)
        chain = self._chain()
        if chain is None:
            return ReaderAccess(name or "", list(streams), "")
        try:
            async with asyncio.timeout(self._timeout()):
                reason, rights = await chain.reader(name, password, peer)
        except TimeoutError:
            reason, rights = Reason.SERVER_UNAVAILABLE, None
        refused = ""
        if reason != Reason.SUCCESS:
            who = "an anonymous reader" if name is None else f"user {name!r}"
            refused = f"{who} was refused: {Reason(reason).name.replace('_', ' ').lower()}"
        allowed = [stream for stream in streams if not refused and (rights is None or rights.may_read(stream.encode()))]
        return ReaderAccess(name or "", allowed, refused)


def name_and_password(shown: str) -> tuple[str | None, bytes | None]:
    """Name and password in ``Basic`` credentials (RFC 7617). Malformed ones give "", a name that no user has."""
    if not shown:
        return None, None
    try:
        name, _, password = base64.b64decode(shown.removeprefix("Basic "), validate=True).partition(b":")
        return name.decode(), password
    except ValueError:  # not base64, not ASCII, not UTF-8
        return "", b""
