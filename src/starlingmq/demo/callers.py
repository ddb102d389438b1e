"""Which process a connection on this machine comes from: how a proxy knows whose it carries (Linux)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")  # gRPC speaks IPv4 through sockets of IPv6
LOCAL: Final = 1  # columns
INODE: Final = 9
SUPPORTED: Final = sys.platform.startswith("linux")


def owner(port: int, pids: Iterable[int]) -> int:
    """Which of these processes has the socket with that local port; 0: none of them."""
    inode = _inode(port)
    if inode:
        for pid in pids:
            with suppress(OSError):  # it is gone
                for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                    with suppress(OSError):
                        if os.readlink(descriptor) == f"socket:[{inode}]":
                            return pid
    return 0


def _inode(port: int) -> str:
    """Of a TCP socket; "" if there is none."""
    for table in TABLES:
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                columns = line.split()
                if int(columns[LOCAL].rpartition(":")[2], 16) == port and columns[INODE] != "0":
                    return columns[INODE]
    return ""
