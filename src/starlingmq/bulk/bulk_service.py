"""The process that serves bulk reads of streams: ``python -m starlingmq.bulk.bulk_service``. The broker starts it; no
part of it runs in the broker's event loop.

It reads its settings (a line of JSON) from standard input, prints ``ready PORT``, and ends at the end of its input,
which also comes when the broker dies. It runs at a lower priority than the broker.
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

MEMORY_SECONDS: Final = 0.1  # between two checks of the memory in use


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the broker, which then ends this process
    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=Settings)
    with suppress(OSError):
        os.nice(settings.nice)
    _stay(settings.processors)
    _give_way()
    threading.Thread(target=_watch_memory, args=(settings.memory,), daemon=True).start()
    try:
        server = StreamFlight(settings)
    except Exception as error:  # pyarrow raises many kinds for an unusable address or certificate
        raise SystemExit(f"streams.listen: {' '.join(str(error).split())}") from None
    print(f"ready {server.port}", flush=True)
    sys.stdin.buffer.read()
    os._exit(0)  # running calls are cut: their readers retry


def _give_way() -> None:
    """Make the system end this process, not the broker, when memory runs out."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _watch_memory(limit: int) -> None:
    """End the process when it uses more than ``limit``; the broker restarts it. gRPC reads a whole message, of any
    length, before the token can be checked.
    """
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
    """Run on these processors only. Raises SystemExit with a sentence if they are not available."""
    if not processors:
        return
    try:
        os.sched_setaffinity(0, processors)
    except (AttributeError, OSError, ValueError) as error:
        some = ", ".join(map(str, sorted(os.sched_getaffinity(0)))) if hasattr(os, "sched_getaffinity") else "none"
        raise SystemExit(f"streams.processors: {error}; available are {some}") from None


if __name__ == "__main__":
    main()
