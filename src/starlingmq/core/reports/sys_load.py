"""``$SYS/broker/load/...``: moving averages per minute over 1, 5 and 15 minutes, under mosquitto's names.

Averages decay exponentially, like a load average of Unix: after an interval of ``s`` seconds the old value weighs
``2.71828 ** (-s / period)``. They begin at 0, so they take about their period to show a steady rate.
"""

from __future__ import annotations

from typing import Final

E: Final = 2.718281828459045
PERIODS: Final = (("1min", 60.0), ("5min", 300.0), ("15min", 900.0))


class SysLoad:
    _at: float
    _totals: dict[str, int]
    _averages: dict[str, float]

    def __init__(self, now: float) -> None:
        self._at = now
        self._totals = {}
        self._averages = {}

    def figures(self, totals: dict[str, int], now: float) -> dict[str, str]:
        """Take the present totals by name, and return the averages by topic below ``load/``."""
        seconds = now - self._at
        if seconds > 0.0:
            self._at = now
            for name, total in totals.items():
                rate = (total - self._totals.get(name, 0)) * 60.0 / seconds
                self._totals[name] = total
                for period, length in PERIODS:
                    topic = f"load/{name}/{period}"
                    before = self._averages.get(topic, 0.0)
                    self._averages[topic] = rate + E ** (-seconds / length) * (before - rate)
        return {topic: f"{average:.2f}" for topic, average in self._averages.items()}
