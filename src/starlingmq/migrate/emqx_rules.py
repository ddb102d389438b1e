"""Rules of EMQX, from ``acl.conf`` or its built-in database, in the form of ``auth.acl.file``.

| EMQX | here |
|---|---|
| `{allow, {username, "a"}, publish, ["t/#"]}` | `allow: publish`, `users: [a]`, `topics: ["t/#"]` |
| `subscribe`, `all` | subscribe and group; these and publish |
| `{publish, [{qos, [1]}, {retain, false}]}` | `qos`, `retain`; for subscribe no equivalent |
| `clientid`, `ipaddr`, `ipaddrs`, `'and'`, `'or'` | `clients`, `addresses`, one rule with all, one rule for each |
| `{re, "^name$"}` | the name; another expression has no equivalent |
| `${clientid}`, `${username}`, `%c`, `%u` | `%c`, `%u`; another variable has no equivalent |
| `{eq, "t"}` | the topic; with wildcards no equivalent |
| `zone`, `listener`, `client_attr` | no equivalent |
"""

from __future__ import annotations

import re
from typing import Any, Final

from starlingmq.core.topics.topics import valid_filter

SUBSCRIBE: Final = ["subscribe", "group"]
ACTIONS: Final = {"publish": ["publish"], "subscribe": SUBSCRIBE, "all": ["publish", *SUBSCRIBE]}
KINDS: Final = {
    "user": "users",
    "username": "users",
    "client": "clients",
    "clientid": "clients",
    "ipaddr": "addresses",
    "ipaddrs": "addresses",
}
LITERAL: Final = re.compile(r"\^([\w@.:/-]*)\$")


class _NoEquivalent(Exception):
    """The message says how to replace the rule."""


def rules_of(term: Any, legacy: bool) -> tuple[list[dict[str, Any]], list[str]]:
    """Of one rule, which may take several here; and what to do about parts without an equivalent. ``legacy``: the
    version of EMQX was below 6.3."""
    problems: list[str] = []
    denies = isinstance(term, tuple) and bool(term) and term[0] == "deny"
    try:
        return _rules(term, legacy, problems), [_warned(each, denies) for each in problems]
    except _NoEquivalent as error:
        return [], [_warned(str(error), denies)]


def _warned(problem: str, denies: bool) -> str:
    return f"{problem}. Until then nothing denies it" if denies else problem


def _rules(term: Any, legacy: bool, problems: list[str]) -> list[dict[str, Any]]:
    if not isinstance(term, tuple) or len(term) not in (2, 4) or term[0] not in ("allow", "deny"):
        raise _NoEquivalent("this is not a rule of EMQX: write one (docs/SECURITY.md)")
    kind, who = term[0], term[1]
    action, topics = term[2:] if len(term) == 4 else ("all", "all")
    if isinstance(who, tuple) and who and who[0] == "security_profile":
        if (who[1] == "legacy") != legacy:
            return []
        who = "all"
    actions, more = _action(action, kind)
    rule = {kind: actions, **more}
    named = []
    for topic in topics if isinstance(topics, list) else [topics]:
        try:
            named.append(_topic(topic))
        except _NoEquivalent as error:
            problems.append(str(error))
    if not named:
        return []
    if "" not in named:
        rule["topics"] = named
    return [{**rule, **conditions} for conditions in _who(who)]


def _action(action: Any, kind: str) -> tuple[list[str], dict[str, Any]]:
    more: dict[str, Any] = {}
    if isinstance(action, tuple) and len(action) == 2 and isinstance(action[1], list):
        action, limits = action
        given = {each[0]: each[1] for each in limits if isinstance(each, tuple) and len(each) == 2}
        levels = given.get("qos", b"\x00\x01\x02")
        qos = sorted({levels} if isinstance(levels, int) else set(levels))
        if qos != [0, 1, 2]:
            more["qos"] = qos
        if given.get("retain", "all") != "all":
            more["retain"] = given["retain"] == "true"
    if action not in ACTIONS:
        raise _NoEquivalent("unknown action: write a rule (docs/SECURITY.md)")
    if more and action != "publish":
        raise _NoEquivalent("qos and retain apply to publish only: split the rule (docs/SECURITY.md)")
    actions = [each for each in ACTIONS[action] if kind == "allow" or each != "group"]
    return actions, more


def _topic(topic: Any) -> str:
    """ "" for every topic."""
    if topic == "all":
        return ""
    exactly = isinstance(topic, tuple) and len(topic) == 2 and topic[0] == "eq"
    text = _text(topic[1] if exactly else topic)
    if exactly and re.search("[+#]", text):
        raise _NoEquivalent(f"one filter alone ({text}) cannot be named: allow the topics that clients need")
    text = text.replace("${clientid}", "%c").replace("${username}", "%u")
    if "${" in text or not valid_filter(text.encode()):
        raise _NoEquivalent(f"{text} is not a filter, or has a variable that rules do not know (docs/SECURITY.md)")
    return text


def _who(who: Any) -> list[dict[str, list[str]]]:
    """Alternatives; all conditions of one must hold."""
    if who == "all":
        return [{}]
    if isinstance(who, tuple) and len(who) == 2:
        name, value = who
        if name == "or" and isinstance(value, list):
            return [each for part in value for each in _who(part)]
        if name == "and" and isinstance(value, list):
            found: dict[str, list[str]] = {}
            for part in value:
                alternatives = _who(part)
                if len(alternatives) != 1 or alternatives[0].keys() & found.keys():
                    raise _NoEquivalent("these conditions cannot be combined: write rules (docs/SECURITY.md)")
                found |= alternatives[0]
            return [found]
        if name in KINDS:
            values = value if isinstance(value, list) else [value]
            return [{KINDS[name]: [_name(each) for each in values]}]
    raise _NoEquivalent("rules know users, clients and addresses only: write a rule by one of them (docs/SECURITY.md)")


def _name(value: Any) -> str:
    if isinstance(value, tuple) and len(value) == 2 and value[0] == "re":
        match = LITERAL.fullmatch(_text(value[1]).replace("\\", ""))
        if match is None:
            raise _NoEquivalent("a regular expression: list the names, with * and ? (docs/SECURITY.md)")
        return match[1]
    text = _text(value)
    if re.search("[*?%]", text):
        raise _NoEquivalent(f"{text!r}: * and ? in a name are wildcards of rules here: rename it")
    return text


def _text(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(each, int) for each in value):
        value = bytes(value)
    if not isinstance(value, bytes):
        raise _NoEquivalent("this is not a name or topic: write a rule (docs/SECURITY.md)")
    return value.decode("utf-8", "replace")
