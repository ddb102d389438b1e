"""The process that streams are read from: ``python -m starlingmq.bulk.bulk_service``, begun by the broker, whose event
loop has nothing to do with it.

It reads its settings (a line of JSON) from standard input, says ``ready PORT``, and ends when its input does, as it
does when the broker dies. It lets the broker go first where both want the processor.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from starlingmq.bulk.flight import Settings, StreamFlight

MEMORY_SECONDS: Final = 0.1  # between two looks at how much is in use


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the broker, which then ends us
    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=Settings)
    with suppress(OSError):
        os.nice(settings.nice)
    _stay(settings.processors)
    _give_way()
    threading.Thread(target=_watch_memory, args=(settings.memory,), daemon=True).start()
    try:
        server = StreamFlight(settings)
    except Exception as error:  # pyarrow raises many kinds for an address or a certificate that can not be used
        raise SystemExit(f"streams.listen: {' '.join(str(error).split())}") from None
    print(f"ready {server.port}", flush=True)
    sys.stdin.buffer.read()
    os._exit(0)  # calls that are under way are cut: their readers try again


def _give_way() -> None:
    """When memory runs out, the system ends this process and not the broker."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _watch_memory(limit: int) -> None:
    """End the process when it has taken more; the broker starts it again. gRPC reads a whole message, of any length,
    before it lets anybody look at the token."""
    page = os.sysconf("SC_PAGE_SIZE")
    while True:
        time.sleep(MEMORY_SECONDS)
        try:
            used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * page
        except (OSError, ValueError, IndexError):  # not Linux
            return
        if used > limit:
            print(f"streams.memory: {used >> 20} MiB are in use, more than {limit >> 20} MiB", file=sys.stderr)
            os._exit(3)


def _stay(processors: tuple[int, ...]) -> None:
    """Run on these only. SystemExit says what is wrong with them."""
    if not processors:
        return
    try:
        os.sched_setaffinity(0, processors)
    except (AttributeError, OSError, ValueError) as error:
        some = ", ".join(map(str, sorted(os.sched_getaffinity(0)))) if hasattr(os, "sched_getaffinity") else "none"
        raise SystemExit(f"streams.processors: {error}; available are {some}") from None


if __name__ == "__main__":
    main()
