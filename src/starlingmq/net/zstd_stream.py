"""The bytes of one direction of a connection as one zstd frame (RFC 8878), and the law of reading one.

A connection is compressed if its first byte is that of zstd's magic number, which begins neither an MQTT nor a NATS
connection. Both directions are compressed then, each as one frame that is never closed, and every write is followed by
a flush, so that nothing waits for more.

A stranger pays for its bytes:

- A turn gives at most ``TURN`` bytes. While more of them wait, and while the reader is on hold, the connection is not
  read: only bytes that were read before wait, and compressed.
- A window larger than ``WINDOW_MAX`` is refused before any memory is taken for it.
- An end of the frame, or anything else that is no zstd, ends the connection.

Loaded with the first compressed connection.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LEVEL: Final = 1
WINDOW: Final = 17  # of the sender, as a power of two: 128 KB
WINDOW_MAX: Final = 17  # that the receiver accepts: a stranger fills it with a hundred bytes
TURN: Final = 64 * 1024  # bytes that a connection gives in one turn of the event loop


class BrokenStream(ValueError):
    """Bytes that are no zstd, or not within the limits; one line."""


class Compressor:
    """One direction, to be sent."""

    def __init__(self) -> None:
        chosen = zstd.CompressionParameter
        self._zstd = zstd.ZstdCompressor(options={int(chosen.compression_level): LEVEL, int(chosen.window_log): WINDOW})

    def feed(self, data: bytes) -> bytes:
        """The bytes to write; the receiver can read all of ``data`` from them."""
        return self._zstd.compress(data, zstd.ZstdCompressor.FLUSH_BLOCK)


class Decompressor:
    """One direction, as it is received."""

    def __init__(self) -> None:
        self._zstd = zstd.ZstdDecompressor(options={int(zstd.DecompressionParameter.window_log_max): WINDOW_MAX})

    @property
    def more(self) -> bool:
        """Whether there may be more output without more input: ``feed(b"")`` gives it."""
        return not self._zstd.needs_input and not self._zstd.eof

    def feed(self, data: bytes) -> bytes:
        """At most ``TURN`` bytes of output. Raises BrokenStream."""
        if self._zstd.eof:
            raise BrokenStream("bytes follow the end of its zstd stream")
        try:
            output = self._zstd.decompress(data, TURN)
        except zstd.ZstdError as error:
            raise BrokenStream(f"its zstd stream is broken: {error}") from None
        if self._zstd.eof and self._zstd.unused_data:
            raise BrokenStream("bytes follow the end of its zstd stream")
        return output


class ZstdReader:
    """Gives the output of one ``Decompressor`` turn by turn.

    ``deliver`` gets the output, ``broken`` once the reason why there is no more; ``set_reading`` starts and stops the
    connection's reading, and ``call_soon`` calls a function in the next turn.
    """

    def __init__(
        self,
        deliver: Callable[[bytes], None],
        broken: Callable[[str], None],
        set_reading: Callable[[bool], None],
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self._zstd = Decompressor()
        self._deliver = deliver
        self._broken = broken
        self._set_reading = set_reading
        self._call_soon = call_soon
        self._input = b""  # came although reading was stopped: TLS had decrypted it before
        self._held = False
        self._more = False
        self._called = False
        self._reading = True
        self._stopped = False

    def feed(self, data: bytes) -> None:
        """Bytes have come."""
        if self._stopped:
            return
        if self._more or self._input or self._held:
            self._input += data
        else:
            self._read(data)
            self._flow()

    def hold(self, held: bool) -> None:
        """Whether the receiver of the output accepts no more for now."""
        self._held = held
        self._flow()

    def stop(self) -> None:
        """The connection ends: nothing is delivered any more."""
        self._stopped = True
        self._input = b""

    def _read(self, data: bytes) -> None:
        try:
            output = self._zstd.feed(data)
        except BrokenStream as error:
            self.stop()
            self._broken(str(error))
            return
        self._more = self._zstd.more
        if output:
            self._deliver(output)

    def _flow(self) -> None:
        if self._stopped:
            return
        waits = self._more or bool(self._input)
        if waits and not self._held and not self._called:
            self._called = True
            self._call_soon(self._go_on)
        reading = not waits and not self._held
        if reading != self._reading:
            self._reading = reading
            self._set_reading(reading)

    def _go_on(self) -> None:
        self._called = False
        if self._held or self._stopped:
            return
        data = b""
        if not self._more:
            data, self._input = self._input, b""
        self._read(data)
        self._flow()
