"""The script: starts all processes, injects failures while the fleet publishes, reports what clients noticed, and ends
all processes.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from starlingmq.cli.children import Child
from starlingmq.cli.declare import CommandError
from starlingmq.demo import callers, tally
from starlingmq.demo.cast import Cast, said_in
from starlingmq.demo.figures import Figures, verdict
from starlingmq.demo.narrator import Narrator
from starlingmq.demo.outcome import audit_lines, positions, positions_line
from starlingmq.demo.stage import EVENTS, PIPELINES, Equipment, Stage, build, equipment
from starlingmq.demo.told import DemoOutcome, Order, Tick, WorkersTick

KILLED: Final = "n2"
CUT: Final = ("n1", "n3")
# Fractions of the duration.
CALM: Final = 0.2
AWAY: Final = 0.15
APART: Final = 0.2
LOOK_SECONDS: Final = 0.2
CENSUS_SECONDS: Final = 6.0  # until each broker has taken two more censuses: the audit covers the time before them
CAUGHT_UP_SECONDS: Final = 120.0  # for the pipelines, after the fleet has stopped publishing
CLEAN: Final = 0
NOT_CLEAN: Final = 1


@dataclass(frozen=True)
class DemoOptions:
    """``pace``: seconds between two readings of a device. ``directory`` None: a temporary one."""

    devices: int
    minutes: float
    pace: float
    spark: bool
    delta: bool
    faults: bool
    directory: Path | None


async def play(wanted: DemoOptions) -> int:
    """Return the exit code: 1 if an acknowledged message was lost or delivered twice. Raises CommandError, OSError."""
    loop = asyncio.get_running_loop()
    me = asyncio.current_task()
    assert me is not None
    hurry = asyncio.Event()
    told_to_end = False

    def interrupted() -> None:
        nonlocal told_to_end
        if told_to_end:
            hurry.set()
        else:
            told_to_end = True
            me.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted)
    directory = wanted.directory or Path(tempfile.mkdtemp(prefix="starlingmq-demo-"))
    code = CLEAN
    keep = wanted.directory is not None
    with Narrator() as narrator:
        show = Show(wanted, directory.absolute(), narrator)
        try:
            code = await show.run()
        except asyncio.CancelledError:
            narrator.say("interrupted")
        except CommandError:
            keep = True  # with the output of all processes
            raise
        finally:
            told_to_end = True  # a second signal ends it without waiting
            left = await show.end(hurry)
            if not keep:
                shutil.rmtree(directory, ignore_errors=True)
        kept = f"; its files are in {directory}" if keep else ""
        narrator.say(f"all processes have ended{f', {len(left)} of them had to be killed' if left else ''}{kept}")
    return code


class Show:
    def __init__(self, wanted: DemoOptions, directory: Path, narrator: Narrator) -> None:
        self._wanted = wanted
        self._directory = directory
        self._narrator = narrator
        self._figures = Figures()
        self._cast = Cast(self._update)
        self._seconds = wanted.minutes * 60
        self._fleet: Child | None = None
        self._pipelines: dict[str, Child] = {}
        self._reported: set[str] = set()

    async def run(self) -> int:
        """Run the script and return the exit code."""
        say = self._narrator.say
        there = equipment(self._wanted.spark, self._wanted.delta)
        for line in there.missing:
            say(line, "yellow")
        stage = build(self._directory, there, self._cast.reached_at)
        say("starting three nodes, each with its own etcd")
        await self._cast.start_nodes(stage)
        await self._cast.until_whole()
        self._introduce(stage)
        await self._gather(stage, there)
        await self._scenes()
        return await self._judge(stage, there)

    async def end(self, hurry: asyncio.Event) -> list[int]:
        self._narrator.status("stopping all processes (Ctrl-C again: immediately)")
        return await self._cast.stop(hurry)

    def _update(self, told: Tick | DemoOutcome | WorkersTick) -> None:
        self._figures.update(told)
        if isinstance(told, Tick):
            self._narrator.status(self._figures.status())
            if told.alert and not self._reported:
                self._reported.add("alert")
                self._narrator.say(f"the first alert arrived from Spark: {told.alert}")

    # Scenes

    def _introduce(self, stage: Stage) -> None:
        say, detail = self._narrator.say, self._narrator.detail
        say("the cluster serves; while the demo runs, look at")
        if stage.http:
            detail(f"dashboard   {stage.http[0]}/", "bold green")
        program = "starlingmq" if shutil.which("starlingmq") else Path(sys.executable).with_name("starlingmq")
        detail(f"messages    {program} sub -p {urlsplit(stage.mqtt[0]).port} -t 'fleet/north/#' -v", "green")
        detail(f"busiest     {program} top --data-dir {stage.directory / 'n1' / 'data'}", "green")
        detail(f"logs        {said_in(stage.directory)}", "green")

    async def _gather(self, stage: Stage, there: Equipment) -> None:
        wanted = self._wanted
        self._narrator.scene(f"{wanted.devices:,} devices connect, each an MQTT client with a session and a will")
        if there.nats:
            await self._cast.start_workers()
        order = Order(stage.mqtt, wanted.devices, wanted.pace, there.spark, there.nats)
        self._fleet = await self._cast.start_fleet(order)
        await self._until(lambda: self._figures.connected() >= wanted.devices * 0.9)
        self._narrator.say(f"{self._figures.connected():,} are connected; each reports about every {wanted.pace:g} s")
        if there.nats:
            self._narrator.say("NATS workers, one on each node in a queue group, answer requests of devices")
        for name in PIPELINES if there.spark else ():
            self._pipelines[name] = await self._cast.start_pipeline(name)
        if there.spark:
            table = "Delta" if there.delta else "Parquet"
            self._narrator.say(
                f"starting Spark: stream to {table}, and readings that are too hot to alerts/# (takes a while)"
            )

    async def _scenes(self) -> None:
        say, figures, cast = self._narrator.say, self._figures, self._cast
        self._narrator.scene("No failures at first")
        figures.begin()
        if not self._wanted.faults:
            await self._wait(1.0)
            self._tell()
            return
        await self._wait(CALM)
        self._tell()

        self._narrator.scene(f"{KILLED} and its etcd are killed (SIGKILL, as if the machine had failed)")
        figures.begin()
        cast.nodes[KILLED].signal(signal.SIGKILL)
        await cast.nodes[KILLED].ended.wait()
        await self._wait(AWAY)
        self._tell()
        say(f"{KILLED} is restarted: it replays its journal and receives the messages that waited for it")
        await cast.start_again(KILLED)
        await cast.until_whole()
        say(f"{KILLED} serves again")
        await self._wait(CALM / 2)

        if callers.SUPPORTED:
            one, other = CUT
            self._narrator.scene(f"The link between {one} and {other} is cut: packets are dropped without notice")
            figures.begin()
            cast.cut(one, other)
            say(f"{one} has noticed, and reaches {other} through {await cast.until_apart(one, other)}")
            await self._wait(APART)
            self._tell()
            cast.heal()
            await cast.until_whole()
            say("the link is repaired, all nodes are directly connected again")

        self._narrator.scene("No more failures")
        figures.begin()
        await self._wait(CALM)
        self._tell()

    def _tell(self) -> None:
        self._narrator.say("what clients noticed:")
        for line in self._figures.noticed():
            self._narrator.detail(line, "")

    # The end

    async def _judge(self, stage: Stage, there: Equipment) -> int:
        say, detail, figures = self._narrator.say, self._narrator.detail, self._figures
        self._narrator.scene("The devices stop publishing and count")
        assert self._fleet is not None
        self._fleet.signal(signal.SIGUSR1)
        await self._until(lambda: figures.outcome is not None)
        assert figures.outcome is not None
        lines = verdict(figures.outcome, there.nats, there.spark)
        say("result, as counted by the clients:")
        for line, good in lines:
            detail(line, "" if good else "bold red")
        clean = all(good for _, good in lines)
        if not there.spark:
            return CLEAN if clean else NOT_CLEAN
        await self._caught_up(figures.outcome.counts.get(tally.ACKNOWLEDGED, 0))
        for child in self._pipelines.values():
            child.signal(signal.SIGINT)
        await asyncio.gather(*(child.ended.wait() for child in self._pipelines.values()))
        line, good = positions_line(self._directory, figures.outcome)
        detail(line, "" if good else "bold red")
        clean = clean and good
        await asyncio.sleep(CENSUS_SECONDS)
        say("the delivery audit reads the brokers' events of each message (Spark again; about a minute)")
        for line, good in audit_lines(await self._audit()):
            detail(line, "" if good else "bold red")
            clean = clean and good
        return CLEAN if clean else NOT_CLEAN

    async def _audit(self) -> dict[str, Any]:
        began = asyncio.get_running_loop().time()
        asking = asyncio.ensure_future(self._cast.audit(EVENTS))
        try:
            while not asking.done():
                self._narrator.status(f"Spark took {asyncio.get_running_loop().time() - began:.0f} s")
                await asyncio.wait([asking], timeout=1)
            return asking.result()
        finally:
            asking.cancel()

    async def _caught_up(self, acknowledged: int) -> None:
        """Wait until the table contains all of them."""
        until = asyncio.get_running_loop().time() + CAUGHT_UP_SECONDS
        while asyncio.get_running_loop().time() < until:
            _, different = await asyncio.to_thread(positions, self._directory)
            if different >= acknowledged:
                return
            await asyncio.sleep(1)

    # Waiting

    async def _wait(self, part: float) -> None:
        """Wait for a fraction of the duration. Raises CommandError if a process ends unexpectedly."""
        until = asyncio.get_running_loop().time() + part * self._seconds
        await self._until(lambda: asyncio.get_running_loop().time() >= until)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._look_after()
            await asyncio.sleep(LOOK_SECONDS)

    def _look_after(self) -> None:
        for child in (self._fleet, *self._pipelines.values()):
            if child is not None and child.ended.is_set() and self._figures.outcome is None:
                raise CommandError(f"{self._cast.why(child)} (its output: {said_in(self._directory) / child.name})")
