"""The clients' own count: which readings were acknowledged, which arrived, how often, and after which time.

A reading is identified by its device and number. Lost: acknowledged at QoS 1 or 2, but not received. Doubled: received
more than once at QoS 2. QoS 1 allows that (``again``), and so does QoS 2 if a device got session present 0 and had to
restart a handshake. QoS 0 guarantees nothing and is counted separately.
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
        self.open: dict[Key, float] = {}  # sent at QoS 1 or 2 and not acknowledged yet: time of sending
        self.missing: dict[Key, tuple[float, float]] = {}  # not arrived yet: times of sending and PUBACK or PUBREC
        self._sent_at: dict[Key, float] = {}  # not arrived yet
        self._arrived: dict[int, set[int]] = {}
        self._restarted: set[Key] = set()
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
        """The broker refused the reading and told the device, so there is no guarantee."""
        self.counts[REFUSED] += 1
        self.open.pop(key, None)
        self._sent_at.pop(key, None)

    def unheard(self, key: Key) -> None:
        """The reading was acknowledged while its receiver, which had been told so, had no subscription: it had no
        receiver.
        """
        self.counts[UNHEARD] += 1
        del self.missing[key]

    def restarted(self, device: int) -> None:
        """The device lost its session: its unacknowledged readings are sent as new messages."""
        self._restarted.update(key for key in self.open if key[0] == device)

    def arrived(self, key: Key, qos: int, now: float, timed: bool) -> None:
        """Count a received reading. ``timed``: whether its delay is due to the brokers."""
        numbers = self._arrived.setdefault(key[0], set())
        if key[1] in numbers:
            self.counts[DOUBLED if qos == 2 and key not in self._restarted else AGAIN] += 1
            return
        numbers.add(key[1])
        self.missing.pop(key, None)
        self.counts[ARRIVED if qos else ARRIVED_0] += 1
        sent_at = self._sent_at.pop(key, None)
        if sent_at is not None and timed:
            self._delays.append(now - sent_at)

    def take_delays(self) -> list[float]:
        """Return the delays from publish to arrival of the readings since the last call."""
        delays, self._delays = self._delays, []
        return delays


def share(values: Iterable[float], part: float) -> float:
    """Return the value that ``part`` of them (0 to 1) do not exceed; 0.0 if there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0
