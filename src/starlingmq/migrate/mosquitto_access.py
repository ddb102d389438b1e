"""Password and rules files of mosquitto.

| line | here |
|---|---|
| `name:$7$...` | the same line |
| `name:$6$...`, a password that is not hashed | no equivalent: set the password again |
| `user ann` | the following `topic` lines are rules with `users: [ann]` |
| `topic` lines before the first `user` | rules with `users: [""]`: clients without a user name, and no others |
| `topic`, `pattern`: `read`, `write`, `readwrite`, `deny` | subscribe and group; publish; all; a rule that denies |
| `pattern` | the same topics with %c and %u, for all users, after the rules of users |

mosquitto asks the denials of a user before the user's other lines, then those of patterns, then the patterns; the rules
here have the same order, so the first match decides alike.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

from starlingmq.auth.hashing import PBKDF2_HASH
from starlingmq.core.topics.topics import valid_filter
from starlingmq.migrate.described import Description

READ: Final = ["subscribe", "group"]
ACCESS: Final = {
    "deny": ["publish", "subscribe"],
    "readwrite": ["publish", *READ],
    "read": READ,
    "write": ["publish"],
}
"""In this order in the rules: the denials first."""
ANONYMOUS: Final = ""
AGAIN: Final = "set the password with starlingmq passwd, and tell the client"


@dataclass(slots=True)
class AccessLines:
    """Topics by access: of each user ("": clients without a name), and of patterns."""

    users: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    patterns: dict[str, list[str]] = field(default_factory=dict)

    def rules(self, everyone: list[str] | None) -> list[dict[str, Any]]:
        """``everyone``: the users to whom the patterns apply, where other listeners have others; None: all clients."""
        found = []
        for user, topics in self.users.items():
            found += _rules(topics, {"users": [user]})
        return found + _rules(self.patterns, {} if everyone is None else {"users": everyone})


def _rules(topics: dict[str, list[str]], of: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for access, actions in ACCESS.items():
        if access in topics:
            kind = "deny" if access == "deny" else "allow"
            found.append({kind: actions, **of, "topics": topics[access]})
    return found


def read_rules(text: str, name: str, into: Description) -> AccessLines:
    found = AccessLines()
    topics = found.users.setdefault(ANONYMOUS, {})
    for number, line in enumerate(text.split("\n"), 1):
        where = f"{name}:{number}"
        word, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        if not word or line.startswith("#"):
            continue
        if word == "user" and rest:
            if re.search(r"[*?]", rest):
                into.needs(f"user {rest}", where, "rename the user: * and ? in a name are wildcards of rules here")
                topics = {}  # its lines would apply to other users
            else:
                topics = found.users.setdefault(rest, {})
        elif word in ("topic", "pattern") and rest:
            access, topic = _access(rest)
            if access not in ACCESS or not valid_filter(topic.encode()):
                into.needs(line.strip(), where, "mosquitto does not accept this line either; correct or remove it")
                continue
            lines = found.patterns if word == "pattern" else topics
            if word == "topic" and re.search("%[cu]", topic):
                into.needs(line.strip(), where, "%c and %u are literal in mosquitto here; rename the topic")
                continue
            lines.setdefault(access, []).append(topic)
            into.count("rules")
        else:
            into.needs(line.strip(), where, "unknown line; write a rule for it (docs/SECURITY.md)")
    return found


def _access(rest: str) -> tuple[str, str]:
    first, space, topic = rest.partition(" ")
    return (first, topic.strip()) if space else ("readwrite", rest)


def read_passwords(text: str, name: str, into: Description) -> dict[str, str]:
    """Hashes by user name."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        user, colon, secret = line.strip().partition(":")
        where = f"{name}:{number}"
        if not line.strip() or line.startswith("#"):
            continue
        if not user or not colon:
            into.needs("password", where, "expected name:hash; set the password with starlingmq passwd")
        elif PBKDF2_HASH.fullmatch(secret) is None:
            kind = "the hash $6$" if secret.startswith("$6$") else "this kind of password"
            into.needs(f"password of {user}", where, f"{kind} is not accepted; {AGAIN}")
        else:
            found[user] = secret
    return found
