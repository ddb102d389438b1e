"""A bridge while brokers are killed and restarted and its line is cut, round after round, at QoS 1 and 2 each way: no
message is lost, and at QoS 2 none comes twice.

Between two StarlingMQs that holds without exception. mosquitto keeps what it has in memory and writes all of it now and
then; after a kill it has forgotten what it acknowledged since. So it is stopped in order here, and killed only where
nothing is asked about the messages that it had acknowledged.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from tests.bridges.real import HAS_MOSQUITTO, Line, Running, bridge, kept, mosquitto, reading, starlingmq
from tests.few import few
from tests.patience import within

from starlingmq.client import Client, ConnectFailed
from starlingmq.client.options import QOS

SECONDS: Final = 30.0
EACH: Final = 12  # messages of each QoS and direction in a round
LASTING: Final = {"session_expiry": 0xFFFFFFFF, "clean_start": False}


class Journal:
    """Messages that were published and acknowledged, and those that came, by topic: direction and QoS."""

    def __init__(self) -> None:
        self.sent: dict[str, list[str]] = {}
        self.came: dict[str, Counter[str]] = {}

    def missing(self) -> dict[str, set[str]]:
        found = {topic: set(sent) - set(self.came.get(topic, ())) for topic, sent in self.sent.items()}
        return {topic: payloads for topic, payloads in found.items() if payloads}

    def twice(self) -> list[str]:
        """Of the messages with QoS 2."""
        return [
            f"{topic} {payload} x{times}"
            for topic, came in self.came.items()
            for payload, times in came.items()
            if topic.endswith("2") and times > 1
        ]


async def reach(url: str, way: str, journal: Journal) -> None:
    """Until what is published there comes: a link learns a moment after its readers have subscribed what they want."""
    probe = f"{way}/probe"
    async with Client(url, client_id=f"probe-{way}") as client, within(SECONDS):
        while probe not in journal.came:
            await client.publish(probe, qos=1)
            await asyncio.sleep(0.01)


async def publish_all(url: str, way: str, number: int, journal: Journal) -> None:
    """Publish a round's messages; the client repeats what is not acknowledged, over restarts of its broker."""
    client = Client(url, client_id=f"publisher-{way}", reconnect=True, **LASTING)  # type: ignore[arg-type]
    await connected(client)
    waits = []
    for index in range(EACH):
        for qos in (1, 2):
            topic, payload = f"{way}/{qos}", f"{number}.{index}"
            journal.sent.setdefault(topic, []).append(payload)
            waits.append(client.publish_soon(topic, payload, qos=QOS[qos]))
    await asyncio.gather(*waits)
    await client.disconnect()


async def connected(client: Client) -> None:
    async with within(SECONDS):
        while True:
            try:
                await client.connect()
            except ConnectFailed:
                await asyncio.sleep(0.02)
            else:
                return


async def read_all(url: str, way: str, journal: Journal, ready: asyncio.Event) -> None:
    """Take what comes, over restarts of the broker: the session waits there."""
    client = Client(url, client_id=f"reader-{way}", reconnect=True, **LASTING)  # type: ignore[arg-type]
    await connected(client)
    await client.subscribe(f"{way}/#", qos=2)
    ready.set()
    async for message in client.messages():
        journal.came.setdefault(message.topic, Counter())[message.payload.decode()] += 1


@asynccontextmanager
async def readers(near: str, far: str, journal: Journal) -> AsyncIterator[None]:
    events = [asyncio.Event(), asyncio.Event()]
    tasks = [
        asyncio.ensure_future(read_all(far, "out", journal, events[0])),
        asyncio.ensure_future(read_all(near, "in", journal, events[1])),
    ]
    try:
        async with within(SECONDS):
            for event in events:
                await event.wait()
        yield
    finally:
        ended = [task for task in tasks if task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in ended:  # a reader that has ended reads nothing: this is why messages are missing
            task.result()


NO_LIMITS: Final[dict[str, Any]] = {"mqtt": {"max_mqueue_len": 0}, "limits": {"queue_bytes": 0}}
Fault = Callable[[Running, Running, Line], Awaitable[None]]


async def kill_near(near: Running, far: Running, line: Line) -> None:
    await near.kill()
    await near.start()


async def kill_far(near: Running, far: Running, line: Line) -> None:
    await far.kill()
    await far.start()


async def stop_near(near: Running, far: Running, line: Line) -> None:
    await near.stop()
    await near.start()


async def stop_far(near: Running, far: Running, line: Line) -> None:
    await far.stop()
    await far.start()


async def cut(near: Running, far: Running, line: Line) -> None:
    line.cut()


FAULTS: Final = {"kill near": kill_near, "kill far": kill_far, "cut": cut, "stop near": stop_near, "stop far": stop_far}


async def run_rounds(near: Running, far: Running, line: Line, names: list[str], seed: int) -> Journal:
    """A fault in each round, while its messages are published at both ends. None is lost."""
    draw = random.Random(seed)
    journal = Journal()
    async with reading(near.url, "$SYS/broker/connection/b/state") as states:
        await states.until(b"1")  # before that the other broker keeps nothing for the bridge
    async with readers(near.url, far.url, journal):
        await reach(near.url, "out", journal)
        await reach(far.url, "in", journal)
        for number, name in enumerate(names):
            publishers = [
                asyncio.ensure_future(publish_all(near.url, "out", number, journal)),
                asyncio.ensure_future(publish_all(far.url, "in", number, journal)),
            ]
            if draw.random() < 0.7:  # in the midst of it; otherwise before
                half = draw.choice(list(journal.came)) if journal.came else ""
                before = journal.came.get(half, Counter()).total()
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.3):
                        while journal.came.get(half, Counter()).total() == before:
                            await asyncio.sleep(0.001)
            await FAULTS[name](near, far, line)
            async with within(SECONDS):
                await asyncio.gather(*publishers)
        try:
            async with within(SECONDS):
                while journal.missing():
                    await asyncio.sleep(0.02)
                for way, url in (("out", near.url), ("in", far.url)):  # second copies come before these
                    await publish_all(url, way, len(names), journal)
                while journal.missing():
                    await asyncio.sleep(0.02)
        except TimeoutError:
            pytest.fail(f"lost with seed {seed}: {journal.missing()}\n{near.log.read_text()[-3000:]}")
    return journal


def drawn(names: list[str], rounds: int, seed: int) -> list[str]:
    """Each of these once at least, in a drawn order."""
    draw = random.Random(seed)
    found = [*names, *(draw.choice(names) for _ in range(rounds - len(names)))][:rounds]
    draw.shuffle(found)
    return found


def settings(url: str, version: str = "5.0") -> dict[str, Any]:
    topics = [{"filter": "out/#"}, {"filter": "in/#", "direction": "in"}]
    return {**NO_LIMITS, "bridges": [bridge(url, *topics, version=version)]}


@pytest.mark.parametrize("rounds", few([3, 50], 3))
@pytest.mark.timeout(900)
async def test_between_two_starlingmqs(tmp_path: Path, rounds: int) -> None:
    for name in ("near", "far"):
        (tmp_path / name).mkdir()
    names = ["kill near", "kill far", "cut"]
    async with (
        starlingmq(tmp_path / "far", NO_LIMITS) as far,
        Line(far.url) as line,
        starlingmq(tmp_path / "near", settings(line.url)) as near,
    ):
        journal = await run_rounds(near, far, line, drawn(names, rounds, rounds), rounds)
    assert not journal.twice(), f"seed {rounds}"
    assert sum(len(sent) for sent in journal.sent.values()) == (rounds + 1) * EACH * 4
    assert "Traceback" not in near.log.read_text() + far.log.read_text()


@pytest.mark.parametrize("rounds", few([3, 50], 3))
@pytest.mark.timeout(900)
async def test_a_link(tmp_path: Path, rounds: int) -> None:
    """At QoS 1, too, none comes twice, but by a publisher or a reader that was interrupted itself."""
    for name in ("near", "far"):
        (tmp_path / name).mkdir()
    async with (
        starlingmq(tmp_path / "far", NO_LIMITS) as far,
        Line(far.url) as line,
        starlingmq(tmp_path / "near", {**NO_LIMITS, "links": settings(line.url)["bridges"]}) as near,
    ):
        names = ["kill near", "kill far", "cut"]
        journal = await run_rounds(near, far, line, drawn(names, rounds, rounds), rounds)
    assert not journal.twice(), f"seed {rounds}"
    assert "Traceback" not in near.log.read_text() + far.log.read_text()


@HAS_MOSQUITTO
@pytest.mark.long(kept="tests/bridges/test_bridge_rounds.py::test_between_two_starlingmqs")
@pytest.mark.parametrize("version", ["3.1.1", "5.0"])
@pytest.mark.parametrize("rounds", [3, 50])
@pytest.mark.timeout(900)
async def test_between_starlingmq_and_mosquitto(tmp_path: Path, rounds: int, version: str) -> None:
    for name in ("near", "far"):
        (tmp_path / name).mkdir()
    names = ["kill near", "cut", "stop far"]
    async with (
        mosquitto(tmp_path / "far", kept(tmp_path / "far")) as far,
        Line(far.url) as line,
        starlingmq(tmp_path / "near", settings(line.url, version)) as near,
    ):
        journal = await run_rounds(near, far, line, drawn(names, rounds, rounds), rounds)
    # mosquitto 2.0.11, stopped between PUBREC and PUBCOMP, repeats PUBLISH afterwards, not PUBREL: those come twice
    assert not [each for each in journal.twice() if each.startswith("out/")], f"seed {rounds}"
    assert "Traceback" not in near.log.read_text()
