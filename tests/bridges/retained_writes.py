"""Retained messages of ``bridge_world``: several sites write the same topics, and must agree in the end.

The clocks of the sites differ by up to 30 s. When all is quiet:

- each topic has the same retained message at all sites, or none at each, with the same stamp;
- it is no message that a later one of its site replaced, and no later stamp was seen by a subscriber;
- a subscriber got a retained message of QoS 2 once, unless a session was lost, or it came by two ways.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from tests.bridges.bridged_sites import Publisher, Reader, Site

from starlingmq.client.events import Message
from starlingmq.core.retained.stamps import Stamp, message_stamp, stamp_of, stamp_text
from starlingmq.wire.properties import encode_property_bytes

NAME = b"retained/"  # before the number of a write
SKEWS = (0.0, 0.5, 7.0, 30.0)
STEPS = (0.0, 0.0, 0.001, 0.02, 1.0)  # seconds before a write
LEAVES = ("r1", "r2", "r3")


class Written:
    """``before``: what the same site had acknowledged for this topic when it was published."""

    def __init__(self, site: Site, leaf: str, payload: bytes, qos: int, before: list[Written]) -> None:
        self.site = site
        self.leaf = leaf
        self.payload = payload
        self.qos = qos
        self.before = before
        self.acknowledged = False


class RetainedWrites:
    """``levels``: by name of the site, those before the leaves."""

    def __init__(self, random: Random, sites: dict[str, Site], levels: dict[str, str]) -> None:
        self.random = random
        self.sites = sites
        self.levels = levels
        self.by_name: dict[bytes, Written] = {}
        self.seen: dict[str, Stamp] = {}  # by leaf, the largest stamp that a subscriber saw
        self.got: dict[tuple[str, bytes], int] = Counter()
        for site in sites.values():
            site.now += random.choice(SKEWS)

    def write(self, publisher: Publisher) -> None:
        random, site = self.random, publisher.site
        leaf, qos = random.choice(LEAVES), random.choice([0, 1, 2, 2])
        name = NAME + b"%d" % len(self.by_name)
        payload = b"" if random.random() < 0.35 else name
        before = [one for one in self.by_name.values() if one.site is site and one.leaf == leaf and one.acknowledged]
        self.by_name[name] = Written(site, leaf, payload, qos, before)
        publisher.publish(self.levels[site.name] + leaf, payload, qos, name)

    def completed(self, name: bytes, reason: int) -> None:
        written = self.by_name[name]
        written.acknowledged = reason < 0x80 and written.qos != 0  # QoS 0 has no acknowledgement

    def leaf_of(self, site: Site, topic: str) -> str:
        """ "": it is no topic of retained messages."""
        leaf = topic.removeprefix(self.levels[site.name])
        return leaf if leaf in LEAVES else ""

    def arrived(self, reader: Reader, leaf: str, message: Message) -> None:
        self.got[reader.name, message.payload] += 1
        stamp = stamp_of(stamp_text(encode_property_bytes(message.properties)))
        if stamp is not None and message.qos:  # others may not be stored yet
            self.seen[leaf] = max(stamp, self.seen.get(leaf, stamp))

    # The end

    def found(self, site: Site, leaf: str) -> tuple[bytes, Stamp | None]:
        topic = (self.levels[site.name] + leaf).encode()
        message = site.state.retained.get(topic)
        if message is None:
            return b"", site.state.publishing.retained.deletions.stamp(topic)
        return message.payload, message_stamp(message, site.name)

    def check(self, lost: bool, once: bool) -> None:
        """``lost``: a store was lost; ``once``: by one way, at QoS 2, and nothing was dropped."""
        for leaf in LEAVES:
            found = {name: self.found(site, leaf) for name, site in self.sites.items()}
            payloads = {payload for payload, _ in found.values()}
            assert len(payloads) == 1, f"{leaf} differs: {found}"
            if not lost:
                assert len({stamp for _, stamp in found.values()}) == 1, f"{leaf} has several stamps: {found}"
                self._check_last(leaf, *found["a"])
        for (reader, payload), count in self.got.items():
            if once and payload and self.by_name[payload].qos == 2:
                assert count == 1, f"{reader} got {payload!r} {count} times"

    def _check_last(self, leaf: str, payload: bytes, stamp: Stamp | None) -> None:
        writes = [one for one in self.by_name.values() if one.leaf == leaf]
        replaced = {id(earlier) for one in writes if one.acknowledged for earlier in one.before}
        last = [one for one in writes if one.payload == payload and id(one) not in replaced]
        assert last or not any(one.acknowledged for one in writes), f"{leaf} has {payload!r}, which was replaced"
        seen = self.seen.get(leaf)
        assert seen is None or (stamp is not None and stamp >= seen), f"{leaf}: {stamp}, though {seen} was seen"
