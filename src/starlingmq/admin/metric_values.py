"""The values of ``admin.metric_table``, and both in Prometheus's format.

Nothing is counted here: the core counts. ``admin.session_totals_job`` computes sums over sessions when metrics are
read.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from starlingmq._compiled import compiled
from starlingmq._version import __version__
from starlingmq.admin.metric_table import COUNTERS, GAUGES, HISTOGRAMS, PROCESS
from starlingmq.admin.metric_text import MetricsReply, MetricText, Sample
from starlingmq.admin.readiness import readiness
from starlingmq.admin.service import AdminService
from starlingmq.cluster.cluster_state import ClusterState
from starlingmq.cluster.shares.share_figures import figures_of
from starlingmq.core.groups.group_stats import title
from starlingmq.core.observe.counters import BUCKETS, Histogram
from starlingmq.core.reports.session_totals import SessionTotals
from starlingmq.core.reports.sys_topics import count_own_retained
from starlingmq.storage.opening import directory_of

if TYPE_CHECKING:
    from starlingmq.net.copies.copy_process import CopyProcess
    from starlingmq.net.peers.cluster_shell import Cluster

BOUNDS: Final = [f"{1e-6 * 2**bucket:.6f}" for bucket in range(BUCKETS - 1)] + ["+Inf"]
HTTP_REFUSALS: Final = (  # reasons of ``api.guard``
    "password",
    "token",
    "banned",
    "busy",
    "proxied",
    "unset",
    "oidc",
    "provider",
)
OF_LINKS: Final = (
    *("waiting", "waiting_bytes", "messages_out", "messages_in"),
    *("refused", "kept_out", "again", "dropped"),
)
OF_SESSIONS: Final = ("subscriptions", "queued", "queued_bytes", "inflight", "awaiting_rel")
FORWARDS: Final = ("sent", "received", "doubled", "kept", "unwanted")
LABELS_MAX: Final = 200  # nodes, streams and groups with values of their own
FAMILIES: Final[dict[str, tuple[Any, list[str], str]]] = {
    key.partition("{")[0]: (family, key.partition("{")[2].rstrip("}").split(",") if "{" in key else [], text)
    for family, table in (
        (CounterMetricFamily, COUNTERS),
        (GaugeMetricFamily, GAUGES),
        (HistogramMetricFamily, HISTOGRAMS),
    )
    for key, text in table.items()
}

Value = float | Histogram | Mapping[Any, float] | Mapping[str, Histogram]
"""By the values of the labels, if there are some."""
Values = Iterator[tuple[str, Value]]


def family_of(name: str, value: Value) -> Metric:
    kind, labels, text = FAMILIES[name]
    made = kind(f"starlingmq_{name}", text, labels=labels)
    by_labels: dict[Any, Any] = dict(value) if isinstance(value, Mapping) else {(): value}
    for key, one in sorted(by_labels.items()):
        names = [key] if isinstance(key, str) else key
        if isinstance(one, Histogram):
            buckets = list(zip(BOUNDS, map(float, accumulate(one.counts)), strict=True))
            made.add_metric(names, buckets, one.total)
        else:
            made.add_metric(names, one)
    return made  # type: ignore[no-any-return]


class MetricValues:
    """A collector of prometheus-client: all metrics of one broker as of now."""

    def __init__(self, service: AdminService, session_totals: SessionTotals) -> None:
        self.local_node = service.local_node
        self.service = service
        self.session_totals = session_totals
        self.process = ProcessCollector(registry=None)

    def collect(self) -> Iterator[Metric]:
        for values in (self._traffic, self._listeners, self._holdings, self._groups, self._latencies, self._storage):
            yield from (family_of(*one) for one in values())
        for values in (self._state, self._logins, self._outside, self._links, self._cluster):
            yield from (family_of(*one) for one in values())
        for family in self.process.collect():  # none without /proc
            family.documentation = PROCESS.get(family.name, family.documentation)
            yield family

    def _state(self) -> Values:
        yield "ready", int(not readiness(self.local_node).reasons)
        code = "compiled" if compiled() else "interpreted"
        yield "build_info", {(self.local_node.name, __version__, platform.python_version(), code): 1}
        yield "alarms", Counter((one.kind, one.severity) for one in self.service.alarms.known.active())
        expirations = self.service.alarms.conditions.expirations
        ends = {(one.kind, one.setting, one.file): one.ends for one in expirations if one.ends is not None}
        yield "expires_timestamp_seconds", ends

    def _logins(self) -> Values:
        yield "http_logins_refused", {reason: self.local_node.http_refusals[reason] for reason in HTTP_REFUSALS}
        hashing = self.local_node.hashing()
        if hashing is None:
            return
        found = hashing.checks.figures
        outcomes = {"checked": found.checked, "refused": found.refused, "expired": found.expired, "gone": found.gone}
        yield "login_checks", outcomes
        yield "login_checks_waiting", hashing.checks.waiting
        yield "hashing_process_ended", hashing.verifier.ended

    def _outside(self) -> Values:
        """Services outside the broker."""
        requests: dict[tuple[str, str], float] = {}
        for one in self.service.connectors.present():
            requests[one.name, "accepted"] = one.counts.accepted
            requests[one.name, "failed"] = one.counts.failed
        yield "connector_requests", requests
        if (tracing := self.local_node.tracing()) is not None:
            yield from ((f"traced_{name}", value) for name, value in tracing.figures().items())

    def _links(self) -> Values:
        bridges = self.local_node.bridges()
        if bridges is None:
            return
        shown = bridges.views()[:LABELS_MAX]
        yield "link_connected", {one.name: int(one.state == "connected") for one in shown if one.state != "elsewhere"}
        yield "link_inflight", {one.name: one.in_flight for one in shown}
        for count in OF_LINKS:
            yield f"link_{count}", {one.name: getattr(one, count) for one in shown}

    def _traffic(self) -> Values:
        counters = self.local_node.state.ctx.counters
        received, sent = counters.publish_received, counters.publish_sent
        yield "messages_received", _by_qos(received, counters.received_qos1, counters.received_qos2)
        yield "messages_sent", _by_qos(sent, counters.sent_qos1, counters.sent_qos2)
        yield "messages_dropped", counters.dropped
        yield "connections_closed", counters.errors
        yield "connections_noted", counters.noted
        yield "messages_queued", counters.messages_queued
        yield "retransmissions", counters.retransmitted
        yield "publishers_held", counters.held_publishers
        yield "received_bytes", counters.bytes_received
        yield "sent_bytes", counters.bytes_sent
        yield "connections_opened", counters.connections_opened

    def _listeners(self) -> Values:
        listeners, came = self.local_node.listeners(), self.session_totals.by_listener
        yield "connections", {one.address: one.gate.connections for one in listeners}
        yield "listener_messages_received", {name: one.published for name, one in came.items()}
        yield "listener_received_bytes", {name: one.bytes_in for name, one in came.items()}
        yield "listener_sent_bytes", {name: one.bytes_out for name, one in came.items()}
        refused = {(one.address, why): count for one in listeners for why, count in one.gate.refused.items()}
        yield "connections_refused", refused
        queues = {one.gate.admission.handshakes for one in listeners}
        yield "handshakes_waiting", sum(queue.waiting for queue in queues)
        yield "accept_pauses", sum(queue.pauses for queue in queues)

    def _holdings(self) -> Values:
        state, survey = self.local_node.state, self.session_totals
        yield "clients_connected", state.ctx.counters.clients_connected
        yield "sessions", survey.connected + survey.away
        yield "sessions_away", survey.away
        yield "sessions_stalled", survey.stalled
        yield from ((name, getattr(survey, name)) for name in OF_SESSIONS)
        yield "retained_messages", len(state.retained) - count_own_retained(state.retained)
        yield "retained_bytes", state.retained.total_bytes
        yield "queued_beyond_limits", survey.beyond_limits
        yield "bans", sum(1 for _ in self.local_node.bans.all(monotonic()))

    def _groups(self) -> Values:
        groups = self.local_node.state.router.groups()
        shown = {title(group): group for group in groups[:LABELS_MAX]}
        yield "groups", len(groups)
        yield "group_waiting", {name: one.waiting() for name, one in shown.items()}
        lag = {name: one.waiting() + sum(one.waits_at.values()) for name, one in shown.items() if one.primary}
        yield "group_lag", lag
        yield "group_members", {name: len(one.members) + sum(one.counts.values()) for name, one in shown.items()}
        yield "group_sent_at_once", self.local_node.state.groups.at_once

    def _latencies(self) -> Values:
        counters = self.local_node.state.ctx.counters
        yield "turn_seconds", counters.turns
        yield "delivery_delay_seconds", counters.delays
        yield "commit_seconds", counters.commits
        yield "event_loop_lag_seconds", self.local_node.lag.seen
        yield "turn_max_seconds", counters.stall_max_ms / 1000

    def _storage(self) -> Values:
        ctx = self.local_node.state.ctx
        store = directory_of(self.local_node.driver.store)
        if store is None:
            return
        yield "fsync_seconds", store.syncs
        yield "journal_bytes", store.journal.size
        yield "journal_segments", len(store.journal.segments())
        yield "storage_ok", int(not ctx.refusing)
        yield "storage_failures", ctx.storage.failures
        yield "records_lost", ctx.storage.records_lost
        logs = {log.stream.name: log for log in list(store.streams.by_number.values())[:LABELS_MAX]}
        yield "stream_bytes", {name: log.journal.size for name, log in logs.items()}
        yield "stream_next", {name: max(log.shown, 0) for name, log in logs.items()}
        lag: dict[tuple[str, str], float] = {}
        for name, log in logs.items():
            for one in list(log.consumers.by_name.values())[:LABELS_MAX]:
                lag[name, one.name] = max(0, log.shown - one.next)
        yield "stream_lag", lag

    def _cluster(self) -> Values:
        cluster = self.local_node.cluster
        if cluster is None or cluster.state is None:
            return
        yield "cluster_serving", int(readiness(self.local_node).cluster == "serving")
        yield from self._forwards(cluster, cluster.state)
        yield from copy_values(cluster.copies)
        yield from share_values(cluster.state)
        yield from self._replays(cluster.state)
        yield "sessions_lost", cluster.state.takeovers.lost
        poller = self.service.poller
        yield "peer_round_trip_seconds", {} if poller is None else dict(list(poller.round_trips.items())[:LABELS_MAX])
        status = cluster.state.status()[:LABELS_MAX]
        yield "peer_connected", {one.member.name: int(one.connected) for one in status}
        yield "peer_queued", {one.member.name: one.queued for one in status}

    def _forwards(self, cluster: Cluster, state: ClusterState) -> Values:
        counters, traffic = self.local_node.state.ctx.counters, cluster.peers.traffic
        yield from ((f"forwards_{name}", getattr(counters, f"forwards_{name}")) for name in FORWARDS)
        yield "peer_sent_bytes", traffic.bytes_out
        yield "peer_received_bytes", traffic.bytes_in
        transports = list(state.transports.items())[:LABELS_MAX]
        backlogs = {state.view.name_of(number): transport.backlog() for number, transport in transports}
        yield "peer_backlog_waiting", {name: one.left for name, one in backlogs.items()}
        yield "peer_backlog_passed_on", {name: one.all_passed_on for name, one in backlogs.items()}
        yield "peer_backlog_dropped", {name: one.all_dropped for name, one in backlogs.items()}

    def _replays(self, cluster: ClusterState) -> Values:
        """New subscriptions that wait for retained messages."""
        ctx = self.local_node.state.ctx
        if ctx.cluster.retained is None:
            return
        waits = ctx.cluster.retained.waits
        yield "retained_replays_waiting", waits.count
        yield "retained_replay_wait_seconds", waits.seconds(ctx.now)
        yield "retained_replays_missing", {cluster.view.name_of(node): n for node, n in waits.missing.items()}
        yield "retained_replays_incomplete", waits.incomplete


def share_values(state: ClusterState) -> Values:
    """Of the shares of client ids."""
    found = figures_of(state.shares)
    yield "shares_led", found.led.get(state.number, 0) if state.number else 0  # 0 leads those that no node leads
    yield "shares_not_serving", found.asking + found.copying
    yield "share_requests_waiting", found.waiting
    yield "share_client_ids", found.client_ids
    yield "share_claims", found.granted
    yield "share_unknown_nodes", len(found.unknown)
    yield "share_behind", {state.view.name_of(number): count for number, count in found.behind.items()}


def copy_values(process: CopyProcess | None) -> Values:
    """None with ``cluster.copies: 1``."""
    if process is None:
        return
    in_step: dict[str, float] = {}
    missing: dict[str, float] = {}
    behind_bytes: dict[tuple[str, str], float] = {}
    behind_seconds: dict[tuple[str, str], float] = {}
    for origin, server in process.roles.servers.items():
        part, record = process.part_of(origin), server.record
        if part is None or part.source is None:
            continue
        in_step[origin] = len(record.in_step)
        present = sum(1 for name in record.in_step if name in process.roles.registry.nodes)
        missing[origin] = max(0, process.config.cluster.copies - present)
        for name in list(part.feeds):
            if (behind := part.source.behind(name)) is not None:
                behind_bytes[origin, name], behind_seconds[origin, name] = behind
    yield from (("copies_in_step", in_step), ("copies_missing", missing))
    yield from (("copy_behind_bytes", behind_bytes), ("copy_behind_seconds", behind_seconds))


def _by_qos(total: int, qos1: int, qos2: int) -> dict[str, float]:
    return {"0": total - qos1 - qos2, "1": qos1, "2": qos2}


async def metrics(service: AdminService) -> MetricsReply:
    """All metrics as of now."""
    values = MetricValues(service, await service.session_totals_job.count())
    samples = [Sample(one.name, one.labels, one.value) for family in values.collect() for one in family.samples]
    return MetricsReply(values.local_node.name, samples)


async def metric_text(service: AdminService) -> MetricText:
    """All metrics as of now."""
    values = MetricValues(service, await service.session_totals_job.count())
    registry = CollectorRegistry(auto_describe=False)
    registry.register(values)
    return MetricText(generate_latest(registry).decode())
