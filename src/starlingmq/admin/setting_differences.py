"""The changes of a reload, for the log of actions: settings, rules and users, without secrets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from msgspec import json, to_builtins

from starlingmq.config.secret_masking import masked
from starlingmq.config.settings import Config

if TYPE_CHECKING:
    from starlingmq.auth.acl import Rule
    from starlingmq.auth.chain import Chain

NAMES_MAX: Final = 20  # of users, and of rules
VALUE_MAX: Final = 200  # characters

Difference = tuple[dict[str, str], dict[str, str]]
"""The values before, and those after; without those that are the same in both."""


def setting_differences(before: Config, after: Config) -> Difference:
    """Values by the paths of settings. A secret that has changed is ``***`` in both."""
    old, new = dict(_flat("", to_builtins(before))), dict(_flat("", to_builtins(after)))
    shown_old, shown_new = dict(_flat("", to_builtins(masked(before)))), dict(_flat("", to_builtins(masked(after))))
    paths = [path for path in {**old, **new} if old.get(path) != new.get(path)]
    return (
        {path: _text(shown_old[path]) for path in paths if path in shown_old},
        {path: _text(shown_new[path]) for path in paths if path in shown_new},
    )


def access_differences(before: Chain | None, after: Chain | None) -> Difference:
    """The rules and the users of the password file that were removed or changed, and those that were added or
    changed. A change of the order of rules is none."""
    rules = _differing(_rules(before), _rules(after))
    users = _differing(_users(before), _users(after))
    found: Difference = {}, {}
    for name, parts in (("rules", rules), ("users", users)):
        for side, names in zip(found, parts, strict=True):
            if names:
                more = f" and {len(names) - NAMES_MAX:,} more" if len(names) > NAMES_MAX else ""
                side[name] = ", ".join(names[:NAMES_MAX]) + more
    return found


def _differing(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[list[str], list[str]]:
    changed = {name for name in {**old, **new} if old.get(name) != new.get(name)}
    return [name for name in old if name in changed], [name for name in new if name in changed]


def _rules(chain: Chain | None) -> dict[str, str]:
    """Texts by themselves."""
    given = [] if chain is None else [_given(rule) for rule in chain.acl.rules]
    return {text: text for text in given}


def _given(rule: Rule) -> str:
    """The rule of the file, as JSON."""
    default = type(rule.given)()
    names = (name for name in rule.given.__struct_fields__ if getattr(rule.given, name) != getattr(default, name))
    return _text({name: getattr(rule.given, name) for name in names})


def _users(chain: Chain | None) -> Mapping[str, str]:
    return {} if chain is None else chain.stored_users()


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        yield path, value
        return
    for name, below in value.items():
        yield from _flat(f"{path}.{name}" if path else name, below)


def _text(value: object) -> str:
    text = json.encode(value).decode()
    return text if len(text) <= VALUE_MAX else text[:VALUE_MAX] + "…"
