"""How long tests wait before they call something lost: longer where the machine has other work.

A time-out in a test is there to end a test that hangs. It must not fail one that is merely slow, so it grows with the
number of processes that want to run on each processor. What a test asserts about time grows in the same way.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from time import monotonic
from types import FrameType

import pytest
import pytest_timeout  # type: ignore[import-untyped]  # it has no types

SLOWNESS_MAX = 10.0
"""Above this the machine is broken rather than busy."""

LOAD_FILE = Path("/proc/loadavg")


def slowness() -> float:
    """How many times as long as on a quiet machine something may take now: 1.0 to ``SLOWNESS_MAX``.

    The processes that want to run, for each processor: on average over the last minute, or at this moment if those are
    more.
    """
    load = os.getloadavg()[0]
    if LOAD_FILE.exists():
        running = int(LOAD_FILE.read_text().split()[3].partition("/")[0])
        load = max(load, float(running))
    return min(SLOWNESS_MAX, max(1.0, load / (os.cpu_count() or 1)))


def within(seconds: float) -> asyncio.Timeout:
    """``asyncio.timeout`` for a test: ``seconds`` on a quiet machine."""
    return asyncio.timeout(seconds * slowness())


def print_tasks() -> None:
    """Where each task of the running event loop waits: the stack of the thread tells only that it does."""
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:  # no event loop is running
        return
    for task in tasks:
        task.print_stack(file=sys.stdout)


class TimeOuts:
    """A pytest plug-in: the time-out of a test that expires on a busy machine is extended by what the load explains."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: pytest_timeout.Settings) -> bool | None:
        if settings.method != "signal":
            return None
        began = monotonic()

        def expired(_: int, __: FrameType | None) -> None:
            left = settings.timeout * slowness() - (monotonic() - began)
            if left > 0.1:
                signal.setitimer(signal.ITIMER_REAL, left)
            else:
                print_tasks()
                pytest_timeout.timeout_sigalrm(item, settings)

        def cancel() -> None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

        item.cancel_timeout = cancel  # type: ignore[attr-defined]  # where pytest-timeout looks for it
        signal.signal(signal.SIGALRM, expired)
        signal.setitimer(signal.ITIMER_REAL, settings.timeout)
        return True
