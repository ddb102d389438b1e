"""The invariants of every world, and the books that they are checked by.

``Books`` records what clients saw: publications, acknowledgements, promises by SUBACK, received messages. A fault that
shows at once raises at once; one that shows at the end only is in ``missing`` and ``doubled_in_groups``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

from starlingmq.core.broker import BrokerState
from starlingmq.core.router.filter_summary import is_summary
from starlingmq.wire.mqtt import Publish

if TYPE_CHECKING:
    from tests.sim.node import Node

GROUP = b"$share/"
GROUPS = (b"$share/g/a/#", b"$share/h/#")
"""All shared groups of all worlds."""
ELSEWHERE_SECONDS = 1.0
"""Of two retained messages that two nodes take so close to each other, either may be the last one."""


@dataclass(slots=True)
class Sent:
    """A message that a client published; times are of the client, in seconds, 0.0: not (yet)."""

    payload: bytes
    topic: bytes
    qos: int
    node: Node
    at: float
    retain: bool = False
    delete: bool = False  # with an empty payload: ``payload`` is then its name in the books
    acknowledged_at: float = 0.0
    ended_at: float = inf  # acknowledged or refused
    again: bool = False  # it was sent once more, on another connection


@dataclass(slots=True)
class Promise:
    """A subscription, from its SUBACK until it is taken back, or ends with its session: what must come, comes."""

    subscriber: str
    session: int
    node: Node
    filter: bytes
    qos: int
    durable: bool
    since: float
    until: float = 0.0  # 0.0: it holds
    asked_at: float = 0.0  # SUBSCRIBE
    places: dict[bytes, int] = field(default_factory=dict)  # publisher, topic and QoS -> number of the last new one

    @property
    def topic_filter(self) -> bytes:
        return self.filter.split(b"/", 2)[2] if self.filter.startswith(GROUP) else self.filter


def matches(filter: bytes, topic: bytes) -> bool:
    """The dumb twin of the router."""
    wanted, levels = filter.split(b"/"), topic.split(b"/")
    for place, level in enumerate(wanted):
        if level == b"#":
            return True
        if place >= len(levels) or level not in (b"+", levels[place]):
            return False
    return len(wanted) == len(levels)


class Books:
    refusing = False  # with too few copies a message may be refused, and is taken when it is sent again, behind others

    def __init__(self) -> None:
        self.sent: dict[bytes, Sent] = {}
        self.promises: list[Promise] = []
        self.sessions: dict[str, int] = {}  # subscriber -> which of its sessions this is
        self.got: dict[tuple[str, int], dict[bytes, int]] = {}  # (subscriber, session) -> payload -> how often
        self.once: dict[tuple[str, int, bytes], int] = {}  # (subscriber, session, payload) -> how often, at QoS 0 or 2
        self.members: dict[bytes, dict[str, None]] = {}  # group -> all who were ever in it
        self.asked: dict[str, dict[bytes, None]] = {}  # subscriber -> all filters that it ever asked for
        self.left: dict[bytes, None] = {}  # filters that a client perhaps had, and has no more
        self.replays: list[tuple[str, bytes, float]] = []  # subscriber, payload of a retained message, when
        self.acknowledged_count = 0
        self.unknown: dict[tuple[str, int], None] = {}  # 3.x: publisher and packet id of PUBCOMPs for unknown PUBRELs
        self.lossy = False  # a node that stores nothing crashed, and with it its knowledge of the others' filters
        self.strict = True  # only unpromised messages may be lost in a crash: QoS 0 comes at most once

    # Reports of the clients

    def published(self, packet: Publish, name: bytes, node: Node, now: float) -> None:
        self.sent[name] = Sent(name, packet.topic, packet.qos, node, now, packet.retain, not packet.payload)

    def acknowledged(self, payload: bytes, now: float) -> None:
        sent = self.sent[payload]
        sent.acknowledged_at = sent.ended_at = now
        self.acknowledged_count += 1

    def refused(self, payload: bytes, now: float) -> None:
        """A 5.0 client was told that it was not taken, or its handshake was lost: nothing is owed."""
        self.sent[payload].ended_at = now

    def went_back(self, subscriber: str) -> bool:
        """Whether its session went back to an earlier state, as an operator may choose."""
        return False

    def new_session(self, subscriber: str) -> None:
        self.sessions[subscriber] = self.sessions.get(subscriber, 0) + 1

    def promise(self, subscriber: str, node: Node, filter: bytes, qos: int, durable: bool, now: float) -> Promise:
        promise = Promise(subscriber, self.sessions.get(subscriber, 0), node, filter, qos, durable, now)
        self.promises.append(promise)
        if filter.startswith(GROUP):
            self.members.setdefault(filter, {})[subscriber] = None
        return promise

    def received(self, subscriber: str, payload: bytes, qos: int, most: int, promises: list[Promise]) -> None:
        """``most``: how often it may come at all, because it is wanted alone and as a member of groups."""
        sent = self.sent.get(payload)
        assert sent is not None, f"{subscriber} got {payload!r}, which nobody published"
        assert qos <= sent.qos
        got = self.got.setdefault((subscriber, self.sessions.get(subscriber, 0)), {})
        count = got[payload] = got.get(payload, 0) + 1
        if qos == 2 or self.strict:
            key = (subscriber, self.sessions.get(subscriber, 0), payload)
            alike = self.once[key] = self.once.get(key, 0) + 1
            assert alike <= most, f"{subscriber} got {payload!r}, QoS {qos}, {alike} times"
        if count == 1 and most == 1:  # two ways have two orders
            self._check_order(subscriber, sent, qos, promises)

    def replayed(self, subscriber: str, payload: bytes, now: float) -> None:
        """A retained message came, as such."""
        sent = self.sent.get(payload)
        assert sent is not None and sent.retain, f"{subscriber} got {payload!r} as retained, which it is not"
        self.replays.append((subscriber, payload, now))

    def _check_order(self, subscriber: str, sent: Sent, qos: int, promises: list[Promise]) -> None:
        if self.refusing and sent.again:
            return
        head, _, number = sent.payload.rpartition(b" ")
        key = b"%b %d" % (head, qos)  # as it came: what comes at QoS 0 overtakes what waits
        for promise in promises:
            # A message published before the SUBACK may or may not come with it; a group divides its messages.
            if promise.filter.startswith(GROUP) or sent.at < promise.since or not matches(promise.filter, sent.topic):
                continue
            last = promise.places.get(key, 0)
            assert last < int(number), f"{subscriber} got {sent.payload!r} after number {last}"
            promise.places[key] = int(number)

    # Invariants at the end

    def missing(self, calm: bool) -> list[str]:
        """Promised messages that did not come. ``calm``: nothing failed, so QoS 0 has to come too."""
        found: list[str] = []
        for sent in self.sent.values():
            if sent.delete or not (sent.acknowledged_at or (calm and sent.qos == 0)):
                continue
            for promise in self.promises:
                if self._owed(promise, sent, calm) and not self._has(promise, sent.payload):
                    durable = ", durable" if promise.durable else ""
                    found.append(
                        f"{promise.subscriber} at {promise.node.host} ({promise.filter!r}, QoS {promise.qos}{durable}) "
                        f"never got {sent.payload!r} from {sent.node.host}"
                    )
        return found

    def _owed(self, promise: Promise, sent: Sent, calm: bool) -> bool:
        if promise.since > sent.at or not matches(promise.topic_filter, sent.topic):
            return False
        if promise.until or promise.node.gone or self.lossy:
            return False
        if promise.filter.startswith(GROUP) and not calm:
            if not promise.durable or promise.qos == 0 or promise.filter in self.left:
                return False
            others = [other for other in self.promises if other.filter == promise.filter]
            if any(other.until or not other.durable or other.qos == 0 for other in others):
                return False  # it may have been given to a member that left
        if promise.qos == 0 or sent.qos == 0:
            return calm
        if promise.durable:
            return not (sent.node.gone and sent.node is not promise.node)
        crashes = [when for node in (promise.node, sent.node) for when in node.crashes]
        return not any(when > sent.at for when in crashes)  # it lives with its connection, which no crash cut

    def _has(self, promise: Promise, payload: bytes) -> bool:
        subscribers = [promise.subscriber]
        if promise.filter.startswith(GROUP):
            subscribers = list(self.members[promise.filter])
        for name in subscribers:
            for session in range(self.sessions.get(name, 0) + 1):
                if payload in self.got.get((name, session), ()):
                    return True
        return False

    def wrongly_retained(
        self, kept: dict[bytes, bytes], lost: list[bytes], written: dict[bytes, None] | None, calm: bool
    ) -> list[str]:
        """``kept``: what the cluster retains at the end (topic -> payload); ``lost``: topics that no node can show;
        ``written``: all values that etcd ever had, if they are known.

        Of the values that one node accepted the last counts; between nodes, the last one in etcd, and one that waited
        for etcd gives way to a later one. But no acknowledged value just disappears, and where nothing fails etcd has
        it soon.
        """
        if self.lossy:
            return []
        found: list[str] = []
        retained = [sent for sent in self.sent.values() if sent.retain and not sent.node.gone]
        for sent in [sent for sent in retained if sent.acknowledged_at]:
            others = [other for other in retained if other.topic == sent.topic and other is not sent]
            # It may have been given up for a later one: of its own node, or, if it waited for etcd, of any.
            later = [other for other in others if other.ended_at > sent.at]
            if written is not None and not any(o.delete or o.payload in written for o in [sent, *later]):
                found.append(f"{sent.payload!r} of {sent.node.host} was acknowledged and never retained")
            last = self.sent.get(kept.get(sent.topic, b""))
            if last is sent or sent.topic in lost:
                continue
            if last is None:
                deletes = [other for other in [sent, *others] if other.delete]
                if not any(self._may_be_last(other, others, calm) for other in deletes) and not sent.delete:
                    found.append(f"nothing is retained for {sent.topic!r}, though {sent.payload!r} was taken last")
            elif not self._may_be_last(last, [sent], calm):
                found.append(f"{last.payload!r} is retained, and {sent.payload!r} was taken after it")
        return found

    def _may_be_last(self, last: Sent, others: list[Sent], calm: bool) -> bool:
        """Whether none of the others was certainly taken after it."""
        for other in others:
            if other is last or not other.acknowledged_at:
                continue
            elsewhere = other.node is not last.node
            if elsewhere and not calm and (last.delete or other.delete):
                continue  # nothing tells how old a deletion is
            if other.at > last.ended_at + elsewhere * ELSEWHERE_SECONDS:
                return False
        return True

    def not_replayed(self) -> list[str]:
        """Retained messages that existed when a client subscribed, and came neither with the subscription nor after it,
        while no later one was retained in their place. Only when nothing failed.
        """
        found: list[str] = []
        deleted = {sent.topic for sent in self.sent.values() if sent.delete}
        for promise in self.promises:
            if promise.filter.startswith(GROUP):
                continue
            came: dict[bytes, list[Sent]] = {}  # by topic
            for name, payload, at in self.replays:
                if name == promise.subscriber and at > promise.asked_at:
                    came.setdefault(self.sent[payload].topic, []).append(self.sent[payload])
            for sent in self.sent.values():
                there = sent.retain and 0.0 < sent.acknowledged_at < promise.asked_at and sent.topic not in deleted
                if not there or not matches(promise.filter, sent.topic):
                    continue
                live = any(sent.payload in got for (name, _), got in self.got.items() if name == promise.subscriber)
                if not live and not any(self._may_be_last(o, [sent], True) for o in came.get(sent.topic, ())):
                    found.append(f"{promise.subscriber} never got {sent.payload!r}, nor what was retained after it")
        return found

    def doubled_in_groups(self) -> list[str]:
        """Messages that went to more than one member of a group: those at QoS 2, and all when nothing failed. Only
        members of nothing else are counted."""
        found: list[str] = []
        for group, members in self.members.items():
            topic_filter = group.split(b"/", 2)[2]
            holders: dict[bytes, list[str]] = {}
            for (name, _), got in self.got.items():
                if name in members:
                    for payload in got:
                        holders.setdefault(payload, []).append(name)
            for payload, names in holders.items():
                sent = self.sent[payload]
                once = self.strict or sent.qos == 2
                names = [name for name in names if not self._ended(name)]
                if once and len(names) > 1 and matches(topic_filter, sent.topic) and self._only(names, group):
                    found.append(f"{payload!r} went to {names} of {group!r}")
        return found

    def _ended(self, name: str) -> bool:
        """Whether sessions of it have ended with its node, which then may know nothing of what they got."""
        for promise in self.promises:
            kept = promise.durable and promise.node.world.settings.keeps
            if promise.subscriber == name and promise.node.crashes and not kept:
                return True
        return False

    def _only(self, names: list[str], group: bytes) -> bool:
        alone = all(list(self.asked[name]) == [group] for name in names)
        return alone and all(p.qos == 2 or self.strict for p in self.promises if p.subscriber in names)


def wanted_at(state: BrokerState) -> dict[bytes, int]:
    """The filters of a node's clients, counted by hand: 2 durable, 1 otherwise, and for a group its members."""
    wanted: dict[bytes, int] = {}
    for session in state.ctx.sessions.values():
        if session.node != 0:
            continue
        for whole, subscription in session.subscriptions():
            if whole.startswith(GROUP):
                wanted[whole] = wanted.get(whole, 0) + 1
            else:
                durable = session.expiry != 0 and subscription.qos != 0
                wanted[whole] = max(wanted.get(whole, 0), 2 if durable else 1)
    return wanted


def known_at(state: BrokerState, number: int, keys: list[bytes]) -> dict[bytes, int]:
    """The routes by which a node forwards to the node of that number: its filters, and of ``keys`` the groups."""
    session = state.ctx.cluster.links.get(number)
    if session is None:
        return {}
    known = {whole: 2 if entry.durable else 1 for whole, entry in session.subscriptions()}
    for key in keys:
        group = state.router.group(key) if key.startswith(GROUP) else None
        if group is not None and group.counts.get(number, 0) != 0:  # a node that lost its last member may say so
            known[key] = group.counts[number]
    return known


def admitted(here: BrokerState, number: int, filter: bytes, value: int) -> bool:
    """Whether a summary of the filters of the node of that number includes this one, durably if it has to be."""
    levels = filter.split(b"/")
    for summary in here.peers.summaries._by_node.get(number, {}).values():
        entry = summary.subscription
        if entry is not None and summary.level < len(levels):
            pattern = b"/".join([*levels[: summary.level], b"+", *levels[summary.level + 1 :]])
            if pattern == entry.filter and entry.durable >= (value == 2) and summary.admits(filter):
                return True
    return False


def compare(here: BrokerState, there: BrokerState) -> list[str]:
    """The routes of ``there`` that ``here`` has wrong."""
    wanted = wanted_at(there)
    number = there.ctx.node
    known = known_at(here, number, [*wanted, *GROUPS])
    summarised = [key for key in known if is_summary(key)]
    for key in summarised:
        del known[key]
    if summarised:
        known |= {
            key: value for key, value in wanted.items() if key not in known and admitted(here, number, key, value)
        }
    if wanted == known:
        return []
    return [f"n{here.ctx.node} takes the routes of n{there.ctx.node} for {known}, they are {wanted}"]


def islands(hosts: list[str], ways: set[tuple[str, str]]) -> list[set[str]]:
    """The groups of hosts that reach each other, both ways, over any others (strongly connected components)."""
    reach = {host: {host} for host in hosts}
    for _ in hosts:
        for source, target in ways:
            if source in reach and target in reach:
                for reached in reach.values():
                    if source in reached:
                        reached.add(target)
    found: list[set[str]] = []
    for host in hosts:
        if not any(host in island for island in found):
            found.append({other for other in reach[host] if host in reach[other]})
    return found
