"""The subscriptions of a link at one broker, learned from the filters that the other one has subscribers for.

Each entry of the settings and each wanted filter meet in one filter, or in none: what both match. Pure.
"""

from __future__ import annotations

from typing import Final

from starlingmq.bridges.topic_maps import TopicEntry, TopicMap
from starlingmq.core.session.overlaps import Overlaps
from starlingmq.core.subscribe.wanted_filters import some_of
from starlingmq.core.topics.topics import meet, valid_filter

LEARNED_MAX: Final = 10_000  # filters; beyond them the entries' filters themselves are subscribed to
SHAPES_MAX: Final = 256  # that overlap: the broker refuses twice as many of a session


class LearnedFilters:
    """``site``: of the broker with the subscriptions, which takes no filter back that has been there. ``complete``: all
    that the other broker had at first have been heard. ``changed``: subscriptions to make or to end."""

    complete: bool
    changed: dict[str, None]
    site: str
    _entries: list[TopicEntry]
    _wanted: dict[bytes, dict[str, int]]  # QoS by subscription, by wanted filter
    _paths: dict[str, dict[bytes, str]]  # by subscription, by wanted filter
    _qos: dict[str, int]  # of each subscription
    _made: set[str]
    _overlaps: Overlaps  # of the subscriptions
    _gave_up: bool

    def __init__(self, topics: TopicMap, site: str) -> None:
        self.complete = False
        self.changed = {}
        self.site = site
        self._entries = [entry for entry in topics.entries if not entry.rename]
        self._wanted = {}
        self._paths = {}
        self._qos = {}
        self._made = set()
        self._overlaps = Overlaps()
        self._gave_up = False

    def hear(self, answer: bytes) -> None:
        """An answer, as ``core.subscribe.wanted_filters`` spells it. Raises ValueError."""
        rows = answer.split(b"\0")
        for at in range(0, len(rows) - 1, 2):
            kind, filter = rows[at][:1], rows[at][1:]
            if kind == b".":
                self.complete = True
            elif not self._gave_up:
                if not valid_filter(filter):
                    raise ValueError(repr(filter[:100]))
                paths = self._usable(rows[at + 1].decode()) if kind == b"+" else ""
                if paths:
                    self._want(filter, paths)
                else:
                    self._forget(filter)

    def _usable(self, paths: str) -> str:
        return ";".join(path for path in paths.split(";") if path and self.site not in path.split(" "))

    def _want(self, filter: bytes, paths: str) -> None:
        found = self._wanted.get(filter)
        if found is None:
            found = self._wanted[filter] = self._met(filter)
        for name in found:
            known = self._of(name)
            if known.get(filter) != paths:
                known[filter] = paths
                self.changed[name] = None
        if len(self._wanted) > LEARNED_MAX or len(self._overlaps) > SHAPES_MAX:
            self._give_up(paths)

    def _of(self, name: str) -> dict[bytes, str]:
        """The paths of a subscription."""
        known = self._paths.get(name)
        if known is None:
            known = self._paths[name] = {}
            self._overlaps.add(name.encode(), False)
        return known

    def _met(self, filter: bytes) -> dict[str, int]:
        found: dict[str, int] = {}
        for entry in self._entries:
            both = meet(entry.prefix + entry.filter[entry.cut :], filter)
            if both:
                name = (entry.filter[: entry.cut] + both[len(entry.prefix) :]).decode()
                found[name] = max(entry.qos, found.get(name, 0))
                self._qos[name] = max(entry.qos, self._qos.get(name, 0))
        return found

    def _forget(self, filter: bytes) -> None:
        for name in self._wanted.pop(filter, {}):
            self._paths[name].pop(filter, None)
            self.changed[name] = None

    def refuse(self) -> bool:
        """The broker with the subscriptions takes no more. Returns False if the entries' filters are all there is."""
        if self._gave_up:
            return False
        self._give_up(";".join(path for known in self._paths.values() for path in known.values()))
        return True

    def _give_up(self, paths: str) -> None:
        self._gave_up = True
        self._wanted = {}
        for name in self._paths:
            self._paths[name] = {}
            self.changed[name] = None
        for entry in self._entries:
            name = entry.filter.decode()
            self._qos[name] = entry.qos
            self._of(name)[b""] = paths
            self.changed[name] = None

    def take(self) -> tuple[dict[str, list[tuple[str, int, bool]]], list[str]]:
        """By their paths, the subscriptions to make, each with its QoS, and whether for the first time; and those to
        end."""
        make: dict[str, list[tuple[str, int, bool]]] = {}
        end: list[str] = []
        for name in self.changed:
            paths = {path for each in self._paths[name].values() for path in each.split(";")}
            if paths:
                made = (name, self._qos[name], name not in self._made)
                make.setdefault(some_of(paths), []).append(made)
                self._made.add(name)
            else:
                del self._paths[name], self._qos[name]
                self._overlaps.remove(name.encode(), False)
                self._made.discard(name)
                end.append(name)
        self.changed = {}
        return make, end
