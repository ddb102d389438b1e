"""Targets and tables of the section about persistence."""

from __future__ import annotations

from rich.table import Table

from bench.recovery import Start
from bench.results import Away, Cell, Results, median
from bench.tables import Target, grid, short, thousands

OURS = "starlingmq-process"
THEIRS = "mosquitto-persistent"
OF_MEMORY = 0.6
MOSQUITTO_TIMES = 3.0
AWAY_PER_S = 150_000.0
SHARED_TIMES = 20.0
RECOVERY_S = 10.0
STALL_MS = 50.0
DISK_TIMES = 1.3


def targets(results: Results) -> list[Target]:
    """Return every target about persistence that this run has measured."""
    return [*online_targets(results), *away_targets(results), *recovery_targets(results), *kept_targets(results)]


def online_targets(results: Results) -> list[Target]:
    found = []
    for cell in results.persistent:
        for peer, bound in (("starlingmq", OF_MEMORY), (THEIRS, MOSQUITTO_TIMES)):
            if (ratio := times(cell, peer)) is not None:
                found.append(Target(f"persistent {cell.name} QoS {cell.qos}: times {peer}", ratio, bound, True))
    return found


def times(cell: Cell, peer: str) -> float | None:
    ours, theirs = cell.rate(OURS), cell.rate(peer)
    return ours / theirs if ours and theirs else None


def away_targets(results: Results) -> list[Target]:
    found = []
    for place in results.away:
        if place.durability == "process" and (rate := place.rate(OURS)):
            found.append(Target(f"{place.name}: stored/s", rate, AWAY_PER_S, True))
        if (shared := fsyncs_shared(results, place)) is not None:
            found.append(Target(f"{place.name}: times one fsync per message", shared, SHARED_TIMES, True))
    return found


def fsyncs_shared(results: Results, place: Away) -> float | None:
    """Return the throughput relative to one publisher with one outstanding message; None if that is not meaningful."""
    peer = "starlingmq-power"
    alone = [one.rate(peer) for one in results.away if one.durability == "power" and one.publishers * one.window == 1]
    rate = place.rate(peer)
    if not alone or not alone[0] or not rate or place.publishers * place.window == 1:
        return None
    return rate / alone[0]


def recovery_targets(results: Results) -> list[Target]:
    found = []
    for place in results.recovery:
        if (run := place.runs.get(OURS)) is not None:
            for how, start in (("killed", run.killed), ("stopped", run.stopped)):
                if start is not None:
                    found.append(
                        Target(f"{place.sessions} sessions, {how}: s to serve", start.served_s, RECOVERY_S, False)
                    )
    return found


def kept_targets(results: Results) -> list[Target]:
    found = []
    for place in results.kept:
        if stalls := [run.stall_max_ms for run in place.drains.get(OURS, []) if run.stall_max_ms is not None]:
            found.append(Target(f"stall ms, {place.messages} messages drain", max(stalls), STALL_MS, False))
        if OURS in place.disk:
            name = f"disk for messages of {place.payload} bytes: times topic and payload"
            found.append(Target(name, place.disk[OURS], DISK_TIMES, False))
    return found


def failures(results: Results) -> list[str]:
    """Return runs that failed or lost acknowledged messages."""
    errors: list[dict[str, str]] = []
    errors += [cell.errors for cell in results.persistent]
    errors += [place.errors for place in results.away]
    errors += [place.errors for place in results.recovery]
    errors += [place.errors for place in results.kept]
    found = [f"{peer}: {text}" for each in errors for peer, text in each.items()]
    for place in results.recovery:
        for peer, run in place.runs.items():
            for start in (run.killed, run.stopped):
                if start is not None and start.sampled < start.expected:
                    found.append(
                        f"{peer}: {start.expected - start.sampled} of {start.expected} messages did not come back"
                    )
    for kept in results.kept:
        for peer, runs in kept.drains.items():
            found += [
                f"{peer}: {run.delivered} of {kept.messages} drained" for run in runs if run.delivered < kept.messages
            ]
    return found


def tables(results: Results) -> list[Table]:
    made = [online_table(results), away_table(results), recovery_table(results), kept_table(results)]
    return [table for table in made if table.row_count]


def online_table(results: Results) -> Table:
    columns = ("thousand/s", "window", "broker CPU", "CPU us/message", "process is", "others' CPU")
    table = grid("QoS 1 to persistent sessions that are online", "cell, peer", *columns)
    for cell in results.persistent:
        for peer, runs in cell.runs.items():
            cpu = median([run.broker_cpu for run in runs])
            ratio = times(cell, peer)
            table.add_row(
                f"{cell.name} {peer}",
                thousands(cell.rate(peer)),
                str(cell.windows[peer]),
                f"{cpu:.0%}",
                f"{median([run.broker_cpu * 1e6 / max(1.0, run.delivered_per_s) for run in runs]):.2f}",
                f"{ratio:.2f}x" if ratio and peer != OURS else "-",
                f"{max(run.others_cpu for run in runs):.0%}",
            )
        for peer, text in cell.errors.items():
            table.add_row(f"{cell.name} {peer}", short(text))
    return table


def away_table(results: Results) -> Table:
    columns = ("thousand stored/s", "broker CPU", "CPU us/message", "fsyncs shared", "others' CPU")
    table = grid("QoS 1 into queues of clients that are away (publishers x window)", "cell, peer", *columns)
    for place in results.away:
        for peer, runs in place.runs.items():
            shared = fsyncs_shared(results, place)
            table.add_row(
                f"{place.publishers} x {place.window} {peer}",
                thousands(place.rate(peer)),
                f"{median([run.broker_cpu for run in runs]):.0%}",
                f"{median([run.broker_cpu * 1e6 / max(1.0, run.stored_per_s) for run in runs]):.2f}",
                f"{shared:.1f}x" if shared else "-",
                f"{max(run.others_cpu for run in runs):.0%}",
            )
        for peer, text in place.errors.items():
            table.add_row(f"{place.name} {peer}", short(text))
    return table


def recovery_table(results: Results) -> Table:
    columns = ("filled, thousand/s", "RSS MB", "stop s", "ready s", "served s", "RSS MB after", "came back")
    table = grid("Starting again with sessions and their messages", "peer", *columns)
    for place in results.recovery:
        for peer, run in place.runs.items():
            loaded = (thousands(run.filled.messages_per_s), f"{run.rss_loaded / 1e6:,.0f}")
            if run.killed is not None:
                table.add_row(f"{peer}, killed", *loaded, "-", *start_texts(run.killed))
            table.add_row(f"{peer}, stopped", *loaded, f"{run.stop_s:.2f}", *start_texts(run.stopped))
        for peer, text in place.errors.items():
            table.add_row(peer, short(text))
        table.caption = f"{place.sessions:,} sessions with {place.each} messages each"
    return table


def start_texts(start: Start) -> list[str]:
    back = f"{start.sampled} of {start.expected}"
    return [f"{start.ready_s:.2f}", f"{start.served_s:.2f}", f"{start.rss / 1e6:,.0f}", back]


def kept_table(results: Results) -> Table:
    columns = ("drained, thousand/s", "CPU us/message", "ping max ms", "stall before", "stall ms", "disk")
    table = grid("A long queue drains; disk for queued messages", "peer", *columns)
    for place in results.kept:
        for peer, runs in place.drains.items():
            disk = place.disk.get(peer)
            table.add_row(
                peer,
                thousands(median([run.delivered_per_s for run in runs])),
                f"{median([run.cpu_us_per_message for run in runs]):.2f}",
                f"{max(run.ping_max_ms for run in runs):.1f}",
                worst([run.stall_before_ms for run in runs]),
                worst([run.stall_max_ms for run in runs]),
                f"{disk:.2f}x" if disk else "-",
            )
        for peer, text in place.errors.items():
            table.add_row(peer, short(text))
        table.caption = (
            f"{place.messages:,} messages of 64 bytes drain; disk: {place.kept:,} messages of {place.payload:,} bytes,"
            " to topic and payload; stalls are the longest of the process's life, before the drain and after"
        )
    return table


def worst(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{max(known):.1f}" if known else "-"
