"""The plan that a seed draws: the nodes, their storage, the network, the clients and their actions, the faults."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
from msgspec import structs
from tests.sim.checkers import GROUPS
from tests.sim.faults import RARE, Fault, disk_fails
from tests.sim.node import Settings

from starlingmq.config.settings import ClusterConfig, LimitsConfig, MqttConfig

FOREVER = 0xFFFFFFFF
TOPICS = (b"a/1", b"a/2", b"b/1")
FILTERS = (b"a/#", b"a/1", b"+/1", b"#", b"b/1", b"a/2")


def known(kind: Any, values: dict[str, Any]) -> Any:
    return msgspec.convert({name: values[name] for name in values if name in kind.__struct_fields__}, kind)


class SubscriberPlan(msgspec.Struct):
    name: str
    host: int  # which node, from 0
    version: int
    lasting: bool
    acts: list[tuple[float, bytes, int]]  # when, filter, QoS; -1: unsubscribe


class PublisherPlan(msgspec.Struct):
    name: str
    host: int
    version: int
    lasting: bool
    acts: list[tuple[float, bytes, int]]  # when, topic, QoS


class Plan:
    """Times are in seconds from the beginning of the safety phase."""

    def __init__(self, random: Random, more: Random) -> None:
        self.nodes = random.choice([2, 2, 3, 3, 3, 3, 4, 5])
        self.kind = random.choices(["calm", "local", "faulty"], [10, 5, 85])[0]
        self.faulty = self.kind == "faulty"
        self.seconds = random.choice([3.0, 6.0, 10.0])
        self.early = self.faulty and random.random() < 0.15  # faults while the cluster is being made
        self.settings = self._settings(random)
        self.delay = random.choice([0.0003, 0.001, 0.001, 0.02])
        self.overtaking = self.faulty and random.random() < 0.15
        self.loss = random.choice([0.0, 0.0, 0.0, 0.01, 0.05]) if self.faulty else 0.0
        self.doubling = random.choice([0.0, 0.0, 0.0, 0.01, 0.05]) if self.faulty else 0.0
        self.faults = random.choice([1, 2, 4, 8, 12]) if self.faulty else 0
        # One more node that joins, and one that leaves or is forgotten; the latter two have no clients of their own.
        self.joins = self.nodes < 5 and self.faulty and random.random() < 0.2
        self.goes = (
            random.choice(["leave", "forget"]) if self.nodes > 2 and self.faulty and random.random() < 0.2 else ""
        )
        homes = range(1 if self.goes else 0, self.nodes)
        if self.kind == "local":
            homes = range(self.nodes - 1, self.nodes)
        self.subscribers = [self._subscriber(random, n, homes) for n in range(random.randint(2, 5))]
        self.publishers = [self._publisher(random, n, homes) for n in range(random.randint(1, 3))]
        # Drawn apart, so that what is drawn above stays what it was.
        self.theme = ""
        self.rare: list[tuple[float, Fault, float]] = []  # when it begins, and for how many seconds
        for fault in RARE if self.faulty else ():
            if more.random() < 0.25 and (self.settings.keeps or fault is not disk_fails):
                for _ in range(more.choice([1, 2, 4])):
                    self.rare.append((more.uniform(0.0, self.seconds), fault, more.choice([0.3, 1.0, 3.0])))

        self.retained = more.choice([0.0, 0.0, 0.5]) if self.publishers else 0.0  # which share of what is acknowledged
        self.deletes = more.choice([0.0, 0.1, 0.3])  # which share of that is empty
        retained = {
            "retained_inline": more.choice([1, 16, 1024]),  # payloads are some 12 to 16 bytes
            "retained_copies": more.choice([0, 1, 1, 2]),
            "retained_cache": more.choice([0, 20, 1024]),
            "retained_window": more.choice([0.0, 0.02, 0.3]),
        }
        if self.kind == "local":
            retained["retained_inline"] = 1024  # copies of larger ones go to other nodes, as they should
        self.settings.page = more.choice([1, 2, 1000])
        self.settings.cluster = structs.replace(self.settings.cluster, **retained)
        if more.random() < 0.2:
            self._members(more, homes)

    def _members(self, more: Random, homes: Sequence[int]) -> None:
        """Some who are in a group and in nothing else; now and then one goes, and comes back."""
        for number in range(more.randint(2, 4)):
            filter, qos = more.choice(GROUPS), more.choice([1, 2])
            acts = [(0.0, filter, qos)]
            if more.random() < 0.3:
                when = more.uniform(0.2, self.seconds)
                acts += [(when, filter, -1), (when + more.uniform(0.0, 1.0), filter, qos)]
            plan = SubscriberPlan(f"member{number}", more.choice(homes), more.choice([4, 5]), more.random() < 0.6, acts)
            self.subscribers.append(plan)

    def _settings(self, random: Random) -> Settings:
        durability = random.choices(["process", "power", "memory"], [9, 8, 3])[0]
        mqtt = {
            "sys_interval": 0.0,
            "max_mqueue_len": 0,
            "max_inflight": random.choice([0, 0, 1, 3]),
            "retry_interval": 3.0,
            "await_rel_timeout": 1_000_000.0,
            "session_expiry_v3": FOREVER,
        }
        cluster = {
            "lease_ttl": random.choice([2, 4]),
            "heartbeat_interval": 0.3,
            "member_timeout": random.choice([1.0, 1.5]),
            "subscribe_ack_timeout": random.choice([0.5, 2.0]),
            "resend_interval": random.choice([0.3, 1.0]),
            "link_window": random.choice([400, 4000, 1 << 20]),
            "route_log": random.choice([2, 10, 1000]),
        }
        return Settings(
            known(MqttConfig, mqtt),
            known(LimitsConfig, {"publisher_hold": 0.0}),
            known(ClusterConfig, cluster),
            keeps=durability != "memory",
            power=durability == "power",
            sync_seconds=random.choice([0.0005, 0.02, 0.1]),
            checkpoint_bytes=random.choice([0, 500, 5000, 1 << 30]),
            piece=random.choice([1, 2, 5]),
            span=random.choice([0, 3, 20]),
        )

    def _subscriber(self, random: Random, number: int, homes: Sequence[int]) -> SubscriberPlan:
        acts: list[tuple[float, bytes, int]] = []
        filters = random.sample(FILTERS, random.choice([1, 1, 2, 3]))
        filters += random.sample(GROUPS, random.choice([0, 0, 0, 1]))
        for filter in filters:
            when = random.choice([0.0, random.uniform(0.0, self.seconds)])
            for turn in range(random.choice([1, 1, 1, 2, 3, 5])):
                acts.append((when, filter, random.choice([0, 1, 2, 2]) if turn % 2 == 0 else -1))
                when += random.uniform(0.05, 0.5 * self.seconds)
        version = random.choice([4, 5])
        return SubscriberPlan(f"sub{number}", random.choice(homes), version, random.random() < 0.6, sorted(acts))

    def _publisher(self, random: Random, number: int, homes: Sequence[int]) -> PublisherPlan:
        acts: list[tuple[float, bytes, int]] = []
        when, pause = random.uniform(0.0, 1.0), random.choice([0.05, 0.2, 1.0])
        topics = random.sample(TOPICS, random.randint(1, len(TOPICS)))
        while when < self.seconds and len(acts) < 60:
            for _ in range(random.choice([1, 1, 1, 2, 4])):
                acts.append((when, random.choice(topics), random.choice([0, 1, 1, 2, 2])))
            when += pause * random.uniform(0.1, 2.0)
        version = random.choice([4, 5])
        return PublisherPlan(f"pub{number}", random.choice(homes), version, True, sorted(acts, key=lambda act: act[0]))

    def told(self) -> str:
        settings = self.settings
        keeps = "power" if settings.power else "process" if settings.keeps else "memory"
        lines = [
            f"{self.theme or self.kind}, {self.nodes} nodes, {keeps}, {self.seconds:g} s, {self.faults} faults"
            f" and {len(self.rare)} rare ones"
            f"{', one joins' if self.joins else ''}{', one goes: ' + self.goes if self.goes else ''}",
            f"delay {self.delay:g}, loss {self.loss:g}, doubling {self.doubling:g}, overtaking {self.overtaking}",
            f"{settings.cluster}",
        ]
        people: list[SubscriberPlan | PublisherPlan] = [*self.subscribers, *self.publishers]
        for person in people:
            acts = " ".join(f"{when:.3f}:{what.decode()}:{qos}" for when, what, qos in person.acts)
            kind = "lasting" if person.lasting else "clean"
            lines.append(f"{person.name} at n{person.host + 1}, version {person.version}, {kind}: {acts}")
        return "\n".join(lines)
