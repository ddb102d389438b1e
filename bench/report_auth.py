"""Targets and tables of the sections about authentication and about HTTP."""

from __future__ import annotations

from rich.table import Table

from bench.auth import WITH, WITHOUT
from bench.results import Cell, LoggingIn, Results, median
from bench.tables import Target, grid, short, thousands

OF_RATE = 0.9
STALL_MS = 20.0
WATCHED_CPU = 0.02
FIRST_PAGE_S = 1.0
FIRST_PAGE_BYTES = 300_000


def targets(results: Results) -> list[Target]:
    """Return every target about them that this run has measured."""
    return [*auth_targets(results), *http_targets(results)]


def auth_targets(results: Results) -> list[Target]:
    found: list[Target] = []
    if results.auth is None:
        return found
    for cell in results.auth.cells:
        if cell.runs.get(WITH) and cell.runs.get(WITHOUT):
            name = f"passwords and rules: {cell.name} QoS {cell.qos}"
            found.append(Target(f"{name}: times the rate without", rate_ratio(cell), OF_RATE, True))
            found.append(Target(f"{name}: times the CPU per message without", cpu_ratio(cell), 1 / OF_RATE, False))
    for place in results.auth.logins:
        for runs in place.runs.values():
            name = (
                f"{median([run.sent_per_s for run in runs]):,.0f} logins/s, {place.what}: ms that others wait at most"
            )
            found.append(Target(name, median([run.ping_max_ms for run in runs]), STALL_MS, False))
    return found


def http_targets(results: Results) -> list[Target]:
    if results.http is None or not (runs := results.http.runs):
        return []
    name = f"dashboard and metrics, {results.http.connections:,} clients"
    return [
        Target(f"{name}: share of a core", median([run.costs for run in runs]), WATCHED_CPU, False),
        Target(f"{name}: ms that others wait at most", median([run.ping_max_ms for run in runs]), STALL_MS, False),
        Target("dashboard, first page: seconds", max(run.first_page_s for run in runs), FIRST_PAGE_S, False),
        Target("dashboard, first page: bytes", max(run.first_page_bytes for run in runs), FIRST_PAGE_BYTES, False),
    ]


def rate_ratio(cell: Cell) -> float:
    with_it, without = cell.rate(WITH), cell.rate(WITHOUT)
    return with_it / without if with_it and without else float("nan")


def cpu_us(cell: Cell, peer: str) -> float:
    return median([run.broker_cpu * 1e6 / run.delivered_per_s for run in cell.runs.get(peer, [])])


def cpu_ratio(cell: Cell) -> float:
    return cpu_us(cell, WITH) / cpu_us(cell, WITHOUT)


def failures(results: Results) -> list[str]:
    """Return the failed runs."""
    found = [] if results.http is None else [f"http: {text}" for text in results.http.errors]
    if results.auth is not None:
        places: list[Cell | LoggingIn] = [*results.auth.cells, *results.auth.logins]
        for place in places:
            found += [f"auth: {peer}: {text}" for peer, text in place.errors.items()]
    return found


def tables(results: Results) -> list[Table]:
    made = []
    if results.auth is not None:
        made += [cell_table(results.auth.cells), login_table(results.auth.logins)]
    if results.http is not None:
        made.append(http_table(results))
    return [table for table in made if table.row_count]


def cell_table(cells: list[Cell]) -> Table:
    columns = ("thousand/s without", "with", "times", "CPU us/message without", "with", "times", "others' CPU")
    table = grid("Passwords and ten rules, beside neither", "cell", *columns)
    for cell in cells:
        runs = [run for peer in (WITHOUT, WITH) for run in cell.runs.get(peer, [])]
        table.add_row(
            f"{cell.name} QoS {cell.qos}",
            thousands(cell.rate(WITHOUT)),
            thousands(cell.rate(WITH)),
            f"{rate_ratio(cell):.3f}",
            f"{cpu_us(cell, WITHOUT):.3f}",
            f"{cpu_us(cell, WITH):.3f}",
            f"{cpu_ratio(cell):.3f}",
            f"{max((run.others_cpu for run in runs), default=0.0):.0%}",
        )
    return table


def login_table(places: list[LoggingIn]) -> Table:
    columns = (
        "sent/s",
        "let in",
        "told busy",
        "p50 ms",
        "ping p99 ms",
        "ping max ms",
        "own stall ms",
        "generator late ms",
    )
    table = grid("Logins at a steady pace, and how long others wait meanwhile", "passwords", *columns)
    for place in places:
        for runs in place.runs.values():
            table.add_row(
                place.what,
                f"{median([run.sent_per_s for run in runs]):,.0f}",
                f"{median([run.let_in for run in runs]):,.0f}",
                f"{median([run.busy for run in runs]):,.0f}",
                f"{median([run.latency_p50_ms or 0.0 for run in runs]):,.1f}",
                f"{median([run.ping_p99_ms for run in runs]):.1f}",
                f"{median([run.ping_max_ms for run in runs]):.1f}",
                f"{max([run.stall_max_ms or 0.0 for run in runs]):.1f}",
                f"{median([run.lag_ms for run in runs]):.1f}",
            )
        for text in place.errors.values():
            table.add_row(place.what, short(text))
    return table


def http_table(results: Results) -> Table:
    assert results.http is not None
    columns = (
        "CPU unwatched",
        "watched",
        "costs",
        "look max ms",
        "scrape max ms",
        "ping p99 ms",
        "ping max ms",
        "before",
    )
    table = grid("A dashboard that looks every 2 s and a scrape every 5 s", "clients", *columns, "own stall ms", "page")
    for run in results.http.runs:
        table.add_row(
            f"{run.connections:,}",
            f"{run.unwatched_cpu:.2%}",
            f"{run.watched_cpu:.2%}",
            f"{run.costs:.2%}",
            f"{run.look_max_ms:.1f}",
            f"{run.scrape_max_ms:.1f}",
            f"{run.ping_p99_ms:.1f}",
            f"{run.ping_max_ms:.1f}",
            f"{run.unwatched_ping_max_ms:.1f}",
            f"{run.stall_max_ms or 0.0:.1f}",
            f"{run.first_page_bytes / 1e3:.0f} kB, {run.first_page_s * 1e3:.0f} ms",
        )
    return table
