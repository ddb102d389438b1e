"""The fleet as a process: ``python -m starlingmq.demo.fleet ORDER``, where ORDER is an ``Order`` in JSON.

A control room per region, each on another node, receives the readings of its devices and the alerts of a pipeline.
Every second the fleet prints its status as a line of JSON (``Tick``). SIGUSR1: stop publishing, wait until all
acknowledged readings have arrived, print the result (``DemoOutcome``), and end. SIGTERM ends it immediately.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic
from typing import Final

import msgspec

from starlingmq.client import Client, ClientError, ConnectFailed, Subscription
from starlingmq.client.events import Completed, Connected, Event
from starlingmq.client.requests import RENEWED
from starlingmq.demo.device import ONLINE, REGIONS, Device, region_of
from starlingmq.demo.tally import Key, Tally
from starlingmq.demo.told import DemoOutcome, Order, Tick
from starlingmq.net.process import raise_file_limit

TICK_SECONDS: Final = 1.0
SETTLE_SECONDS: Final = 120.0  # Spark may have started late
LOOK_SECONDS: Final = 0.1
CONNECTING_MAX: Final = 50  # devices that connect at the same time
STATES_QUIET: Final = 1.0  # seconds without another retained state, after which the list is complete


class ControlRoom(Client):
    """Subscribes to its region and counts received messages. ``gaps``: the times without a subscription, from the
    CONNACK with session present 0 to the SUBACK of the new one; messages published meanwhile have no receiver.
    """

    def __init__(self, fleet: Fleet, region: str, urls: list[str]) -> None:
        self.fleet = fleet
        self.region = region
        self.gaps: list[tuple[float, float]] = []
        self._unsubscribed_at: float | None = None
        super().__init__(
            urls[0],
            others=urls[1:],
            reconnect=True,
            client_id=f"control-{region}",
            clean_start=False,
            session_expiry=3600,
            keep_alive=30,
        )

    def _deliver(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Connected) and not event.session_present:
                self._unsubscribed_at = self._unsubscribed_at or monotonic()
            elif isinstance(event, Completed) and event.token == RENEWED and self._unsubscribed_at is not None:
                self.gaps.append((self._unsubscribed_at, monotonic()))
                self._unsubscribed_at = None
        super()._deliver(events)

    async def watch_region(self) -> None:
        async for message in self.messages():
            kind, region, device, *_ = message.topic.split("/")
            if kind == "alerts":
                self.fleet.alert(device, message.payload)
            elif region == self.region:
                key = (int(device[1:]), json.loads(message.payload)["n"])
                timed = not self.fleet.devices[key[0]].flaky  # flaky devices have caused their absence themselves
                self.fleet.tally.arrived(key, message.qos, monotonic(), timed)


class Fleet:
    def __init__(self, order: Order) -> None:
        self.order = order
        self.tally = Tally()
        self.counts: Counter[str] = Counter()
        self.alerts: Counter[tuple[int, int]] = Counter()
        self.last_alert = ""
        self.quiet = asyncio.Event()
        urls = order.urls
        self.rooms = [
            ControlRoom(self, region, [*urls[index % len(urls) :], *urls[: index % len(urls)]])
            for index, region in enumerate(REGIONS)
        ]
        self.devices = [
            Device(number, urls, order.pace, order.answers, self.tally, self.counts) for number in range(order.devices)
        ]
        self._connecting = asyncio.Semaphore(CONNECTING_MAX)

    def alert(self, device: str, payload: bytes) -> None:
        told = json.loads(payload)
        self.alerts[int(device[1:]), told["n"]] += 1
        self.last_alert = f"{device} is at {told['temperature']} degrees"

    async def live(self) -> None:
        """Run until SIGUSR1 has been handled."""
        for room in self.rooms:
            await self._enter(room)
        watching = [asyncio.ensure_future(room.watch_region()) for room in self.rooms]
        lives = [asyncio.ensure_future(self._life(device)) for device in self.devices]
        ticking = asyncio.ensure_future(self._tick())
        try:
            await self.quiet.wait()
            for life in lives:
                life.cancel()
            for device in self.devices:
                device.called_back.set()
            await asyncio.gather(*lives, return_exceptions=True)
            began = monotonic()
            await self._settle(began + SETTLE_SECONDS)
            took = monotonic() - began
            online, wrong = await self._states()
            self._print(self._final(online, wrong, took))
        finally:
            for task in (ticking, *watching, *lives):
                task.cancel()
        await asyncio.gather(*(client.disconnect() for client in (*self.devices, *self.rooms)), return_exceptions=True)

    async def _enter(self, room: ControlRoom) -> None:
        while True:
            try:
                await room.connect()
                break
            except ConnectFailed:
                await asyncio.sleep(1)
        wanted = [Subscription(filter=f"fleet/{room.region}/+/telemetry", qos=2)]
        if self.order.alerts:
            wanted.append(Subscription(filter=f"alerts/{room.region}/+", qos=2))
        await room.subscribe(wanted)

    async def _life(self, device: Device) -> None:
        async with self._connecting:
            life = asyncio.ensure_future(device.live())
            try:
                while not device.connected and not life.done():
                    await asyncio.sleep(LOOK_SECONDS)
            except asyncio.CancelledError:
                life.cancel()
                raise
        try:
            await life
        finally:
            life.cancel()

    async def _settle(self, until: float) -> None:
        """Wait until all devices are connected and have their answers, and all acknowledged readings and their alerts
        have arrived.
        """
        while monotonic() < until and not self._settled():
            await asyncio.sleep(LOOK_SECONDS)
        for key in self.tally.missing.keys() - set(self._missing()):
            self.tally.unheard(key)

    def _settled(self) -> bool:
        if self.tally.open or self._missing() or not all(device.connected for device in self.devices):
            return False
        return not (self.order.alerts and self._alerts_lost())

    def _missing(self) -> list[Key]:
        """Return readings that have not arrived although their control room was subscribed all the time."""
        gaps = {room.region: room.gaps for room in self.rooms}
        return [
            key
            for key, (sent_at, acknowledged_at) in self.tally.missing.items()
            if not any(sent_at < end and acknowledged_at > begin for begin, end in gaps[region_of(key[0])])
        ]

    def _alerts_lost(self) -> list[tuple[int, int]]:
        due = ((device.number, number) for device in self.devices for number in device.hot_readings)
        return [key for key in due if key not in self.alerts]

    async def _states(self) -> tuple[int, int]:
        """Read the retained states as a new subscriber receives them. Returns the number online, and the number of
        wrong states.
        """
        states: dict[str, bytes] = {}
        with suppress(ClientError, TimeoutError):
            async with Client(self.order.urls[0], client_id="auditor") as client:
                await client.subscribe("fleet/+/+/state", qos=1)
                messages = client.messages()
                while True:
                    async with asyncio.timeout(STATES_QUIET):
                        message = await anext(messages)
                    states[message.topic] = message.payload
        there = {f"{device.topic_prefix}/state": device.connected for device in self.devices}
        wrong = sum((states.get(topic) == ONLINE) != connected for topic, connected in there.items())
        return sum(state == ONLINE for state in states.values()), wrong

    def _final(self, online: int, wrong: int, took: float) -> DemoOutcome:
        due = {(device.number, number) for device in self.devices for number in device.hot_readings}
        return DemoOutcome(
            counts={**self.counts, **self.tally.counts},
            lost=len(self.tally.missing),
            lost_names=[f"d{device:04}/{number}" for device, number in list(self.tally.missing)[:5]],
            open=len(self.tally.open),
            alerts_due=len(due),
            alerts_lost=len(self._alerts_lost()),
            alerts_doubled=sum(count - 1 for count in self.alerts.values()),
            alerts_early=sum(key not in due for key in self.alerts),
            unanswered=sum(len(device.unanswered) for device in self.devices),
            states_online=online,
            states_wrong=wrong,
            settled_after=round(took, 1),
        )

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._print(
                Tick(
                    devices=len(self.devices),
                    connected=sum(device.connected for device in self.devices),
                    alerts=len(self.alerts),
                    counts={**self.counts, **self.tally.counts},
                    missing=len(self._missing()),
                    delays=_milliseconds(self.tally.take_delays()),
                    absences=_milliseconds(_taken(device.absences for device in self.devices)),
                    answers=_milliseconds(_taken(device.answers for device in self.devices)),
                    alert=self.last_alert,
                )
            )
            self.last_alert = ""

    def _print(self, line: Tick | DemoOutcome) -> None:
        print(msgspec.json.encode(line).decode(), flush=True)


def _milliseconds(seconds: list[float]) -> list[int]:
    return [round(each * 1000) for each in seconds]


def _taken(lists: Iterable[list[float]]) -> list[float]:
    """Return all items of the lists, and clear them."""
    found = []
    for each in lists:
        found += each
        each.clear()
    return found


async def _run(order: Order) -> None:
    loop = asyncio.get_running_loop()
    fleet = Fleet(order)
    loop.add_signal_handler(signal.SIGUSR1, fleet.quiet.set)
    living = asyncio.ensure_future(fleet.live())
    loop.add_signal_handler(signal.SIGTERM, living.cancel)
    with suppress(asyncio.CancelledError):
        await living


def main(arguments: list[str]) -> None:
    logging.getLogger("starlingmq.client").setLevel(logging.ERROR)  # unreachable nodes are part of the demo
    raise_file_limit()
    asyncio.run(_run(msgspec.json.decode(arguments[0], type=Order)))


if __name__ == "__main__":
    main(sys.argv[1:])
