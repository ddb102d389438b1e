"""What clients themselves count: which readings were acknowledged, which arrived, how often, how long it took.

A reading is known by its device and number. Lost: acknowledged at QoS 1 or 2, and it has not arrived. Doubled: it
arrived more than once at QoS 2. At QoS 1 that may be (``again``), and so it may be where a device that was told that
its session is gone had to begin a handshake anew. QoS 0 promises nothing and is counted by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

Key = tuple[int, int]  # device, number of the reading

SENT: Final = "sent"
ACKNOWLEDGED: Final = "acknowledged"
REFUSED: Final = "refused"
ARRIVED: Final = "arrived"
DOUBLED: Final = "doubled"
AGAIN: Final = "again"
UNHEARD: Final = "unheard"
SENT_0: Final = "sent at QoS 0"
ARRIVED_0: Final = "arrived at QoS 0"


class Tally:
    """Times in seconds of one clock. ``counts`` by the names above."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.open: dict[Key, float] = {}  # sent at QoS 1 or 2 and not answered yet: when
        self.missing: dict[Key, tuple[float, float]] = {}  # not arrived yet: when it was sent, and acknowledged
        self._sent_at: dict[Key, float] = {}  # not arrived yet
        self._arrived: dict[int, set[int]] = {}
        self._begun_anew: set[Key] = set()
        self._delays: list[float] = []

    def sent(self, key: Key, qos: int, now: float) -> None:
        self._sent_at[key] = now
        if qos:
            self.open[key] = now
        self.counts[SENT if qos else SENT_0] += 1

    def acknowledged(self, key: Key, now: float) -> None:
        self.counts[ACKNOWLEDGED] += 1
        sent_at = self.open.pop(key)
        if key[1] not in self._arrived.get(key[0], ()):
            self.missing[key] = (sent_at, now)

    def refused(self, key: Key) -> None:
        """The device was told, so nothing is promised."""
        self.counts[REFUSED] += 1
        self.open.pop(key, None)
        self._sent_at.pop(key, None)

    def unheard(self, key: Key) -> None:
        """It was acknowledged while its receiver, who was told so, had no subscription: so nobody was to get it."""
        self.counts[UNHEARD] += 1
        del self.missing[key]

    def begun_anew(self, device: int) -> None:
        """Its session is gone: what is unanswered is sent as if for the first time."""
        self._begun_anew.update(key for key in self.open if key[0] == device)

    def arrived(self, key: Key, qos: int, now: float, timed: bool) -> None:
        """``timed``: whether how long it took says something of the brokers."""
        numbers = self._arrived.setdefault(key[0], set())
        if key[1] in numbers:
            self.counts[DOUBLED if qos == 2 and key not in self._begun_anew else AGAIN] += 1
            return
        numbers.add(key[1])
        self.missing.pop(key, None)
        self.counts[ARRIVED if qos else ARRIVED_0] += 1
        sent_at = self._sent_at.pop(key, None)
        if sent_at is not None and timed:
            self._delays.append(now - sent_at)

    def take_delays(self) -> list[float]:
        """From publish to arrival, of what has arrived since the last call."""
        delays, self._delays = self._delays, []
        return delays


def share(values: Iterable[float], part: float) -> float:
    """The value that ``part`` of them (0 to 1) do not exceed; 0.0 where there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0
