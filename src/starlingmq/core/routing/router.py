"""From a topic to its receivers, remembered.

``resolve`` answers from a dict by encoded topic, so that the cost of a PUBLISH does not depend on how many other
subscriptions there are. An entry made before the last change to the wildcard filters is looked up anew when it is next
used; a change to a filter without wildcards only touches its own topic.
"""

from __future__ import annotations

from collections import deque
from typing import Final, cast

from starlingmq.core.groups.group import Group
from starlingmq.core.groups.group_port import GroupPort
from starlingmq.core.groups.member_selection import RANDOM, STRATEGIES
from starlingmq.core.routing.filter_tree import FilterTree
from starlingmq.core.routing.stream import Stream
from starlingmq.core.routing.topics import levels, of_the_node, valid_text, valid_topic
from starlingmq.core.session.session import Session, Subscription, merge
from starlingmq.wire.reasons import MalformedPacket, ProtocolError, Reason

EVENTS: Final = b"$events/"  # what becomes of messages (core.observe.audit)
CACHED_TOPICS: Final = 65536
CACHED_RECEIVERS: Final = 1 << 20  # of all cached topics together: many topics, each with many receivers, are too many


class Route:
    """The receivers of one topic: at most one subscription a session, the shared groups, and the streams."""

    subscriptions: list[Subscription]
    groups: list[Group]
    streams: list[Stream]
    version: int
    reserved: bool  # a topic that only the broker publishes to
    kept: bool  # somebody wants it at QoS 1 or 2: sessions here, durable ones elsewhere, groups, streams

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
        self.kept = len(groups) != 0 or len(streams) != 0
        for subscription in subscriptions:
            if subscription.qos != 0 and (subscription.session.node == 0 or subscription.durable):
                self.kept = True
                break


class Router:
    tree: FilterTree
    version: int  # counts the changes to wildcard filters
    _cache: dict[bytes, Route]
    _order: deque[bytes]  # the topics in ``_cache``, in the order in which they came, and some that were let go
    _receivers: int  # of all routes in ``_cache``
    sharing: GroupPort  # looks after the messages of groups; it is set once it is there
    event_filters: int  # of streams that keep the broker's own events
    unreached: dict[int, None]  # other nodes whose stream has just ended, or that are not connected
    alone: bool  # there are no other nodes: this one chooses the members of every group
    strategies: dict[bytes, int]  # of groups by name
    strategy: int  # of all others
    _groups: dict[bytes, Group]  # by "name/filter"
    _seed: int
    _max_length: int
    _max_levels: int

    def __init__(self, seed: int, max_length: int, max_levels: int) -> None:
        self.tree = FilterTree()
        self.version = 0
        self._cache = {}
        self._order = deque()
        self._receivers = 0
        self.event_filters = 0
        self.unreached = {}
        self.alone = True
        self.strategies = {}
        self.strategy = RANDOM
        self._groups = {}
        self._seed = seed
        self.configure(max_length, max_levels)

    def configure(self, max_length: int, max_levels: int) -> None:
        """Take new limits; what is cached is looked at anew."""
        self._max_length = max_length
        self._max_levels = max_levels
        self.version += 1

    def cached(self) -> int:
        """How many topics have a route at hand."""
        return len(self._cache)

    def resolve(self, topic: bytes) -> Route:
        """Who gets what is published to ``topic``. Raises ProtocolError for what is not a topic [MQTT-3.3.2-2]."""
        route = self._cache.get(topic)
        if route is not None and route.version == self.version:
            return route
        return self._look_up(topic)

    def _look_up(self, topic: bytes) -> Route:
        reserved = of_the_node(topic)  # limits for clients do not apply
        if not valid_text(topic):
            raise MalformedPacket("the topic name is not UTF-8, or contains U+0000")
        if not valid_topic(topic) or (len(topic) > self._max_length and not reserved):
            raise ProtocolError("the topic name is not valid", Reason.TOPIC_NAME_INVALID)
        if levels(topic) > self._max_levels and not reserved:
            raise ProtocolError(f"the topic has more than {self._max_levels} levels", Reason.TOPIC_NAME_INVALID)
        subscriptions: list[Subscription] = []
        groups: list[Group] = []
        streams: list[Stream] = []
        overlapping: dict[str, list[Subscription]] | None = None
        for value in self.tree.match(topic):
            if isinstance(value, Group):
                groups.append(value)
                continue
            if isinstance(value, Stream):
                if value not in streams:
                    streams.append(value)
                continue
            subscription = cast(Subscription, value)
            if subscription.session.ended or (reserved and subscription.session.node != 0):
                continue  # every node has figures of its own
            of_session = subscription.session.subscriptions
            if of_session is not None and len(of_session) > 1:
                if overlapping is None:
                    overlapping = {}
                overlapping.setdefault(subscription.session.client_id, []).append(subscription)
            else:
                subscriptions.append(subscription)
        if overlapping is not None:
            for several in overlapping.values():
                subscriptions.append(several[0] if len(several) == 1 else merge(several))
        route = Route(subscriptions, groups, streams, self.version, reserved)
        self._remember(topic, route)
        return route

    def _remember(self, topic: bytes, route: Route) -> None:
        """Put a route into the cache; what has been there for longest makes room, little by little."""
        previous = self._cache.get(topic)
        if previous is None:
            self._order.append(topic)
        else:
            self._receivers -= len(previous.subscriptions)
        self._cache[topic] = route
        self._receivers += len(route.subscriptions)
        while len(self._order) > CACHED_TOPICS or (self._receivers > CACHED_RECEIVERS and len(self._order) > 1):
            self._let_go(self._order.popleft())

    def _let_go(self, topic: bytes) -> None:
        route = self._cache.pop(topic, None)
        if route is not None:
            self._receivers -= len(route.subscriptions)

    def subscribe(self, subscription: Subscription) -> None:
        self.tree.add(subscription.filter, subscription.key(), subscription)
        self._changed(subscription.filter)

    def unsubscribe(self, filter: bytes, key: object) -> None:
        self.tree.remove(filter, key)
        self._changed(filter)

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
        """How members are chosen; groups that are there choose so from now on."""
        self.strategy = STRATEGIES.index(strategy)
        self.strategies = {name.encode(): STRATEGIES.index(each) for name, each in strategies.items()}
        for group in self._groups.values():
            group.strategy = self._strategy_of(group.name)

    def dissolve(self, group: Group) -> bool:
        """A group without members is none: whether it was one."""
        if group.members or group.nodes or group.gone_at != 0.0:
            return False
        if self._groups.pop(group.name + b"/" + group.filter, None) is None:
            return False
        self.tree.remove(group.filter, group)
        self._changed(group.filter)
        return True

    def leave(self, name: bytes, filter: bytes, session: Session, lost: bool) -> None:
        """``lost``: with its connection, not because it wanted to."""
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
        """The group of what a store has in line for it, though nobody may be a member."""
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
        """Have a stream keep what is published to its filters from now on."""
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
        if b"+" in filter or b"#" in filter:
            self.version += 1
        else:
            self._let_go(filter)
