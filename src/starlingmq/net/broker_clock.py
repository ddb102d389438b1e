"""The clock of a broker, read in each turn of the event loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_monotonic: Final = time.monotonic


class BrokerClock:
    """Broker time in seconds: Unix time at the start, advanced by the monotonic clock, so that changes of the system
    clock have no effect.
    """

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        return self._offset + _monotonic()

    def __call__(self) -> float:
        return self.now()


def broker_clock() -> Callable[[], float]:
    return BrokerClock()
