"""Alarms of this node: conditions that hold, since when; and those that have ended.

``Alarms`` is told every few seconds all conditions that hold. A new one begins an alarm. An alarm ends when its
condition has not held for ``HOLD`` seconds, so that a value around its threshold is one alarm and not many. Both are
bounded: of more than ``ACTIVE_MAX`` conditions the critical ones come first, and the history has the last ended ones.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import asdict

from starlingmq.admin.alarm_conditions import CertificateInfo, Condition, Conditions
from starlingmq.admin.declared_actions import ALL, action
from starlingmq.admin.periodic import Periodic
from starlingmq.admin.remedies import PAGES
from starlingmq.admin.sessions import when
from starlingmq.admin.typed_actions import NoArguments
from starlingmq.net.control_socket import Report

log = logging.getLogger("starlingmq.alarms")

LOOK_SECONDS: Final = 5.0
HOLD: Final = 15.0
ACTIVE_MAX: Final = 100
HISTORY_MAX: Final = 200
LOGGED_ELSEWHERE: Final = frozenset(["storage", "copies", "memory", "node", "quorum"])


class Alarm(Condition, frozen=True):
    """``node`` is set in lists of several nodes."""

    since: str = ""
    ended: Annotated[str | None, Meta(description="When it ended; null: it is active.")] = None
    node: str = ""
    page: Annotated[str, Meta(description="Page of the documentation site that explains it, with its anchor.")] = ""


class AlarmsReply(Struct, frozen=True):
    """Critical alarms come first, then the newest ones; of those that have ended, the last one."""

    alarms: list[Alarm]
    history: list[Alarm]


class CertificatesReply(Struct, frozen=True):
    certificates: list[CertificateInfo]


class _Active:
    def __init__(self, condition: Condition, now: float) -> None:
        self.condition = condition
        self.since = now
        self.seen = now

    def alarm(self, ended: float | None = None) -> Alarm:
        told = asdict(self.condition) | {"page": PAGES.get(self.condition.kind, "")}
        return Alarm(**told, since=when(self.since), ended=None if ended is None else when(ended))


class Alarms:
    """``told`` is called with each alarm that begins, becomes more severe, or ends."""

    def __init__(self, told: Callable[[Alarm], None]) -> None:
        self._told = told
        self._active: dict[tuple[str, str], _Active] = {}
        self._history: deque[Alarm] = deque(maxlen=HISTORY_MAX)

    def look(self, conditions: Iterable[Condition], now: float) -> None:
        """All conditions that hold at ``now``."""
        by_severity = sorted(conditions, key=lambda one: one.severity != "critical")
        for condition in by_severity:
            key = condition.kind, condition.subject
            known = self._active.get(key)
            if known is None:
                if len(self._active) < ACTIVE_MAX:
                    self._active[key] = _Active(condition, now)
                    self._tell(self._active[key].alarm())
                continue
            worse = condition.severity == "critical" and known.condition.severity != "critical"
            known.condition, known.seen = condition, now
            if worse:
                self._tell(known.alarm())
        for key, one in list(self._active.items()):
            if now - one.seen >= HOLD:
                del self._active[key]
                ended = one.alarm(now)
                self._history.append(ended)
                self._tell(ended)

    def active(self) -> list[Alarm]:
        return [one.alarm() for one in self._active.values()]

    def reply(self) -> AlarmsReply:
        return AlarmsReply(self.active(), list(reversed(self._history)))

    def _tell(self, alarm: Alarm) -> None:
        if alarm.ended is not None:
            log.info("alarm %s has ended: %s", _title(alarm), alarm.text)
        elif alarm.kind not in LOGGED_ELSEWHERE:
            log.warning("alarm %s: %s; %s", _title(alarm), alarm.text, alarm.next)
        self._told(alarm)


def _newest(alarms: list[Alarm]) -> list[Alarm]:
    return sorted(alarms, key=lambda one: one.since, reverse=True)


def _title(alarm: Alarm) -> str:
    return f"{alarm.kind} {alarm.subject}" if alarm.subject else alarm.kind


class NodeAlarms:
    """``periodic`` looks for them."""

    def __init__(self, conditions: Conditions, clock: Callable[[], float], told: Callable[[Alarm], None]) -> None:
        self.known = Alarms(told)
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
        order={
            "alarms": lambda found: sorted(_newest(found), key=lambda one: one.severity != "critical"),
            "history": lambda found: sorted(found, key=lambda one: one.ended or "", reverse=True),
        },
    )
    async def alarms(self, report: Report, request: NoArguments) -> AlarmsReply:
        """List active alarms of all nodes, and those that have ended."""
        return self.known.reply()

    @action(
        "certificates",
        "GET /certificates",
        ALL,
        ctl="certificates",
        columns="file, kind, name, setting, node, days: days left/number, ends_at: ends, problem",
        none="nothing that ends is used",
        order={"certificates": lambda found: sorted(found, key=lambda one: one.ends_at or "")},
    )
    async def certificates(self, report: Report, request: NoArguments) -> CertificatesReply:
        """List certificates, revocation lists, key sets and tokens that nodes use, and when they end."""
        return CertificatesReply(await self.conditions.certificates())
