"""A day of a factory: four machines, a reading of each every minute, with the flaws that real data has.

    late        a gateway loses its network twice, and sends up to 10 minutes of readings when it is back
    doubled     a device that has not seen the PUBACK sends a reading again
    missing     a machine is off for maintenance; single readings are lost
    out of range  a sensor with a loose wire reports -999 or 9999

``python day.py mqtt://127.0.0.1:1883`` publishes the day at once, in the order of arrival. The same day each time.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from starlingmq.client import Client

BEGIN: Final = datetime(2026, 3, 2, tzinfo=UTC)
MINUTES: Final = 24 * 60
MACHINES: Final = {  # line, usual temperature, rise while it works
    "mixer": ("north", 24.0, 6.0),
    "oven": ("north", 180.0, 35.0),
    "press": ("south", 42.0, 18.0),
    "packer": ("south", 28.0, 5.0),
}
SHIFTS: Final = ((6 * 60, 14 * 60), (14 * 60 + 30, 22 * 60))  # minutes of the day
MAINTENANCE: Final = {"press": (10 * 60, 11 * 60 + 20)}
OUTAGES: Final = {"north": (9 * 60, 9 * 60 + 10), "south": (17 * 60 + 5, 17 * 60 + 14)}  # of the gateway of a line
LOOSE_WIRE: Final = ("oven", 15 * 60, 16 * 60)
Message = tuple[str, dict[str, Any]]


def temperature(machine: str, minute: int, chance: random.Random) -> float:
    _, usual, rise = MACHINES[machine]
    works = any(begin <= minute < end for begin, end in SHIFTS)
    daily = 2.5 * math.sin((minute - 9 * 60) / MINUTES * 2 * math.pi)
    return round(usual + daily + (rise if works else 0.0) + chance.gauss(0, rise / 20), 2)


def day(seed: int = 1, step: int = 1) -> list[Message]:
    """Return the messages in the order of arrival; ``step``: minutes between two readings of a machine."""
    chance = random.Random(seed)
    found: list[tuple[float, Message]] = []
    for minute in range(0, MINUTES, step):
        for machine, (line, _, _) in MACHINES.items():
            value = temperature(machine, minute, chance)
            off = MAINTENANCE.get(machine, (0, 0))
            if off[0] <= minute < off[1] or chance.random() < 0.004:
                continue
            loose, begin, end = LOOSE_WIRE
            if machine == loose and begin <= minute < end and chance.random() < 0.3:
                value = chance.choice((-999.0, 9999.0))
            away = OUTAGES[line]
            arrives = away[1] + minute / MINUTES if away[0] <= minute < away[1] else minute + chance.uniform(0, 0.9)
            at = (BEGIN + timedelta(minutes=minute)).isoformat()
            message = (f"factory/{line}/{machine}/temperature", {"machine": machine, "at": at, "celsius": value})
            found.append((arrives, message))
            if chance.random() < 0.02:
                found.append((arrives + chance.uniform(0.1, 3), message))
    return [message for _, message in sorted(found, key=lambda each: each[0])]


async def publish(url: str, messages: list[Message]) -> None:
    async with Client(url) as client:
        for topic, payload in messages:
            await client.publish(topic, json.dumps(payload).encode(), qos=1)


if __name__ == "__main__":
    asyncio.run(publish(sys.argv[1], day()))
