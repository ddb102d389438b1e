"""CPU time and memory of a process and its children (Linux)."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")


class Memory(msgspec.Struct, frozen=True):
    """Bytes: resident set, and proportional set (shared pages divided by their number of users)."""

    rss: int
    pss: int


def family(pid: int) -> list[int]:
    """Return the process and all its descendants."""
    found = [pid]
    for parent in found:
        for task in (PROC / str(parent) / "task").iterdir():
            with suppress(FileNotFoundError):  # a thread that has ended since
                found += [int(child) for child in (task / "children").read_text().split()]
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time of the process, its living descendants and those it has waited for, in seconds."""
    ticks = 0
    for member in family(pid):
        fields = (PROC / str(member) / "stat").read_text().rpartition(")")[2].split()
        ticks += sum(int(value) for value in fields[11:15])
    return ticks / TICKS_PER_S


def scheduled_seconds(pid: int) -> float:
    """The time for which the threads of the process have run, in seconds: finer than ``cpu_seconds``."""
    tasks = (PROC / str(pid) / "task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def core_seconds(core: int) -> float:
    """Return the time of this core in all processes, without interrupts, in seconds."""
    for line in (PROC / "stat").read_text().splitlines():
        name, *values = line.split()
        if name == f"cpu{core}":
            user, nice, system = values[:3]
            return (int(user) + int(nice) + int(system)) / TICKS_PER_S
    raise ValueError(f"no core {core}")


def memory(pid: int) -> Memory:
    rss = pss = 0
    for member in family(pid):
        for line in (PROC / str(member) / "smaps_rollup").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name == "Rss":
                rss += int(rest.split()[0]) * 1024
            elif name == "Pss":
                pss += int(rest.split()[0]) * 1024
    return Memory(rss, pss)
