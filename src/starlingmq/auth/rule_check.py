"""Whether a client may do something by the present rules, and which rule decides: for operators who ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from starlingmq.auth.acl import CONNECT, Acl, Rule
from starlingmq.core.limits.access import PART, WHOLE, Rights

CheckedAction = Literal["connect", "publish", "subscribe", "group"]


class RuleQuestion(NamedTuple):
    """``peer`` is address:port. ``topic`` is a filter for subscribe and group. ``granted``: the rules of the client's
    token, which come first; None: it has none. ``connected``: its client id was admitted."""

    client_id: str
    username: str
    peer: str
    action: CheckedAction
    topic: bytes
    qos: int
    retain: bool
    group: bytes
    granted: Sequence[Rule] | None
    connected: bool = False
    listener: str = ""


class RuleAnswer(NamedTuple):
    """``reason`` is one line."""

    allowed: bool
    reason: str


def check_rules(acl: Acl | None, file: str, question: RuleQuestion, filters: bool = False) -> RuleAnswer:
    """``acl`` None: there are no rules but those of a token. ``filters``: ``auth.acl.filter`` is ``deliver``."""
    granted = tuple(question.granted or ())
    rules, default = granted, question.granted is None
    if acl is not None:
        rules, default = (*granted, *acl.rules), acl.default_for(question.granted)
        if not question.connected and not acl.may_be(question.client_id, question.username):
            return RuleAnswer(False, f"this user may not use this client id (clients in {file})")
    named = _Names(file, len(granted), rules)
    verdict = _connect(rules, question, named)
    if question.action == "connect" or not verdict.allowed:
        return verdict
    if not rules and acl is None:
        return RuleAnswer(True, "there are no rules (auth.acl.file, ctl rule set), so everything is allowed")
    own = [(number, rule) for number, rule in enumerate(rules, 1) if _is_for(rule, question)]
    found = _topic(own, default, question, named)
    if filters and not found.allowed and question.action == "subscribe":
        rights = _rights(Acl(rules, default), question)
        rights.filters = True
        if rights.granted(question.topic, b"") == PART:
            return RuleAnswer(True, f"{found.reason}: messages that it denies are left out (auth.acl.filter: deliver)")
    return found


class _Names(NamedTuple):
    file: str
    granted: int
    rules: Sequence[Rule]

    def rule(self, number: int) -> str:
        """Of rule ``number``, from 1."""
        if number <= self.granted:
            return f"rule {number} of its token"
        if name := self.rules[number - 1].name:
            return f"rule {name!r}, which an operator has created,"
        return f"rule {number - self.granted} in {self.file}"


def _connect(rules: Sequence[Rule], question: RuleQuestion, named: _Names) -> RuleAnswer:
    for number, rule in enumerate(rules, 1):
        if rule.actions & CONNECT and _is_for(rule, question):
            return RuleAnswer(rule.allow, f"{named.rule(number)} decides about connecting")
    return RuleAnswer(True, "no rule is about connecting, so it is allowed")


def _is_for(rule: Rule, question: RuleQuestion) -> bool:
    return rule.is_for(question.client_id, question.username, question.peer, question.listener)


def _rights(acl: Acl, question: RuleQuestion) -> Rights:
    return acl.rights(question.client_id, question.username, question.peer, listener=question.listener)


def _topic(own: Sequence[tuple[int, Rule]], default: bool, question: RuleQuestion, named: _Names) -> RuleAnswer:
    """``own``: the rules for this client with their numbers. Rules in order decide as soon as the default makes no
    difference any more, and it stays so with more rules."""
    ask, rules = _asked(question), [rule for _, rule in own]

    def allows(count: int, otherwise: bool) -> bool:
        return ask(_rights(Acl(rules[:count], otherwise), question))

    allowed = allows(len(rules), default)
    if allows(len(rules), True) != allows(len(rules), False):
        return RuleAnswer(allowed, f"no rule matches; the default is to {'allow' if default else 'deny'}")
    low, high = 0, len(rules)
    while low < high:
        middle = (low + high) // 2
        if allows(middle, True) == allows(middle, False):
            high = middle
        else:
            low = middle + 1
    return RuleAnswer(
        allowed, f"{named.rule(own[low - 1][0])} decides" if low else "only a rule that names $events allows this"
    )


def _asked(question: RuleQuestion) -> Callable[[Rights], bool]:
    if question.action == "publish":
        return lambda rights: rights.may_publish(question.topic, question.qos, question.retain)
    group = question.group if question.action == "group" else b""
    return lambda rights: rights.extent(question.topic, group) == WHOLE
