"""The metrics of a broker, by their names in Prometheus.

Nothing is counted here: the core counts. ``admin.session_totals_job`` computes sums over sessions when metrics are
read.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from time import monotonic
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from starlingmq._compiled import compiled
from starlingmq._version import __version__
from starlingmq.admin.alarm_metrics import alarm_metric, expiration_metric
from starlingmq.admin.connector_metrics import connector_metric
from starlingmq.admin.copy_metrics import copy_metrics
from starlingmq.admin.forward_metrics import forward_metrics
from starlingmq.admin.metric_samples import MetricsReply, Sample
from starlingmq.admin.metric_text import MetricText
from starlingmq.admin.readiness import readiness
from starlingmq.admin.service import AdminService
from starlingmq.admin.share_metrics import share_metrics
from starlingmq.cluster.cluster_state import ClusterState
from starlingmq.core.groups.group_stats import title
from starlingmq.core.observe.counters import BUCKETS, Histogram
from starlingmq.core.reports.session_totals import SessionTotals
from starlingmq.core.reports.sys_topics import count_own_retained
from starlingmq.storage.opening import directory_of

BOUNDS: Final = [f"{1e-6 * 2**bucket:.6f}" for bucket in range(BUCKETS - 1)] + ["+Inf"]
PROCESS_TEXTS: Final = {
    "process_virtual_memory_bytes": "Address space of the broker's process; much of it is not in memory.",
    "process_resident_memory_bytes": "Memory that the broker's process takes; limits.memory bounds it.",
    "process_start_time_seconds": "Unix time at which the broker's process started.",
    "process_cpu_seconds": "CPU time of the broker's process, user and system; above 0.9 per second its core is full.",
    "process_open_fds": "Open file descriptors: one for each connection, some for files.",
    "process_max_fds": "Limit of open file descriptors; connections are refused above it.",
}
HTTP_REFUSALS: Final = ("password", "token", "banned", "busy", "proxied", "unset")  # reasons of ``api.guard``
LABELS_MAX: Final = 200  # nodes, streams and groups with values of their own


def buckets_of(found: Histogram) -> list[tuple[str, float]]:
    buckets, total = [], 0
    for bound, count in zip(BOUNDS, found.counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets


def histogram(name: str, text: str, found: Histogram) -> Metric:
    return HistogramMetricFamily(name, text, buckets=buckets_of(found), sum_value=found.total)


def counter(name: str, text: str, values: dict[str, float], label: str) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family


def gauge(name: str, text: str, values: dict[str, float], label: str) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


class MetricValues:
    """A collector of prometheus-client: all metrics of one broker as of now."""

    def __init__(self, service: AdminService, session_totals: SessionTotals) -> None:
        self.local_node = service.local_node
        self.service = service
        self.session_totals = session_totals
        self.process = ProcessCollector(registry=None)

    def round_trips(self) -> dict[str, Histogram]:
        return {} if self.service.poller is None else self.service.poller.round_trips

    def collect(self) -> Iterator[Metric]:
        yield from self._traffic()
        yield from self._listeners()
        yield from self._holdings()
        yield from self._latencies()
        yield from self._storage()
        yield from self._cluster()
        yield from self._traced()
        yield from self._logins()
        yield connector_metric(self.service.connectors.present())
        yield alarm_metric(self.service.alarms.known.active())
        yield expiration_metric(self.service.alarms.conditions.expirations)
        yield from self._process()

    def _process(self) -> Iterator[Metric]:
        """The names that all programs with a Prometheus client have. There are none without /proc."""
        for family in self.process.collect():
            family.documentation = PROCESS_TEXTS.get(family.name, family.documentation)
            yield family

    def _logins(self) -> Iterator[Metric]:
        refusals = {reason: self.local_node.http_refusals[reason] for reason in HTTP_REFUSALS}
        yield counter(
            "starlingmq_http_logins_refused", "Failed logins to the HTTP API, by reason.", _floats(refusals), "reason"
        )
        hashing = self.local_node.hashing()
        if hashing is None:
            return
        found = hashing.checks.figures
        values = {"checked": found.checked, "refused": found.refused, "expired": found.expired, "gone": found.gone}
        yield counter("starlingmq_login_checks", "Password verifications, by outcome.", _floats(values), "outcome")
        waiting = hashing.checks.waiting
        yield GaugeMetricFamily(
            "starlingmq_login_checks_waiting", "Password verifications that wait for a worker.", value=waiting
        )
        ended = hashing.verifier.ended
        yield CounterMetricFamily(
            "starlingmq_hashing_process_ended",
            "Times that the process that hashes passwords ended unexpectedly or hung.",
            value=ended,
        )

    def _traced(self) -> Iterator[Metric]:
        tracing = self.local_node.tracing()
        if tracing is None:
            return
        texts = {
            "messages": "Messages sampled for tracing on this node.",
            "spans": "Spans exported to the collector.",
            "spans_lost": "Spans that could not be exported.",
            "left_out": (
                "Messages above tracing.rate, and steps above the limit of concurrent ones, that were not traced."
            ),
        }
        for name, value in tracing.figures().items():
            yield CounterMetricFamily(f"starlingmq_traced_{name}", texts[name], value=value)

    def _traffic(self) -> Iterator[Metric]:
        """Long because it is a list."""
        counters = self.local_node.state.ctx.counters
        received, sent = counters.publish_received, counters.publish_sent
        yield counter(
            "starlingmq_messages_received",
            "Messages published by clients, by QoS; NATS messages count as QoS 0.",
            _by_qos(received, counters.received_qos1, counters.received_qos2),
            "qos",
        )
        yield counter(
            "starlingmq_messages_sent",
            "Messages sent to clients, by QoS, including retransmissions.",
            _by_qos(sent, counters.sent_qos1, counters.sent_qos2),
            "qos",
        )
        yield counter(
            "starlingmq_messages_dropped",
            "Messages given up for a receiver, by reason (the playbook explains each).",
            _floats(counters.dropped),
            "reason",
        )
        yield counter(
            "starlingmq_connections_closed",
            "Connections closed by the broker, by reason; those that clients close are not counted.",
            _floats(counters.errors),
            "reason",
        )
        yield counter(
            "starlingmq_connections_noted",
            "Events that are logged and after which the connection continues, by reason.",
            _floats(counters.noted),
            "reason",
        )
        yield CounterMetricFamily(
            "starlingmq_messages_queued",
            "Messages that could not be sent at once and went to a queue.",
            value=counters.messages_queued,
        )
        yield CounterMetricFamily(
            "starlingmq_retransmissions",
            "Messages sent again, because they were not acknowledged.",
            value=counters.retransmitted,
        )
        yield CounterMetricFamily(
            "starlingmq_publishers_held",
            "Times that a publisher was paused because a receiver was full.",
            value=counters.held_publishers,
        )
        yield CounterMetricFamily(
            "starlingmq_received_bytes",
            "Bytes that clients have sent, on all listeners, after decryption.",
            value=counters.bytes_received,
        )
        yield CounterMetricFamily(
            "starlingmq_sent_bytes",
            "Bytes written to clients, on all listeners, before encryption.",
            value=counters.bytes_sent,
        )
        yield CounterMetricFamily(
            "starlingmq_connections_opened",
            "Connections accepted since the start, whether or not their clients were.",
            value=counters.connections_opened,
        )

    def _listeners(self) -> Iterator[Metric]:
        open_ = {one.address: float(one.gate.connections) for one in self.local_node.listeners()}
        yield gauge(
            "starlingmq_connections",
            "Open connections, by listener, including those that have not sent CONNECT yet.",
            open_,
            "listener",
        )
        came = self.session_totals.by_listener
        published = {name: float(one.published) for name, one in came.items()}
        yield counter(
            "starlingmq_listener_messages_received",
            "Messages published by clients that are or were connected to the listener.",
            published,
            "listener",
        )
        bytes_in = {name: float(one.bytes_in) for name, one in came.items()}
        yield counter(
            "starlingmq_listener_received_bytes",
            "Bytes that clients of the listener have sent, after decryption.",
            bytes_in,
            "listener",
        )
        bytes_out = {name: float(one.bytes_out) for name, one in came.items()}
        yield counter(
            "starlingmq_listener_sent_bytes",
            "Bytes written to clients of the listener, before encryption.",
            bytes_out,
            "listener",
        )
        refused = CounterMetricFamily(
            "starlingmq_connections_refused",
            "Connections closed before any client was known, by listener and reason, such as a limit or a ban.",
            labels=["listener", "reason"],
        )
        for listener in self.local_node.listeners():
            for reason, count in listener.gate.refused.items():
                refused.add_metric([listener.address, reason], count)
        yield refused
        queues = {one.gate.admission.handshakes for one in self.local_node.listeners()}
        text = "TLS handshakes that wait for their turn (limits.handshake_time)."
        yield GaugeMetricFamily("starlingmq_handshakes_waiting", text, value=sum(queue.waiting for queue in queues))
        text = "Times that a listener with TLS stopped accepting because too many handshakes waited."
        yield CounterMetricFamily("starlingmq_accept_pauses", text, value=sum(queue.pauses for queue in queues))

    def _holdings(self) -> Iterator[Metric]:
        state, survey = self.local_node.state, self.session_totals
        now = {
            "clients_connected": (
                state.ctx.counters.clients_connected,
                "MQTT and NATS clients that are connected to this node and have been accepted.",
            ),
            "sessions": (
                survey.connected + survey.away,
                "Sessions on this node, of connected and disconnected clients.",
            ),
            "sessions_away": (
                survey.away,
                "Sessions on this node whose clients are disconnected; messages wait for them.",
            ),
            "subscriptions": (
                survey.subscriptions,
                "Subscriptions of the sessions on this node, connected or not.",
            ),
            "retained_messages": (
                len(state.retained) - count_own_retained(state.retained),
                "Topics with a retained message, as this node knows them, without those below $SYS.",
            ),
            "retained_bytes": (
                state.retained.total_bytes,
                "Size of the topics, payloads and properties of retained messages.",
            ),
            "queued": (
                survey.queued,
                "Messages that wait in queues: their clients are disconnected, or slower than their publishers.",
            ),
            "queued_bytes": (survey.queued_bytes, "Size of the topics, payloads and properties of queued messages."),
            "queued_beyond_limits": (
                survey.beyond_limits,
                "Queued messages beyond the limits of their queues: other nodes had accepted them before.",
            ),
            "inflight": (survey.inflight, "Messages sent to clients and not acknowledged yet."),
            "awaiting_rel": (survey.awaiting_rel, "QoS 2 messages of clients that wait for their PUBREL."),
            "sessions_stalled": (survey.stalled, "Sessions for which publishers are not held any more."),
            "groups": (
                len(state.router.groups()),
                "Groups with members: shared subscriptions of MQTT, queue groups of NATS.",
            ),
            "bans": (
                sum(1 for _ in self.local_node.bans.all(monotonic())),
                "Addresses, users and clients that are refused at the moment.",
            ),
        }
        for name, (value, text) in now.items():
            yield GaugeMetricFamily(f"starlingmq_{name}", text, value=value)
        yield from self._groups()

    def _groups(self) -> Iterator[Metric]:
        waiting: dict[str, float] = {}
        lag: dict[str, float] = {}
        members: dict[str, float] = {}
        for group in self.local_node.state.router.groups()[:LABELS_MAX]:
            name = title(group)
            waiting[name] = float(group.waiting())
            members[name] = float(len(group.members) + sum(group.counts.values()))
            if group.primary:
                lag[name] = waiting[name] + sum(group.waits_at.values())
        yield gauge(
            "starlingmq_group_waiting", "Messages of a group that wait on this node for a member.", waiting, "group"
        )
        yield gauge(
            "starlingmq_group_lag", "Messages of a group that wait on all nodes; reported by its primary.", lag, "group"
        )
        yield gauge("starlingmq_group_members", "Members of a group on all nodes.", members, "group")
        at_once = self.local_node.state.groups.at_once
        yield CounterMetricFamily(
            "starlingmq_group_sent_at_once",
            "Messages sent to members on other nodes without asking the primary.",
            value=at_once,
        )

    def _latencies(self) -> Iterator[Metric]:
        counters = self.local_node.state.ctx.counters
        yield histogram(
            "starlingmq_turn_seconds",
            "Time from the first bytes read in a turn of the event loop to the last bytes written: the "
            "longest delay of a message that was published and delivered in that turn.",
            counters.turns,
        )
        yield histogram(
            "starlingmq_delivery_delay_seconds",
            "Time from a message's arrival on this node until it was sent to a client, including queues, "
            "windows and hooks; sampled: one in 16 of the messages that are not sent in the turn in "
            "which they arrive.",
            counters.delays,
        )
        yield histogram("starlingmq_commit_seconds", "Time until the writes of a turn were stored.", counters.commits)
        yield histogram(
            "starlingmq_event_loop_lag_seconds",
            "Delay of a timer of the event loop: the time for which everything else waited.",
            self.local_node.lag.seen,
        )
        yield GaugeMetricFamily(
            "starlingmq_turn_max_seconds", "The longest turn since the start.", value=counters.stall_max_ms / 1000
        )

    def _storage(self) -> Iterator[Metric]:
        ctx = self.local_node.state.ctx
        store = directory_of(self.local_node.driver.store)
        if store is None:
            return
        yield histogram("starlingmq_fsync_seconds", "Duration of a sync of the journal.", store.syncs)
        yield GaugeMetricFamily(
            "starlingmq_journal_bytes",
            "Size of the journal on disk, which keeps queued and unsaved data.",
            value=store.journal.size,
        )
        yield GaugeMetricFamily(
            "starlingmq_journal_segments",
            "Files of the journal; one is deleted when no session refers to it.",
            value=len(store.journal.segments()),
        )
        yield GaugeMetricFamily("starlingmq_storage_ok", "1 if the storage works, else 0.", value=int(not ctx.refusing))
        yield CounterMetricFamily(
            "starlingmq_storage_failures",
            "Times that the disk was full or failed, so that messages were refused.",
            value=ctx.storage.failures,
        )
        yield CounterMetricFamily(
            "starlingmq_records_lost", "Records lost or damaged on disk.", value=ctx.storage.records_lost
        )
        logs = list(store.streams.by_number.values())[:LABELS_MAX]
        sizes = {log.stream.name: float(log.journal.size) for log in logs}
        yield gauge("starlingmq_stream_bytes", "Size of a stream on the disk of this node.", sizes, "stream")
        nexts = {log.stream.name: float(max(log.shown, 0)) for log in logs}
        yield gauge(
            "starlingmq_stream_next",
            "Offset that the next message of a stream will get: all messages so far, also those deleted since.",
            nexts,
            "stream",
        )
        lag = GaugeMetricFamily(
            "starlingmq_stream_lag",
            "Messages of a stream that a consumer has not read yet.",
            labels=["stream", "consumer"],
        )
        for log in logs:
            for one in list(log.consumers.by_name.values())[:LABELS_MAX]:
                lag.add_metric([log.stream.name, one.name], max(0, log.shown - one.next))
        yield lag

    def _cluster(self) -> Iterator[Metric]:
        ready = readiness(self.local_node)
        yield GaugeMetricFamily(
            "starlingmq_ready", "1 if this node accepts clients, else 0.", value=int(not ready.reasons)
        )
        info = GaugeMetricFamily(
            "starlingmq_build_info",
            "Always 1; the labels have the name of the node, the version, and whether the code is compiled.",
            labels=["node", "version", "python", "code"],
        )
        code = "compiled" if compiled() else "interpreted"
        info.add_metric([self.local_node.name, __version__, platform.python_version(), code], 1)
        yield info
        cluster = self.local_node.cluster
        if cluster is None or cluster.state is None:
            return
        counters, traffic = self.local_node.state.ctx.counters, cluster.peers.traffic
        yield GaugeMetricFamily(
            "starlingmq_cluster_serving",
            "1 if this node serves in its cluster, else 0.",
            value=int(ready.cluster == "serving"),
        )
        yield from forward_metrics(counters, cluster.state, traffic)
        yield from copy_metrics(cluster.copies)
        yield from share_metrics(cluster.state)
        yield from self._replays(cluster.state)
        lost = _floats(cluster.state.takeovers.lost)
        yield counter("starlingmq_sessions_lost", "Sessions that a CONNECT did not find, by reason.", lost, "reason")
        status = cluster.state.status()[:LABELS_MAX]
        trips = HistogramMetricFamily(
            "starlingmq_peer_round_trip_seconds", "Round-trip time of an empty request to a node.", labels=["peer"]
        )
        for name, seen in list(self.round_trips().items())[:LABELS_MAX]:
            trips.add_metric([name], buckets_of(seen), seen.total)
        yield trips
        links = {one.member.name: float(one.connected) for one in status}
        yield gauge("starlingmq_peer_connected", "1 if the node is connected, else 0.", links, "peer")
        queued = {one.member.name: float(one.queued) for one in status}
        yield gauge(
            "starlingmq_peer_queued",
            "Messages that wait on this node until they can be sent to that node.",
            queued,
            "peer",
        )

    def _replays(self, cluster: ClusterState) -> Iterator[Metric]:
        """New subscriptions that wait for retained messages."""
        ctx = self.local_node.state.ctx
        retaining = ctx.cluster.retained
        if retaining is None:
            return
        waits = retaining.waits
        yield GaugeMetricFamily(
            "starlingmq_retained_replays_waiting",
            "New subscriptions that wait for retained messages from other nodes.",
            value=waits.count,
        )
        yield GaugeMetricFamily(
            "starlingmq_retained_replay_wait_seconds",
            "How long the first of these subscriptions has waited.",
            value=waits.seconds(ctx.now),
        )
        missing = {cluster.view.name_of(node): float(count) for node, count in waits.missing.items()}
        yield gauge(
            "starlingmq_retained_replays_missing",
            "How many of these subscriptions wait for messages that the node has accepted.",
            missing,
            "peer",
        )
        yield CounterMetricFamily(
            "starlingmq_retained_replays_incomplete",
            "New subscriptions that waited for as long as allowed and got the retained messages known here.",
            value=waits.incomplete,
        )


def _floats(counts: dict[str, int]) -> dict[str, float]:
    return {key: float(value) for key, value in counts.items()}


def _by_qos(total: int, qos1: int, qos2: int) -> dict[str, float]:
    return {"0": float(total - qos1 - qos2), "1": float(qos1), "2": float(qos2)}


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
