"""The section about clusters as a list of jobs. Each job has its own cluster of three nodes on this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import msgspec

from bench import clustered, generator, paced, peers
from bench.cells import Job, RunError, Section, output
from bench.nats import hop_within
from bench.nodes import Node, cluster
from bench.results import Cluster, Results
from bench.wire import SetupError

QOS = (0, 1)
OPTIONS = {
    "STARLINGMQ_MQTT__SYS_INTERVAL": "250ms",  # so that $SYS tells about the stall while the run lasts
    "STARLINGMQ_CLUSTER__ROUTE_SUMMARY_MIN": "0",  # the storm is one of single filters
}


class Clustered(Section):
    def jobs(self, results: Results) -> list[Job]:
        if "starlingmq" not in self.settings.peers:
            return []
        place = results.cluster = Cluster()
        if shutil.which("etcd") is None:
            place.errors.append("etcd is not installed (Debian: apt-get install etcd-server)")
            return []
        calls: dict[str, Callable[[Cluster, list[Node]], None]] = {
            "all clients at one node": self.beside,
            "from node to node": self.across,
            "the way from node to node": self.hop,
            "new filters by storm": self.storm,
        }
        if self.settings.quick:  # storm stops a node, so it comes last
            every = [self.quiet, hop_within(self.settings, results), *calls.values()]
            return [Job("cluster: everything", self.bind(place, *every))]
        jobs = [
            Job(f"cluster: {name}", self.bind(place, call))
            for _ in range(self.settings.repeats)
            for name, call in calls.items()
        ]
        return [*jobs, Job("cluster: idle", self.bind(place, self.quiet))]

    def bind(self, place: Cluster, *calls: Callable[[Cluster, list[Node]], None]) -> Callable[[], None]:
        def attempt() -> None:
            try:
                with cluster(OPTIONS) as found:
                    for call in calls:
                        call(place, found)
            except (RunError, SetupError, peers.PeerError, OSError) as error:
                place.errors.append(str(error))

        return attempt

    def spec(self, found: list[Node], qos: int) -> generator.Spec:
        return generator.Spec(
            port=found[0].port,
            broker=found[0].pid,
            core=self.settings.generator_core,
            broker_core=self.settings.broker_core,
            publishers=1,
            subscribers=1,
            qos=qos,
            window=self.settings.cluster_window if qos else self.settings.cluster_flood_window,
            warm_up=self.settings.warm_up,
            duration=self.settings.duration,
        )

    def beside(self, place: Cluster, found: list[Node]) -> None:
        with peers.started("starlingmq-process", self.settings.broker_core, []) as alone:
            for qos in QOS:
                place.beside.append(clustered.beside(found, alone, self.spec(found, qos), output))

    def across(self, place: Cluster, found: list[Node]) -> None:
        """Nodes and generator share all cores."""
        for qos in QOS:
            spec = msgspec.structs.replace(
                self.spec(found, qos), core=-1, subscriber_port=found[1].port, nodes=(found[1].pid,)
            )
            place.across.append(clustered.across(found, spec, output))

    def hop(self, place: Cluster, found: list[Node]) -> None:
        settings = self.settings
        for qos in QOS:
            spec = paced.Spec(
                port=found[0].port,
                broker=found[0].pid,
                core=settings.generator_core,
                qos=qos,
                pairs=settings.cluster_paced_pairs,
                rate=settings.cluster_paced_rate,
                warm_up=settings.paced_warm_up,
                duration=settings.paced_duration,
            )
            place.hops.append(clustered.hop(found, spec, settings.broker_core, output))

    def storm(self, place: Cluster, found: list[Node]) -> None:
        settings = self.settings
        place.storms.append(clustered.take_by_storm(found, settings.storm, settings.storm_after))

    def quiet(self, place: Cluster, found: list[Node]) -> None:
        for node in found:
            node.pin(os.sched_getaffinity(0))
        place.quiet.append(clustered.quiet(found, self.settings.settle, self.settings.quiet))
