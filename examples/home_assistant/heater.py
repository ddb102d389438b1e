"""A heater that describes itself to Home Assistant (MQTT device discovery): ``python heater.py [--remove] URL``."""

from __future__ import annotations

import asyncio
import json
import sys

from starlingmq.client import Client, Will

PREFIX = "homeassistant"
NAME = "bath-heater"
CONFIG = f"{PREFIX}/device/{NAME}/config"
STATUS = f"{PREFIX}/status"
STATE, SET, AVAILABLE = "heater/bath/state", "heater/bath/set", "heater/bath/available"
READING_SECONDS = 30.0


def description() -> dict[str, object]:
    """Return the discovery data of the device and of each of its components."""
    return {
        "device": {"identifiers": [NAME], "name": "Bath heater", "manufacturer": "Example", "model": "H1"},
        "origin": {"name": "starlingmq example"},
        "availability_topic": AVAILABLE,
        "state_topic": STATE,
        "qos": 1,
        "components": {
            "temperature": {
                "platform": "sensor",
                "unique_id": f"{NAME}-temperature",
                "name": "Temperature",
                "device_class": "temperature",
                "unit_of_measurement": "°C",
                "value_template": "{{ value_json.temperature }}",
            },
            "heating": {
                "platform": "switch",
                "unique_id": f"{NAME}-heating",
                "name": "Heating",
                "command_topic": SET,
                "value_template": "{{ value_json.heating }}",
            },
        },
    }


class Heater:
    def __init__(self) -> None:
        self.temperature = 19.0
        self.heating = "OFF"

    async def run(self, client: Client) -> None:
        """Run until the connection ends."""
        await client.subscribe([SET, STATUS], qos=1)
        await self.introduce(client)
        reporting = asyncio.ensure_future(self._report_for_ever(client))
        try:
            async for message in client.messages():
                if message.topic == STATUS and message.payload == b"online":
                    await self.introduce(client)
                elif message.topic == SET and message.payload in (b"ON", b"OFF"):
                    self.heating = message.payload.decode()
                    await self.report(client)
        finally:
            reporting.cancel()

    async def introduce(self, client: Client) -> None:
        await client.publish(CONFIG, json.dumps(description()), qos=1, retain=True)
        await client.publish(AVAILABLE, "online", qos=1, retain=True)
        await self.report(client)

    async def report(self, client: Client) -> None:
        state = {"temperature": round(self.temperature, 1), "heating": self.heating}
        await client.publish(STATE, json.dumps(state), qos=1, retain=True)

    async def _report_for_ever(self, client: Client) -> None:
        while True:
            await asyncio.sleep(READING_SECONDS)
            self.temperature += 0.5 if self.heating == "ON" else -0.1
            await self.report(client)


async def main(url: str, remove: bool = False) -> None:
    will = Will(AVAILABLE.encode(), b"offline", 1, True)
    async with Client(url, client_id=NAME, will=will, reconnect=True) as client:
        if remove:
            await client.publish(CONFIG, b"", qos=1, retain=True)
        else:
            await Heater().run(client)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[-1], "--remove" in sys.argv))
