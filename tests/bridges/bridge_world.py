"""Bridges between brokers that crash, lose their stores, refuse and answer late;
``python -m tests.bridges.bridge_world --seeds N``.

A seed draws the sites and bridges (a pair, two bridges against each other, a ring of three), their settings, the
clients, what they publish, and the faults. Of each message that a publisher has had acknowledged must hold:

- QoS 2 arrives once for each way that bridges have for it, at each subscriber, unless a session was lost since;
- QoS 1 arrives as often at least, QoS 0 at most; by a link both as often as QoS 2;
- nothing comes back to its own side, and rings end;
- after the far session was lost, what the near broker still had for it, or held from it, arrives at least once;
- what is sent again to a far broker says so: DUP, and ``AGAIN`` in a new session;
- first deliveries for a publisher, topic and QoS are in the order of publication;
- in the end nothing is in flight anywhere, and the relay keeps nothing;
- retained messages agree at all sites (``retained_writes``).
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from tests.bridges.bridge_carrier import Carrier
from tests.bridges.bridged_sites import Party, Publisher, Reader, Site
from tests.bridges.retained_writes import NAME, STEPS, RetainedWrites
from tests.storage.crash_engines import NEVER, Crash

from starlingmq.client.events import Message
from starlingmq.config.bridges_section import BridgeConfig, BridgeTopic, check_bridges
from starlingmq.config.links_section import LinkLane
from starlingmq.core.messages.outgoing import RELEASED

ROUNDS_MAX = 2000  # of calm, in which all must be over
PIECES = (1, 2, 3, 7, 50, 1 << 20, 1 << 20, 1 << 20)
SICKNESSES = (("append",), ("sync",), ("append", "sync"))
DENIED, HIDDEN = "d", "h"
BIG = 3000  # bytes of a payload that a site with a small Maximum Packet Size does not take
SMALL_PACKET = 1500


class Sent:
    """A message, and the sites whose subscribers must get it. ``strict``: as often as there are ways."""

    def __init__(self, site: Site, topic: str, qos: int, big: bool, place: int) -> None:
        self.site = site
        self.topic = topic
        self.qos = qos
        self.big = big
        self.place = place  # among all
        self.acknowledged = False
        self.resent = False
        self.strict = True
        self.required = True  # at all sites where there is a way to
        self.owed: set[str] = set()  # names of sites that must get it nevertheless


class BridgeWorld:
    def __init__(self, seed: int, tracing: bool = False, **fixed: Any) -> None:
        """``fixed``: ``kind``, ``version``, ``losses``, ``frail``, ``room`` (max_awaiting_rel), and what they are;
        ``retains``: retained messages are written; ``short``: nothing else is, and queues overflow."""
        self.seed = seed
        self.tracing = tracing
        random = self.random = Random(f"bridges {seed}")
        self.kind = random.choice(["pair", "pair", "pair", "pair", "against", "ring", "ring both"])
        self.kind = fixed.get("kind", self.kind)
        self.version = "5.0" if self.kind != "pair" or random.random() < 0.6 else "3.1.1"
        self.version = fixed.get("version", self.version)
        self.link = fixed.get("link", self.version == "5.0" and random.random() < 0.4)
        self.losses = self.kind == "pair" and fixed.get("losses", random.random() < 0.5)
        self.power = random.random() < 0.4
        self.frail = fixed.get("frail", random.random() < 0.3)
        self.room: int | None = fixed.get("room")
        self.short = fixed.get("short", False)
        self.retains = self.version == "5.0" and (self.short or fixed.get("retains", random.random() < 0.5))
        names = {"pair": ["ab"], "against": ["ab", "ba"]}.get(self.kind, ["ab", "bc", "ca"])
        self.sites = {
            name: self._site(name, [bridge for bridge in names if bridge[0] == name])
            for name in ("abc" if len(names) == 3 else "ab")
        }
        self.carriers = [
            Carrier(self._bridge(name), self.sites[name[0]], self.sites[name[1]], self.note) for name in names
        ]
        check_bridges(tuple(carrier.config for carrier in self.carriers))
        self.topics = self._topics()
        self.publishers = [
            Publisher(self, site, f"publisher {name} {number}", random.choice([4, 5]))
            for name, site in self.sites.items()
            for number in range(random.randint(1, 2))
        ]
        self.readers = [
            Reader(self, site, f"reader {name} {number}", random.choice([4, 5]), random.choice([1, 3, 65_535]))
            for name, site in self.sites.items()
            for number in range(random.randint(1, 2))
        ]
        self.parties: list[Party] = [*self.publishers, *self.readers]
        self.messages: dict[bytes, Sent] = {}
        self.places: Counter[tuple[str, str, int]] = Counter()
        self.denies = self.sites["b"].denied != b""  # until the last messages
        self.unsettled = False  # a session was lost, and not all bridges have run since
        self.seen: Counter[str] = Counter()
        self.writes = RetainedWrites(random, self.sites, self._levels()) if self.retains else None

    # Sites, bridges, topics

    def _site(self, name: str, bridges: list[str]) -> Site:
        random = self.random
        settings: dict[str, Any] = {
            "power": self.power,
            "span": random.choice([0, 5, 20]),
            "piece": random.choice([1, 5]),
            "checkpoint_bytes": random.choice([0, 300, 3000, 1 << 30]),
            "max_mqueue_len": 3 if self.short else 0,
            "max_inflight": random.choice([0, 0, 1, 2, 5]),
            "max_awaiting_rel": random.choice([0, 0, 1, 2, 3, 5]) if self.room is None else self.room,
            "write_buffer": random.choice([200, 1 << 20]),
            "publisher_hold": 0.0,
            "await_rel_timeout": 1_000_000.0,
            "session_expiry_v3": 0xFFFFFFFF,
            "max_packet_size": random.choice([SMALL_PACKET, 1 << 20, 1 << 20]),
        }
        site = Site(name, random, bridges, **settings)
        if self.short:
            site.bounds = (3, 1 << 30)
            site.begin_to_serve()
        site.denied = DENIED.encode() if random.random() < 0.5 else b""
        site.hidden = HIDDEN.encode() if random.random() < 0.5 else b""
        return site

    def _bridge(self, name: str) -> BridgeConfig:
        random = self.random

        def qos() -> int:
            return random.choice([0, 1, 2, 2, 2, 2])

        both = max(1, qos()) if self.retains else qos()

        if self.kind == "pair":
            topics = [
                BridgeTopic(filter="o/#", direction="out", qos=qos(), remote_prefix=random.choice(["", "from/a/"])),
                BridgeTopic(filter="i/+", direction="in", qos=qos(), local_prefix=random.choice(["", "got/"])),
                BridgeTopic(filter="#", direction="both", qos=both, local_prefix="L/", remote_prefix="R/"),
                BridgeTopic(filter="n/+/x", direction="in", qos=qos(), rename="named/{1}"),
                BridgeTopic(filter=f"{HIDDEN}/#", direction="in", qos=qos()),
                BridgeTopic(filter=f"{DENIED}/#", direction="out", qos=qos()),
            ]
        else:
            topics = [BridgeTopic(filter="w/#", direction="both" if self.kind == "ring both" else "out")]
        kind: type[BridgeConfig] = BridgeConfig
        more: dict[str, Any] = {}
        if self.link:
            kind, more = LinkLane, {"filters": random.choice(["learned", "fixed"])}
        return kind(
            name=name,
            **more,
            servers=("mqtt://far",),
            topics=tuple(topics),
            version=self.version,  # type: ignore[arg-type]
            retain=self.retains or random.random() < 0.5,
            notifications="off",
            max_inflight=random.choice([0, 0, 1, 3]),
        )

    def _topics(self) -> dict[str, list[str]]:
        """By name of the site, those that its publishers use."""
        if self.kind != "pair":
            return {name: ["w/1", "w/2"] for name in self.sites}
        return {"a": ["o/1", "L/1", "L/2", "d/1"], "b": ["i/1", "R/1", "R/2", "n/7/x", "h/1"]}

    def _levels(self) -> dict[str, str]:
        """By name of the site, the levels of topics that are carried both ways."""
        return {"a": "L/", "b": "R/"} if self.kind == "pair" else dict.fromkeys(self.sites, "w/")

    def ways(self, site: str, topic: str, been: tuple[str, ...] = ()) -> Iterator[tuple[str, str, int, bool]]:
        """Where a message may go: site, topic there, highest QoS, and whether bridges are allowed all of it now."""
        been = (*been, site)
        for carrier in self.carriers:
            for out in (True, False):
                here, there = (carrier.near_site, carrier.far_site) if out else (carrier.far_site, carrier.near_site)
                if here.name != site or there.name in been:
                    continue
                for entry in carrier.config.topics:
                    if entry.direction == ("in" if out else "out"):
                        continue
                    name = other_name(entry, topic, out)
                    if name is None:
                        continue
                    allowed = not (out and there.denied and name.startswith(f"{DENIED}/"))
                    allowed = allowed and not (not out and here.hidden and topic.startswith(f"{HIDDEN}/"))
                    yield there.name, name, entry.qos, allowed
                    for last, last_name, last_qos, last_allowed in self.ways(there.name, name, been):
                        yield last, last_name, min(entry.qos, last_qos), allowed and last_allowed
                    break

    # Events

    def note(self, *what: object) -> None:
        if self.tracing:
            print(*what)

    def publish(self, publisher: Publisher) -> None:
        site = publisher.site
        topic = self.random.choice(self.topics[site.name])
        qos = self.random.choice([0, 1, 2, 2])
        small = self.random.random() < 0.93 or site.state.ctx.max_packet < BIG
        if self.version != "5.0":  # a far broker that cannot tell its limit would close the connection each time
            small = small or any(each.state.ctx.max_packet < BIG for each in self.sites.values())
        key = (publisher.name, topic, qos)
        self.places[key] += 1
        payload = f"{publisher.name}|{topic}|{qos}|{self.places[key]}|{'' if small else 'x' * BIG}".encode()
        sent = self.messages[payload] = Sent(site, topic, qos, not small, len(self.messages))
        sent.strict = not self.unsettled
        sent.required = not self.unsettled
        self.note(site.name, "publishes", payload[:40], "strict" if sent.strict else "")
        publisher.publish(topic, payload, qos)

    def completed(self, payload: bytes, reason: int, resent: bool) -> None:
        if self.writes is not None and payload.startswith(NAME):
            self.writes.completed(payload, reason)
            return
        sent = self.messages[payload]
        sent.resent = resent
        if reason >= 0x80:
            sent.required = False
            sent.owed.clear()
        else:
            sent.acknowledged = True

    def arrived(self, reader: Reader, message: Message) -> None:
        payload = message.payload
        leaf = self.writes.leaf_of(reader.site, message.topic) if self.writes is not None else ""
        if self.writes is not None and leaf:
            self.note(reader.name, "got retained", message.topic, payload, message.properties)
            self.writes.arrived(reader, leaf, message)
            return
        sent = self.messages.get(payload)
        assert sent is not None, f"{reader.name} got {payload[:40]!r}, which was not published"
        self.note(reader.name, "got", payload[:40], message.qos, message.dup)
        ways = [topic for site, topic, _, _ in self.ways(sent.site.name, sent.topic) if site == reader.site.name]
        if reader.site is sent.site:
            ways.append(sent.topic)
        assert message.topic in ways, f"{reader.name} got {payload[:40]!r} with the topic {message.topic}"
        allowed = {qos for name, _, qos, _ in self.ways(sent.site.name, sent.topic) if name == reader.site.name}
        if self.link and reader.site is not sent.site:
            assert message.qos in {min(qos, sent.qos) for qos in allowed}, f"it came at QoS {message.qos}"
        sure = len(ways) == 1 or (sent.qos and not sent.big)  # no way lost it, so that it comes by another one, later
        if reader.got[payload] == 1 and sent.strict and not sent.resent and sure:
            name, topic, qos, place, _ = payload.split(b"|")
            key = (name, topic, qos)
            before = reader.places.get(key, 0)
            assert before < int(place), f"{reader.name}: {payload[:40]!r} after {before}"
            reader.places[key] = int(place)

    def at(self, call: Callable[[], Any]) -> Any:
        """Do it; a broker may die over it."""
        try:
            return call()
        except Crash:
            for site in self.sites.values():
                if site.machine.fuse < 0:
                    self.restart(site)
            return True

    def restart(self, site: Site, fuse: int | None = None) -> None:
        self.note(site.name, "crashes")
        self.seen["crashes"] += 1
        site.died()
        for party in self.parties:
            if party.site is site and party.wire is not None:
                party.gone()
        for carrier in self.carriers:
            if carrier.near_site is site:
                self.at(carrier.die)
            elif carrier.far_site is site and carrier.relay is not None:
                carrier.relay.lost(carrier.relay.far, "the other broker has crashed")
                self.at(carrier.end)
        while True:
            try:
                site.crash(self.fuse() if fuse is None else fuse)
                return
            except (Crash, OSError):
                site.machine.sick = ()

    def fuse(self) -> int:
        return int(self.random.expovariate(1 / self.random.choice([60, 300, 1000]))) + 1

    def lose(self, site: Site) -> None:
        """Its store is lost."""
        self.note(site.name, "loses its store")
        self.seen["lost stores"] += 1
        self.unsettled = True
        carrier = self.carriers[0]
        far_lost = site is carrier.far_site
        kept = self._kept_for_far(carrier) if far_lost else set()
        held = self._held_from_far(carrier) if far_lost else set()
        for payload, sent in self.messages.items():
            sent.strict = sent.required = False
            if not far_lost:
                sent.owed.clear()
                continue
            if sent.site is not carrier.near_site:
                sent.owed = (
                    {carrier.near_site.name} if payload in held or carrier.near_site.name in sent.owed else set()
                )
            elif payload in kept:
                sent.owed.add(carrier.far_site.name)
            else:
                sent.owed.clear()
        site.loses = True
        site.machine.sick = ()
        if far_lost:
            carrier.far_lost = True
        else:
            carrier.sent.clear()
        self.restart(site, NEVER)
        for reader in self.readers:  # they are there before what is sent again
            if reader.site is site:
                while not reader.subscribed():
                    reader.connect()
                    reader.move(1 << 20)
                    site.settle()
        site.machine.fuse = self.fuse()

    def _kept_for_far(self, carrier: Carrier) -> set[bytes]:
        """Payloads that the near broker has for the far one, which has not said PUBREC."""
        session = carrier.near_site.session(carrier.near_id)
        found: set[bytes] = set()
        if session is None:
            return found
        entries = [] if session.window is None else list(session.window.entries.values())
        entries += [] if session.queue is None else list(session.queue.items)
        return {each.message.payload for each in entries if each.stage != RELEASED and each.qos and each.message.loaded}

    def _held_from_far(self, carrier: Carrier) -> set[bytes]:
        """Payloads that the near broker holds until PUBREL."""
        session = carrier.near_site.session(carrier.near_id)
        inbound = None if session is None else session.inbound
        entries = [] if inbound is None else list(inbound.entries.values())
        return {each.message.payload for each in entries if each.message is not None}

    def act(self) -> None:
        random = self.random
        chance = random.random()
        site = random.choice(list(self.sites.values()))
        carrier = random.choice(self.carriers)
        if self.writes is not None and (chance < 0.25 if self.short else random.random() < 0.15):
            self.advance(random.choice(STEPS))
            publisher = random.choice(self.publishers)
            self.note(publisher.name, "writes at", publisher.site.now)
            self.writes.write(publisher)
        elif chance < 0.25:
            for _ in range(random.randint(1, 5)):
                self.publish(random.choice(self.publishers))
        elif chance < 0.86:
            self.pump(random.choice([0.3, 0.7, 1.0]))
        elif chance < 0.88:
            self.at(lambda: random.choice(self.parties).cut(random.random() < 0.3))
        elif chance < 0.91:
            self.at(lambda: carrier.cut(random.random() < 0.3))
        elif chance < 0.925:
            self.at(carrier.die)
        elif chance < 0.935:
            if carrier.near is not None:
                carrier.near.close()
        elif chance < 0.945:
            self.wrap(site)
        elif chance < 0.965 and self.losses:
            self.lose(site)
        elif chance < 0.978 and self.frail:
            machine = site.machine
            machine.sick = () if machine.sick else random.choice(SICKNESSES)
            machine.sickness = random.choice([1.0, 0.5])
        elif chance < 0.99:
            self.advance(random.choice([0.5, 2.0, 31.0]))
        else:
            self.at(site.settle)

    def wrap(self, site: Site) -> None:
        """The packet ids of the bridges' sessions come to their end, and begin again."""
        for session in list(site.state.ctx.sessions.values()):
            if session.window is not None and not session.window.entries:
                session.window.last_id = 65_533

    def advance(self, seconds: float) -> None:
        for site, end in [(site, site.now + seconds) for site in self.sites.values()]:
            while site.now < end:
                self.at(lambda site=site, end=end: site.advance(end - site.now))  # type: ignore[misc]
        for carrier in self.carriers:
            now = carrier.near_site.now
            if carrier.relay is not None and carrier.relay.wake_at() <= now:
                carrier.relay.tick(now)
                self.at(carrier.flush)

    def pump(self, share: float, calm: bool = False) -> bool:
        """Clients and bridges get on, some of them or all. Returns whether anything has moved."""
        random = self.random
        moved = False
        members: list[Party | Carrier] = [*self.parties, *self.carriers]
        random.shuffle(members)
        for who in members:
            if random.random() > share:
                continue
            link = who.far if isinstance(who, Carrier) else who.wire
            if link is None:
                self.at(who.connect)
                moved = True
            piece = 1 << 20 if calm else random.choice(PIECES)
            moved = bool(self.at(lambda who=who, piece=piece: who.move(piece))) or moved  # type: ignore[misc]
            if isinstance(who, Reader):
                moved = who.acknowledge(1.0 if calm else random.choice([0.3, 1.0])) or moved
        if self.unsettled and all(carrier.quiet() for carrier in self.carriers):
            self.unsettled = not all(reader.subscribed() for reader in self.readers)
        for site in self.sites.values():
            if calm or random.random() < 0.5:
                self.at(site.settle if calm else site.run)
        return moved

    # The end

    def live(self, acts: int) -> None:
        self.calm("at first")
        for site in self.sites.values():
            site.machine.fuse = self.fuse()
        for _ in range(acts):
            self.act()
        self.end()

    def end(self) -> None:
        for site in self.sites.values():
            site.machine.fuse = NEVER
            site.machine.sick = ()
        for _ in range(3):
            self.advance(1.5)
        self.calm("in the end")
        for site in self.sites.values():
            site.denied = site.hidden = b""  # refused filters are asked for at the next connection
        for carrier in self.carriers:
            carrier.cut()
        self.calm("with all rights")
        for publisher in [] if self.short else self.publishers:
            for _ in range(4):
                self.publish(publisher)
        self.calm("with the last messages")
        self.check()

    def calm(self, when: str) -> None:
        """Everything that is under way comes to its end."""
        still = 0
        for number in range(ROUNDS_MAX):
            if number % 50 == 49:
                self.advance(40.0)
            still = 0 if self.pump(1.0, calm=True) else still + 1
            if still >= 3 and self.quiet():
                return
        raise AssertionError(f"it does not come to rest {when}: {self.why()}")

    def quiet(self) -> bool:
        members: list[Party | Carrier] = [*self.parties, *self.carriers]
        return all(who.quiet() for who in members) and not list(self.in_flight())

    def why(self) -> str:
        restless = [who.name for who in self.parties if not who.quiet()]
        restless += [
            f"{each.config.name} ({'; '.join(each.problems[-2:])})" for each in self.carriers if not each.quiet()
        ]
        return ", ".join([*restless, *self.in_flight()])

    def in_flight(self) -> Iterator[str]:
        """Work that sessions still have, those of bridges and the others."""
        for carrier in self.carriers:
            for site, client_id in ((carrier.near_site, carrier.near_id), (carrier.far_site, carrier.far_id)):
                if site.session(client_id) is None:
                    yield f"{client_id} is not at {site.name}"
        for site in self.sites.values():
            for client_id, session in site.state.ctx.sessions.items():
                if session.queue is not None and len(session.queue):
                    yield f"{len(session.queue)} wait at {site.name} for {client_id}"
                if session.window is not None and session.window.entries:
                    yield f"{len(session.window.entries)} are in flight at {site.name} to {client_id}"
                unlucky = any(each.unlucky and each.near_id == client_id for each in self.carriers)
                if session.inbound is not None and session.inbound.held and not unlucky:
                    yield f"{session.inbound.held} are held at {site.name} from {client_id}"

    def check(self) -> None:
        for carrier in self.carriers:
            relay = carrier.relay
            assert relay is not None
            assert not carrier.unmarked, carrier.unmarked[0]
            for leg in (relay.near, relay.far):
                assert not (leg.out or leg.partial.parts or leg.waiting), "bytes stay in the relay"
            left = relay._steps, relay._released, relay._ending, relay._silent, relay._reused
            assert not any(left), f"the relay keeps {left}"
        for site in self.sites.values():
            assert site.lost == 0
        if self.writes is not None and not any(carrier.unlucky for carrier in self.carriers):
            lost = self.seen["lost stores"] != 0
            entries = [each for carrier in self.carriers for each in carrier.config.topics if each.direction != "in"]
            once = self.kind != "ring both" and all(each.qos == 2 for each in entries)
            self.writes.check(lost, once and not lost and not self.short)
        for payload, sent in self.messages.items():
            for reader in self.readers:
                self._check_one(reader, payload, sent)

    def _check_one(self, reader: Reader, payload: bytes, sent: Sent) -> None:
        site = reader.site.name
        ways = [(qos, allowed) for name, _, qos, allowed in self.ways(sent.site.name, sent.topic) if name == site]
        if reader.site is sent.site:
            ways = [(2, True)]
        got = reader.got[payload]
        last = sent.place >= len(self.messages) - 4 * len(self.publishers)
        closed = sent.topic[0] in (DENIED, HIDDEN) and reader.site is not sent.site and not last
        most = len(ways)
        qos = min([sent.qos, *[each for each, _ in ways]])
        name = f"{reader.name} got {payload[:40]!r} {got} times"
        # QoS 0 needs no disk: if that fails, what a link has released may be delivered, and again after a crash.
        sent_first = qos == 0 and self.link and self.frail
        if qos != 1 and sent.strict and not (sent.qos == 1 and sent.resent) and not sent_first:
            assert got <= most, f"{name}, not {most}"
        if self.link and reader.site is not sent.site and sent.strict and not sent.resent and not sent_first:
            fresh = reader.fresh[payload]
            assert fresh <= most, f"{name}, {fresh} of them without DUP, not {most}: links carry once at every QoS"
        if not ways or (closed and reader.site.name == "b" and self.denies):
            assert got == 0, name
        fits = not sent.big or all(each.state.ctx.max_packet > BIG for each in self.sites.values())
        if not sent.acknowledged or closed or not fits or (qos == 0 and not (self.link and last)):
            return
        if sent.required:
            assert got >= most, f"{name}, not {most}"
        elif site in sent.owed and not self.carriers[0].unlucky:
            assert got >= 1, f"{name}, though it was kept when the far session was lost"


def other_name(entry: BridgeTopic, topic: str, out: bool) -> str | None:
    """The name that ``topic_maps`` gives, for the entries of these worlds. None: the entry does not match."""
    here, there = (entry.local_prefix, entry.remote_prefix) if out else (entry.remote_prefix, entry.local_prefix)
    if not topic.startswith(here):
        return None
    rest = topic[len(here) :]
    levels, wanted = rest.split("/"), entry.filter.split("/")
    if wanted[-1] == "#":
        wanted = wanted[:-1]
        levels = levels[: len(wanted)]
    if len(levels) != len(wanted) or any(b not in ("+", a) for a, b in zip(levels, wanted, strict=True)):
        return None
    return entry.rename.replace("{1}", rest.split("/")[1]) if entry.rename else there + rest


def run(seed: int, acts: int = 150, tracing: bool = False, **fixed: Any) -> BridgeWorld:
    world = BridgeWorld(seed, tracing, **fixed)
    world.live(acts)
    return world


def figures(world: BridgeWorld) -> Counter[str]:
    counts = Counter(world.seen)
    counts["messages"] = len(world.messages)
    counts["retained messages"] = 0 if world.writes is None else len(world.writes.by_name)
    counts["strict messages"] = sum(sent.strict for sent in world.messages.values())
    for carrier in world.carriers:
        counts["unlucky losses"] += carrier.unlucky
        counts["attempts"] += carrier.attempts
        counts["attempts that ran"] += carrier.ran
        counts["carried"] += carrier.counts.messages_in + carrier.counts.messages_out
        counts["again"] += carrier.counts.again
        counts["kept out"] += carrier.counts.kept_out
        counts["refused"] += carrier.counts.refused
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bridges.bridge_world", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--failures", type=int, default=1, help="stop after so many")
    parser.add_argument("--seed", type=int, help="live this one again, with a trace")
    arguments = parser.parse_args()
    logging.getLogger("starlingmq").setLevel(logging.CRITICAL)
    if arguments.seed is not None:
        run(arguments.seed, tracing=True)
        return 0
    began = time.perf_counter()
    failures = 0
    seen: Counter[str] = Counter()
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        try:
            seen.update(figures(run(seed)))
        except Exception as error:  # whatever the code raises: this seed shows it
            if arguments.failures == 1:
                traceback.print_exc(limit=-5)
            print(f"FAILED seed {seed}: {str(error)[:400]}", flush=True)
            failures += 1
            if failures >= arguments.failures:
                return 1
    print(f"{arguments.seeds} seeds in {time.perf_counter() - began:.1f} s, {failures} failures")
    print(", ".join(f"{count} {what}" for what, count in seen.items()))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
