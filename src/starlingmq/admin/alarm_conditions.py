"""Conditions of this node that operators should know of: each look returns all that hold.

``admin.alarms`` keeps them.

| kind | subject | condition |
|---|---|---|
| storage | | nothing can be stored, or checkpoints fail |
| copies | | too few nodes store copies |
| disk | | ``alarms.disk_free`` |
| memory | | ``alarms.memory`` of ``limits.memory``; critical: clients and messages are refused |
| queue | | clients for which publishers are no longer held: their queues grow, and drop messages at their limits |
| unacknowledged | | a connected client has acknowledged nothing for ``alarms.unacknowledged`` |
| dropped | reason | ``alarms.dropped_rate`` |
| closed | reason | connections are closed again and again for a reason of ``remedies.CLOSED`` |
| certificate | file, setting | one of ``expirations`` ends within ``alarms.certificate_days``, or cannot be read |
| node | name | a member of the cluster is not connected |
| etcd | | etcd does not answer; critical where a CONNECT needs it |
| quorum | | this node does not reach the majority of its cluster |
| clock | | the clock of a node of a cluster is not synchronized |
| refused | | the rules have refused a PUBLISH or SUBSCRIBE of a client with a user name
| flapping, logins | | clients or addresses that are banned automatically |
| link, link_queue, link_refused | name | those of ``admin.link_conditions`` |
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from time import monotonic
from typing import Annotated, Final

from msgspec import Meta, Struct

from starlingmq.admin.cluster_health import COPIES_NEXT, ETCD_AWAY, ETCD_NEXT, cluster_health, time_of_day
from starlingmq.admin.expirations import Expiration, LoadedExpirations, State
from starlingmq.admin.link_conditions import LinkConditions
from starlingmq.admin.local_node import LocalNode
from starlingmq.admin.recent_counts import Recent, RecentCounts
from starlingmq.admin.remedies import CLOSED, DROPPED, Condition, Severity
from starlingmq.admin.session_totals_job import SessionTotalsJob
from starlingmq.admin.sessions import inflight, queued
from starlingmq.auth.access_control import DENIED
from starlingmq.config.alarms_section import AlarmsConfig
from starlingmq.config.section_types import format_size
from starlingmq.config.settings import carried
from starlingmq.core.context.ready import NAME_SHOWN, PUBLISH_REFUSED, Notice, Refusal
from starlingmq.core.reports.session_totals import SessionTotals
from starlingmq.log import NAME_MAX
from starlingmq.net.process import clock_is_synchronized, memory
from starlingmq.storage.opening import directory_of
from starlingmq.storage.storage_health import ADVICE, CAUSES

DISK_FREE_CRITICAL: Final = 0.03
SLOW_SECONDS: Final = 60.0  # between two looks at the files of certificates
FLAPPING: Final = "give each device a client id of its own, or find out why it loses its connection; see the bans"
DROPPED_SECONDS: Final = 60.0  # over which drops are averaged
CLOSED_SECONDS: Final = 300.0
REFUSED_SECONDS: Final = 600.0
CLOSED_MAX: Final = 4  # in that time: a device that tries every minute is above it, a single mistake is not
FAILED_MAX: Final = 59  # failed logins in that time: a device that tries every few seconds, or guesses
LOGINS: Final = "correct the password of the device, or leave a stranger banned; see the bans"


class CertificateInfo(Struct, frozen=True):
    """A certificate, authority, revocation list, key set or token that this node uses: the first of its file to
    end."""

    file: Annotated[str, Meta(description="The file; empty for a value in the settings.")]
    ends_at: Annotated[str | None, Meta(description="When it ends.")]
    days: Annotated[int | None, Meta(description="Whole days until then; negative: it has ended.")]
    problem: Annotated[str, Meta(description="Why the file cannot be read; empty if it can.")]
    node: str = ""
    kind: Annotated[str, Meta(description="certificate, authority, revocation list, key set or token.")] = "certificate"
    name: Annotated[str, Meta(description="Common name, or the id of a key; empty: it has none.")] = ""
    setting: Annotated[str, Meta(description="The setting that names the file or has the value.")] = ""
    state: Annotated[State, Meta(description="As for alarms: soon and critical by alarms.certificate_days.")] = "valid"
    reload: Annotated[bool, Meta(description="The file has a later one, which the node has not loaded.")] = False
    left: Annotated[str, Meta(description="The days; hours of the last three days.")] = ""


class Conditions:
    def __init__(self, local_node: LocalNode, session_totals_job: SessionTotalsJob) -> None:
        self._local_node = local_node
        self._session_totals_job = session_totals_job
        self._dropped = RecentCounts(monotonic(), DROPPED_SECONDS)
        self._closed = RecentCounts(monotonic(), CLOSED_SECONDS)
        self._link_conditions = LinkConditions()
        self._refusals = RecentCounts(monotonic(), REFUSED_SECONDS)
        self._explained: tuple[Refusal | None, str] = None, ""
        self._ending: list[Condition] = []  # certificates, as of the last look at their files
        self._slow_again = 0.0
        self._loaded = LoadedExpirations(local_node.config)
        self.expirations: list[Expiration] = []  # as of the last look

    def reloaded(self) -> None:
        """Files that the settings name were read again."""
        self._loaded.reloaded()
        self._slow_again = 0.0

    def ended(self) -> list[str]:
        """A line for each thing in use that has ended."""
        now = self._local_node.driver.clock()
        found = [one for one in self._loaded.look() if one.state(now, 0) == "ended"]
        return [f"{one.text(now)}; {one.advice()}" for one in found]

    async def now(self) -> list[Condition]:
        survey = await self._session_totals_job.count()
        of_the_system = await asyncio.to_thread(self._look_at_system)
        return [
            *self._storage(),
            *self._memory(),
            *self._queues(survey),
            *self._unacknowledged(survey),
            *self._drops(),
            *self._closed_again(),
            *self._refused(),
            *self._cluster(),
            *self._bans(),
            *self._links(),
            *of_the_system,
        ]

    def _look_at_system(self) -> list[Condition]:
        if monotonic() >= self._slow_again:
            self._slow_again = monotonic() + SLOW_SECONDS
            self._ending = list(self._certificates())
        return [*self._disk(), *self._ending, *self._clock()]

    async def certificates(self) -> list[CertificateInfo]:
        """All certificates of this node, read now."""
        return await asyncio.to_thread(self._read_certificates)

    def _settings(self) -> AlarmsConfig:
        return self._local_node.config().alarms

    def _storage(self) -> Iterator[Condition]:
        store = directory_of(self._local_node.driver.store)
        health = None if store is None else store.health
        if health is None or health.state == "ok":
            return
        kind = "copies" if health.state == "uncopied" else "storage"
        outcome = "nothing is accepted that has to be stored" if health.refusing else "the journal grows"
        text = f"{CAUSES[health.state]}: {health.reason}; {outcome}"
        yield Condition(kind, "", "critical" if health.refusing else "warning", text, ADVICE[health.state])

    def _memory(self) -> Iterator[Condition]:
        limit, share = self._local_node.config().limits.memory, self._settings().memory
        if not limit:
            return
        used = memory()
        text = f"the process uses {used >> 20:,} MiB of {limit >> 20:,} MiB (limits.memory)"
        advice = "look for clients with long queues, raise limits.memory, or add memory or nodes"
        if self._local_node.state.ctx.quotas.short_of_memory:
            yield Condition("memory", "", "critical", f"{text}: new clients and messages are refused", advice)
        elif share and used > share * limit:
            yield Condition("memory", "", "warning", text, advice)

    def _queues(self, survey: SessionTotals) -> Iterator[Condition]:
        if survey.stalled:
            config = self._local_node.config()
            most, size = config.mqtt.max_mqueue_len, config.limits.queue_bytes
            who = "1 client was" if survey.stalled == 1 else f"{survey.stalled:,} clients were"
            limits = [f"mqtt.max_mqueue_len ({most:,} messages)"] * bool(most)
            limits += [f"limits.queue_bytes ({format_size(size)})"] * bool(size)
            full = " or ".join(limits)
            outcome = f"a queue that reaches {full} drops its oldest messages" if full else "nothing bounds the queues"
            longest = f"; the longest queue is that of {survey.slow[0][1]!r}" if survey.slow else ""
            slow = "too slow for longer than limits.publisher_hold, so publishers are not held"
            text = f"{who} {slow}; {outcome}{longest}"
            advice = "see starlingmq top --sort queued; make slow clients faster, or use a shared subscription"
            yield Condition("queue", "", "warning", text, advice)

    def _unacknowledged(self, survey: SessionTotals) -> Iterator[Condition]:
        """A client that reads nothing may have an empty queue: all that waits for it counts as in flight."""
        now, sessions = self._local_node.driver.clock(), self._local_node.state.ctx.sessions
        most = self._settings().unacknowledged
        found = [
            (one.since, client_id)
            for client_id, one in survey.silent.items()
            if most and now - one.since >= most and client_id in sessions and one.holds(sessions[client_id])
        ]
        if found:
            since, client_id = min(found)
            session, more = sessions[client_id], len(found) - 1
            others = f"; nor have {more:,} other clients" if more > 1 else "; nor has 1 other client" if more else ""
            waiting = f"{inflight(session):,} messages are in flight to it, {queued(session):,} wait"
            text = f"{client_id!r} has acknowledged nothing for {now - since:,.0f} s: {waiting}{others}"
            advice = "restart the client's program; starlingmq ctl kick disconnects it"
            if session.expiry == 0:
                advice += ", but it has no session expiry: these messages end with its connection"
            yield Condition("unacknowledged", "", "warning", text, advice)

    def _drops(self) -> Iterator[Condition]:
        most = self._settings().dropped_rate * DROPPED_SECONDS or float("inf")
        for one in self._dropped.look(monotonic(), self._local_node.state.ctx.counters.dropped, lambda reason: most):
            text = f"{one.reason}: {one.total:,} messages dropped {self._times(one)}"
            advice = DROPPED.get(one.reason, "look up the reason on the page")
            yield Condition("dropped", one.reason, "warning", text, advice)

    def _times(self, one: Recent) -> str:
        ago = monotonic() - one.since
        since = time_of_day(datetime.fromtimestamp(self._local_node.driver.clock() - ago), ago)
        return f"since {since}, {f'none for {one.quiet:,.0f} s' if one.quiet else 'and it goes on'}"

    def _closed_again(self) -> Iterator[Condition]:
        counted = {reason: n for reason, n in self._local_node.state.ctx.counters.errors.items() if reason in CLOSED}
        for one in self._closed.look(monotonic(), counted, closed_max):
            last = _last(self._local_node.last.closed.get(one.reason))
            text = f"{one.recent:,} connections were closed or refused within five minutes{last}"
            yield Condition("closed", one.reason, "warning", f"{one.reason}: {text}", CLOSED[one.reason])

    def _refused(self) -> Iterator[Condition]:
        """However few: a rule that is wrong may refuse the only message of a day."""
        last = self._local_node.last
        for one in self._refusals.look(monotonic(), {"": last.count}, lambda reason: 0.0):
            refusal = last.by_rules
            assert refusal is not None
            if self._explained[0] is not refusal or self._explained[1] == DENIED:
                self._explained = refusal, self._local_node.access.why_refused(refusal)
            whose = f"client {refusal.client_id[:NAME_MAX]!r}, user {refusal.username[:NAME_MAX]!r}"
            what = "a message or subscription" if one.total == 1 else f"{one.total:,} messages and subscriptions"
            text = f"the rules refused {what} of users {self._times(one)}"
            text += f"; the last one of {whose}: {refusal.text()}: {self._explained[1]}"
            yield Condition("refused", "", "warning", text, f"correct the client or the rules; {_question(refusal)}")

    def _cluster(self) -> Iterator[Condition]:
        cluster = self._local_node.cluster
        if cluster is None or cluster.state is None or not self._local_node.serving:
            return  # a node that starts is waited for
        health = cluster_health(cluster, self._local_node.driver.clock())
        for one in health.gone:
            left = f"{one.served_by} serves its data" if one.served_by else f"{one.queued:,} messages wait for it"
            text = f"{one.name} {'was stopped' if one.stopped else 'is gone'}; {left}"
            yield Condition("node", one.name, "warning", text, health.next)
        planned = bool(health.gone) and all(one.stopped for one in health.gone)
        for origin in health.at_risk:
            text = f"the next loss may lose data: no other node has a whole copy of that of {origin}"
            yield Condition("last_copy", origin, "warning" if planned else "critical", text, health.next or COPIES_NEXT)
        if not cluster.state.members.available:
            yield Condition("etcd", "", "warning", ETCD_AWAY, ETCD_NEXT)
        if not health.quorum or health.status == "unavailable":
            yield Condition("quorum", "", "critical", health.summary, health.next or "start the missing nodes and etcd")

    def _bans(self) -> Iterator[Condition]:
        found = [ban for ban in self._local_node.bans.all(monotonic()) if ban.automatic]
        clients = [ban.name for ban in found if ban.kind == "client"]
        addresses = [ban.name for ban in found if ban.kind == "address"]
        if clients:
            text = f"{len(clients):,} clients are banned because they connect too often, such as {clients[-1]!r}"
            yield Condition("flapping", "", "warning", text, FLAPPING)
        if addresses:
            text = f"{len(addresses):,} addresses are banned for wrong passwords, such as {addresses[-1]}"
            yield Condition("logins", "", "warning", text, LOGINS)

    def _links(self) -> Iterator[Condition]:
        bridges = self._local_node.bridges()
        if bridges is not None:
            config = self._local_node.config()
            yield from self._link_conditions.look(bridges.views(), carried(config), monotonic())

    def _disk(self) -> Iterator[Condition]:
        directory, share = self._local_node.config().node.data_dir, self._settings().disk_free
        if directory is None or not share:
            return
        import shutil  # a broker without a directory does not load it

        try:
            usage = shutil.disk_usage(directory)
        except OSError:
            return  # the storage itself reports it
        free = usage.free / max(usage.total, 1)
        if free < share:
            severity: Severity = "critical" if free < DISK_FREE_CRITICAL else "warning"
            text = f"{usage.free >> 20:,} MiB of {usage.total >> 20:,} MiB are free in {directory} ({free:.0%})"
            yield Condition("disk", "", severity, text, "free some space, or bound streams and storage.retention_size")

    def _certificates(self) -> Iterator[Condition]:
        now, days = self._local_node.driver.clock(), self._settings().certificate_days
        self.expirations = self._loaded.look()
        found: dict[str, Condition] = {}  # a file may be a certificate and an authority
        for one in self.expirations:
            state = one.state(now, days)
            if state != "valid" and (one.place not in found or state != "soon"):
                severity: Severity = "warning" if state == "soon" else "critical"
                found[one.place] = Condition("certificate", one.place, severity, one.text(now), one.advice())
        yield from found.values()

    def _read_certificates(self) -> list[CertificateInfo]:
        now, days = self._local_node.driver.clock(), self._settings().certificate_days
        return [_certificate(one, now, days) for one in self._loaded.look()]

    def _clock(self) -> Iterator[Condition]:
        if self._local_node.cluster is not None and clock_is_synchronized() is False:
            text = "the clock of this machine is not synchronized; the nodes order retained messages by it"
            yield Condition("clock", "", "warning", text, "run chrony or systemd-timesyncd on this machine")


def closed_max(reason: str) -> float:
    """Return how many connections may be closed for a reason within ``CLOSED_SECONDS``."""
    return FAILED_MAX if reason == "bad_user_name_or_password" else CLOSED_MAX


def _last(notice: Notice | None) -> str:
    if notice is None:
        return ""
    client = f" of client {notice.client_id!r}" if notice.client_id else ""
    return f", the last one from {notice.peer}{client}: {notice.detail}"


def _question(refusal: Refusal) -> str:
    """The command that tests the rules again."""
    does = "publish" if refusal.reason == PUBLISH_REFUSED else "group" if refusal.group else "subscribe"
    words = ["starlingmq", "ctl", "may", refusal.client_id[:NAME_MAX], does, _name(refusal.topic)]
    words += ["--user", refusal.username[:NAME_MAX]]
    words += ["--qos", str(refusal.qos)] * bool(refusal.qos) + ["--retain"] * refusal.retain
    words += ["--group", _name(refusal.group)] * bool(refusal.group)
    return shlex.join(words)


def _name(name: bytes) -> str:
    return name[:NAME_SHOWN].decode(errors="replace")


def _certificate(one: Expiration, now: float, days: int) -> CertificateInfo:
    end = None if one.ends is None else datetime.fromtimestamp(one.ends, UTC).isoformat(timespec="seconds")
    return CertificateInfo(
        one.file,
        end,
        one.days(now),
        one.problem,
        kind=one.kind,
        name=one.name,
        setting=one.setting,
        state=one.state(now, days),
        reload=one.renewed,
        left="" if end is None else one.left(now),
    )
