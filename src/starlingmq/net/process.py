"""System settings of a process that is only a broker; an embedding program decides for itself."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
from collections.abc import Iterator, Sequence
from typing import Final

# mallopt(3). Reads of a quarter of a megabyte would otherwise be mapped and unmapped one by one, which was half the
# cost of plain echoing.
_M_TRIM_THRESHOLD: Final = (-1, 64 << 20)
_M_TOP_PAD: Final = (-2, 1 << 20)
_M_MMAP_THRESHOLD: Final = (-3, 4 << 20)

# adjtimex(2)
CLOCK_UNSYNCHRONIZED: Final = 5  # TIME_ERROR
TIMEX_BYTES: Final = 512  # more than any version of struct timex has

_umask: int | None = None  # of the start of the process; None: it is still in force

# The system ends the child when its parent has ended, for whatever reason. A separate program requests this and then
# becomes the child: between fork and exec of a process with threads, such as those of gRPC, Python must not run.
_LAUNCH: Final = """
import ctypes, os, sys
PR_SET_PDEATHSIG = 1
if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(sys.argv[2])) != 0:
    sys.exit("prctl: " + os.strerror(ctypes.get_errno()))
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[3], sys.argv[3:])
"""


def ending_with_us(command: Sequence[str], signal_number: int) -> list[str]:
    """A command line that the system ends by a signal when this process is gone, if the system supports that (Linux).

    ``command`` begins with the full path of a program. The thread that starts it has to live as long as the process.
    """
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), str(int(signal_number)), *command]


def tune_allocator() -> None:
    """Let glibc keep the memory of large buffers. Without glibc this does nothing."""
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for parameter, value in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD, _M_TOP_PAD):
            libc.mallopt(parameter, value)


def make_files_private() -> None:
    """Files that this process and its children create from now on have no access for group and others."""
    global _umask
    _umask = os.umask(0o077)


@contextlib.contextmanager
def umask_of_start() -> Iterator[None]:
    """For a file that other users may use if the administrator chose so: the umask that the process began with."""
    if _umask is None:
        yield
        return
    ours = os.umask(_umask)
    try:
        yield
    finally:
        os.umask(ours)


def free_memory() -> None:
    """Have glibc return freed memory to the system; otherwise holes between live buffers stay resident."""
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def memory() -> int:
    """Bytes of memory of this process; its maximum so far, if the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


def clock_is_synchronized() -> bool | None:
    """Whether the kernel's clock follows another clock, by adjtimex(2); None where there is no such call."""
    with contextlib.suppress(OSError, AttributeError):
        state = int(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES)))
        return state != CLOCK_UNSYNCHRONIZED if state >= 0 else None
    return None


def raise_file_limit() -> int:
    """Raise the limit of open files, that is of connections, as far as the system allows. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return soft
