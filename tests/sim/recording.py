"""A world written as events, one a line, in a text file: nothing is left to draw.

    nodes 4                             a setting, if it is not the default, in JSON; "copies 2": cluster.copies
    0.1 subscriber sub n2 5 lasting     a client connects: its name, node, MQTT version, session (lasting or clean);
                                        for a subscriber also the seconds until it acknowledges, default 0
    0.3 subscribe sub a/# 2             a client subscribes to a filter with a QoS; or "unsubscribe sub a/#"
    0.5 publish pub a/1 1               a client publishes to a topic with a QoS; or "retain", or "delete" (empty)
    0.7 leave                           n1 leaves; or "forget": it is forgotten; or "join": one more node joins
    2.0 crash 0.3 n2 5 0.4              a fault of ``faults.py``: for how many seconds, then each value that it draws

A line begins with its time, in seconds since the cluster is formed. Every other draw of the world (how long a frame or
a sync takes, and so on) is a constant share of its range. So a change that moves messages by milliseconds leaves the
events, their order and the places of the faults as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, cast

import msgspec
from msgspec import structs
from tests.planting import FAILURES, Plant
from tests.sim import faults
from tests.sim.clients import Person, Publisher, Subscriber
from tests.sim.copies.lost_disks import lose_disk
from tests.sim.plan import Plan
from tests.sim.world import LOOK_SECONDS, World, drawn

FOLDER = Path(__file__).with_name("recorded")
SHIFTS = ((1.0, 0.4), (0.5, 0.4), (2.0, 0.4), (1.0, 0.3), (1.0, 0.48))
"""How many times as long frames take between nodes, and the share that every other draw gets. A recording finds its
mistake under all of them. The shares are below 0.5, so decisions with even chances stay the same."""
LIVENESS_MAX = 15.0  # seconds: these worlds are short
SECONDS_AFTER = 1.0  # from the last event or the end of the last fault until everything is healed
PEOPLE = ("subscriber", "publisher")
PUBLISHED = ("publish", "retain", "delete")
ACTS = (*PEOPLE, *PUBLISHED, "subscribe", "unsubscribe")


class Constant(Random):
    """Each draw is the same share of its range."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def random(self) -> float:
        return self.share

    def _randbelow(self, end: int) -> int:
        return int(self.share * end)


class Words(Random):
    """The draws of a fault are the words of its line; those that are missing are drawn. ``said``: all of them."""

    def __init__(self, words: Sequence[str], seed: str) -> None:
        super().__init__()
        self.left = list(words)
        self.said: list[str] = []
        self.chance = Random(seed)

    def choice(self, options: Any) -> Any:
        """An option by its name; the first one if the named one is not there."""
        by_name = {name_of(option): option for option in options}
        word = self._next(name_of(self.chance.choice(options)))
        return by_name.get(word, options[0])

    def sample(self, population: Any, k: int, *, counts: Any = None) -> Any:
        left = list(population)
        return [left.pop(left.index(self.choice(left))) for _ in range(k)]

    def random(self) -> float:
        return float(self._next(f"{self.chance.random():.2f}"))

    def randint(self, first: int, last: int) -> int:
        return int(self._next(str(self.chance.randint(first, last))))

    def randrange(self, *bounds: int) -> int:  # type: ignore[override]
        return int(self._next(str(self.chance.randrange(*bounds))))

    def _next(self, drawn: str) -> str:
        word = self.left.pop(0) if self.left else drawn
        self.said.append(word)
        return word


def name_of(option: Any) -> str:
    if isinstance(option, tuple):
        return "+".join(map(str, option))
    if isinstance(option, (int, float)):
        return f"{option:g}"
    return str(getattr(option, "host", None) or getattr(option, "name", option))


def end_of(event: list[str]) -> float:
    when, what, *words = event
    return float(when) + (float(words[0]) if hasattr(faults, what) else 0.0)


def usual() -> Plan:
    """The plan with the default of each setting."""
    return Plan(Constant(0.5), Constant(0.5))


def values(plan: Plan) -> dict[str, Any]:
    """The settings of a plan by their names in a recording."""
    found = {name: getattr(plan, name) for name in ("nodes", "kind", "theme", "early", "delay")}
    for name, value in structs.asdict(plan.settings).items():
        parts = structs.asdict(value) if isinstance(value, msgspec.Struct) else None
        found |= {name: value} if parts is None else {f"{name}.{field}": parts[field] for field in parts}
    return found


def put(plan: Plan, name: str, value: Any) -> None:
    """Raises KeyError for a setting that does not exist."""
    values(plan)[name]
    part, _, field = name.rpartition(".")
    if part:
        setattr(plan.settings, part, structs.replace(getattr(plan.settings, part), **{field: value}))
    else:
        setattr(plan.settings if hasattr(plan.settings, name) else plan, name, value)


class RecordedWorld(World):
    """``shift`` and ``share``: see ``SHIFTS``."""

    liveness_max = LIVENESS_MAX

    def __init__(self, lines: Sequence[str], shift: float = 1.0, share: float = 0.4, trace: bool = False) -> None:
        self.lines = [line.split() for line in lines if line]
        self.shift, self.share = shift, share
        self.named: dict[str, Person] = {}
        super().__init__(0, trace)
        self.network._chance = self.random

    def said(self) -> list[str]:
        """The lines, with the draws of the faults that have happened."""
        return [" ".join(line) for line in self.lines]

    @property
    def events(self) -> list[list[str]]:
        return [line for line in self.lines if line[0][0].isdigit()]

    def make_plan(self, seed: int, theme: str) -> Plan:
        self.random = Constant(self.share)
        plan = usual()
        for name, value in [line for line in self.lines if line not in self.events]:
            if name == "copies":
                self.copies = int(value)
            else:
                put(plan, name, msgspec.json.decode(value))
        plan.faulty = plan.kind == "faulty"
        plan.delay *= self.shift
        plan.seconds = max([0.0, *map(end_of, self.events)]) + SECONDS_AFTER
        return plan

    def _bring_people(self) -> None:
        for _, what, *words in self.events:
            if what in PEOPLE:
                name, host, version, kind, *late = words
                made = Subscriber if what == "subscriber" else Publisher
                person = made(self.books, self.random, self.by_host[host], name, int(version), kind == "lasting")
                if isinstance(person, Subscriber):
                    person.answer_delay = float(late[0]) if late else 0.0
                self.named[name] = person
                (self.subscribers if isinstance(person, Subscriber) else self.publishers).append(cast(Any, person))
        self.people = list(self.named.values())
        for _, what, *words in self.events:
            if what in ACTS and what not in PEOPLE:
                cast(Any, self.named[words[0]]).left += 1

    def _safety(self) -> None:
        begin = self.schedule.now
        self.books.strict = not self.plan.faulty
        self._bring_people()
        for line in self.events:
            self.schedule.at(begin + float(line[0]), self._happen, line)
        while self.schedule.now < begin + self.plan.seconds:
            self._pass(LOOK_SECONDS)

    def _happen(self, line: list[str]) -> None:
        _, what, *words = line
        person: Any = self.named.get(words[0]) if words else None
        if what in PEOPLE:
            person.come()
        elif what == "subscribe":
            person.subscribe(words[1].encode(), int(words[2]))
        elif what == "unsubscribe":
            person.unsubscribe(words[1].encode())
        elif what in PUBLISHED:
            person.publish(words[1].encode(), int(words[2]), what != "publish", what == "delete")
        elif what == "join":
            self.join()
        elif what in ("leave", "forget"):
            self._go(what)
        else:
            drawn = Words(words[1:], " ".join(line))
            if what == "lose_disk":
                assert self.copies > 1, "without copies no disk may be lost"
                lose_disk(self, drawn, float(words[0]), self.schedule.now)
            else:
                self._strike(getattr(faults, what), float(words[0]), drawn)
            line[3:] = drawn.said


def found(world: World, mistake: Callable[[], Plant]) -> bool:
    """Whether the world fails with the mistake; ``nullcontext``: without one."""
    try:
        with mistake():
            world.live()
    except FAILURES:
        return True
    return False


def formed(*lines: str) -> RecordedWorld:
    """A world with these settings whose nodes serve, without clients."""
    world = RecordedWorld(lines)
    world.form()
    return world


def read(name: str) -> list[str]:
    return (FOLDER / f"{name}.txt").read_text().splitlines()


def of_seed(seed: int, theme: str) -> list[str]:
    """A recording with the people and faults of that seed's world. The draws of a fault are added when it happens."""
    random = Random(seed)
    plan = drawn(random, seed, theme)
    default = values(usual())
    settings = [f"{k} {msgspec.json.encode(v).decode()}" for k, v in values(plan).items() if v != default[k]]
    events: list[tuple[float, str]] = []
    for sub in plan.subscribers:
        kind = "lasting" if sub.lasting else "clean"
        events.append((0.1, f"subscriber {sub.name} n{sub.host + 1} {sub.version} {kind}"))
        for when, filter, qos in sub.acts:
            told = f"unsubscribe {sub.name} {filter.decode()}"
            events.append((when, told if qos < 0 else f"{told[2:]} {qos}"))
    for pub in plan.publishers:
        events.append((0.1, f"publisher {pub.name} n{pub.host + 1} {pub.version} lasting"))
        for when, topic, qos in pub.acts:
            kind = "publish"
            if qos and random.random() < plan.retained:
                kind = "delete" if random.random() < plan.deletes else "retain"
            events.append((when, f"{kind} {pub.name} {topic.decode()} {qos}"))
    kinds, weights = zip(*faults.COMMON, strict=True)
    for fault in random.choices(kinds, weights, k=plan.faults):
        events.append((random.uniform(0.0, plan.seconds), f"{fault.__name__} {random.choice([0.3, 1.0, 3.0, 6.0])}"))
    events += [(when, f"{fault.__name__} {seconds}") for when, fault, seconds in plan.rare]
    for _ in range(round(200 * plan.loss)):
        events.append((random.uniform(0.0, plan.seconds), "loses 0.1"))
    others = ["join"] * plan.joins + [plan.goes] * bool(plan.goes)
    events += [(random.uniform(0.0, plan.seconds), what) for what in others]
    return settings + [f"{when:.3f} {event}" for when, event in sorted(events, key=lambda event: event[0])]
