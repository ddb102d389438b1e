"""Who may read which streams: what the service that they are read from asks the broker, for each call of a reader."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any

from starlingmq.auth.chain import Chain
from starlingmq.wire.reasons import Reason

Action = Callable[[Any, dict[str, str]], Awaitable[dict[str, Any]]]


class StreamReaders:
    """``chain``: whoever decides at the moment, None where everybody may do everything. ``timeout`` in seconds."""

    def __init__(self, chain: Callable[[], Chain | None], timeout: Callable[[], float | None]) -> None:
        self._chain = chain
        self._timeout = timeout

    def actions(self) -> dict[str, Action]:
        return {"stream.access": lambda _, arguments: self.access(arguments)}

    async def access(self, arguments: dict[str, str]) -> dict[str, Any]:
        """``user``: as in HTTP (``Basic ...``), "" for nobody; ``peer``: host:port; ``streams``: names, one a line.
        The name, which of the streams it may read, and why it is not let in at all ("" if it is)."""
        streams = arguments.get("streams", "").split("\n")
        name, password = name_and_password(arguments.get("user", ""))
        chain = self._chain()
        if chain is None:
            return {"user": name or "", "allowed": streams, "refused": ""}
        try:
            async with asyncio.timeout(self._timeout()):
                reason, rights = await chain.reader(name, password, arguments.get("peer", ""))
        except TimeoutError:
            reason, rights = Reason.SERVER_UNAVAILABLE, None
        refused = ""
        if reason != Reason.SUCCESS:
            who = "an anonymous reader" if name is None else f"user {name!r}"
            refused = f"{who} was refused: {Reason(reason).name.replace('_', ' ').lower()}"
        allowed = [stream for stream in streams if not refused and (rights is None or rights.may_read(stream.encode()))]
        return {"user": name or "", "allowed": allowed, "refused": refused}


def name_and_password(shown: str) -> tuple[str | None, bytes | None]:
    """What ``Basic`` credentials (RFC 7617) say; a name that nobody has where they are none."""
    if not shown:
        return None, None
    try:
        name, _, password = base64.b64decode(shown.removeprefix("Basic "), validate=True).partition(b":")
        return name.decode(), password
    except ValueError:  # not base64, not ASCII, not UTF-8
        return "", b""
