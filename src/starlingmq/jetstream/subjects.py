"""Subjects of configurations and requests: their syntax, and how filters relate.

Filters are compared as topic filters, which the core has: ``a.>`` is ``a/+/#`` there (wire/nats_subjects.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from starlingmq.wire.nats_subjects import filter_of, subject_of, topic_of

_REST: Final = b"#"
_ONE: Final = b"+"
_END: Final = b"/"  # of a filter: it is no level


def filter_or_none(subject: str) -> bytes | None:
    """The topic filter of a subject that may have wildcards; None: it is invalid, or has no translation."""
    return filter_of(subject.encode("utf-8", "surrogatepass")) or None


def topic_or_none(subject: str) -> bytes | None:
    """The topic of a subject without wildcards."""
    return topic_of(subject.encode("utf-8", "surrogatepass")) or None


def is_literal(subject: str) -> bool:
    return not any(token in ("*", ">") for token in subject.split("."))


def subject_text(topic: bytes) -> str:
    return subject_of(topic).decode()


def filter_subject(filter: bytes) -> str:
    """The subject with the topic filter ``filter``. Raises ValueError if there is none."""
    tokens = [
        b"*" if level == b"+" else level if level in (b"#", b"") else subject_of(level) for level in filter.split(b"/")
    ]
    if tokens[-2:] == [b"*", b"#"]:
        tokens[-2:] = [b">"]
    subject = b".".join(tokens)
    if filter_of(subject) != filter:
        raise ValueError(f"the filter {filter.decode()} has no counterpart in NATS, which consumers need")
    return subject.decode()


def covers(wide: bytes, narrow: bytes) -> bool:
    """Whether everything that ``narrow`` matches is matched by ``wide`` as well."""
    levels = narrow.split(b"/")
    wanted = wide.split(b"/")
    for at, level in enumerate(wanted):
        if level == _REST:
            return True
        if at == len(levels) or levels[at] == _REST or (level != _ONE and level != levels[at]):
            return False
    return len(levels) == len(wanted)


def collide(one: bytes, other: bytes) -> bool:
    """Whether a topic exists that both match."""
    if one == other:
        return True
    ones, others = one.split(b"/"), other.split(b"/")
    for left, right in zip(ones, others, strict=False):
        if left == _REST or right == _REST:
            return True
        if left != right and left != _ONE and right != _ONE:
            return False
    longer, shared = (ones, len(others)) if len(ones) > len(others) else (others, len(ones))
    return len(ones) == len(others) or longer[shared] == _REST


def any_collide(some: Iterable[bytes], others: Iterable[bytes]) -> bool:
    return any(collide(one, other) for other in others for one in some)


class FiltersOfStreams:
    """Topic filters with the names of their streams, found by a filter that has topics in common with them."""

    def __init__(self) -> None:
        self._root: dict[bytes, Any] = {}  # by level; the name is at ``_END``

    def add(self, filters: Iterable[bytes], name: str) -> None:
        for each in filters:
            node = self._root
            for level in each.split(b"/"):
                node = node.setdefault(level, {})
            node[_END] = name

    def taken(self, filters: Iterable[bytes]) -> str:
        """The name of one that has a topic in common with these; "": there is none."""
        return next((name for each in filters if (name := _find(self._root, each.split(b"/")))), "")


def _find(root: dict[bytes, Any], levels: list[bytes]) -> str:
    left = [(root, 0)]
    while left:
        node, at = left.pop()
        level = levels[at] if at < len(levels) else _END
        if _REST in node:
            return str(node[_REST][_END])
        if _END in node and level in (_END, _REST):
            return str(node[_END])
        if level == _REST:
            left += [(each, at) for each in node.values()]
        elif level == _ONE:
            left += [(each, at + 1) for key, each in node.items() if key != _END]
        elif level != _END:
            left += [(node[key], at + 1) for key in (level, _ONE) if key in node]
    return ""
