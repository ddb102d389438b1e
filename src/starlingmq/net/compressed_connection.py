"""A client's connection in zstd, between its socket, of any kind, and the driver (``net/zstd_stream.py`` has the law).

To the driver it is the transport, to the socket it is the driver. Limits and counts of the driver are of decompressed
bytes, that of the write buffer is of compressed ones.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlingmq.net.client_owner import ClientOwner
from starlingmq.net.long_lines import for_long_line
from starlingmq.net.zstd_stream import Compressor, ZstdReader


class CompressedConnection(ClientOwner):
    """``stream`` is the transport that the client had until now; ``refuse`` gets the reason for which it ends."""

    def __init__(self, owner: ClientOwner, client: Any, refuse: Any) -> None:
        self._owner = owner
        self._client: Any = client
        self._stream: Any = client.transport
        self.refuse: Any = refuse
        self._compressor: Any = Compressor()
        self._reader: Any = ZstdReader(
            self._deliver, self._broken, self._set_reading, asyncio.get_running_loop().call_soon
        )
        for_long_line(self._stream)

    # Calls of the socket

    def received(self, client: Any, data: bytes) -> None:
        self._reader.feed(data)

    def lost(self, client: Any) -> None:
        self._reader.stop()
        self._owner.lost(client)
        self._client = None

    def blocked(self, client: Any) -> None:
        self._owner.blocked(client)

    def drained(self, client: Any) -> None:
        self._owner.drained(client)

    def may_wait(self, client: Any) -> bool:
        return False  # its bytes do not show what they are

    # Calls of the driver

    def write(self, data: bytes) -> None:
        self._stream.write(self._compressor.feed(data))

    def can_write_eof(self) -> bool:
        return bool(self._stream.can_write_eof())

    def write_eof(self) -> None:
        self._stream.write_eof()

    def close(self) -> None:
        self._reader.stop()
        self._stream.close()

    def abort(self) -> None:
        self._reader.stop()
        self._stream.abort()

    def pause_reading(self) -> None:
        self._reader.hold(True)

    def resume_reading(self) -> None:
        self._reader.hold(False)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._stream.get_extra_info(name, default)

    # Calls of the reader

    def _deliver(self, data: bytes) -> None:
        self._owner.received(self._client, data)

    def _broken(self, why: str) -> None:
        self.refuse("broken_zstd", self._client.peer, why)
        self._stream.abort()

    def _set_reading(self, reading: bool) -> None:
        if reading:
            self._stream.resume_reading()
        else:
            self._stream.pause_reading()
