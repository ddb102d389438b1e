"""One world: made of a seed, lived to its end, held to what must hold.

First the nodes make a cluster; then the clients do what they planned while things go wrong (the safety phase); then all
is healed and everybody has to come to an end (the liveness phase). The books are balanced at the end; that
no two islands serve is looked at all the time.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from msgspec import structs
from tests.sim import faults, groups, themes
from tests.sim.checkers import Books, compare, islands
from tests.sim.clients import Person, Publisher, Subscriber
from tests.sim.commits import none_runs
from tests.sim.copies.copied_node import CopiedNode
from tests.sim.copies.lost_disks import lose_disk
from tests.sim.copies.ports import Ports
from tests.sim.etcd_shell import EtcdShell
from tests.sim.network import Network
from tests.sim.node import Node
from tests.sim.plan import TOPICS, Plan
from tests.sim.retained import compare_retained, payload_of, retained_ever, retained_in, written_again
from tests.sim.schedule import Schedule
from tests.sim.seen import Seen
from tests.sim.trace import Trace

from starlingmq.core.context.ready import Event

START = 1_000_000.0
LOOK_SECONDS = 0.25  # between two looks at who serves
FORMING_MAX = 30.0  # seconds until all serve when nothing is wrong
FORGET_SECONDS = 5.0
LIVENESS_MAX = 60.0  # seconds until everybody has finished when nothing is wrong any more
REQUEST_TIMEOUT = 1.0
COPY_TIMEOUT = 8.0  # seconds until a node that is away is replaced by another one
DOUBT_SECONDS = 2.0  # from a claim to its CONNACK, as a rule


def drawn(random: Random, seed: int, theme: str) -> Plan:
    more = Random(f"more of {seed}")
    plan = Plan(random, more)
    themes.give(plan, more, theme)
    return plan


class World:
    liveness_max = LIVENESS_MAX
    one_machine = False  # cluster.one_machine; the proxies of such a world end without looking like ended processes
    without_etcd = False  # etcd is away in the whole safety phase
    loses_nodes = False  # nodes are lost again and again, for long, and some of them live: in worlds that know it
    copies = 1  # cluster.copies; above 1, disks are lost
    summaries = False  # two filters of one shape are enough for a summary

    def __init__(self, seed: int, trace: bool = False, theme: str = "") -> None:
        """``theme``: one of ``themes.THEMES``; as a rule none, or which the seed draws."""
        self.random = Random(seed)
        self.plan = self.make_plan(seed, theme)
        self.schedule = Schedule(START)
        self.trace = Trace(self.schedule, trace)
        self.settings = self.plan.settings
        self.settings.cluster = structs.replace(self.settings.cluster, one_machine=self.one_machine)
        if self.summaries:
            self.settings.cluster = structs.replace(self.settings.cluster, route_summary_min=2)
        self.ports = Ports()
        self.losses: list[tuple[float, float, Random]] = []  # of disks: when, for how long the machine is down
        if self.copies > 1:
            self._set_copies(Random(f"copies of {seed}"))
        self.seen = Seen()
        self.network = Network(self.schedule, self.random, self.trace, self.seen)
        self.network.delay = self.plan.delay
        self.network.deceives = not self.one_machine
        self.nodes: list[Node] = []
        self.by_host: dict[str, Node] = {}
        lease_ttl = float(self.settings.cluster.lease_ttl)
        self.ends: list[faults.End] = []
        self.etcd = EtcdShell(self.schedule, self.random, lease_ttl, REQUEST_TIMEOUT, self._stalled)
        self.books = Books()
        self.books.refusing = self.copies > 1
        self._doubted_at = -DOUBT_SECONDS  # when a node was last known to be unknown to the leader of a share
        self.healed = False  # nothing is wrong any more
        self.people: list[Person] = []
        self.publishers: list[Publisher] = []
        self.subscribers: list[Subscriber] = []
        self.readers: list[Subscriber] = []
        for number in range(self.plan.nodes):
            self._add_node(f"n{number + 1}")
        if trace:
            print(self.plan.told())

    def make_plan(self, seed: int, theme: str) -> Plan:
        return drawn(self.random, seed, theme)

    @property
    def hosts(self) -> list[str]:
        return [node.host for node in self.nodes]

    def _add_node(self, host: str) -> Node:
        node = self.by_host[host] = Node(self, host) if self.copies == 1 else CopiedNode(self, host, self.ports)
        self.nodes.append(node)
        return node

    def _set_size(self, count: int) -> None:
        """Have exactly this many nodes."""
        while len(self.nodes) < count:
            self._add_node(f"n{len(self.nodes) + 1}")
        for node in self.nodes[count:]:
            del self.by_host[node.host]
        del self.nodes[count:]

    def _set_copies(self, random: Random) -> None:
        """Disks are lost in some of these worlds."""
        self.settings.keeps = True
        self.settings.cluster = structs.replace(self.settings.cluster, copies=self.copies, copy_timeout=COPY_TIMEOUT)
        self.losses = [
            (random.uniform(0.0, self.plan.seconds), random.choice([0.2, 1.0, 4.0]), Random(str(random.random())))
            for _ in range(random.choice([0, 1, 2, 4]) if self.plan.faulty else 0)
        ]

    def _stalled(self, host: str) -> bool:
        return self.schedule.now < self.by_host[host].stalled_until

    def start_if_wanted(self, node: Node) -> None:
        if not node.gone and not node.down and not node.running:
            node.start()
            self.network.changed_at = self.schedule.now

    def in_doubt(self) -> bool:
        """Whether the leader and the deputy of a share have failed together, and a node that may know what they knew
        cannot be asked."""
        if any(node.process is not None and node.process.has_unknown() for node in self.nodes):
            self.doubts()
        doubtful = self.schedule.now < self._doubted_at + DOUBT_SECONDS
        self.seen["sessions lost in doubt"] += doubtful
        return doubtful

    def doubts(self) -> None:
        self._doubted_at = self.schedule.now

    def event(self, event: Event) -> None:
        """A node tells of what happens to clients."""

    # Phases

    def live(self) -> None:
        try:
            if self.plan.early:
                self._start()
            else:
                self.form()
            self._safety()
            self._liveness()
        finally:
            self.close()

    def close(self) -> None:
        """No node runs any more."""
        for node in self.nodes:
            if isinstance(node, CopiedNode) and node.life is not None:
                node.life.die()
        none_runs()

    def form(self) -> None:
        """Until all nodes serve."""
        self._start()
        self._wait(self._all_serve, FORMING_MAX, "the cluster is not made")
        assert not self.seen["isolations"], "a node that served was isolated while the cluster grew"

    def _start(self) -> None:
        for node in self.nodes:
            late = self.random.choice([0.0, 0.3 * self.random.random()])
            self.schedule.after(late, self.start_if_wanted, node)

    def pass_time(self, seconds: float) -> None:
        end = self.schedule.now + seconds
        while self.schedule.now < end:
            self._pass(LOOK_SECONDS)

    def _wait(
        self, done: Callable[[], bool], seconds: float, complaint: str, so_far: Callable[[], int] = lambda: 0
    ) -> None:
        """``seconds``: since ``so_far`` last changed, and three times as many at most in all."""
        end = latest = self.schedule.now + seconds
        latest += 2 * seconds
        before = so_far()
        while True:
            self._pass(LOOK_SECONDS)
            self._see_who_left()
            if done():
                return
            if before != (before := so_far()):
                end = min(self.schedule.now + seconds, latest)
            assert self.schedule.now < end, f"{complaint}: {self.why()}"

    def _pass(self, seconds: float) -> None:
        try:
            self.schedule.run(self.schedule.now + seconds)
        finally:
            none_runs()
        self.look()

    def _safety(self) -> None:
        plan, schedule, random = self.plan, self.schedule, self.random
        self.trace.note("world", "the safety phase begins")
        network = self.network
        network.loss, network.doubling, network.overtaking = plan.loss, plan.doubling, plan.overtaking
        begin = schedule.now
        self._bring_people()
        if self.without_etcd:
            self.etcd.lose_leader(plan.seconds)
        kinds, weights = zip(*faults.COMMON, strict=True)
        self.books.strict = not plan.faulty
        for _ in range(plan.faults):
            kind = random.choices(kinds, weights)[0]
            schedule.at(
                begin + random.uniform(0.0, plan.seconds), self._strike, kind, random.choice([0.3, 1.0, 3.0, 6.0])
            )
        for when, fault, seconds in plan.rare:
            schedule.at(begin + when, self._strike, fault, seconds)
        for when, seconds, more in self.losses if plan.faulty else ():
            schedule.at(begin + when, lose_disk, self, more, seconds, begin + plan.seconds)
        if plan.joins:
            schedule.at(begin + random.uniform(0.0, plan.seconds), self.join)
        if plan.goes:
            schedule.at(begin + random.uniform(0.0, plan.seconds), self._go, plan.goes)
        while schedule.now < begin + plan.seconds:
            self._pass(LOOK_SECONDS)

    def _bring_people(self) -> None:
        schedule = self.schedule
        for sub in self.plan.subscribers:
            node = self.nodes[sub.host]
            subscriber = Subscriber(self.books, self.random, node, sub.name, sub.version, sub.lasting)
            self.subscribers.append(subscriber)
            subscriber.left = len(sub.acts)
            for when, filter, qos in sub.acts:
                if qos < 0:
                    schedule.after(when, subscriber.unsubscribe, filter)
                else:
                    schedule.after(when, subscriber.subscribe, filter, qos)
        for pub in self.plan.publishers:
            node = self.nodes[pub.host]
            publisher = Publisher(self.books, self.random, node, pub.name, pub.version, pub.lasting)
            self.publishers.append(publisher)
            publisher.left = len(pub.acts)
            publisher.retained = self.plan.retained
            publisher.deletes = self.plan.deletes
            for when, topic, qos in pub.acts:
                schedule.after(when, publisher.publish, topic, qos)
        self.people = [*self.subscribers, *self.publishers]
        for person in self.people:
            schedule.after(0.2 * self.random.random(), person.come)

    def _strike(self, kind: faults.Fault, seconds: float, random: Random | None = None) -> None:
        if self.trace.on:
            self.trace.note("world", f"FAULT {kind.__name__} for {seconds:g} s")
        end = kind(self, random or self.random)
        if end is not faults.nothing:
            self.undo_after(seconds, end, kind.__name__)

    def undo_after(self, seconds: float, end: faults.End, told: str) -> None:
        """A fault ends then, or when all is healed."""
        self.ends.append(end)
        self.schedule.after(seconds, self._mend, end, told)

    def _mend(self, end: faults.End, name: str) -> None:
        if end in self.ends:
            self.ends.remove(end)
            self.trace.note("world", f"the end of {name}")
            end()

    def join(self) -> None:
        self.start_if_wanted(self._add_node(f"n{len(self.nodes) + 1}"))

    def _go(self, how: str) -> None:
        """The first node leaves for good, by itself or because an operator says so. With copies it leaves: to forget
        one is a dialogue between nodes and an operator, which is not simulated."""
        node = self.nodes[0]
        if (how == "leave" or self.copies > 1) and node.process is not None and node.may_leave():
            self.trace.note("world", "n1 leaves")
            node.process.leave()
            node.leaving = True
        elif self.copies > 1:
            self.schedule.after(0.5, self._go, how)
        elif len(self.etcd.registered()) > 1:  # joining nodes cannot forget the only member
            self.trace.note("world", "n1 is down for good, and forgotten")
            faults.take_down(self, node)
            node.gone = True
            self._forget()

    def _forget(self) -> None:
        """Ask until it is done: it is refused without a majority, which may be gone with that node for good."""
        for node in self.nodes[1:]:
            if node.process is not None and not node.process.forget("n1", self.healed):
                break
        self.schedule.after(2.0, self._forget_again)

    def _forget_again(self) -> None:
        if any(b"/registered/n1" in key for key in self.etcd.registered()):
            self._forget()
        else:
            self.seen["forgets"] += 1

    def _liveness(self) -> None:
        self.trace.note("world", "all is healed")
        self.healed = True
        self.network.loss = self.network.doubling = 0.0
        self.network.overtaking = False
        for end in list(self.ends):
            self._mend(end, "it")
        for node in self.nodes:
            if node.leaving and node.process is None:
                node.gone = True
            if node.leaving:
                self.schedule.after(FORGET_SECONDS, self._operate, node)
            self.start_if_wanted(node)
        self._wait(self._settled, self.liveness_max, "nothing is wrong, and yet it does not come to an end")
        wrong = self._wrongly_retained()
        assert not wrong, f"retained: {wrong[0]}, {len(wrong)} in all"
        self.trace.note("world", "a last round")
        for publisher in self.publishers:
            for topic in TOPICS:
                for qos in (1, 2):
                    publisher.left += 1
                    publisher.publish(topic, qos)
        self._wait(self._balanced, self.liveness_max, "something that was acknowledged is lost", self._count_got)
        wrong = self._wrongly_retained()
        assert not wrong, f"retained: {wrong[0]}, {len(wrong)} in all"
        self._wait(self._read_by_all, self.liveness_max, "somebody does not get what is retained")
        if self.plan.theme.startswith("groups_"):
            self._wait(self._groups_at_rest, self.liveness_max, "something stays in line, or is lost")
            twice = groups.doubled(self.books) if self.plan.theme == "groups_have_two_primaries" else []
            assert not twice, f"doubled: {twice[0]}, {len(twice)} in all"
        doubled = self.books.doubled_in_groups()
        assert not doubled, f"doubled: {doubled[0]}, {len(doubled)} in all"
        self.seen["joins"] += sum(not node.gone for node in self.nodes[self.plan.nodes :])
        lives = [node.process for node in self.nodes if node.process is not None]
        self.seen["group messages sent at once"] += sum(life.state.groups.at_once for life in lives)
        self.seen["errors of disks"] += sum(node.machine.trouble for node in self.nodes)
        if self.plan.kind == "local":
            assert self.network.data_frames == 0, "messages between clients of one node went to another one"

    # Checks

    def members(self) -> list[Node]:
        return [node for node in self.nodes if not node.gone]

    def look(self) -> None:
        """No two islands serve, once a change has had time to be noticed."""
        cluster = self.settings.cluster
        grace = cluster.member_timeout + 2 * cluster.heartbeat_interval + 10 * self.network.delay + 0.1
        if self.schedule.now < self.network.changed_at + grace:
            return
        serving = [node.host for node in self.nodes if self._serves(node) and not self._stalled(node.host)]
        if len(serving) < 2:
            return
        alive = [node.host for node in self.nodes if node.process is not None]
        ways = {(a, b) for a in alive for b in alive if a != b and not self.network.is_cut(a, b)}
        found = [island for island in islands(alive, ways) if any(host in island for host in serving)]
        assert len(found) == 1, f"two islands serve: {[sorted(island) for island in found]}"

    def _serves(self, node: Node) -> bool:
        return node.process is not None and node.process.serves()

    def _all_serve(self) -> bool:
        return all(self._serves(node) for node in self.members() if not node.leaving)

    def _finished(self) -> bool:
        return all(person.finished() for person in self.people if not person.node.gone)

    def _settled(self) -> bool:
        """The latest subscriber may still wait for retained messages, behind everything else that is queued for it."""
        settled = self._all_serve() and self._finished() and not self.unequal() and not self.unretained()
        return settled and not self._not_replayed()

    def _not_replayed(self) -> list[str]:
        return [] if self.plan.faulty else self.books.not_replayed()

    def _count_got(self) -> int:
        return sum(map(len, self.books.got.values()))

    def _balanced(self) -> bool:
        balanced = self._finished() and not self.books.missing(not self.plan.faulty)
        return balanced and not self.unequal() and not self.unretained()

    def _groups_at_rest(self) -> bool:
        return not groups.at_rest(self) and not groups.unheard(self.books)

    def _operate(self, node: Node) -> None:
        node.forget_elsewhere()
        self.schedule.after(FORGET_SECONDS, self._operate, node)

    def _see_who_left(self) -> None:
        for node in self.nodes:
            if node.leaving and not node.gone and node.process is not None and node.process.has_left():
                self.seen["leaves"] += 1
                node.gone = True
                node.end()

    def unequal(self) -> list[str]:
        """Where what a node knows of another one's routes is not what that one's clients subscribed to."""
        states = [node.process.state for node in self.members() if node.process is not None]
        return [
            difference
            for here in states
            for there in states
            if here is not there
            for difference in compare(here, there)
        ]

    def unretained(self) -> list[str]:
        """Where what a node retains is not what etcd says."""
        wanted = retained_in(self.etcd.model.store)
        found: list[str] = []
        for node in self.members():
            if node.process is not None:
                found += [f"{node.host}: {difference}" for difference in compare_retained(node.process, wanted)]
        return found

    def _wrongly_retained(self) -> list[str]:
        calm = not self.plan.faulty
        found = self._not_replayed()
        found += written_again(self.etcd.model.store)
        kept: dict[bytes, bytes] = {}
        processes = [node.process for node in self.members() if node.process is not None]
        lost: list[bytes] = []
        for topic, value in retained_in(self.etcd.model.store).items():
            whole = payload_of(processes, topic, value)
            if whole is not None:
                kept[topic] = whole
                continue
            lost.append(topic)
            if not self.books.lossy and any(process.state.ctx.node == value.origin for process in processes):
                found.append(f"nobody has what is retained for {topic!r}")
        written = retained_ever(self.etcd.model.store) if self.settings.cluster.retained_inline > 100 else None
        return found + self.books.wrongly_retained(kept, lost, written, calm)

    def _read_by_all(self) -> bool:
        """A new client at each node gets the values of etcd, and nothing else."""
        topics = list(retained_in(self.etcd.model.store))
        if not self.readers and topics:
            for node in self.members():
                reader = Subscriber(self.books, self.random, node, f"reader at {node.host}", 5, False)
                self.readers.append(reader)
                reader.subscribe(b"#", 1)
                reader.come()
        for reader in self.readers:
            if reader.node.gone or reader.node.leaving:
                continue  # this node serves no clients any more
            came = [self.books.sent[payload].topic for name, payload, _ in self.books.replays if name == reader.name]
            if sorted(came) != sorted(topics) and not self.books.lossy:
                return False
        return True

    def why(self) -> str:
        """The condition that keeps the world from ending."""
        found = [f"{node.host} does not serve" for node in self.members() if not self._serves(node)]
        found += [f"{node.host} has not left" for node in self.members() if node.leaving]
        found += [f"{person.name} has not finished" for person in self.people if not person.finished()]
        found += self.unequal() + self.unretained() + self._not_replayed()
        found += self.books.missing(not self.plan.faulty)
        found += groups.at_rest(self) + groups.unheard(self.books)
        return "; ".join(found[:5]) + (f" ({len(found)} in all)" if len(found) > 5 else "")
