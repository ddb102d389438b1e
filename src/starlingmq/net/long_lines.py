"""How TCP is set up for a long line between two brokers."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any


def for_long_line(transport: Any) -> None:
    """Let TCP send by its measured rate (BBR) and not slow down at each lost packet, where the system allows it:
    with 1 % of loss over 100 ms others send less than a tenth."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family != socket.AF_UNIX:
        with suppress(OSError, AttributeError):  # Linux only
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
