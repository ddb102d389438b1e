"""Worlds that are about one thing, which in others hardly ever comes together: each changes what a plan has drawn."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from msgspec import structs
from tests.sim import faults
from tests.sim.checkers import GROUPS
from tests.sim.plan import TOPICS, Plan, PublisherPlan, SubscriberPlan

from starlingmq.config.settings import QueueGroupsConfig

SHARE = 0.15  # of the worlds with faults


def _busy(plan: Plan, more: Random, qualities: list[int], lasting: bool) -> None:
    """One client publishes all the time; a client of another node receives everything at QoS 2."""
    here, there = more.sample(range(plan.nodes), 2)
    acts: list[tuple[float, bytes, int]] = []
    when = 0.3
    while when < plan.seconds and len(acts) < 100:
        acts += [(when, b"a/1", more.choice(qualities)) for _ in range(more.choice([1, 2]))]
        when += more.uniform(0.0, 0.1)
    plan.publishers = [PublisherPlan("busy", here, more.choice([4, 5]), True, acts)]
    plan.subscribers.append(SubscriberPlan("all", there, more.choice([4, 5]), lasting, [(0.0, b"#", 2)]))


def _strike(plan: Plan, more: Random, fault: faults.Fault, times: int, seconds: float) -> None:
    plan.rare += [(more.uniform(0.3, plan.seconds), fault, seconds) for _ in range(times)]


def _lose_power(plan: Plan) -> None:
    plan.goes = ""
    plan.settings.keeps = plan.settings.power = True
    plan.settings.sync_seconds = 0.1
    plan.settings.mqtt = structs.replace(plan.settings.mqtt, max_inflight=0)


def the_power_fails(plan: Plan, more: Random) -> None:
    """QoS 2 between nodes, syncs are slow, and again and again the power fails."""
    _lose_power(plan)
    _busy(plan, more, [2], False)
    _strike(plan, more, faults.crash, 6, 0.3)


def disks_fail(plan: Plan, more: Random) -> None:
    """All qualities of service between nodes, syncs are slow, and fail."""
    _lose_power(plan)
    _busy(plan, more, [0, 0, 1, 2, 2], True)
    _strike(plan, more, faults.syncs_fail, 6, 0.3)


def somebody_joins_apart(plan: Plan, more: Random) -> None:
    """A new node and one of the old ones are an island, while it joins."""
    plan.nodes = max(plan.nodes, 3)
    plan.goes, plan.joins, plan.early = "", False, False
    plan.faults = min(plan.faults, 2)
    plan.rare.append((more.uniform(0.0, plan.seconds), faults.joins_apart, 6.0))


def many_lives(plan: Plan, more: Random) -> None:
    """Short lives, and ways that hold back what an earlier one had sent."""
    plan.goes = ""
    _busy(plan, more, [1, 2], False)
    _strike(plan, more, faults.crash, 2, 0.3)
    _strike(plan, more, faults.dies_behind_a_cut, 6, 0.6)


def subscribed_while_cut(plan: Plan, more: Random) -> None:
    """Each topic is subscribed to once on each node, at some time, while ways are cut; one publishes to all of them."""
    plan.nodes = max(plan.nodes, 3)
    plan.goes = ""
    _busy(plan, more, [1, 2], False)
    busy = plan.publishers[0]
    busy.acts = [(when, more.choice(TOPICS), qos) for when, _, qos in busy.acts]
    plan.subscribers = [
        SubscriberPlan(f"late{host}{number}", host, 5, more.random() < 0.5, [(more.uniform(0.5, 3.0), topic, 2)])
        for host in range(plan.nodes)
        for number, topic in enumerate(TOPICS)
        if host != busy.host
    ]
    _strike(plan, more, faults.cut_pair, 3, 1.5)
    _strike(plan, more, faults.cut_one_way, 3, 1.5)


def subscribed_while_processes_end(plan: Plan, more: Random) -> None:
    """The same while nodes die, and others look as if they had."""
    subscribed_while_cut(plan, more)
    plan.rare = []
    _strike(plan, more, faults.crash, more.randint(1, 3), 0.5)
    _strike(plan, more, faults.proxy_between_two_ends, more.randint(0, 3), 1.5)
    _strike(plan, more, faults.proxy_of_one_ends, more.randint(0, 2), 1.5)


def _all_retain(plan: Plan, more: Random) -> None:
    """A client at each node publishes retained messages to the same topics."""
    plan.goes = ""
    plan.retained, plan.deletes = 0.9, more.choice([0.0, 0.2, 0.4])
    plan.publishers = []
    for host in range(plan.nodes):
        acts: list[tuple[float, bytes, int]] = []
        when = more.uniform(0.1, 0.5)
        while when < plan.seconds and len(acts) < 40:
            acts.append((when, more.choice(TOPICS), more.choice([1, 1, 2])))
            when += more.choice([0.002, 0.1, 0.3]) * more.uniform(0.1, 2.0)
        plan.publishers.append(PublisherPlan(f"keeper{host}", host, more.choice([4, 5]), True, acts))


def all_retain(plan: Plan, more: Random) -> None:
    """The same topics are retained at all nodes, which crash, and lose etcd, and what it has told."""
    _all_retain(plan, more)
    _strike(plan, more, faults.crash, 3, 0.5)
    _strike(plan, more, faults.etcd_without_leader, 4, 0.6)
    _strike(plan, more, faults.cut_from_etcd, 2, 1.0)
    _strike(plan, more, faults.falls_behind, 2, 1.0)


def all_retain_in_peace(plan: Plan, more: Random) -> None:
    """Nothing fails, and a client at each node subscribes all the time."""
    _all_retain(plan, more)
    plan.kind, plan.faulty, plan.early = "calm", False, False
    plan.faults, plan.joins, plan.rare = 0, False, []
    plan.loss = plan.doubling = 0.0
    plan.overtaking = False
    plan.deletes = 0.0
    for keeper in plan.publishers:  # so that no publisher's window lets an older one be the last
        keeper.acts = [(when, TOPICS[keeper.host % len(TOPICS)], qos) for when, _, qos in keeper.acts]
    plan.subscribers = []
    for host in range(plan.nodes):
        for number in range(8):
            acts = [(more.uniform(0.5, plan.seconds), more.choice([*TOPICS, b"#", b"a/+"]), 1)]
            plan.subscribers.append(SubscriberPlan(f"late{host}{number}", host, 5, False, acts))


def _groups(plan: Plan, more: Random) -> None:
    """Everybody is in a group or publishes for it."""
    plan.nodes = max(plan.nodes, 3)
    plan.goes, plan.joins, plan.early, plan.faults, plan.rare = "", False, False, 0, []
    plan.settings.keeps = True
    plan.settings.groups = QueueGroupsConfig(
        notify=more.random() < 0.7, strategy=more.choice(["random", "round_robin", "sticky", "hash_topic"])
    )
    plan.retained = 0.0
    plan.subscribers = [
        SubscriberPlan(
            f"worker{n}", more.randrange(plan.nodes), more.choice([4, 5]), more.random() < 0.4, [(0.0, g, 1)]
        )
        for n in range(more.randint(2, 6))
        for g in (more.choice(GROUPS),)
    ]
    plan.publishers = []
    for host in range(plan.nodes):
        acts: list[tuple[float, bytes, int]] = []
        when = more.uniform(0.3, 0.6)
        while when < plan.seconds and len(acts) < 40:
            acts.append((when, more.choice([b"a/1", b"a/2", b"h/1"]), more.choice([1, 1, 2])))
            when += more.uniform(0.0, 0.3)
        plan.publishers.append(PublisherPlan(f"author{host}", host, more.choice([4, 5]), True, acts))


def groups_lose_their_primary(plan: Plan, more: Random) -> None:
    """The node of a primary dies again and again, members lose their connections, ways are cut."""
    _groups(plan, more)
    _strike(plan, more, faults.primary_dies, more.randint(1, 4), 0.5)
    _strike(plan, more, faults.primary_is_cut, more.randint(0, 2), 1.0)
    _strike(plan, more, faults.primary_loses_its_key, more.randint(0, 2), 1.0)
    _strike(plan, more, faults.cut_client, more.choice([0, 6, 40]), 1.0)
    _strike(plan, more, faults.writer_dies, more.choice([0, 1, 2]), 0.5)


def groups_have_two_primaries(plan: Plan, more: Random) -> None:
    """No node dies and no member is lost: primaries are cut off from those they pull from, and replaced without their
    knowledge.
    """
    _groups(plan, more)
    _strike(plan, more, faults.primary_is_cut, more.randint(1, 4), 1.0)
    _strike(plan, more, faults.primary_loses_its_key, more.randint(1, 4), 2.0)


THEMES: dict[str, Callable[[Plan, Random], None]] = {
    theme.__name__: theme
    for theme in (
        the_power_fails,
        disks_fail,
        somebody_joins_apart,
        many_lives,
        subscribed_while_cut,
        all_retain,
        all_retain_in_peace,
        groups_lose_their_primary,
        groups_have_two_primaries,
        subscribed_while_processes_end,
    )
}
DRAWN = list(THEMES)[:7]
"""Those that are drawn where none is asked for: with others, seeds would be other worlds."""


def give(plan: Plan, more: Random, theme: str) -> None:
    """This theme, or with "" perhaps one that is drawn."""
    if not theme and plan.faulty and more.random() < SHARE:
        theme = more.choice(DRAWN)
    if theme:
        plan.kind, plan.faulty, plan.theme = "faulty", True, theme
        THEMES[theme](plan, more)
