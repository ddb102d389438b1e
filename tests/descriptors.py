"""The open files and connections of this process, for tests that look for those that are left behind."""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

from tests.patience import slowness

SECONDS = 5.0


def open_descriptors() -> set[str]:
    """Each as ``number target``, so that one that took the number of a closed one is another one.

    A test asks what is open at its end and was not at its begin: what earlier tests have left may be closed meanwhile.
    What they have left in a circle is closed first.
    """
    gc.collect()
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor that listed them
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
    return found


def left_open(before: set[str], under: Path | None = None) -> set[str]:
    """The descriptors that are open, were not ``before`` and stay so; with ``under``, files of that directory only.

    Threads of earlier tests may open and close something at any moment (a client that connects again, a database that
    compacts): if it is closed again within some seconds, it is not left open.
    """
    until = monotonic() + SECONDS * slowness()
    while left := {each for each in open_descriptors() - before if under is None or f" {under}" in each}:
        if monotonic() >= until:
            break
        sleep(0.05)
    return left
