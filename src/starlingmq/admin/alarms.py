"""Alarms of this node: conditions that hold, since when; and those that have ended.

``Alarms`` is told every few seconds all conditions that hold. A new one begins an alarm, and the first look without it
ends the alarm. The end is logged and told after ``HOLD`` seconds; if the condition holds again before, it is the same
alarm, so that a value around its threshold is told once and not many times. Both lists are bounded: of more than
``ACTIVE_MAX`` conditions the critical ones come first, and the history has the last ended ones.

Nodes of a cluster may see one fact. Each has its alarm, and lists of several nodes have one entry for all of them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Annotated, Final

from msgspec import Meta, Struct, field
from msgspec.structs import asdict, replace

from starlingmq.admin.alarm_conditions import CertificateInfo, Conditions
from starlingmq.admin.declared_actions import ALL, action
from starlingmq.admin.periodic import Periodic
from starlingmq.admin.remedies import PAGES, Condition
from starlingmq.admin.sessions import when

log = logging.getLogger("starlingmq.alarms")

LOOK_SECONDS: Final = 5.0
HOLD: Final = 15.0
ACTIVE_MAX: Final = 100
HISTORY_MAX: Final = 200
LOGGED_ELSEWHERE: Final = frozenset(["storage", "copies", "memory", "node", "quorum"])
OF_THE_CLUSTER: Final = frozenset(["etcd", "last_copy", "node"])
"""Kinds whose subject is one fact at all nodes, although their texts may differ."""


class Alarm(Condition, frozen=True):
    """``node`` and ``nodes`` are set in lists of several nodes."""

    since: str = ""
    ended: Annotated[str | None, Meta(description="When it ended; null: it is active.")] = None
    node: Annotated[str, Meta(description="The first of the nodes that see it.")] = ""
    page: Annotated[
        str, Meta(description="Page of the documentation that explains it: its address if alarms.site is set.")
    ] = ""
    nodes: Annotated[list[str], Meta(description="The nodes that see it.")] = field(default_factory=list)


class AlarmsReply(Struct, frozen=True):
    """Critical alarms come first, then the newest ones; of those that have ended, the last one."""

    alarms: list[Alarm]
    history: list[Alarm]


def page_of(kind: str, site: str) -> str:
    page = PAGES.get(kind, "")
    return f"{site.rstrip('/')}/{page}" if site and page else page


class _Active:
    def __init__(self, condition: Condition, now: float) -> None:
        self.condition = condition
        self.since = now
        self.ended: float | None = None

    def alarm(self, site: str) -> Alarm:
        told = asdict(self.condition) | {"page": page_of(self.condition.kind, site)}
        return Alarm(**told, since=when(self.since), ended=None if self.ended is None else when(self.ended))


class Alarms:
    """``told`` is called with each alarm that begins, becomes more severe, or ends. ``site``: ``alarms.site``."""

    def __init__(self, told: Callable[[Alarm], None], site: Callable[[], str] = lambda: "") -> None:
        self._told = told
        self._site = site
        self._active: dict[tuple[str, str], _Active] = {}
        self._history: deque[Alarm] = deque(maxlen=HISTORY_MAX)

    def look(self, conditions: Iterable[Condition], now: float) -> None:
        """All conditions that hold at ``now``."""
        held = {(one.kind, one.subject): one for one in sorted(conditions, key=lambda one: one.severity != "critical")}
        for key, condition in held.items():
            known = self._active.get(key)
            if known is None:
                if len(self._active) < ACTIVE_MAX:
                    self._active[key] = _Active(condition, now)
                    self._tell(self._active[key].alarm(self._site()))
                continue
            worse = condition.severity == "critical" and known.condition.severity != "critical"
            known.condition, known.ended = condition, None
            if worse:
                self._tell(known.alarm(self._site()))
        for key, one in list(self._active.items()):
            if key in held:
                continue
            one.ended = now if one.ended is None else one.ended
            if now - one.ended >= HOLD:
                del self._active[key]
                self._history.append(one.alarm(self._site()))
                self._tell(self._history[-1])

    def active(self) -> list[Alarm]:
        return [one.alarm(self._site()) for one in self._active.values() if one.ended is None]

    def reply(self) -> AlarmsReply:
        ended = [one.alarm(self._site()) for one in self._active.values() if one.ended is not None]
        return AlarmsReply(self.active(), [*ended, *reversed(self._history)])

    def _tell(self, alarm: Alarm) -> None:
        if alarm.ended is not None:
            log.info("alarm %s has ended: %s", _title(alarm), alarm.text)
        elif alarm.kind not in LOGGED_ELSEWHERE:
            log.warning("alarm %s: %s; %s", _title(alarm), alarm.text, alarm.next)
        self._told(alarm)


def active_facts(alarms: list[Alarm]) -> list[Alarm]:
    """Critical ones first, then the newest."""
    newest = sorted(_facts(alarms), key=lambda one: one.since, reverse=True)
    return sorted(newest, key=lambda one: one.severity != "critical")


def ended_facts(alarms: list[Alarm]) -> list[Alarm]:
    """The last one first."""
    return sorted(_facts(alarms), key=lambda one: one.ended or "", reverse=True)


def _facts(alarms: list[Alarm]) -> list[Alarm]:
    """One entry for what several nodes saw at the same time, with the text of one that found it critical."""
    found: dict[tuple[str, str, str], list[Alarm]] = {}
    for one in sorted(alarms, key=lambda one: one.since):
        entries = found.setdefault((one.kind, one.subject, "" if one.kind in OF_THE_CLUSTER else one.text), [])
        last = entries[-1] if entries else None
        if last is None or one.node in last.nodes or (last.ended or one.since) < one.since:
            entries.append(replace(one, nodes=[one.node]))
            continue
        nodes = sorted([*last.nodes, one.node])
        worst = one if one.severity == "critical" != last.severity else last
        ended = None if last.ended is None or one.ended is None else max(last.ended, one.ended)
        entries[-1] = replace(worst, since=last.since, ended=ended, node=nodes[0], nodes=nodes)
    return [one for entries in found.values() for one in entries]


def _title(alarm: Alarm) -> str:
    return f"{alarm.kind} {alarm.subject}" if alarm.subject else alarm.kind


class NodeAlarms:
    """``periodic`` looks for them."""

    def __init__(
        self,
        conditions: Conditions,
        clock: Callable[[], float],
        told: Callable[[Alarm], None],
        site: Callable[[], str],
    ) -> None:
        self.known = Alarms(told, site)
        self.conditions = conditions
        self._clock = clock
        self.periodic = Periodic("looking for alarms", LOOK_SECONDS, self.look)

    def reloaded(self) -> None:
        """Files that the settings name were read again. What has ended is logged now; an alarm follows."""
        self.conditions.reloaded()
        for line in self.conditions.ended():
            log.warning("the settings were reloaded, but %s", line)

    async def look(self) -> None:
        self.known.look(await self.conditions.now(), self._clock())

    @action(
        "alarms",
        "GET /alarms",
        ALL,
        order={"alarms": active_facts, "history": ended_facts},
    )
    async def alarms(self) -> AlarmsReply:
        """List active alarms of all nodes, and those that have ended."""
        return self.known.reply()

    @action(
        "certificates",
        "GET /certificates",
        ALL,
        ctl="certificates",
        columns="file, kind, name, setting, node, left, ends_at: ends, problem",
        none="nothing that ends is used",
        order={"certificates": lambda found: sorted(found, key=lambda one: one.ends_at or "")},
    )
    async def certificates(self) -> list[CertificateInfo]:
        """List certificates, revocation lists, key sets and tokens that nodes use, and when they end."""
        return await self.conditions.certificates()
