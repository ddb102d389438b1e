"""The open files and connections of this process, for tests that look for those that are left behind."""

from __future__ import annotations

import gc
import os
from contextlib import suppress


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
