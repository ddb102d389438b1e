"""Targets and tables of the section about NATS."""

from __future__ import annotations

from rich.table import Table

from bench.nats import JETSTREAM
from bench.results import NatsCell, Results, median
from bench.tables import Target, grid, short, thousands

OURS = "starlingmq-nats"
KEPT = "starlingmq-nats-process"
THEIRS = "nats-server"
OF_NATS = 0.4
GROUP_PER_S = 500_000.0
JETSTREAM_TIMES = 2.0
BUSIEST = 1.1
ADDED_MS = {True: 2.0, False: 60.0}  # with notifications, and without


def targets(results: Results) -> list[Target]:
    """Return every target about NATS that this run has measured."""
    return [*cell_targets(results), *hop_targets(results)]


def cell_targets(results: Results) -> list[Target]:
    found = []
    for cell in results.nats:
        name = f"NATS {cell.name} {cell.publishers}:{cell.subscribers}"
        if not cell.queue and (ratio := of_theirs(cell)) is not None:
            found.append(Target(f"{name}: messages per CPU second, times nats-server", ratio, OF_NATS, True))
        if cell.queue and (rate := cell.rate(OURS)) is not None:
            found.append(Target(f"{name}: messages/s", rate, GROUP_PER_S, True))
        ours, theirs = cell.rate(KEPT), cell.rate(JETSTREAM)
        if ours and theirs:
            found.append(Target(f"{name}: times JetStream's work queue", ours / theirs, JETSTREAM_TIMES, True))
        if shares := cell.shares.get(OURS):
            name = f"{name}: the busiest member of {cell.balanced} messages, times its share"
            found.append(Target(name, max(shares), BUSIEST, False))
    return found


def of_theirs(cell: NatsCell) -> float | None:
    ours, theirs = cell.per_cpu_second(OURS), cell.per_cpu_second(THEIRS)
    return ours / theirs if ours and theirs else None


def hop_targets(results: Results) -> list[Target]:
    return [
        Target(
            f"queue group, node to node, notifications {'on' if place.notify else 'off'}: ms added",
            place.added_ms,
            ADDED_MS[place.notify],
            False,
        )
        for place in results.group_hops
        if place.grouped
    ]


def failures(results: Results) -> list[str]:
    """Return failed runs, and messages that StarlingMQ's groups lost."""
    found = [f"{peer}: {text}" for cell in results.nats for peer, text in cell.errors.items()]
    for cell in results.nats:
        for peer, runs in cell.runs.items():
            if cell.queue and (lost := sum(run.missing for run in runs if run.drained)):
                found.append(f"{peer}: {lost} messages of the {cell.name} did not come")
    for place in results.group_hops:
        found += [f"group hop: {text}" for text in place.errors]
        if lost := sum(run.missing for run in place.grouped):
            found.append(f"group hop: {lost} messages did not come")
    return found


def tables(results: Results) -> list[Table]:
    made = [cell_table(results), hop_table(results)]
    return [table for table in made if table.row_count]


def cell_table(results: Results) -> Table:
    columns = ("thousand/s", "window", "broker CPU", "CPU us/message", "million/CPU s", "busiest member", "others' CPU")
    table = grid("NATS, 64 bytes, pipelined (publishers:subscribers)", "cell, peer", *columns)
    for cell in results.nats:
        for peer, runs in cell.runs.items():
            if not runs:  # its error has a row below
                continue
            per_cpu_second = cell.per_cpu_second(peer) or float("nan")
            shares = cell.shares.get(peer)
            table.add_row(
                f"{cell.name} {cell.publishers}:{cell.subscribers} {peer}",
                thousands(cell.rate(peer)),
                str(cell.windows[peer]),
                f"{median([run.broker_cpu for run in runs]):.0%}",
                f"{1e6 / per_cpu_second:.2f}",
                f"{per_cpu_second / 1e6:.2f}",
                f"{max(shares):.3f}x" if shares else "-",
                f"{max(run.others_cpu for run in runs):.0%}",
            )
        for peer, text in cell.errors.items():
            table.add_row(f"{cell.name} {peer}", short(text))
    table.caption = "busiest member: what it got, times an equal share"
    return table


def hop_table(results: Results) -> Table:
    columns = ("plain p50 ms", "p99", "group p50 ms", "p99", "added p50", "generator late p99")
    table = grid("A queue group between two nodes, light load", "notifications", *columns)
    for place in results.group_hops:
        if place.grouped:
            table.add_row(
                "on" if place.notify else "off",
                *(f"{median([run.latency_us[at] for run in place.plain]) / 1e3:.2f}" for at in (0, 1)),
                *(f"{median([run.latency_us[at] for run in place.grouped]) / 1e3:.2f}" for at in (0, 1)),
                f"{place.added_ms:.2f}",
                f"{median([run.lag_us[1] for run in place.grouped]) / 1e3:.2f}",
            )
    return table
