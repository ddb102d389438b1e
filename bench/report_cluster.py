"""Targets and tables of the section about clusters."""

from __future__ import annotations

from rich.table import Table

from bench.clustered import Beside
from bench.results import Cluster, Results, median
from bench.tables import Target, grid, thousands

OF_ALONE = 0.95
ACROSS_PER_S = {0: 250_000.0, 1: 100_000.0}
ADDED_MS = 1.5
ROUTES_PER_S = 50_000.0
STALL_MS = 50.0
IDLE = 0.01
OF_ALL_ROUTES = 0.1  # limit for a node that missed a hundredth of the routes, heartbeats included


def targets(results: Results) -> list[Target]:
    """Return every target about clusters that this run has measured."""
    place = results.cluster
    return [] if place is None else [*message_targets(place), *storm_targets(place), *idle_targets(place)]


def message_targets(place: Cluster) -> list[Target]:
    found = []
    for qos in (0, 1):
        if runs := [run for run in place.beside if run.qos == qos]:
            name = f"cluster, all clients at one node, QoS {qos}"
            found.append(Target(f"{name}: times the broker alone", of_alone(runs), OF_ALONE, True))
            frames = max(run.data_frames for run in runs)
            found.append(Target(f"{name}: frames from node to node", frames, 0, False))
        if rates := [run.outcome.delivered_per_s for run in place.across if run.qos == qos]:
            name = f"cluster, from node to node, QoS {qos}: messages/s"
            found.append(Target(name, median(rates), ACROSS_PER_S[qos], True))
        if added := [run.added_ms for run in place.hops if run.qos == qos]:
            found.append(Target(f"cluster, QoS {qos}: ms added by the way", median(added), ADDED_MS, False))
    return found


def of_alone(runs: list[Beside]) -> float:
    return median([run.clustered.delivered_per_s / run.alone.delivered_per_s for run in runs])


def storm_targets(place: Cluster) -> list[Target]:
    runs = place.storms
    if not runs:
        return []
    rate = median([run.outcome.routes_per_s for run in runs])
    stalls = [stall for run in runs for stall in run.stall_ms if stall is not None]
    synced = median([run.sync_bytes / run.bytes_per_peer for run in runs])
    found = [Target("cluster, new filters: routes/s at all nodes", rate, ROUTES_PER_S, True)]
    if stalls:
        found.append(Target("cluster, new filters: stall ms", max(stalls), STALL_MS, False))
    found.append(Target("cluster, a node comes back: bytes, times all routes", synced, OF_ALL_ROUTES, False))
    return found


def idle_targets(place: Cluster) -> list[Target]:
    return [
        Target("cluster, idle: share of a core, a node", median(run.broker), IDLE, False) for run in place.quiet[:1]
    ]


def failures(results: Results) -> list[str]:
    return [] if results.cluster is None else [f"cluster: {text}" for text in results.cluster.errors]


def tables(results: Results) -> list[Table]:
    place = results.cluster
    if place is None:
        return []
    draw = (beside_table, across_table, hop_table, storm_table, idle_table)
    return [table for call in draw if (table := call(place)).row_count]


def beside_table(place: Cluster) -> Table:
    table = grid(
        "All clients at one node of three, 1:1, 64 bytes",
        *("QoS", "thousand/s", "alone", "ratio", "CPU us/message", "alone", "frames between nodes"),
    )
    for qos in (0, 1):
        if runs := [run for run in place.beside if run.qos == qos]:
            ours = [run.clustered for run in runs]
            theirs = [run.alone for run in runs]
            table.add_row(
                str(qos),
                thousands(median([run.delivered_per_s for run in ours])),
                thousands(median([run.delivered_per_s for run in theirs])),
                f"{of_alone(runs):.2f}",
                f"{median([run.broker_cpu * 1e6 / run.delivered_per_s for run in ours]):.2f}",
                f"{median([run.broker_cpu * 1e6 / run.delivered_per_s for run in theirs]):.2f}",
                str(max(run.data_frames for run in runs)),
            )
    return table


def across_table(place: Cluster) -> Table:
    table = grid(
        "Publisher and subscriber at different nodes, 64 bytes; nodes and generator share all cores",
        *("QoS", "thousand/s", "CPU us/message: first node", "second", "third", "generator", "messages/frame"),
        *("others' CPU", "lost"),
    )
    for qos in (0, 1):
        if runs := [run for run in place.across if run.qos == qos]:
            outcomes = [run.outcome for run in runs]
            table.add_row(
                str(qos),
                thousands(median([outcome.delivered_per_s for outcome in outcomes])),
                *(f"{median([run.cpu_us[node] for run in runs]):.2f}" for node in range(3)),
                f"{median([1e6 / outcome.generator_capacity_per_s for outcome in outcomes]):.2f}",
                f"{median([run.outcome.published / max(run.data_frames, 1) for run in runs]):,.0f}",
                f"{median([outcome.others_cpu for outcome in outcomes]):.0%}",
                str(sum(outcome.missing for outcome in outcomes)),
            )
    return table


def hop_table(place: Cluster) -> Table:
    table = grid(
        "Paced messages, all nodes on one core: latency ms",
        *("QoS", "same node p50", "p99", "across p50", "p99", "added p50", "CPU us/message: first node", "second"),
        "generator late p99",
    )
    for qos in (0, 1):
        if runs := [run for run in place.hops if run.qos == qos]:
            table.add_row(
                str(qos),
                *(f"{median([run.same.latency_us[at] for run in runs]) / 1e3:.2f}" for at in (0, 1)),
                *(f"{median([run.across.latency_us[at] for run in runs]) / 1e3:.2f}" for at in (0, 1)),
                f"{median([run.added_ms for run in runs]):.2f}",
                *(f"{median([run.cpu_us[node] for run in runs]):.1f}" for node in (0, 1)),
                f"{median([run.across.lag_us[1] for run in runs]) / 1e3:.2f}",
            )
    return table


def storm_table(place: Cluster) -> Table:
    table = grid(
        "New filters at one node; a node that comes back",
        *("filters", "routes/s", "message max ms", "p99", "stall ms", "CPU us/route: maker", "others"),
        *("RSS/route: maker", "others", "KB to a node", "KB after a restart"),
    )
    for run in place.storms:
        stalls = [stall for stall in run.stall_ms if stall is not None]
        table.add_row(
            f"{run.outcome.filters:,}",
            f"{run.outcome.routes_per_s:,.0f}",
            f"{run.message_max_ms:,.1f}",
            f"{run.message_p99_ms:,.1f}",
            f"{max(stalls):,.1f}" if stalls else "-",
            f"{run.cpu_us[0]:.1f}",
            f"{median(run.cpu_us[1:]):.1f}",
            f"{run.rss_per_route[0]:,.0f}",
            f"{median(run.rss_per_route[1:]):,.0f}",
            f"{run.bytes_per_peer / 1e3:,.0f}",
            f"{run.sync_bytes / 1e3:,.0f}",
        )
    return table


def idle_table(place: Cluster) -> Table:
    table = grid("Three nodes without clients: share of a core", "node", "broker", "its etcd")
    for run in place.quiet:
        for number, (broker, etcd) in enumerate(zip(run.broker, run.etcd, strict=True), start=1):
            table.add_row(f"n{number}", f"{broker:.2%}", f"{etcd:.2%}")
    return table
