"""Rules in a YAML file: who may connect, publish, subscribe, join a group, read a stream. The first match decides.

::

    default: deny
    clients: ["%u", "%u:*"]
    rules:
      - deny: connect
        addresses: [10.13.0.0/16]
      - allow: [publish, subscribe]
        users: [ops, "admin-*"]
        topics: ["#", "$SYS/#"]
      - allow: publish
        topics: ["sensors/%c/#"]
        qos: [0, 1]
        retain: false
      - allow: group
        topics: ["jobs/#"]
        groups: [workers]
      - allow: reply
        users: ["service-*"]
        max_replies: 1
        reply_expires: 2m

``%c`` is the client id and ``%u`` the user name. They are compared literally: a rule that allows something allows
nothing to a client whose name is missing, contains a wildcard or starts a new level; a rule that denies something
denies all that such a name could mean. ``clients`` of the file are the client ids that MQTT clients may use, whatever
the rules say. A colon separates a user name from the rest of a client id: where a pattern has one beside ``%u``, a name
that contains a colon counts as missing, so that no user has the client ids of another one.
"""

from __future__ import annotations

import re
from fnmatch import translate
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from starlingmq.config.networks import Network, parse_network
from starlingmq.config.section_types import ConfigError, Count, Duration, Section
from starlingmq.config.tree_builder import build, read_yaml
from starlingmq.core.limits.access import (
    EVENTS,
    EVERY_PUBLISH,
    GROUP,
    PUBLISH,
    REPLY,
    STREAM,
    SUBSCRIBE,
    Grant,
    ReplyGrant,
    Rights,
)
from starlingmq.core.topics.topics import valid_filter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Found = Callable[[str], object]

Action = Literal["connect", "publish", "subscribe", "group", "stream", "reply", "all"]
CONNECT: Final = 16
NOWHERE: Final = b"#"  # equals no level of a topic, and no level of a filter that is compared
USER: Final = "%u"
SEPARATOR: Final = ":"  # user names of a password file cannot contain it
REPLY_EXPIRES: Final = 120.0  # seconds
ACTIONS: Final = {
    "connect": CONNECT,
    "publish": PUBLISH,
    "subscribe": SUBSCRIBE,
    "group": GROUP,
    "stream": STREAM,
    "reply": REPLY,
    "all": CONNECT | PUBLISH | SUBSCRIBE | GROUP | STREAM,
}


class AclRule(Section, frozen=True, repr_omit_defaults=True):
    allow: Annotated[Action | tuple[Action, ...] | UnsetType, Meta(description="Allowed actions: one, or a list.")] = (
        UNSET
    )
    deny: Annotated[Action | tuple[Action, ...] | UnsetType, Meta(description="Denied actions, in place of allow.")] = (
        UNSET
    )
    users: Annotated[
        tuple[str, ...],
        Meta(description="User names, with * and ?. Default: all users. An empty name matches no user."),
    ] = ()
    clients: Annotated[
        tuple[str, ...], Meta(description="Client ids, with * and ?, and %u for the user name. Default: all.")
    ] = ()
    addresses: Annotated[tuple[str, ...], Meta(description="Addresses or networks of clients. Default: all.")] = ()
    listeners: Annotated[
        tuple[str, ...],
        Meta(description="URLs of listeners that clients come by, with * and ?, such as mqtts://*. Default: all."),
    ] = ()
    topics: Annotated[tuple[str, ...], Meta(description="Topic filters, with %c and %u. Default: all topics.")] = ()
    groups: Annotated[tuple[str, ...], Meta(description="Group names, for the action group. Default: all.")] = ()
    streams: Annotated[tuple[str, ...], Meta(description="Stream names, for the action stream. Default: all.")] = ()
    qos: Annotated[tuple[int, ...], Meta(description="QoS of published messages. Default: every QoS.")] = ()
    retain: Annotated[bool | None, Meta(description="Retain flag of published messages. Default: both values.")] = None
    max_replies: Annotated[
        Count, Meta(description="Replies allowed to each message, for allow: reply; 0: unlimited.")
    ] = 1
    reply_expires: Annotated[
        Duration,
        Meta(description="How long after a message replies to it are allowed; 0: as long as the connection exists."),
    ] = REPLY_EXPIRES


class AclFile(Section, frozen=True):
    default: Annotated[Literal["allow", "deny"], Meta(description="Decision if no rule matches.")] = "deny"
    clients: Annotated[
        tuple[str, ...],
        Meta(description="Client ids that MQTT clients may use, with *, ? and %u for the user name. Default: all."),
    ] = ()
    rules: Annotated[tuple[AclRule, ...], Meta(description="The rules in order; the first that matches decides.")] = ()


class Acl:
    """``rules`` in order, from one or more sources; ``default`` applies where no rule matches. ``clients``: patterns
    of the client ids that MQTT clients may use; none: any. ``has_file`` false: no file says ``default``, so a client
    with granted rules may do nothing else. Raises ConfigError."""

    def __init__(
        self, rules: Sequence[Rule], default: bool, clients: Sequence[str] = (), has_file: bool = True
    ) -> None:
        self.rules = tuple(rules)
        self.default = default
        self.clients = clients
        self._has_file = has_file
        self._names = Names(clients, "clients") if clients else None

    def may_be(self, client_id: str, username: str) -> bool:
        """Whether a client of this user may use this client id."""
        return self._names is None or self._names.fit(client_id, username, False)

    def may_connect(
        self, client_id: str, username: str, peer: str, granted: Sequence[Rule] = (), listener: str = ""
    ) -> bool:
        """Connecting is allowed where no rule matches: ``default`` applies to topics only."""
        for rule in (*granted, *self.rules):
            if rule.actions & CONNECT and rule.is_for(client_id, username, peer, listener):
                return rule.allow
        return True

    def default_for(self, granted: Sequence[Rule] | None) -> bool:
        return self.default and (self._has_file or granted is None)

    def rights(
        self,
        client_id: str,
        username: str,
        peer: str,
        granted: Sequence[Rule] | None = None,
        count: bool = False,
        listener: str = "",
    ) -> Rights:
        """``granted`` precedes the rules of the file: the rules of a token. ``count``: a client gets these rights."""
        grants: list[Grant] = []
        for rule in (*(granted or ()), *self.rules):
            if rule.is_for(client_id, username, peer, listener):
                rule.applied += count
                grants += rule.grants(client_id, username)
        default = self.default_for(granted)
        if default:  # it names no topic, so it does not include the broker's events
            grants.append(Grant(False, SUBSCRIBE | GROUP, 0, [EVENTS], True, b""))
        rights = Rights(grants, default)
        rights.source = None if granted is None else tuple(granted)
        return rights


class Rule:
    """One checked rule. ``applied`` counts the clients whose rights it was part of, at each login and reload. Raises
    ConfigError, whose message begins with ``where``. ``name``: of a rule that an operator has created."""

    def __init__(self, rule: AclRule, where: str, name: str = "") -> None:
        if (rule.allow is UNSET) == (rule.deny is UNSET):
            raise ConfigError(f"{where}: needs exactly one of allow and deny, with at least one action")
        self.given = rule
        self.name = name
        self.applied = 0
        self.allow = rule.allow is not UNSET
        self.actions = _actions(rule.allow if self.allow else rule.deny)
        self._users = _pattern(rule.users)
        self._clients = Names(rule.clients, f"{where}.clients") if rule.clients else None
        self._networks = [_network(text, where) for text in rule.addresses]
        self._listeners = _pattern(rule.listeners)
        for text in rule.topics:
            if not valid_filter(text.encode()):
                raise ConfigError(
                    f"{where}.topics: {text!r} is not a topic filter: + and # must be whole levels, and # the last one"
                )
        if rule.groups and not self.actions & GROUP:
            raise ConfigError(f"{where}.groups: only applies to the action group")
        if rule.streams and not self.actions & STREAM:
            raise ConfigError(f"{where}.streams: only applies to the action stream")
        if (rule.qos or rule.retain is not None) and not self.actions & PUBLISH:
            raise ConfigError(f"{where}: qos and retain only apply to the action publish")
        if (rule.max_replies != 1 or rule.reply_expires != REPLY_EXPIRES) and not (self.allow and self.actions & REPLY):
            raise ConfigError(f"{where}: max_replies and reply_expires only apply to allow: reply")
        if any(qos not in (0, 1, 2) for qos in rule.qos):
            raise ConfigError(f"{where}.qos: must be 0, 1 or 2")
        if self.actions & SUBSCRIBE and not self.allow:
            self.actions |= GROUP  # a member of a group would receive the same messages
        self._topics = [text.split("/") for text in rule.topics or ("#",)]
        self._everything = not rule.topics
        self._groups = [group.encode() for group in rule.groups] or [b""]
        self._streams = [stream.encode() for stream in rule.streams]
        self._publishes = _publishes(rule)
        self._replies = rule.max_replies, rule.reply_expires

    def is_for(self, client_id: str, username: str, peer: str, listener: str = "") -> bool:
        """``listener``: the URL; "" if it is not known: then a rule for some listeners allows nothing, and denies."""
        return (
            (self._users is None or bool(self._users(username)))
            and (self._clients is None or self._clients.fit(client_id, username, not self.allow))
            and (not self._networks or any(_within(peer, network) for network in self._networks))
            and (self._listeners is None or (bool(self._listeners(listener)) if listener else not self.allow))
        )

    def grants(self, client_id: str, username: str) -> list[Grant]:
        """The rule with the names of one client."""
        found = []
        for topic in self._topics:
            fixed, rest = self._levels(topic, client_id, username)
            hidden = self._everything or (topic[0] not in ("+", "#") and (not fixed or fixed[0] is None))
            plain = self.actions & (PUBLISH | SUBSCRIBE)
            if plain:
                found.append(Grant(self.allow, plain, self._publishes, fixed, rest, b"", hidden))
            if self.actions & GROUP:
                found += [Grant(self.allow, GROUP, 0, fixed, rest, group, hidden) for group in self._groups]
            if self.actions & REPLY:  # a topic that begins with $ must be named to be allowed
                found.append(ReplyGrant(self.allow, fixed, rest, hidden and not self.allow, *self._replies))
        if self.actions & STREAM:
            names: list[bytes | None] = [*self._streams] or [None]
            found += [Grant(self.allow, STREAM, 0, [name], False, b"", True) for name in names]
        return found

    def _levels(self, topic: list[str], client_id: str, username: str) -> tuple[list[bytes | None], bool]:
        """The levels of a topic filter for one client, and whether ``#`` follows."""
        levels: list[bytes | None] = []
        for level in topic:
            if level == "#":
                return levels, True
            named, whole = _level(level, client_id, username)
            if not levels and named is not None and named.startswith(b"$") and level[0] != "$":
                whole = whole and not self.allow  # a name must not turn a rule into one about $SYS
            if not whole and self.allow:
                levels.append(NOWHERE)
            elif not whole and named is None:
                levels.append(None)
            elif not whole:
                return levels, True
            else:
                levels.append(named)
        return levels, False


class Names:
    """Patterns of client ids, with ``*``, ``?`` and at most one ``%u`` each. Raises ConfigError."""

    def __init__(self, texts: Sequence[str], where: str) -> None:
        self._plain = _pattern([text for text in texts if USER not in text])
        self._around: list[tuple[Found, Found]] = []
        self._separated = False  # a pattern has the separator beside %u
        for text in texts:
            before, found, after = text.partition(USER)
            if USER in after:
                raise ConfigError(f"{where}: {text!r} has more than one %u")
            if found:
                self._around.append((re.compile(_glob(before)).match, re.compile(_glob(after)).match))
                self._separated |= SEPARATOR in (before[-1:], after[:1])

    def fit(self, client_id: str, username: str, missing: bool) -> bool:
        """Whether a pattern matches. ``missing``: whether a pattern with ``%u`` matches a client without a user
        name."""
        if self._plain is not None and self._plain(client_id):
            return True
        if not self._around or not username or (self._separated and SEPARATOR in username):
            return bool(self._around) and missing
        at = client_id.find(username)
        while at >= 0:
            before, after = client_id[:at], client_id[at + len(username) :]
            if any(head(before) and tail(after) for head, tail in self._around):
                return True
            at = client_id.find(username, at + 1)
        return False


def rules_of(rules: Sequence[AclRule]) -> tuple[Rule, ...]:
    """Rules of any source, in order. Raises ConfigError."""
    return tuple(Rule(rule, f"rules[{index}]") for index, rule in enumerate(rules))


def read_acl(path: str) -> Acl:
    """Raises ConfigError with one line that names the file and the rule."""
    tree = read_yaml(path)
    try:
        return acl_of(build(AclFile, tree))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def acl_of(rules: AclFile) -> Acl:
    return Acl(rules_of(rules.rules), rules.default == "allow", rules.clients)


def _actions(named: str | tuple[str, ...] | UnsetType) -> int:
    bits = 0
    for name in (named,) if isinstance(named, str) else named or ():
        bits |= ACTIONS[name]
    return bits


def _publishes(rule: AclRule) -> int:
    bits = 0
    for qos in rule.qos or (0, 1, 2):
        if rule.retain is not True:
            bits |= 1 << qos
        if rule.retain is not False:
            bits |= 1 << qos + 3
    return bits if rule.qos or rule.retain is not None else EVERY_PUBLISH


def _pattern(texts: Sequence[str]) -> Found | None:
    return re.compile("|".join(_glob(text) for text in texts)).match if texts else None


def _glob(text: str) -> str:
    """Only ``*`` and ``?`` are wildcards, since names may contain brackets."""
    return translate(text.replace("[", "[[]"))


def _network(text: str, where: str) -> Network:
    try:
        return parse_network(text)
    except ValueError:
        raise ConfigError(f"{where}.addresses: {text!r} is not an address or a network such as 10.0.0.0/8") from None


def _within(peer: str, network: Network) -> bool:
    """``peer`` is ``host:port``, ``[host]:port`` or the name of a Unix socket, which belongs to no network."""
    try:
        address = ip_address(peer.rpartition(":")[0].strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address) in network


def _level(level: str, client_id: str, username: str) -> tuple[bytes | None, bool]:
    """A level for one client, None for ``+``; and whether this is its only meaning. If not: None stands for one level
    with any name, another value for any levels from here on."""
    if level == "+":
        return None, True
    if ("%c" in level and not client_id) or ("%u" in level and not username):
        return None, False
    named = re.sub("%[cu]", lambda found: client_id if found[0] == "%c" else username, level)
    if named != level and re.search("[#/]", named):
        return NOWHERE, False
    if named != level and "+" in named:
        return None, False
    return named.encode(), True
