"""Messages for the recipes, the same ones each time: ``python generate.py mqtt://127.0.0.1:1883`` publishes them."""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from starlingmq.client import Client

BEGIN = datetime(2026, 3, 2, 6, 0, tzinfo=UTC)
DEVICES = ("press-1", "press-2", "oven-1")
Message = tuple[str, dict[str, Any]]


def after(seconds: float) -> str:
    return (BEGIN + timedelta(seconds=seconds)).isoformat()


def readings(seed: int = 1, minutes: int = 40, every: int = 10) -> list[Message]:
    """A temperature of each device every 10 seconds, some of them up to a minute late; one in 100 is an outlier."""
    chance = random.Random(seed)
    found: list[tuple[float, Message]] = []
    for second in range(0, minutes * 60, every):
        for number, device in enumerate(DEVICES):
            value = 20.0 + 15 * number + 2 * math.sin(second / 600 + number) + chance.gauss(0, 0.4)
            if chance.random() < 0.01:
                value += chance.choice((-15, 15))
            arrives = second + (chance.uniform(0, 60) if chance.random() < 0.1 else 0)
            payload = {"device": device, "at": after(second), "value": round(value, 3)}
            found.append((arrives, (f"readings/{device}", payload)))
    return [message for _, message in sorted(found, key=lambda each: each[0])]


def sightings(seed: int = 2, tags: int = 4, minutes: int = 120) -> list[Message]:
    """Tags that stay in a zone for a while, are seen there every minute, and go on to another one."""
    chance = random.Random(seed)
    found: list[tuple[float, Message]] = []
    for number in range(tags):
        tag, second, zone = f"pallet-{number}", chance.uniform(0, 600), "dock"
        while second < minutes * 60:
            until = second + chance.uniform(300, 1800)
            while second < until:
                payload = {"tag": tag, "zone": zone, "at": after(round(second))}
                found.append((second, (f"zones/{zone}", payload)))
                second += chance.uniform(40, 80)
            second += chance.uniform(60, 400)  # on the way
            zone = chance.choice([other for other in ("dock", "hall", "store") if other != zone])
    return [message for _, message in sorted(found, key=lambda each: each[0])]


def jobs(seed: int = 3, minutes: int = 40) -> list[Message]:
    """The starts of jobs of each device."""
    chance = random.Random(seed)
    found: list[tuple[float, Message]] = []
    for device in DEVICES:
        second, count = chance.uniform(0, 300), 0
        while second < minutes * 60:
            count += 1
            payload = {"device": device, "at": after(round(second)), "job": f"{device}-{count:03d}"}
            found.append((second, (f"jobs/{device}", payload)))
            second += chance.uniform(660, 1000)
    return [message for _, message in sorted(found, key=lambda each: each[0])]


def meters(seed: int = 4, minutes: int = 60) -> list[Message]:
    """Counters of each minute, which begin at 0 again now and then; some messages arrive twice."""
    chance = random.Random(seed)
    found: list[Message] = []
    counters = dict.fromkeys(("meter-1", "meter-2"), 0.0)
    for minute in range(minutes):
        for meter in counters:
            if chance.random() < 0.04:
                counters[meter] = 0.0
            counters[meter] = round(counters[meter] + chance.uniform(0.2, 1.5), 2)
            message = (f"meters/{meter}", {"meter": meter, "at": after(60 * minute), "counter": counters[meter]})
            found += [message] * (2 if chance.random() < 0.1 else 1)
    return found


def everything() -> list[Message]:
    return [*jobs(), *readings(), *sightings(), *meters()]


async def publish(url: str, messages: list[Message]) -> None:
    async with Client(url) as client:
        for topic, payload in messages:
            await client.publish(topic, json.dumps(payload).encode(), qos=1)


if __name__ == "__main__":
    asyncio.run(publish(sys.argv[1], everything()))
