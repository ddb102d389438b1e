"""Finds the process that owns a local connection, so that a proxy can identify its callers (Linux)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")  # gRPC uses IPv4 through IPv6 sockets
LOCAL: Final = 1  # columns
INODE: Final = 9
SUPPORTED: Final = sys.platform.startswith("linux")


def owner(port: int, pids: Iterable[int]) -> int:
    """Return the process that has the socket with that local port; 0: none of these."""
    inode = _inode(port)
    if inode:
        for pid in pids:
            with suppress(OSError):  # the process has ended
                for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                    with suppress(OSError):
                        if os.readlink(descriptor) == f"socket:[{inode}]":
                            return pid
    return 0


def _inode(port: int) -> str:
    """Return the inode of a TCP socket; "" if there is none."""
    for table in TABLES:
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                columns = line.split()
                if int(columns[LOCAL].rpartition(":")[2], 16) == port and columns[INODE] != "0":
                    return columns[INODE]
    return ""
