"""Simulated devices: thermometers in some rooms, which publish readings to ``sensors/ROOM/DEVICE``.

    python examples/devices.py --count 200

publishes 200 readings of each of six devices at QoS 1, as fast as the broker accepts them; ``--every 1`` one per
second. The random numbers have a seed, so each run is the same. Some payloads are not JSON, as happens with real
devices.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
from collections.abc import Iterator

from starlingmq.client import Client

ROOMS = {"cellar": 9.0, "kitchen": 21.0, "roof": 14.0}  # mean temperature in degrees
DEVICES = [(room, f"{room}-{number}") for room in ROOMS for number in (1, 2)]
BROKEN_EVERY = 50  # every n-th reading of a device is not JSON


def readings(count: int, seed: int = 1) -> Iterator[tuple[str, bytes]]:
    """Yield topic and payload of ``count`` readings of each device, in order."""
    chance = random.Random(seed)
    for number in range(count):
        for room, device in DEVICES:
            value = ROOMS[room] + 4 * math.sin(number / 20) + chance.gauss(0, 0.3)
            payload = json.dumps({"id": device, "number": number, "value": round(value, 2)}).encode()
            broken = number % BROKEN_EVERY == BROKEN_EVERY - 1 and device == "roof-2"
            yield f"sensors/{room}/{device}", payload[:10] if broken else payload


async def publish(url: str, count: int, every: float = 0.0) -> int:
    """Publish; ``every``: seconds between two readings of a device. Returns how many messages the broker has
    acknowledged.
    """
    published = 0
    async with Client(url, client_id="devices") as client:
        for topic, payload in readings(count):
            await client.publish(topic, payload, qos=1)
            published += 1
            if every and published % len(DEVICES) == 0:
                await asyncio.sleep(every)
    return published


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="mqtt://127.0.0.1:1883")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--every", type=float, default=0.0)
    given = parser.parse_args()
    print(f"{asyncio.run(publish(given.url, given.count, given.every))} readings published")


if __name__ == "__main__":
    main()
