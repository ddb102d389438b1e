"""From a topic to its receivers, with a cache.

``resolve`` answers from a dict by encoded topic, so the cost of a PUBLISH does not depend on the number of other
subscriptions. An entry that is older than the last change of wildcard filters is looked up again when it is next used;
a change of a filter without wildcards touches only its own topic.

Clients choose topics and filters, and so the cost of a search and the size of the cache. So a search counts as work of
the turn by what it visits and finds, and the cache is bounded by its topics, their bytes and their receivers, has no
long topics, and lets each one go after a while.
"""

from __future__ import annotations

from collections import deque
from typing import Final, cast

from starlingmq.core.groups.group import Group
from starlingmq.core.groups.group_port import GroupPort
from starlingmq.core.groups.member_selection import RANDOM, STRATEGIES
from starlingmq.core.router.contract import Contract, contract_of
from starlingmq.core.router.filter_summary import FilterSummary
from starlingmq.core.router.stream import Stream
from starlingmq.core.session.session import Session, Subscription, merge
from starlingmq.core.topics.filter_tree import FilterTree
from starlingmq.core.topics.topics import LONG, levels, of_the_broker, of_the_node, valid_text, valid_topic
from starlingmq.core.turn.base_context import BaseContext
from starlingmq.core.turn.job import Job
from starlingmq.wire.characters import HASH, PLUS
from starlingmq.wire.reasons import MalformedPacket, ProtocolError, Reason

EVENTS: Final = b"$events/"  # events of messages (core.observe.audit)
CACHED_TOPICS: Final = 65536
CACHED_RECEIVERS: Final = 1 << 20  # of all cached topics together: bounds many topics with many receivers each
CACHED_BYTES: Final = 8 << 20  # of their names
VISIT_WORK: Final = 2  # for a node that a search visits; a subscription that it finds is a unit, merged two
LET_GO_AT_ONCE: Final = 4096  # cached topics


class Route:
    """The receivers of one topic: at most one subscription per session, the shared groups, and the streams."""

    subscriptions: list[Subscription]
    groups: list[Group]
    streams: list[Stream]
    version: int
    reserved: bool  # a topic to which only the broker publishes
    kept: bool  # a receiver wants QoS 1 or 2: sessions here, durable ones elsewhere, groups, streams
    sequenced: Stream | None  # the one of ``streams`` that answers publishers
    contract: Contract | None  # of the topic: payloads are checked
    given_up: bool  # the search was too expensive: it has no receivers, and its messages are counted as dropped

    def __init__(
        self,
        subscriptions: list[Subscription],
        groups: list[Group],
        streams: list[Stream],
        version: int,
        reserved: bool,
    ) -> None:
        self.subscriptions = subscriptions
        self.groups = groups
        self.streams = streams
        self.version = version
        self.reserved = reserved
        self.given_up = False
        self.contract = None
        self.kept = len(groups) != 0 or len(streams) != 0
        self.sequenced = None
        for stream in streams:
            if stream.sequenced:
                self.sequenced = stream
        for subscription in subscriptions:
            if subscription.qos != 0 and (subscription.session.node == 0 or subscription.durable):
                self.kept = True
                break

    def wanted_here(self) -> bool:
        """Whether a subscriber of this node, a group or a stream wants the topic."""
        return len(self.groups) != 0 or len(self.streams) != 0 or self.has_subscribers_here()

    def has_subscribers_here(self) -> bool:
        return any(subscription.session.node == 0 for subscription in self.subscriptions)


class FilterWatcher(Job):
    def change(self, filter: bytes) -> None:
        """Subscribers with this filter have come or gone."""
        raise NotImplementedError


class Router:
    ctx: BaseContext  # its work pays for searches; the broker's, set after construction
    tree: FilterTree
    version: int  # counts changes of wildcard filters
    checks: bool  # a subscription has been checked by rights
    _cache: dict[bytes, Route]
    _order: deque[bytes]  # the topics in ``_cache``, in the order of their addition, and some that were removed
    _receivers: int  # of all routes in ``_cache``
    _bytes: int  # of all topics in ``_order``
    _gone: int  # topics that have left ``_order``
    _young: int  # the sum of ``_gone`` and of the length of ``_order`` at the last ``age`` ...
    _old: int  # ... and at the one before: topics up to it are let go
    sharing: GroupPort  # handles the messages of groups; set after construction
    event_filters: int  # of streams that keep the broker's own events
    unreached: dict[int, None]  # other nodes that are not connected, or became unreachable
    alone: bool  # there are no other nodes: this one selects the members of all groups
    strategies: dict[bytes, int]  # of groups by name
    strategy: int  # of all others
    awaited: dict[bytes, None]  # topics whose subscribers are counted for push consumers
    awaited_changes: int  # counts changes of filters that are one of these, and of the nodes that are reached;
    # ``version`` counts changes of those with wildcards
    contracts: list[Contract]
    watcher: FilterWatcher | None  # is told which filters have got or lost subscribers
    _letters: set[bytes]  # topics of messages that broke a contract: they are not checked again
    _groups: dict[bytes, Group]  # by "name/filter"
    _seed: int
    _max_length: int
    _max_levels: int

    def __init__(self, seed: int, max_length: int, max_levels: int) -> None:
        self.ctx = BaseContext(0.0)
        self.tree = FilterTree()
        self.version = 0
        self.checks = False
        self._cache = {}
        self._order = deque()
        self._receivers = 0
        self._bytes = 0
        self._gone = 0
        self._young = 0
        self._old = 0
        self.event_filters = 0
        self.unreached = {}
        self.alone = True
        self.strategies = {}
        self.strategy = RANDOM
        self.contracts = []
        self._letters = set()
        self.watcher = None
        self.awaited = {}
        self.awaited_changes = 0
        self._groups = {}
        self._seed = seed
        self.configure(max_length, max_levels)

    def configure(self, max_length: int, max_levels: int) -> None:
        """Apply new limits; cached routes are looked up again."""
        self._max_length = max_length
        self._max_levels = max_levels
        self.version += 1

    def use_contracts(self, contracts: list[Contract]) -> None:
        self.contracts = contracts
        self._letters = {each.letters for each in contracts}
        self.version += 1

    def cached(self) -> int:
        """Number of topics with a cached route."""
        return len(self._cache)

    def resolve(self, topic: bytes) -> Route:
        """The route of ``topic``. Raises ProtocolError for an invalid topic [MQTT-3.3.2-2]."""
        route = self._cache.get(topic)
        if route is not None and route.version == self.version:
            return route
        return self._look_up(topic)

    def check(self, topic: bytes) -> None:
        """Raises MqttError for a topic for which ``resolve`` would raise it, without a search."""
        if topic not in self._cache:
            self._check(topic, of_the_node(topic))

    def _check(self, topic: bytes, reserved: bool) -> None:
        """``reserved``: limits for clients do not apply."""
        if not valid_text(topic):
            raise MalformedPacket("the topic name is not UTF-8, or contains U+0000")
        if not valid_topic(topic) or (len(topic) > self._max_length and not reserved):
            raise ProtocolError("the topic name is not valid", Reason.TOPIC_NAME_INVALID)
        if levels(topic) > self._max_levels and not reserved:
            raise ProtocolError(f"the topic has more than {self._max_levels} levels", Reason.TOPIC_NAME_INVALID)

    def _look_up(self, topic: bytes) -> Route:
        reserved = of_the_node(topic)
        self._check(topic, reserved)
        subscriptions: list[Subscription] = []
        groups: list[Group] = []
        streams: list[Stream] = []
        overlapping: dict[str, list[Subscription]] | None = None
        matching = self.tree.match(topic)
        work = VISIT_WORK * self.tree.visits + len(matching)
        gave_up = self.tree.gave_up
        for value in matching:
            if isinstance(value, Group):
                groups.append(value)
                continue
            if isinstance(value, Stream):
                if value not in streams:
                    streams.append(value)
                continue
            if isinstance(value, FilterSummary):
                if value.subscription is None or not value.admits(topic):
                    continue
                subscription = value.subscription
            else:
                subscription = cast(Subscription, value)
            if subscription.session.ended or (reserved and subscription.session.node != 0):
                continue  # each node has its own figures
            if subscription.checked_by is not None and not subscription.checked_by.may_receive(topic):
                continue
            if subscription.session.subscription_count() > 1:
                work += 1
                if overlapping is None:
                    overlapping = {}
                client_id = subscription.session.client_id
                several = overlapping.get(client_id)
                if several is None:
                    overlapping[client_id] = [subscription]
                else:
                    several.append(subscription)
            else:
                subscriptions.append(subscription)
        if overlapping is not None:
            for several in overlapping.values():
                subscriptions.append(several[0] if len(several) == 1 else merge(several))
        self.ctx.work -= work
        route = Route(subscriptions, groups, streams, self.version, reserved or of_the_broker(topic))
        route.given_up = gave_up
        if self.contracts and not route.reserved and topic not in self._letters:
            route.contract = contract_of(self.contracts, topic)
        self._remember(topic, route)
        return route

    def _remember(self, topic: bytes, route: Route) -> None:
        """Add a route to the cache. The oldest entries make room, some at a time."""
        if len(topic) > LONG:
            return
        previous = self._cache.get(topic)
        if previous is None:
            self._order.append(topic)
            self._bytes += len(topic)
        else:
            self._receivers -= len(previous.subscriptions)
        self._cache[topic] = route
        self._receivers += len(route.subscriptions)
        while (
            len(self._order) > CACHED_TOPICS
            or self._bytes > CACHED_BYTES
            or (self._receivers > CACHED_RECEIVERS and len(self._order) > 1)
        ):
            self._let_go_oldest()

    def _let_go_oldest(self) -> None:
        topic = self._order.popleft()
        self._bytes -= len(topic)
        self._gone += 1
        self._let_go(topic)

    def _let_go(self, topic: bytes) -> None:
        route = self._cache.pop(topic, None)
        if route is not None:
            self._receivers -= len(route.subscriptions)

    def age(self) -> None:
        """A period is over: topics that were cached before the last period began are let go, by ``let_old_go``."""
        self._old, self._young = self._young, self._gone + len(self._order)

    def let_old_go(self) -> None:
        """Let go some of the topics that have been cached for more than a period; those in use are looked up again."""
        for _ in range(min(self._old - self._gone, LET_GO_AT_ONCE)):
            self._let_go_oldest()
        if not self._order:
            self._cache = {}  # an empty dict keeps its room

    def forget(self) -> None:
        """Empty the cache: memory is short."""
        self._gone += len(self._order)
        self._cache, self._order = {}, deque()
        self._receivers = self._bytes = 0

    def subscribe(self, subscription: Subscription) -> None:
        self.tree.add(subscription.filter, subscription.key(), subscription)
        self._changed(subscription.filter)

    def unsubscribe(self, filter: bytes, key: object) -> None:
        self.tree.remove(filter, key)
        self._changed(filter)

    def check_again(self) -> None:
        """The rights of some subscription have changed: routes are looked up again."""
        self.checks = True
        self.version += 1

    def summarise(self, summary: FilterSummary) -> None:
        """From now on, messages for the filters of this shape go to the node of ``summary`` if it admits them."""
        assert summary.subscription is not None
        self.tree.add(summary.subscription.filter, summary, summary)
        self.version += 1

    def unsummarise(self, summary: FilterSummary) -> None:
        assert summary.subscription is not None
        self.tree.remove(summary.subscription.filter, summary)
        summary.subscription = None
        self.version += 1

    def look_up_again(self, summary: FilterSummary) -> None:
        """A summary has changed: the routes of the topics that were looked up in it are not valid any more."""
        topics = summary.looked_up.take()
        if topics is None:
            self.version += 1
            return
        for topic in topics:
            self._let_go(topic)
            if len(self.awaited) != 0 and topic in self.awaited:
                self.awaited_changes += 1

    def join(self, name: bytes, subscription: Subscription) -> None:
        """Make a session a member of the shared group ``name`` for ``subscription.filter``."""
        key = name + b"/" + subscription.filter
        group = self._groups.get(key)
        if group is None:
            group = self._make_group(name, subscription.filter)
        group.join(subscription)
        self.sharing.joined(group)

    def _make_group(self, name: bytes, filter: bytes) -> Group:
        self._seed += 1
        group = self._groups[name + b"/" + filter] = Group(
            name, filter, self._seed, self._strategy_of(name), self.unreached
        )
        group.primary = self.alone
        self.tree.add(filter, group, group)
        self._changed(filter)
        return group

    def _strategy_of(self, name: bytes) -> int:
        return self.strategies.get(name, self.strategy)

    def configure_groups(self, strategy: str, strategies: dict[str, str]) -> None:
        """Set the strategies of member selection, also for existing groups."""
        self.strategy = STRATEGIES.index(strategy)
        self.strategies = {name.encode(): STRATEGIES.index(each) for name, each in strategies.items()}
        for group in self._groups.values():
            group.strategy = self._strategy_of(group.name)

    def dissolve(self, group: Group) -> bool:
        """Remove a group that has no members. Returns whether it was removed."""
        if group.members or group.nodes or group.gone_at != 0.0:
            return False
        if self._groups.pop(group.name + b"/" + group.filter, None) is None:
            return False
        self.tree.remove(group.filter, group)
        self._changed(group.filter)
        return True

    def leave(self, name: bytes, filter: bytes, session: Session, lost: bool) -> None:
        """``lost``: with its connection, not by unsubscribing."""
        group = self._groups.get(name + b"/" + filter)
        if group is None:
            return
        had = len(group.members)
        group.leave(session)
        if had != 0 and not group.members:
            self.sharing.emptied(group, lost)

    def group(self, key: bytes) -> Group | None:
        """The group of ``$share/name/filter``."""
        return self._groups.get(key[7:])

    def groups(self) -> list[Group]:
        return list(self._groups.values())

    def waits_for(self, name: bytes, filter: bytes) -> Group:
        """The group whose messages a store has, even if it has no member."""
        return self._groups.get(name + b"/" + filter) or self._make_group(name, filter)

    def join_node(self, name: bytes, subscription: Subscription, count: int) -> None:
        """Another node has ``count`` members of the shared group ``name``; ``subscription`` is that node's."""
        key = name + b"/" + subscription.filter
        group = self._groups.get(key)
        if group is None:
            if count == 0:
                return
            group = self._make_group(name, subscription.filter)
        group.join_node(subscription, count)
        if not group.members and not group.nodes and group.gone_at == 0.0:
            self.sharing.emptied(group, False)
        else:
            self.sharing.changed(group)

    def leave_node(self, name: bytes, filter: bytes, node: int) -> None:
        group = self._groups.get(name + b"/" + filter)
        if group is not None:
            group.leave_node(node)
            if not group.members and not group.nodes and group.gone_at == 0.0:
                self.sharing.emptied(group, False)

    def add_stream(self, stream: Stream) -> None:
        """From now on, add messages that match its filters to a stream."""
        for filter in stream.filters:
            self.tree.add(filter, stream, stream)
            self._changed(filter)
            if filter.startswith(EVENTS):
                self.event_filters += 1

    def remove_stream(self, stream: Stream) -> None:
        for filter in stream.filters:
            self.tree.remove(filter, stream)
            self._changed(filter)
            if filter.startswith(EVENTS):
                self.event_filters -= 1

    def _changed(self, filter: bytes) -> None:
        if self.watcher is not None:
            self.watcher.change(filter)
        if PLUS in filter or HASH in filter:
            self.version += 1
        else:
            self._let_go(filter)
            if len(self.awaited) != 0 and filter in self.awaited:
                self.awaited_changes += 1
