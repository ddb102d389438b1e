"""Medians, ratios against the targets, and the tables on the terminal."""

from __future__ import annotations

import msgspec
from rich.console import Console
from rich.table import Table

from bench import report_auth, report_cluster, report_handshakes, report_kept, report_nats
from bench.cells import NODELAY
from bench.results import Cell, Filters, Idle, Paced, Results, median
from bench.tables import Target, grid, short, thousands

OURS = "starlingmq"
DISTURBED = 0.05
MOSQUITTO_TIMES = 5.0
AMQTT_TIMES = 50.0
BYTES_PER_CONNECTION = 3 * 1024
GROWTH = 1.5
STALL_MS = 20.0
LATENCY = ("p50", "p99", "p99.9")


def targets(results: Results) -> list[Target]:
    """Return every target that this run has measured."""
    return [
        *throughput_targets(results),
        *paced_targets(results),
        *memory_targets(results),
        *filter_targets(results),
        *report_kept.targets(results),
        *report_cluster.targets(results),
        *report_handshakes.targets(results),
        *report_nats.targets(results),
        *report_auth.targets(results),
    ]


def throughput_targets(results: Results) -> list[Target]:
    found = []
    for cell in results.throughput:
        for peer, times in (("mosquitto", MOSQUITTO_TIMES), ("amqtt", AMQTT_TIMES)):
            if (ratio := rate_ratio(cell, peer)) is not None:
                found.append(Target(f"{cell.name} QoS {cell.qos}: times {peer}", ratio, times, True))
    return found


def rate_ratio(cell: Cell, peer: str) -> float | None:
    ours, theirs = cell.rate(OURS), cell.rate(peer)
    return ours / theirs if ours and theirs else None


def paced_targets(results: Results) -> list[Target]:
    found = []
    for place in results.paced:
        ours, theirs = place.runs.get(OURS), place.runs.get("mosquitto")
        if not ours or not theirs:
            continue
        name = f"paced {place.rate:,.0f}/s QoS {place.qos}"
        cpu = median([run.cpu_us_per_message for run in ours]) / median([run.cpu_us_per_message for run in theirs])
        found.append(Target(f"{name}: CPU per message, times mosquitto", cpu, 1.0, False))
        for index, share in enumerate(LATENCY[:2]):
            bound = median([run.latency_us[index] for run in theirs])
            found.append(Target(f"{name}: {share} us", median([run.latency_us[index] for run in ours]), bound, False))
    return found


def memory_targets(results: Results) -> list[Target]:
    found = []
    for place in results.memory:
        if ours := place.runs.get(OURS):
            size = median([run.rss_per_connection for run in ours])
            found.append(Target("bytes per idle connection", size, BYTES_PER_CONNECTION, False))
            if theirs := place.runs.get("mosquitto"):
                bound = median([run.accepted_per_s for run in theirs])
                found.append(Target("connections/s", median([run.accepted_per_s for run in ours]), bound, True))
    return found


def filter_targets(results: Results) -> list[Target]:
    found = []
    for place in results.subscriptions[1:]:
        if growth := cost_growth(results.subscriptions[0], place, OURS):
            found.append(Target(f"cost of a PUBLISH, {place.filters} unrelated filters", growth, GROWTH, False))
    for place in results.wildcards:
        stalls = [run.stall_max_ms for run in place.runs.get(OURS, []) if run.stall_max_ms is not None]
        if stalls:
            found.append(Target(f"stall ms, {place.filters} wildcard filters", max(stalls), STALL_MS, False))
    return found


def cost_growth(first: Filters, place: Filters, peer: str) -> float | None:
    before, after = first.runs.get(peer), place.runs.get(peer)
    if not before or not after:
        return None
    return median([run.cpu_us_per_message for run in after]) / median([run.cpu_us_per_message for run in before])


def failures(results: Results) -> list[str]:
    """Return the failed runs. amqtt may fail at a size that it cannot handle; the table still reports it."""
    places: list[Cell | Paced | Idle | Filters] = [
        *results.throughput,
        *results.paced,
        *results.memory,
        *results.subscriptions,
        *results.wildcards,
    ]
    found = [f"{peer}: {text}" for place in places for peer, text in place.errors.items() if peer != "amqtt"]
    found += report_kept.failures(results) + report_cluster.failures(results)
    found += report_handshakes.failures(results) + report_nats.failures(results)
    return found + report_auth.failures(results)


def summary(results: Results) -> dict[str, object]:
    """Return the summary for the JSON, in addition to the raw runs."""
    rates = {
        f"{cell.name} QoS {cell.qos}": {peer: cell.rate(peer) for peer in cell.runs} for cell in results.throughput
    }
    goals = [{**msgspec.to_builtins(item), "met": item.met} for item in targets(results)]
    return {"delivered_per_s": rates, "targets": goals, "failures": failures(results)}


def show(results: Results, console: Console) -> None:
    machine = results.machine
    versions = ", ".join(f"{peer} {version}" for peer, version in results.versions.items())
    console.print(f"{versions}; {machine.cpu}, {machine.cores} cores, Linux {machine.kernel}")
    if machine.load_before[0] > 0.5:
        console.print(f"the machine was busy before the run (load {machine.load_before[0]:.1f})", style="yellow")
    for draw in (
        throughput_table,
        paced_table,
        memory_table,
        filters_tables,
        report_kept.tables,
        report_cluster.tables,
        report_handshakes.tables,
        report_nats.tables,
        report_auth.tables,
    ):
        for table in draw(results):
            console.print(table)
    show_targets(results, console)
    for line in failures(results):
        console.print(f"failed: {line}", style="red", markup=False)


def throughput_table(results: Results) -> list[Table]:
    if not results.throughput:
        return []
    names = [name for name in results.versions if name != "nats-server"]
    table = grid("Delivered, thousand messages/s (window; broker CPU; lost)", "cell", *names, "ratios", "generator can")
    for cell in results.throughput:
        ratios = [ratio for peer in ("mosquitto", "amqtt") if (ratio := rate_ratio(cell, peer)) is not None]
        capacity = thousands(cell.capacity.delivered_per_s) if cell.capacity else "-"
        shown = " ".join(f"{ratio:.1f}x" for ratio in ratios) or "-"
        sign = " *" if disturbed(cell) else ""
        table.add_row(f"{cell.name} QoS {cell.qos}{sign}", *(rate_text(cell, peer) for peer in names), shown, capacity)
    if any(disturbed(cell) for cell in results.throughput):
        table.caption = (
            "* other processes took more than 5 % of the two cores in a run: measure again on a quiet machine"
        )
    return [table]


def disturbed(cell: Cell) -> bool:
    return any(run.others_cpu > DISTURBED for runs in cell.runs.values() for run in runs)


def rate_text(cell: Cell, peer: str) -> str:
    runs = cell.runs.get(peer)
    if not runs:
        return short(cell.errors.get(peer, "-"))
    cpu = median([run.broker_cpu for run in runs])
    lost = sum(run.missing for run in runs if run.drained) / max(1, sum(run.delivered + run.missing for run in runs))
    window = f"w{cell.windows[peer]} " if cell.windows[peer] else "flood "
    return f"{thousands(cell.rate(peer))} ({window}{cpu:.0%}{f' lost {lost:.1%}' if lost else ''})"


def paced_table(results: Results) -> list[Table]:
    loads = dict.fromkeys((place.pairs, place.rate) for place in results.paced)
    return [paced_grid([place for place in results.paced if (place.pairs, place.rate) == each]) for each in loads]


def paced_grid(places: list[Paced]) -> Table:
    """The table of one load, at each QoS."""
    first = places[0]
    title = f"Paced: {first.pairs:,} pairs, {first.rate:,.0f} messages/s (medians, microseconds)"
    table = grid(title, "peer", "CPU/message", *LATENCY, "longest", "missing", "generator lag p99")
    for place in places:
        for peer, runs in place.runs.items():
            table.add_row(
                f"{peer} QoS {place.qos}",
                f"{median([run.cpu_us_per_message for run in runs]):.2f}",
                *(f"{median([run.latency_us[index] for run in runs]):,.0f}" for index in range(3)),
                f"{median([run.latency_max_us for run in runs]):,.0f}",
                f"{sum(run.missing for run in runs):,}",
                f"{median([run.lag_us[1] for run in runs]):,.0f}",
            )
        for peer, text in place.errors.items():
            table.add_row(f"{peer} QoS {place.qos}", short(text))
    if NODELAY in first.runs:
        table.caption = f"{NODELAY}: with set_tcp_nodelay true, which is not its default"
    return table


def memory_table(results: Results) -> list[Table]:
    tables = []
    for place in results.memory:
        table = grid(
            f"{place.connections:,} idle connections, a subscription each",
            *("peer", "bytes each (RSS)", "bytes each (PSS)", "RSS MB", "accepted/s", "CPU us each"),
        )
        for peer, runs in place.runs.items():
            table.add_row(
                peer,
                f"{median([run.rss_per_connection for run in runs]):,.0f}",
                f"{median([run.pss_per_connection for run in runs]):,.0f}",
                f"{median([run.after.rss for run in runs]) / 1e6:,.1f}",
                f"{median([run.accepted_per_s for run in runs]):,.0f}",
                f"{median([run.broker_cpu_us_per_connection for run in runs]):,.0f}",
            )
        for peer, text in place.errors.items():
            table.add_row(peer, short(text))
        tables.append(table)
    return tables


def filters_tables(results: Results) -> list[Table]:
    tables = []
    if results.subscriptions:
        tables.append(filters_table("A PUBLISH beside unrelated subscriptions", results.subscriptions))
    if results.wildcards:
        retained = results.wildcards[0].retained
        title = f"A PUBLISH that one of many wildcard filters matches; {retained:,} retained messages"
        tables.append(filters_table(title, results.wildcards))
    return tables


def filters_table(title: str, places: list[Filters]) -> Table:
    columns = [
        "CPU us/message",
        "growth",
        "thousand/s",
        "loaded in s",
        "RSS MB",
        "replay ms",
        "ping max ms",
        "stall ms",
    ]
    table = grid(title, "filters, peer", *columns)
    for place in places:
        for peer, runs in place.runs.items():
            replays = [seconds * 1e3 for run in runs for seconds in run.replay_s]
            stalls = [run.stall_max_ms for run in runs if run.stall_max_ms is not None]
            growth = cost_growth(places[0], place, peer)
            table.add_row(
                f"{place.filters:,} {peer}",
                f"{median([run.cpu_us_per_message for run in runs]):.2f}",
                f"{growth:.2f}x" if growth else "-",
                thousands(median([run.delivered_per_s for run in runs])),
                f"{median([run.load_s for run in runs]):.2f}",
                f"{median([run.rss for run in runs]) / 1e6:,.0f}",
                f"{median(replays):,.1f}" if replays else "-",
                f"{median([run.ping_max_ms for run in runs]):,.1f}",
                f"{max(stalls):,.1f}" if stalls else "-",
            )
        for peer, text in place.errors.items():
            table.add_row(f"{place.filters:,} {peer}", short(text))
    return table


def show_targets(results: Results, console: Console) -> None:
    goals = targets(results)
    if not goals or results.quick:
        return
    missed = [item for item in goals if not item.met]
    console.print(f"targets: {len(goals) - len(missed)} of {len(goals)} met", style="bold")
    for item in missed:
        sign = "at least" if item.at_least else "at most"
        console.print(f"  missed: {item.name} {item.value:,.2f}, wanted {sign} {item.bound:,.2f}", style="red")
