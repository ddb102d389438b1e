"""The rights of one client: ordered rules of which the first match decides, and a cache of decisions.

A rule names topics by a filter. For a publish, the filter matches the topic or does not. A subscription covers many
topics, and is granted only if each of them is allowed, whatever rule decides about it: a rule that denies some of them
denies the subscription. So deliveries need no check, unless the message has waited and the rules have changed
meanwhile. NATS clients get a subscription that is denied in part, as from a NATS server, and so do MQTT clients with
``filters`` (``auth.acl.filter: deliver``): its topics are checked one by one.

A rule may allow replies: the receiver of a request may publish to its reply topic, even if nothing else allows that
(``core.limits.response_rights``).
"""

from __future__ import annotations

from typing import Final

from starlingmq.core.topics.topics import LONG
from starlingmq.core.turn.base_context import BaseContext

PUBLISH: Final = 1
SUBSCRIBE: Final = 2
GROUP: Final = 4  # join a shared subscription or a queue group
STREAM: Final = 8  # read a stream
REPLY: Final = 32  # publish to the reply topic of a received message; starlingmq.auth.acl uses 16

NOTHING: Final = 0  # of the topics that a filter matches
PART: Final = 1
WHOLE: Final = 2

EVERY_PUBLISH: Final = 0b111111  # bits of ``Grant.publishes``: QoS 0 to 2 without the retain flag, then with it
EVENTS: Final = b"$events"  # reveals who communicates with whom: only a rule that names it allows it
REMEMBERED: Final = 1000  # topics per client ...
REMEMBERED_BYTES: Final = 32 << 10  # ... and their bytes, as a client may choose them; long ones are not remembered
GRANT_SHARE: Final = 4  # rules that are compared with a topic, per unit of work


class Grant:
    """One rule for one client. Levels are compared literally, so a wildcard in a client id is none.

    ``levels`` has None for ``+``; ``rest``: ``#`` follows. ``group`` b"" matches all groups. ``hidden``: a leading
    wildcard also matches topics that begin with ``$``; but a rule that allows them does not allow ``$events``.
    """

    allow: bool
    actions: int
    publishes: int
    levels: list[bytes | None]
    rest: bool
    group: bytes
    hidden: bool

    def __init__(
        self,
        allow: bool,
        actions: int,
        publishes: int,
        levels: list[bytes | None],
        rest: bool,
        group: bytes,
        hidden: bool = False,
    ) -> None:
        self.allow = allow
        self.actions = actions
        self.publishes = publishes
        self.levels = levels
        self.rest = rest
        self.group = group
        self.hidden = hidden

    def _passes_over(self, first: bytes) -> bool:
        """Whether topics with this first level begin with ``$`` and are excluded by the leading wildcard of the rule
        [MQTT-4.7.2-1]."""
        if not first.startswith(b"$") or (self.levels and self.levels[0] is not None):
            return False
        return not self.hidden or (self.allow and first == EVENTS)

    def matches(self, topic: list[bytes]) -> bool:
        """Whether the rule applies to this topic, given by its levels."""
        levels = self.levels
        if len(topic) < len(levels) or (len(topic) > len(levels) and not self.rest):
            return False
        if self._passes_over(topic[0]):
            return False
        return all(level is None or level == topic[depth] for depth, level in enumerate(levels))

    def covers(self, filter: list[bytes]) -> bool:
        """Whether the rule applies to all topics that the filter matches."""
        levels = self.levels
        open_end = filter[-1] == b"#"
        fixed = len(filter) - 1 if open_end else len(filter)
        if self._passes_over(filter[0]) or fixed < len(levels) or ((open_end or fixed > len(levels)) and not self.rest):
            return False
        return all(level is None or level == filter[depth] for depth, level in enumerate(levels))

    def overlaps(self, filter: list[bytes]) -> bool:
        """Whether the rule applies to some topic that the filter matches."""
        levels = self.levels
        first = levels[0] if levels else None
        if self._passes_over(filter[0]) or (
            first is not None and first.startswith(b"$") and (filter[0] == b"+" or filter[0] == b"#")
        ):
            return False
        open_end = filter[-1] == b"#"
        fixed = len(filter) - 1 if open_end else len(filter)
        if (fixed > len(levels) and not self.rest) or (fixed < len(levels) and not open_end):
            return False
        for depth in range(min(fixed, len(levels))):
            level = levels[depth]
            if level is not None and filter[depth] != b"+" and level != filter[depth]:
                return False
        return True


class ReplyGrant(Grant):
    """A rule that allows ``count`` replies (0: any number) to each message for ``seconds`` (0.0: as long as the client
    is connected)."""

    count: int
    seconds: float

    def __init__(
        self, allow: bool, levels: list[bytes | None], rest: bool, hidden: bool, count: int, seconds: float
    ) -> None:
        super().__init__(allow, REPLY, 0, levels, rest, b"", hidden)
        self.count = count
        self.seconds = seconds


_UNPAID: Final = BaseContext(0.0)


class Rights:
    """``default`` decides where no rule matches."""

    ctx: BaseContext  # its work pays for comparisons with rules; set when a client gets the rights
    grants: list[Grant]
    default: bool
    replies: bool  # a rule allows replies
    filters: bool  # an MQTT subscription that is allowed in part is granted
    proved: bool  # the client has proved its identity, rather than only named it
    source: object  # a note of the authentication method
    _publishes: dict[bytes, int]
    _receives: dict[bytes, bool]
    _bytes: int  # of the topics of both

    def __init__(self, grants: list[Grant], default: bool) -> None:
        self.ctx = _UNPAID
        self.grants = grants
        self.default = default
        self.replies = any(grant.allow and grant.actions & REPLY for grant in grants)
        self.filters = False
        self.proved = False
        self.source = None
        self._publishes = {}
        self._receives = {}
        self._bytes = 0

    def may_publish(self, topic: bytes, qos: int, retain: bool) -> bool:
        known = self._publishes.get(topic, -1)
        if known < 0:
            known = self._learn(topic)
        return known >> (qos + 3 if retain else qos) & 1 != 0

    def _learn(self, topic: bytes) -> int:
        levels = topic.split(b"/")
        allowed = 0
        undecided = EVERY_PUBLISH
        self.ctx.work -= len(self.grants) // GRANT_SHARE
        for grant in self.grants:
            if grant.actions & PUBLISH and grant.publishes & undecided and grant.matches(levels):
                if grant.allow:
                    allowed |= grant.publishes & undecided
                undecided &= ~grant.publishes
                if not undecided:
                    break
        if self.default:
            allowed |= undecided
        if self._remembers(topic):
            self._publishes[topic] = allowed
        return allowed

    def _remembers(self, topic: bytes) -> bool:
        """Whether the decision about a topic is remembered. Makes room for it."""
        if len(topic) > LONG:
            return False
        self._bytes += len(topic)
        if self._bytes > REMEMBERED_BYTES or len(self._publishes) + len(self._receives) >= REMEMBERED:
            self._publishes = {}
            self._receives = {}
            self._bytes = len(topic)
        return True

    def reply(self, topic: bytes) -> ReplyGrant | None:
        """The rule that allows replies to this topic. An earlier rule that denies publishing to it denies replies,
        too."""
        levels = topic.split(b"/")
        self.ctx.work -= len(self.grants) // GRANT_SHARE
        for grant in self.grants:
            if not grant.matches(levels):
                continue
            if grant.actions & REPLY:
                return grant if grant.allow and isinstance(grant, ReplyGrant) else None
            if grant.actions & PUBLISH and not grant.allow and grant.publishes & 1:
                return None
        return None

    def may_ask(self, topic: bytes) -> bool:
        """Whether the broker answers requests to this topic below ``$SYS/REQ``. This needs a rule that names these two
        levels, as operators have; wildcards there and ``default`` do not allow it."""
        levels = topic.split(b"/")
        self.ctx.work -= len(self.grants) // GRANT_SHARE
        for grant in self.grants:
            if grant.actions & PUBLISH and grant.publishes & 1 and grant.matches(levels):
                if not grant.allow:
                    return False
                if grant.levels[:2] == levels[:2]:
                    return self.proved
        return False

    def may_subscribe(self, filter: bytes, group: bytes) -> bool:
        """``group`` b"": an ordinary subscription."""
        return self.extent(filter, group) == WHOLE

    def granted(self, filter: bytes, group: bytes) -> int:
        """How much of an MQTT subscription is granted: ``NOTHING``, ``PART`` or ``WHOLE``. For a member of a shared
        group it is all or nothing: a message given to a member that may not receive it would be lost for the others."""
        found = self.extent(filter, group)
        if found == WHOLE or group or not self.filters:
            return WHOLE if found == WHOLE else NOTHING
        return PART if found == PART or self._allows_some(filter) else NOTHING

    def _allows_some(self, filter: bytes) -> bool:
        """Whether a rule allows some topic that the filter matches, and no earlier rule denies all of them."""
        levels = filter.split(b"/")
        for grant in self.grants:
            if grant.actions & SUBSCRIBE and not grant.group:
                if grant.allow and grant.overlaps(levels):
                    return True
                if not grant.allow and grant.covers(levels):
                    return False
        return False

    def extent(self, filter: bytes, group: bytes) -> int:
        """How much of what the filter matches may be received: ``NOTHING``, ``PART`` or ``WHOLE``."""
        levels = filter.split(b"/")
        action = GROUP if group else SUBSCRIBE
        found = WHOLE
        self.ctx.work -= len(self.grants) // GRANT_SHARE
        for grant in self.grants:
            if not grant.actions & action or (grant.group and grant.group != group):
                continue
            if grant.allow:
                if grant.covers(levels):
                    return found
            elif grant.covers(levels):
                return NOTHING
            elif grant.overlaps(levels):
                found = PART
        return found if self.default else NOTHING

    def may_publish_all(self, filter: bytes) -> bool:
        """Whether every topic that the filter matches may be published to, at QoS 0."""
        levels = filter.split(b"/")
        self.ctx.work -= len(self.grants) // GRANT_SHARE
        for grant in self.grants:
            if grant.actions & PUBLISH and grant.publishes & 1:
                if grant.allow and grant.covers(levels):
                    return True
                if not grant.allow and grant.overlaps(levels):
                    return False
        return self.default

    def may_receive(self, topic: bytes) -> bool:
        """Whether a subscription to exactly this topic would be allowed. It is if a subscription that matches it is
        allowed."""
        known = self._receives.get(topic)
        if known is None:
            known = self.may_subscribe(topic, b"")
            if self._remembers(topic):
                self._receives[topic] = known
        return known

    def may_read(self, stream: bytes) -> bool:
        """Whether the stream with this name may be read."""
        for grant in self.grants:
            if grant.actions & STREAM and grant.matches([stream]):
                return grant.allow
        return self.default
