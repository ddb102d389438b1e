"""What a process that is nothing but a broker asks of its system; an embedding program decides for itself."""

from __future__ import annotations

import contextlib
import ctypes
import resource
import sys
from typing import Final

# mallopt(3). Reads of a quarter of a megabyte would otherwise be mapped and unmapped one by one: half the cost of
# plain echoing was there.
_M_TRIM_THRESHOLD: Final = (-1, 64 << 20)
_M_TOP_PAD: Final = (-2, 1 << 20)
_M_MMAP_THRESHOLD: Final = (-3, 4 << 20)


def tune_allocator() -> None:
    """Let glibc keep the memory of large buffers. Nothing happens where there is no glibc."""
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for parameter, value in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD, _M_TOP_PAD):
            libc.mallopt(parameter, value)


def raise_file_limit() -> int:
    """Take as many open files, that is connections, as the system lets us have; how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft
