"""The process that streams are read from: ``python -m starlingmq.bulk.service``, begun by the broker, whose event loop
has nothing to do with it.

It reads its settings (a line of JSON) from standard input, says ``ready PORT``, and ends when its input does, as it
does when the broker dies. It lets the broker go first where both want the processor.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

import msgspec

from starlingmq.bulk.flight import Settings, StreamFlight


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the broker, which then ends us
    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=Settings)
    with suppress(OSError):
        os.nice(settings.nice)
    _stay(settings.processors)
    try:
        server = StreamFlight(settings)
    except Exception as error:  # pyarrow raises many kinds for an address or a certificate that can not be used
        raise SystemExit(f"streams.listen: {' '.join(str(error).split())}") from None
    print(f"ready {server.port}", flush=True)
    sys.stdin.buffer.read()
    os._exit(0)  # calls that are under way are cut: their readers try again


def _stay(processors: tuple[int, ...]) -> None:
    """Run on these only. SystemExit says what is wrong with them."""
    if not processors:
        return
    try:
        os.sched_setaffinity(0, processors)
    except (AttributeError, OSError, ValueError) as error:
        some = ", ".join(map(str, sorted(os.sched_getaffinity(0)))) if hasattr(os, "sched_getaffinity") else "none"
        raise SystemExit(f"streams.processors: {error}; those that may be named here: {some}") from None


if __name__ == "__main__":
    main()
