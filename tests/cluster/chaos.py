"""``python -m tests.cluster.chaos --rounds N``: a cluster of real processes under load, and in each round something
breaks: nodes and etcds are killed or stand still, ways between nodes are cut, in one direction or both.

What breaks, and with which settings, is drawn from the seed that is printed; when it happens is up to the machine. Each
``CHECK_ROUNDS`` and in the end everything is healed, and all that was acknowledged has to be everywhere, once at QoS 2,
in order.

``--minutes N`` has it go on for so long with clients that are at home nowhere (``tests.cluster.roaming``) and rolling
restarts, and writes a report.

All etcds are stopped for ``--etcd-away`` of the time, a third without it, and other faults happen meanwhile.

``--load N`` adds N processes that compute without pause (``tests.busy``): slowness is a fault too, which must cost time
and nothing else.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tests.busy import Busy
from tests.cluster import chaos_arguments
from tests.cluster.chaos_etcds import FAULT, EtcdsAway
from tests.cluster.chaos_report import Report, Timeline
from tests.cluster.load import Load
from tests.cluster.losses import GivenUp, Losses, lines_of
from tests.cluster.real import AwayError, Cluster, Node
from tests.cluster.roaming import RoamingLoad

from starlingmq.demo.proxy import BACK, OUT

CHECK_ROUNDS: Final = 10
HOLD_SECONDS: Final = (0.2, 6.0)  # that a fault lasts
REST_SECONDS: Final = 1.0  # between two, at most
OVERLAP: Final = 0.3  # share of faults after which the next one does not wait until all serve again
PATIENCE: Final = 45.0  # seconds until what roaming clients wait for counts as lost
ASK_SECONDS: Final = 0.5  # between two looks at what nodes have given up
BACK_SECONDS: Final = 90.0  # until all serve after a fault; a start may have much to read


class Chaos:
    """The faults of one cluster. Each method is one: it breaks something, holds it, and mends it."""

    def __init__(
        self, cluster: Cluster, draw: random.Random, roaming: bool, last_words: Callable[[Node], None]
    ) -> None:
        """``last_words`` asks a node for what it would take along."""
        self.cluster = cluster
        self.draw = draw
        self.last_words = last_words
        self.faults: dict[str, tuple[int, Callable[[], Awaitable[str]]]] = {
            "kill a node": (6, self.kill_node),
            "kill two nodes": (1, self.kill_two),
            "kill all nodes": (1, self.kill_all),
            "restart a node": (2, self.restart_node),
            "kill an etcd": (4, self.kill_etcd),
            "cut a link": (4, self.cut_link),
            "cut one way": (4, self.cut_one_way),
            "cut one stream": (2, self.cut_stream),
            "isolate a node": (4, self.isolate),
            "make a node mute": (2, self.mute),
            "make a node deaf": (2, self.deafen),
            "split the cluster": (2, self.split),
            "freeze a node": (4, self.freeze),
            "freeze an etcd": (2, self.freeze_etcd),
            "reset connections": (2, self.reset),
            "slow links": (2, self.slow),
        }
        if roaming:
            self.faults |= {
                "restart all nodes, one after the other": (2, self.rolling_restart),
                "restart a node": (6, self.restart_node),
                "drain a node": (3, self.drain),
            }

    async def fault(self) -> tuple[str, str]:
        """One that is drawn: what it is, and whom it met."""
        weights = [weight for weight, _ in self.faults.values()]
        (name,) = self.draw.choices(list(self.faults), weights)
        return name, await self.faults[name][1]()

    async def hold(self) -> None:
        await asyncio.sleep(self.draw.uniform(*HOLD_SECONDS))

    def node(self) -> Node:
        return self.draw.choice(self.cluster.nodes)

    def nodes(self, count: int) -> list[Node]:
        return self.draw.sample(self.cluster.nodes, count)

    async def _kill(self, nodes: list[Node]) -> str:
        for node in nodes:
            await asyncio.to_thread(self.last_words, node)
            await asyncio.to_thread(node.kill)
        await self.hold()
        for node in nodes:
            node.start()
        return ", ".join(node.name for node in nodes)

    async def kill_node(self) -> str:
        return await self._kill([self.node()])

    async def kill_two(self) -> str:
        return await self._kill(self.nodes(2))

    async def kill_all(self) -> str:
        return await self._kill(self.nodes(len(self.cluster.nodes)))

    async def restart_node(self) -> str:
        node = self.node()
        await self._stop(node)
        await self.hold()
        node.start()
        return node.name

    @staticmethod
    async def _stop(node: Node) -> None:
        """A fault before may have started it just now: SIGTERM ends a process that does not serve yet at once."""
        fine = (0,) if node.is_ready() else (0, -signal.SIGTERM)
        code = await asyncio.to_thread(node.stop)
        assert code in fine, f"{node.name} ended with {code}"

    async def rolling_restart(self) -> str:
        for node in self.cluster.nodes:
            await self._stop(node)
            node.start()
            await self.cluster.until(lambda node=node: node.is_ready() and node.serves(), f"{node.name} serves")  # type: ignore[misc]
        return "all"

    async def drain(self) -> str:
        """By an operator, who has another thought then."""
        node = self.node()
        with suppress(AwayError):
            await asyncio.to_thread(node.ask, "cluster.drain")
        await self.hold()
        await self.cluster.until(lambda: self._serves_again(node), f"{node.name} drains no more")
        return node.name

    @staticmethod
    def _serves_again(node: Node) -> bool:
        with suppress(AwayError):
            return not node.ask("drain.cancel")["draining"]
        return False

    async def kill_etcd(self) -> str:
        node = self.node()
        etcd = node.etcd()
        if etcd is None:
            return f"{node.name}, which has none now"
        etcd.kill()
        return node.name

    async def cut_link(self) -> str:
        one, other = self.nodes(2)
        self.cluster.part(one, other)
        return await self._held(f"{one.name} - {other.name}")

    async def cut_one_way(self) -> str:
        source, target = self.nodes(2)
        self.cluster.cut(source, target)
        return await self._held(f"{source.name} -> {target.name}")

    async def cut_stream(self) -> str:
        source, target = self.nodes(2)
        way = self.draw.choice([OUT, BACK])
        self.cluster.proxies[target.name].cut(way, caller=source.name)
        source.trouble.begins()
        target.trouble.begins()
        return await self._held(f"{source.name} -> {target.name}, {way}")

    async def isolate(self) -> str:
        node = self.node()
        self.cluster.isolate(node)
        return await self._held(node.name)

    async def mute(self) -> str:
        node = self.node()
        for other in self.cluster.nodes:
            if other is not node:
                self.cluster.cut(node, other)
        return await self._held(node.name)

    async def deafen(self) -> str:
        node = self.node()
        for other in self.cluster.nodes:
            if other is not node:
                self.cluster.cut(other, node)
        return await self._held(node.name)

    async def split(self) -> str:
        away = self.nodes(len(self.cluster.nodes) // 2)
        self.cluster.isolate(*away)
        return await self._held(", ".join(node.name for node in away))

    async def _held(self, whom: str) -> str:
        await self.hold()
        self.cluster.heal()
        return whom

    async def freeze(self) -> str:
        node = self.node()
        node.freeze()
        await self.hold()
        node.thaw()
        return node.name

    async def freeze_etcd(self) -> str:
        node = self.node()
        etcd = node.etcd()
        if etcd is None:
            return f"{node.name}, which has none now"
        etcd.suspend()
        await self.hold()
        if etcd.is_running():  # it may have been killed for not answering
            etcd.resume()
        return node.name

    async def reset(self) -> str:
        node = self.node()
        self.cluster.proxies[node.name].disconnect()
        return node.name

    async def slow(self) -> str:
        for proxy in self.cluster.proxies.values():
            proxy.delay(self.draw.uniform(0.01, 0.3))
        return await self._held("all")


class Run:
    """Rounds, with a line for each; as many as there are in ``seconds``, if that is not 0.0."""

    def __init__(
        self,
        cluster: Cluster,
        rounds: int,
        seed: int,
        rate: int,
        talk: bool,
        seconds: float = 0.0,
        slower: float = 1.0,
        etcd_away: float = 0.0,
    ) -> None:
        """``etcd_away``: the share of the time that no etcd answers."""
        self.cluster = cluster
        self.rounds = rounds
        self.seconds = seconds
        self.seed = seed
        self.findings: dict[str, int] = {}
        self.timeline: Timeline | None = None
        self.draw = random.Random(seed)
        self.rate = rate
        self.talk = talk
        self.slower = slower
        self.etcd_away = etcd_away
        self.etcds: EtcdsAway | None = None
        self.counts: Counter[str] = Counter()
        self.given_up = GivenUp()
        self.losses: Losses | None = None
        self.settling = False  # the check has stopped the load
        self.began = time.monotonic()

    async def run(self) -> Load:
        chaos = Chaos(self.cluster, self.draw, self.seconds != 0.0, self.given_up.ask)
        await self.cluster.whole()
        nodes = self.cluster.nodes
        self.load = (
            RoamingLoad(
                nodes, self.rate, PATIENCE * self.slower, seed=self.seed, strict=False, retained=True, wills=True
            )
            if self.seconds
            else Load(nodes, self.rate, patience=BACK_SECONDS * self.slower)
        )
        timeline = self.timeline = Timeline(lambda: (self.load.acks, self.load.delivered))
        etcds = self.etcds = EtcdsAway(self.cluster, self.etcd_away, self.seed, timeline.fault)
        watching = [asyncio.create_task(timeline.run()), asyncio.create_task(self._ask())]
        try:
            async with self.load as load:
                watching.append(asyncio.create_task(etcds.run()))
                number = 0
                while not self._over(number):
                    number += 1
                    await self._round(chaos, load, timeline, number)
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            if isinstance(self.load, RoamingLoad):
                self._judge(self.load, timeline)
        assert not self.findings, "\n".join(self.findings)
        return self.load

    async def _ask(self) -> None:
        """Now and then, for nodes that end without a word."""
        while True:
            for node in self.cluster.nodes:
                await asyncio.to_thread(self.given_up.ask, node)
            await asyncio.sleep(ASK_SECONDS)

    def _judge(self, load: RoamingLoad, timeline: Timeline) -> None:
        """Why sessions were not found."""
        clock = time.time() - time.monotonic() + timeline.began
        faults = [(clock + since, clock + until, what, whom) for since, until, what, whom in timeline.faults]
        losses = self.losses = Losses(faults)
        losses.judge(load.losses, {node.name: lines_of(node.said()) for node in self.cluster.nodes})
        for wrong, count in losses.wrong.items():
            self.tell(f"WRONG {wrong} ({count})")
            self.findings[wrong] = count

    def _over(self, number: int) -> bool:
        return time.monotonic() - self.began >= self.seconds if self.seconds else number >= self.rounds

    async def _round(self, chaos: Chaos, load: Load, timeline: Timeline, number: int) -> None:
        before, since = load.acks, time.monotonic()
        what, whom = await chaos.fault()
        timeline.fault(since, what, whom)
        self.counts[what] += 1
        checked = number % CHECK_ROUNDS == 0 or self._over(number)
        back = await self._come_back(checked)
        await asyncio.sleep(self.draw.uniform(0, REST_SECONDS))
        load.look()
        pace = (load.acks - before) / (time.monotonic() - since)
        self.tell(f"{number:4}  {what}: {whom}; {back}; {load.acks:,} acknowledged ({pace:,.0f}/s)")
        if checked or self._over(number):
            assert self.etcds is not None
            try:
                async with self.etcds.present():
                    await self._check(load)
            except AssertionError as error:
                if not isinstance(load, RoamingLoad):
                    raise
                self._find(load, number, str(error))

    def _find(self, load: Load, number: int, error: str) -> None:
        """Something is wrong; a long run goes on. If the load was not stopped yet, its books stay as they are: what is
        in flight is judged by the next check."""
        for line in error.splitlines():
            self.tell(f"WRONG {line}")
            self.findings[f"round {number}: {line}"] = 1
        load.problems.clear()
        if self.settling:
            load.go_on()

    async def _come_back(self, checked: bool) -> str:
        if self.draw.random() < OVERLAP and not checked:
            return "no wait"
        took = await self.cluster.until(
            lambda: all(node.runs and node.is_ready() and node.serves() for node in self.cluster.nodes),
            "all nodes serve",
            BACK_SECONDS * self.slower,
        )
        return f"all serve {took:.1f} s later"

    async def _check(self, load: Load) -> None:
        self.settling = False
        took = await self.cluster.whole()
        self.settling = True
        since = time.monotonic()
        await load.settle()
        took += await self.cluster.whole()
        if isinstance(load, RoamingLoad):
            for node in self.cluster.nodes:
                await asyncio.to_thread(self.given_up.ask, node)
            assert load.unsettled <= self.given_up.total, (
                f"{load.unsettled} messages at QoS 2 are missing after sessions were lost, and nodes have given up "
                f"{self.given_up.total} as unsettled_qos2"
            )
        assert not self.cluster.complaints(), "\n".join(self.cluster.complaints())
        for node in self.cluster.nodes:
            dropped = node.status()["traffic"]["dropped"]
            assert "foreign" not in dropped, f"{node.name}: {dropped}"
        spent = time.monotonic() - self.began
        self.tell(
            f"      all is there: {load.acks:,} acknowledged ({load.acks / spent:,.0f}/s over {spent:,.0f} s), "
            f"{load.delivered:,} delivered, {load.promised:,} after a SUBACK, {load.refused:,} refused, "
            f"{load.lost:,} connections lost, {load.unheard:,} late after a refusal unheard; "
            f"no etcd for {self._away():.0f} % of the time; "
            f"whole after {took:.1f} s, settled in {time.monotonic() - since:.1f} s"
        )
        load.go_on()

    def _away(self) -> float:
        return 0.0 if self.etcds is None else 100 * self.etcds.away_share()

    def tell(self, line: str) -> None:
        if self.talk:
            print(line, flush=True)


def run(
    directory: Path,
    nodes: int,
    rounds: int,
    seed: int,
    rate: int = 2000,
    talk: bool = False,
    seconds: float = 0.0,
    report: Path | None = None,
    slower: float = 1.0,
    copies: int = 1,
    etcd_away: float = 0.0,
) -> Load:
    """One run; the load that it bore. ``slower``: how many times as long everything may take, for what else the machine
    does; ``copies``: the setting; ``etcd_away``: share of the time that no etcd answers. Raises AssertionError, after
    the report was written."""
    settings, storage = chaos_arguments.draw_settings(random.Random(seed))
    settings |= {"copies": copies}
    with Cluster(directory, nodes, settings, storage) as cluster:
        trial = Run(cluster, rounds, seed, rate, talk, seconds, slower, etcd_away)
        trial.tell(", ".join(f"{key} {value}" for key, value in (settings | storage).items()))
        error = ""
        try:
            load = asyncio.run(trial.run())
        except AssertionError as wrong:
            error = str(wrong)
            raise
        finally:
            if report is not None and trial.timeline is not None:
                facts: dict[str, Any] = {"nodes": nodes, "seed": seed, "seconds": round(time.monotonic() - trial.began)}
                if trial.etcds is not None and trial.etcds.count:
                    facts["share of the time without etcd"] = round(trial.etcds.away_share(), 2)
                write_report(report, facts | settings | storage, trial, error)
        if trial.etcds is not None and trial.etcds.count:
            trial.counts[FAULT] += trial.etcds.count
        trial.tell(", ".join(f"{count} x {what}" for what, count in trial.counts.most_common()))
        return load


def write_report(directory: Path, facts: dict[str, Any], trial: Run, error: str) -> None:
    load = trial.load
    assert trial.timeline is not None
    figures = load.figures() if isinstance(load, RoamingLoad) else {"messages acknowledged": load.acks}
    problems = dict(trial.findings)
    figures["messages that nodes gave up as unsettled_qos2"] = trial.given_up.total
    if trial.losses is not None:
        for why, count in trial.losses.counts.most_common():
            figures[f"sessions that were not found, {why}"] = count
    if error and not problems:
        problems = {error: 1}
    Report(facts, figures, problems, trial.timeline).write(directory)
    print(f"report: {directory / 'report.md'}", flush=True)


def main() -> int:
    arguments = chaos_arguments.parser(__doc__).parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if arguments.seed is None else arguments.seed
    length = f"{arguments.minutes:g} minutes" if arguments.minutes else f"{arguments.rounds} rounds"
    beside = f", {arguments.load} busy processes beside" if arguments.load else ""
    print(f"{arguments.nodes} nodes, {length}, seed {seed}{beside}", flush=True)
    report = arguments.report or (Path("build/chaos") if arguments.minutes else None)
    seconds = 60.0 * arguments.minutes
    with tempfile.TemporaryDirectory(prefix="starlingmq-chaos-") as scratch:
        try:
            directory = arguments.dir or Path(scratch)
            with Busy(arguments.load) as busy:
                load = run(
                    directory,
                    arguments.nodes,
                    arguments.rounds,
                    seed,
                    arguments.rate,
                    True,
                    seconds,
                    report,
                    busy.slower,
                    arguments.copies,
                    arguments.etcd_away,
                )
        except AssertionError as error:
            print(f"seed {seed}: {error}", file=sys.stderr)
            return 1
    print(f"seed {seed}: {load.acks:,} acknowledged, none lost, none doubled at QoS 2, all in order", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
