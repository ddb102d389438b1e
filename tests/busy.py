"""Processes that want a processor all the time: a busy machine as a fault."""

from __future__ import annotations

import os
import subprocess
import sys
from types import TracebackType
from typing import Final, Self

SPIN: Final = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
while True:
    pass
"""
"""Ends when its standard input is closed, and so with the process that started it."""


class Busy:
    """A context in which ``count`` processes compute without pause."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def slower(self) -> float:
        """How many times as long everything else may take beside them."""
        return 1.0 + self._count / (os.cpu_count() or 1)

    def __enter__(self) -> Self:
        for _ in range(self._count):
            self._processes.append(subprocess.Popen([sys.executable, "-S", "-c", SPIN], stdin=subprocess.PIPE))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.kill()
            process.stdin.close()
            process.wait()
