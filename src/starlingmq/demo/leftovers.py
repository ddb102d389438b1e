"""Processes of a session (setsid) that still run: started by a child process and not ended by it (Linux)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

SESSION: Final = 3  # field of /proc/PID/stat after the name
STATE: Final = 0
LOOK_SECONDS: Final = 0.05


def members(sessions: Iterable[int]) -> list[int]:
    """Return the ids of the processes in these sessions, without zombies."""
    wanted = {str(session) for session in sessions if session}
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text(errors="replace").rpartition(") ")[2].split()
            if fields[SESSION] in wanted and fields[STATE] not in "ZX":
                found.append(int(stat.parent.name))
    return found


def end(sessions: Iterable[int], patience: float) -> list[int]:
    """Wait up to ``patience`` seconds until they have ended, then kill the others by id. Returns those."""
    wanted = list(sessions)
    until = time.monotonic() + patience
    while (left := members(wanted)) and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left
