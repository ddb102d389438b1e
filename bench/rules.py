"""The cost of rules: CPU of the broker a message, with no rule, with one that it meets, and with 1,000 others beside:
``python -m bench.rules``. A publisher floods at QoS 1 with a window; each message is 200 bytes of JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.bridges.real import starlingmq

from bench.process import cpu_seconds
from starlingmq.client import Client

ROUND: Final = 500
LOOK_SECONDS: Final = 1.0
BUSY: Final = 0.05  # of a core
PAYLOAD: Final = json.dumps(
    {"id": "sensor-17", "v": 73.25, "n": 12, "unit": "celsius", "place": {"hall": "A", "row": 4}, "note": "x" * 100}
)
SQL: Final = (
    "select concat('alarms/', id) as topic, to_json(struct(v * 9 / 5 + 32 as f, n)) as payload, 0 as qos "
    "from rows where v > 50"
)


def rule(number: int) -> dict[str, Any]:
    return {
        "name": f"r{number}",
        "source": {"topics": [f"plant/{number}/#"]},
        "decode": {"format": "json", "schema": "id string, v double, n int"},
        "steps": [{"sql": SQL}],
    }


async def quiet(pid: int) -> None:
    """Until all rules are compiled."""
    before, now = 0.0, cpu_seconds(pid)
    while now - before > BUSY * LOOK_SECONDS:
        await asyncio.sleep(LOOK_SECONDS)
        before, now = now, cpu_seconds(pid)


async def cost(directory: Path, rules: list[dict[str, Any]], topic: str, count: int) -> float:
    """CPU of the broker a message, in microseconds."""
    directory.mkdir()
    tree: dict[str, Any] = {"rules": rules, "node": {"name": "bench"}}  # in memory
    async with starlingmq(directory, tree) as broker, Client(broker.url) as client:
        assert broker.process is not None
        await quiet(broker.process.pid)
        for _ in range(4):
            await asyncio.gather(*[client.publish_soon(topic, PAYLOAD, qos=1) for _ in range(ROUND)])
        before = cpu_seconds(broker.process.pid)
        for _ in range(count // ROUND):
            await asyncio.gather(*[client.publish_soon(topic, PAYLOAD, qos=1) for _ in range(ROUND)])
        return (cpu_seconds(broker.process.pid) - before) / count * 1e6


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    count = parser.parse_args().messages
    with tempfile.TemporaryDirectory() as place:
        cases = {
            "no rule": ([], "plant/0/temp"),
            "a rule that it meets": ([rule(0)], "plant/0/temp"),
            "a rule that it does not meet": ([rule(0)], "other/0/temp"),
            "1,000 rules, meets one": ([rule(number) for number in range(1000)], "plant/500/temp"),
            "1,000 rules, meets none": ([rule(number) for number in range(1000)], "other/500/temp"),
        }
        for number, (name, (rules, topic)) in enumerate(cases.items()):
            print(f"{name}: {await cost(Path(place) / str(number), rules, topic, count):.2f} us a message", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
