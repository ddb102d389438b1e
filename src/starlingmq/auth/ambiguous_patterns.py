"""Whether patterns of client ids give two users the same client id: tried with the names that can make it so."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations_with_replacement
from typing import Final

from starlingmq.auth.acl import SEPARATOR, USER, Acl, Names

PATTERNS_MAX: Final = 20  # of one list that are tried


def warnings_of(acl: Acl) -> list[str]:
    """One line for each list of patterns in which client ids of one user are those of another one too. Of rules only
    those that allow something to several users."""
    lists = [("clients", acl.clients)]
    for number, rule in enumerate(acl.rules):
        users = rule.given.users
        if rule.allow and (len(users) != 1 or "*" in users[0] or "?" in users[0]):
            lists.append((f"rules[{number}].clients", rule.given.clients))
    found = [(name, overlap(texts)) for name, texts in lists]
    return [
        f"{name}: users {same[0]!r} and {same[1]!r} may both use the client id {same[2]!r}; only a colon separates "
        "user names safely, as in '%u:*'"
        for name, same in found
        if same is not None
    ]


def overlap(texts: Sequence[str]) -> tuple[str, str, str] | None:
    """Two users and a client id that both of them may use by a pattern with ``%u``; None: none was found."""
    named = [text for text in texts if USER in text][:PATTERNS_MAX]
    for pair in combinations_with_replacement(named, 2):
        patterns = Names(pair, "")
        names = _names(pair)
        for name in names:
            for client_id in _client_ids(pair, name, names):
                for other in names:
                    if other != name and all(patterns.fit(client_id, user, False) for user in (name, other)):
                        return name, other, client_id
    return None


def _names(pair: tuple[str, str]) -> list[str]:
    """Names of which one may be a part of a client id of another one."""
    names = ["eve", "ann"]
    for text in pair:
        client_id = _filled(text, "eve", "ann")
        before, _, after = text.partition(USER)
        names += [client_id, before.rstrip(SEPARATOR), after.lstrip(SEPARATOR)]
        names += [_filled(other, "eve", "ann").removeprefix(before).removesuffix(after) for other in pair]
    return list(dict.fromkeys(name for name in names if name and "*" not in name and "?" not in name))


def _client_ids(pair: tuple[str, str], name: str, names: list[str]) -> list[str]:
    return [_filled(text, name, rest) for text in pair for rest in (*names, f"ann{SEPARATOR}eve{SEPARATOR}ann")]


def _filled(text: str, name: str, rest: str) -> str:
    return text.replace("*", rest).replace("?", "x").replace(USER, name)
