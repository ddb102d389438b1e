"""One device of the fleet: a real MQTT client that reports its position, temperature and battery charge.

Each fifth device uses MQTT 3.1.1, each fourth publishes at QoS 2, each tenth at QoS 0. Each tenth requests a route from
a NATS worker from time to time. Each twentieth is flaky: it drops its connection without DISCONNECT and stays offline
for some seconds. Each fiftieth runs hot, which causes alerts.

A retained message holds the online state of a device; its will sets it to offline. In MQTT 5 the will has a delay: a
device that reconnects to any node before it expires stays online. 3.1.1 has no delay, and the will of a connection
whose node has died may be published after the device has reconnected to another one. So such a device subscribes to its
own state and corrects it.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from asyncio import Future
from collections import Counter
from contextlib import suppress
from time import monotonic
from typing import Final

from starlingmq.client import Client, ClientError, ConnectFailed, PublishFailed, Will
from starlingmq.client.client import acknowledged
from starlingmq.client.events import Completed
from starlingmq.client.link import Link
from starlingmq.client.options import QOS, V5, V311
from starlingmq.demo.tally import Tally
from starlingmq.wire.properties import RESPONSE_TOPIC, WILL_DELAY_INTERVAL, Properties

REGIONS: Final = ("north", "middle", "south")
HOT: Final = 60.0  # degrees: a higher temperature causes an alert
ONLINE: Final = b"online"
OFFLINE: Final = b"offline"
SESSION_SECONDS: Final = 3600
AGAIN_SECONDS: Final = 2.0  # before the first connection is retried
ASK_EVERY: Final = 3  # readings
ANSWER_SECONDS: Final = 10.0  # after which a device repeats its request: NATS is at most once
AWAY_SECONDS: Final = (3.0, 20.0)  # of a flaky device
WILL_DELAY: Final = 10  # seconds
AWAY_CHANCE: Final = 0.1  # after a reading


def region_of(number: int) -> str:
    """Return the region: three consecutive devices share one, so that each region has devices on every node."""
    return REGIONS[number // len(REGIONS) % len(REGIONS)]


class Device(Client):
    """``pace``: approximate seconds between two readings. ``answered``: whether NATS workers answer requests.
    ``counts``: the fleet's counters of connection events.
    """

    def __init__(
        self, number: int, urls: list[str], pace: float, answered: bool, tally: Tally, counts: Counter[str]
    ) -> None:
        self.number = number
        self.name = f"d{number:04}"
        self.region = region_of(number)
        self.topic_prefix = f"fleet/{self.region}/{self.name}"
        self.qos = 0 if number % 10 == 5 else 2 if number % 4 == 2 else 1
        self.flaky = number % 20 == 11
        self.hot = number % 50 == 17
        self.asks = answered and number % 10 == 3
        self.hot_readings: set[int] = set()  # acknowledged: an alert is due for each
        self.absences: list[float] = []  # seconds, of connection losses that the device did not cause
        self.answers: list[float] = []  # seconds from request to answer
        self.unanswered: dict[int, float] = {}  # by request number: the time of the first attempt
        self.called_back = asyncio.Event()  # set: flaky devices stay connected
        self._pace = pace
        self._tally = tally
        self._counts = counts
        self._draw = random.Random(number)  # noqa: S311 no secret  # nosec B311
        self._readings = 0
        self._lost_at: float | None = None
        self._stays_away = 0.0  # seconds
        self._were_there = False  # connected before
        self._heading = self._draw.uniform(0, 2 * math.pi)
        self._at = [54.0 - 3 * REGIONS.index(self.region) + self._draw.random(), 8.0 + self._draw.random()]
        home = number % len(urls)
        modern = number % 5 != 4
        self._listens = f"{self.topic_prefix}/answer/+" if self.asks else "" if modern else f"{self.topic_prefix}/state"
        # Any node will do: when one is down, the next one has the session or creates a new one.
        super().__init__(
            urls[home],
            others=[*urls[home + 1 :], *urls[:home]],
            reconnect=True,
            client_id=self.name,
            version=V5 if modern else V311,
            clean_start=False,
            session_expiry=SESSION_SECONDS,
            keep_alive=30,
            will=Will(
                f"{self.topic_prefix}/state".encode(),
                OFFLINE,
                1,
                True,
                {WILL_DELAY_INTERVAL: WILL_DELAY} if modern else {},
            ),
        )

    async def live(self) -> None:
        """Run until cancelled."""
        while not self._were_there:
            try:
                await self.connect()
            except ConnectFailed:
                self._counts["refused at first"] += 1
                await asyncio.sleep(AGAIN_SECONDS)
                self._go_on()
        if self._listens:
            with suppress(ClientError):
                await self.subscribe(self._listens, qos=1)
        listening = asyncio.ensure_future(self._listen())
        try:
            await asyncio.sleep(self._draw.uniform(0, self._pace))
            while True:
                self.report()
                if self.flaky and self._draw.random() < AWAY_CHANCE:
                    self.vanish()
                await asyncio.sleep(self._pace * self._draw.uniform(0.67, 1.33))
        finally:
            listening.cancel()

    def report(self) -> None:
        """Publish one reading; it is sent once the client is connected."""
        self._readings += 1
        number = self._readings
        self._heading += self._draw.gauss(0, 0.2)
        self._at[0] += 0.001 * math.cos(self._heading)
        self._at[1] += 0.001 * math.sin(self._heading)
        warmth = 20 + 8 * math.sin(number / 10 + self.number) + self._draw.gauss(0, 0.5) + (45 if self.hot else 0)
        temperature = round(warmth, 1)  # alerts depend on the published value
        reading = {
            "id": self.name,
            "n": number,
            "lat": round(self._at[0], 5),
            "lon": round(self._at[1], 5),
            "temperature": temperature,
            "battery": round(100 - (number / 2 + self.number) % 95, 1),
        }
        self._tally.sent((self.number, number), self.qos, monotonic())
        self._say("telemetry", json.dumps(reading), number, temperature > HOT and self.qos > 0)
        if self.asks and number % ASK_EVERY == 0:
            self.unanswered[number] = monotonic()
        for question, asked_at in self.unanswered.items():
            if question == number or monotonic() - asked_at > ANSWER_SECONDS:
                self._ask(question)

    def vanish(self) -> None:
        """Drop the connection without DISCONNECT."""
        if self.connected and self._link is not None:
            self._counts["away by themselves"] += 1
            self._stays_away = self._draw.uniform(*AWAY_SECONDS)
            self._link.abort()

    async def connect(self) -> None:
        if self._stays_away:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._stays_away):
                    await self.called_back.wait()
        await super().connect()
        if self._were_there and not self.session_present:
            self._counts["sessions lost"] += 1
            self._tally.restarted(self.number)
        if self._lost_at is not None and not self._stays_away:
            self._counts["came back"] += 1
            self.absences.append(monotonic() - self._lost_at)
        self._stays_away = 0.0
        self._lost_at = None
        self._were_there = True
        self._say_online()

    def link_lost(self, link: Link, error: Exception | None) -> None:
        if link is self._link and self._lost_at is None and self._were_there and not self._leaving:
            self._lost_at = monotonic()
        super().link_lost(link, error)

    def _say_online(self) -> None:
        self.publish_soon(f"{self.topic_prefix}/state", ONLINE, qos=1, retain=True)

    def _say(self, what: str, payload: str, number: int, hot: bool) -> None:
        key = (self.number, number)

        def done(answer: Future[Completed]) -> None:
            if answer.cancelled() or key not in self._tally.open:
                return
            try:
                acknowledged(self.name, answer.result())
            except PublishFailed:
                self._tally.refused(key)
            except ClientError:
                pass  # at the end: it stays open, without a guarantee
            else:
                self._tally.acknowledged(key, monotonic())
                if hot:
                    self.hot_readings.add(number)

        self.publish_soon(f"{self.topic_prefix}/{what}", payload, QOS[self.qos]).add_done_callback(done)

    def _ask(self, question: int) -> None:
        """Request a route from the NATS service, which receives a request with a reply subject."""
        self._counts["asked"] += 1
        answer_to: Properties = {RESPONSE_TOPIC: f"{self.topic_prefix}/answer/{question}"}
        self.publish_soon(f"{self.topic_prefix}/route", json.dumps({"from": self._at}), 1, properties=answer_to)

    async def _listen(self) -> None:
        with suppress(ClientError):
            async for message in self.messages():
                if message.topic == f"{self.topic_prefix}/state":
                    if message.payload == OFFLINE:
                        self._say_online()
                    continue
                question = int(message.topic.rpartition("/")[2])
                asked_at = self.unanswered.pop(question, None)
                if asked_at is not None:
                    self._counts["answered"] += 1
                    self.answers.append(monotonic() - asked_at)
