"""Processes of a session of the system (setsid) that are still there: what a child has begun and not ended (Linux)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

SESSION: Final = 3  # field of /proc/PID/stat behind the name
STATE: Final = 0
LOOK_SECONDS: Final = 0.05


def members(sessions: Iterable[int]) -> list[int]:
    """Ids of the processes in these sessions, those aside that have ended and are not yet fetched by their parent."""
    wanted = {str(session) for session in sessions if session}
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text(errors="replace").rpartition(") ")[2].split()
            if fields[SESSION] in wanted and fields[STATE] not in "ZX":
                found.append(int(stat.parent.name))
    return found


def end(sessions: Iterable[int], patience: float) -> list[int]:
    """Wait until they are gone, for ``patience`` seconds, then kill by id those that are not; these."""
    wanted = list(sessions)
    until = time.monotonic() + patience
    while (left := members(wanted)) and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left
