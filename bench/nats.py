"""The section about NATS as a list of jobs: pairs and queue groups compared with nats-server; the latency that a group
adds to a hop.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable

import msgspec

from bench import nats_generator, paced, peers
from bench.cells import Job, RunError, Section, Settings, child
from bench.nodes import Node, cluster
from bench.results import GroupHops, NatsCell, Results
from bench.wire import SetupError

NOTIFY = "STARLINGMQ_QUEUE_GROUPS__NOTIFY"
JETSTREAM = "nats-server-jetstream"
MEMORY = {"starlingmq": "starlingmq-nats", "nats-server": "nats-server"}
KEPT = {"starlingmq": "starlingmq-nats-process", "nats-server": JETSTREAM}


class Nats(Section):
    def jobs(self, results: Results) -> list[Job]:
        settings = self.settings
        publishers, members = settings.group
        cells = [(NatsCell(*shape), MEMORY) for shape in settings.nats_shapes]
        cells.append((NatsCell("group", publishers, members, "members", settings.balanced), MEMORY))
        cells.append((NatsCell("kept group", publishers, members, "members"), KEPT))
        jobs = []
        for cell, variants in cells:
            results.nats.append(cell)
            jobs += self.cell_jobs(cell, [variants[peer] for peer in settings.nats_peers])
        return jobs

    def cell_jobs(self, cell: NatsCell, names: list[str]) -> list[Job]:
        name = f"NATS {cell.name} {cell.publishers}:{cell.subscribers}"
        jobs = []
        if len(self.settings.nats_windows) > 1:
            for peer in names:
                for window in self.settings.nats_windows:
                    jobs.append(Job(f"{name}: {peer}, window {window}?", self.bind(self.probe, cell, peer, window)))
        for _ in range(self.settings.repeats):
            jobs += [Job(f"{name}: {peer}", self.bind(self.run, cell, peer)) for peer in names]
            if cell.balanced:
                jobs += [Job(f"{name}, shares: {peer}", self.bind(self.share, cell, peer)) for peer in names]
        return jobs

    @staticmethod
    def bind(call: Callable[..., None], *arguments: object) -> Callable[[], None]:
        return lambda: call(*arguments)

    def load(self, cell: NatsCell, peer: str, window: int, duration: float, messages: int) -> nats_generator.Outcome:
        settings = self.settings
        with settings.brokers.started(peer, settings.broker_core) as broker:
            spec = nats_generator.Spec(
                port=broker.port,
                broker=broker.pid,
                core=settings.generator_core,
                broker_core=settings.broker_core,
                publishers=cell.publishers,
                subscribers=cell.subscribers,
                qos=0,
                window=window,
                warm_up=min(settings.warm_up, duration),
                duration=duration,
                queue=cell.queue,
                messages=messages,
            )
            return self.child("jetstream" if peer == JETSTREAM else "nats_generator", spec, nats_generator.Outcome)

    def attempt(self, cell: NatsCell, peer: str, call: Callable[[], None]) -> None:
        if peer in cell.errors:
            return  # it failed before in this cell, and the reason is stored
        try:
            call()
        except (RunError, SetupError, peers.PeerError) as error:
            cell.errors[peer] = str(error)

    def probe(self, cell: NatsCell, peer: str, window: int) -> None:
        found = cell.probes.setdefault(peer, {})

        def call() -> None:
            found[window] = self.load(cell, peer, window, self.settings.probe, 0).delivered_per_s

        self.attempt(cell, peer, call)
        cell.windows[peer] = max(found, key=lambda item: found[item], default=window)

    def run(self, cell: NatsCell, peer: str) -> None:
        window = cell.windows.setdefault(peer, self.settings.nats_windows[-1])

        def call() -> None:
            cell.runs.setdefault(peer, []).append(self.load(cell, peer, window, self.settings.duration, 0))

        self.attempt(cell, peer, call)

    def share(self, cell: NatsCell, peer: str) -> None:
        def call() -> None:
            outcome = self.load(cell, peer, self.settings.nats_windows[0], 0.0, cell.balanced)
            cell.shares.setdefault(peer, []).append(outcome.busiest)

        self.attempt(cell, peer, call)


class Hops(Section):
    """Between nodes, at a rate without queueing. The group's first member is on its node, so the primary is there, and
    it must discover messages published elsewhere.
    """

    def jobs(self, results: Results) -> list[Job]:
        if "starlingmq" not in self.settings.nats_peers or self.settings.quick:
            return []
        places = [GroupHops(True), GroupHops(False)]
        results.group_hops += places
        if shutil.which("etcd") is None:
            for place in places:
                place.errors.append("etcd is not installed (Debian: apt-get install etcd-server)")
            return []
        return [
            Job(f"group hop, notifications {'on' if place.notify else 'off'}", self.bind(place))
            for place in places
            for _ in range(self.settings.repeats)
        ]

    def bind(self, place: GroupHops) -> Callable[[], None]:
        def attempt() -> None:
            try:
                with cluster({} if place.notify else {NOTIFY: "false"}) as found:
                    self.run(place, found)
            except (RunError, SetupError, peers.PeerError, OSError) as error:
                place.errors.append(str(error))

        return attempt

    def run(self, place: GroupHops, found: list[Node]) -> None:
        settings = self.settings
        for node in found:
            node.pin({settings.broker_core})
        plain = paced.Spec(
            port=found[0].port,
            subscriber_port=found[1].port,
            broker=found[0].pid,
            core=settings.generator_core,
            qos=0,
            pairs=settings.group_hop_pairs,
            rate=settings.group_hop_rate,
            warm_up=settings.paced_warm_up,
            duration=settings.paced_duration,
        )
        place.plain.append(child("paced", plain, paced.Outcome))
        place.grouped.append(child("paced", msgspec.structs.replace(plain, group="members"), paced.Outcome))


def nats(settings: Settings, results: Results) -> list[Job]:
    return [*Nats(settings).jobs(results), *Hops(settings).jobs(results)]


def hop_within(settings: Settings, results: Results) -> Callable[[object, list[Node]], None]:
    """Measure hops in a running cluster."""
    place = GroupHops(True)
    results.group_hops.append(place)
    return lambda _, found: Hops(settings).run(place, found)
