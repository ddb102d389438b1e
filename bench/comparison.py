"""``python -m bench.comparison``: the figures of docs/COMPARISON.md, out of the results of ``python -m bench``.

Figures in which others are better come first; they are determined from the results.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from bench import peers
from bench.nats import JETSTREAM
from bench.results import Cell, Filters, Idle, NatsCell, Paced, Results, median

DATA = peers.ROOT / "docs" / "data" / "comparison.json"
PAGE = peers.ROOT / "docs" / "COMPARISON.md"
README = peers.ROOT / "README.md"
PICTURE = peers.ROOT / "docs" / "images" / "throughput.png"
MARKED = re.compile(r"(<!-- (\w+): written by make comparison -->\n).*?(<!-- end -->)", re.DOTALL)
EQUAL = 1.05  # figures closer than this count as equal: the noise of the machine
OURS = "starlingmq"


class Row(msgspec.Struct, frozen=True):
    """One figure of each broker that has it. ``fewer``: lower is better."""

    section: str
    what: str
    unit: str
    fewer: bool
    figures: dict[str, float]

    @property
    def ours(self) -> str:
        """The name of the StarlingMQ variant in this row."""
        return next(name for name in self.figures if name.startswith(OURS))

    def against(self, peer: str) -> float:
        """Return the factor by which StarlingMQ is better than that broker."""
        ours, theirs = self.figures[self.ours], self.figures[peer]
        return theirs / ours if self.fewer else ours / theirs

    def others(self) -> Iterator[str]:
        return (peer for peer in self.figures if not peer.startswith(OURS))


class Comparison(msgspec.Struct, frozen=True):
    versions: dict[str, str]
    machine: str
    started: str
    load_before: float
    rows: list[Row]
    failed: list[str]  # failed runs with broker and reason


def compare(results: Results) -> Comparison:
    rows = [
        *(row for cell in results.throughput for row in cell_rows("In memory", cell)),
        *(row for place in results.paced for row in paced_rows(place)),
        *(row for idle in results.memory for row in memory_rows(idle)),
        *(row for place in results.subscriptions for row in filter_rows(place, "filters without a match")),
        *(row for place in results.wildcards for row in filter_rows(place, "filters with wildcards")),
        *(row for cell in results.persistent for row in cell_rows("Persistent sessions", cell)),
        *(row for nats in results.nats for row in nats_rows(nats)),
    ]
    places: list[Cell | Paced | Idle | Filters | NatsCell] = [
        *results.throughput, *results.paced, *results.memory, *results.subscriptions, *results.wildcards
    ]  # fmt: skip
    failed = sorted({f"{peer}: {text}" for place in places for peer, text in place.errors.items()})
    machine = results.machine
    return Comparison(
        results.versions,
        f"{machine.cpu}, {machine.cores} cores, Linux {machine.kernel}, Python {machine.python}",
        results.started[:10],
        machine.load_before[0],
        [row for row in rows if any(name.startswith(OURS) for name in row.figures) and len(row.figures) > 1],
        failed,
    )


def cell_rows(section: str, cell: Cell) -> Iterator[Row]:
    name = f"{cell.name}, QoS {cell.qos}"
    yield Row(section, name, "messages/s", False, {peer: rate for peer in cell.runs if (rate := cell.rate(peer))})
    cpu = {
        peer: median([run.broker_cpu * 1e6 / run.delivered_per_s for run in runs if run.delivered_per_s])
        for peer, runs in cell.runs.items()
    }
    yield Row(section, name, "us of CPU per message", True, cpu)


def paced_rows(place: Paced) -> Iterator[Row]:
    name = f"{place.pairs:,} pairs, {place.rate:,.0f} messages/s, QoS {place.qos}"
    yield Row(
        "Paced load",
        name,
        "us of CPU per message",
        True,
        {peer: median([run.cpu_us_per_message for run in runs]) for peer, runs in place.runs.items()},
    )
    for number, share in enumerate(("p50", "p99", "p99.9")):
        found = {peer: median([run.latency_us[number] for run in runs]) for peer, runs in place.runs.items()}
        yield Row("Paced load", name, f"us of latency, {share}", True, found)


def memory_rows(idle: Idle) -> Iterator[Row]:
    name = f"{idle.connections:,} idle clients, one filter each"
    for unit, fewer, of in (
        ("bytes per client", True, lambda run: run.rss_per_connection),
        ("MB of the idle broker", True, lambda run: run.before.rss / 1e6),
        ("connections/s", False, lambda run: run.accepted_per_s),
    ):
        yield Row("Memory", name, unit, fewer, {peer: median([*map(of, runs)]) for peer, runs in idle.runs.items()})


def filter_rows(place: Filters, what: str) -> Iterator[Row]:
    name = f"{place.filters:,} {what}"
    for unit, fewer, of in (
        ("us of CPU per message", True, lambda run: run.cpu_us_per_message),
        ("s to subscribe", True, lambda run: run.load_s),
        ("MB", True, lambda run: run.rss / 1e6),
        ("ms of longest stall", True, lambda run: run.ping_max_ms),
    ):
        yield Row(
            "Many filters", name, unit, fewer, {peer: median([*map(of, runs)]) for peer, runs in place.runs.items()}
        )
    replays = {peer: [s * 1e3 for run in runs for s in run.replay_s] for peer, runs in place.runs.items()}
    if place.retained:
        name = f"{place.retained:,} retained messages beside {name}"
        yield Row("Many filters", name, "ms to replay", True, {peer: median(ms) for peer, ms in replays.items() if ms})


def nats_rows(cell: NatsCell) -> Iterator[Row]:
    kind = "a queue group" if cell.queue else "subjects"
    name = f"NATS, {kind} {cell.publishers}:{cell.subscribers}"
    kept = ("starlingmq-nats-process", JETSTREAM)
    for section, chosen in (("NATS", [p for p in cell.runs if p not in kept]), ("NATS, durable", kept)):
        peers_here = [peer for peer in chosen if cell.rate(peer)]
        yield Row(section, name, "messages/s", False, {peer: cell.rate(peer) or 0.0 for peer in peers_here})
        cpu = {peer: 1e6 / (cell.per_cpu_second(peer) or 1.0) for peer in peers_here}
        yield Row(section, name, "us of CPU per message", True, cpu)


# The page


def written(page: str, found: Comparison) -> str:
    """Return the page with these figures. Raises KeyError for an unknown mark."""
    made = {"worse": worse(found), "figures": figures(found), "measured": measured(found), "summary": summary(found)}
    return MARKED.sub(lambda mark: f"{mark[1]}\n{made[mark[2]]}\n\n{mark[3]}", page)


def rates(found: Comparison) -> list[Row]:
    """Return the throughput rows: the cells of the README's table and picture."""
    return [row for row in found.rows if row.section == "In memory" and row.unit == "messages/s"]


def summary(found: Comparison) -> str:
    """Return what the README says: thousand messages/s by load, and the ratios to each broker."""
    rows = rates(found)
    names = [row.ours for row in rows[:1]] + [*rows[0].others()]
    loads = dict.fromkeys(row.what.partition(",")[0] for row in rows)
    body = [
        [
            load,
            *(
                " / ".join(f"{row.figures[name] / 1e3:,.0f}" for row in rows if row.what.startswith(load))
                for name in names
            ),
        ]
        for load in loads
    ]
    head = [f"{name} {found.versions[name]}" for name in names]
    ratios = (
        f"{min(times):.0f} to {max(times):.0f} times {peer}"
        for peer in names[1:]
        if (times := [row.against(peer) for row in rows])
    )
    return (
        table(("delivered, thousand messages/s at QoS 0 / 1 / 2", *head), body)
        + f"\n\nRatios: {', '.join(ratios)}. Measured on {found.started}."
    )


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    cells = [[*head], *([*row] for row in rows)]
    cells.insert(1, ["---", *["---:"] * (len(cells[0]) - 1)])
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def worse(found: Comparison) -> str:
    """Return all rows in which another broker is better, the worst first."""
    rows = [
        (row.against(peer), row, peer) for row in found.rows for peer in row.others() if row.against(peer) < 1 / EQUAL
    ]
    if not rows:
        return "No figure."
    shown = []
    for times, row, peer in sorted(rows, key=lambda each: each[0]):
        ours = number(row.figures[row.ours])
        shown.append((f"{row.what}: {row.unit}", f"{peer} {number(row.figures[peer])}", ours, f"{1 / times:.2f}"))
    return table(("what", "better broker", "StarlingMQ", "factor"), shown)


def figures(found: Comparison) -> str:
    parts = []
    for section in dict.fromkeys(row.section for row in found.rows):
        rows = [row for row in found.rows if row.section == section]
        names = list(dict.fromkeys(name for row in rows for name in row.figures))
        names.sort(key=lambda name: not name.startswith(OURS))
        parts.append(f"### {section}\n")
        head = ["what", "unit", *names]
        parts.append(table(head, ([row.what, row.unit, *(figure(row, name) for name in names)] for row in rows)) + "\n")
    if found.failed:
        parts.append("Not completed:\n\n" + "\n".join(f"- {text}" for text in found.failed))
    return "\n".join(parts).rstrip()


def figure(row: Row, name: str) -> str:
    if name not in row.figures:
        return "-"
    figures = row.figures.values()
    best = min(figures) if row.fewer else max(figures)
    shown = number(row.figures[name])
    return f"**{shown}**" if row.figures[name] == best else shown


def measured(found: Comparison) -> str:
    names = ", ".join(f"{peer} {version}" for peer, version in found.versions.items())
    return f"{names}; {found.machine}; {found.started}, load before the run {found.load_before:.1f}."


def number(value: float) -> str:
    """Format with three significant digits."""
    return f"{float(f'{value:.3g}'):,.10g}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.comparison", description="Write docs/COMPARISON.md.")
    parser.add_argument("--results", type=Path, default=Path("out/comparison/results.json"), help="of python -m bench")
    parser.add_argument("--redraw", action="store_true", help="write the page from the data as it is")
    options = parser.parse_args()
    if not options.redraw:
        try:
            results = msgspec.json.decode(options.results.read_bytes(), type=Results)
        except (OSError, msgspec.MsgspecError) as error:
            sys.exit(f"error: {options.results}: {error}; make it with: make comparison")
        if results.quick:
            sys.exit(
                f"error: {options.results} is of a quick run, which measures nothing; make it with: make comparison"
            )
        DATA.parent.mkdir(exist_ok=True)
        DATA.write_bytes(msgspec.json.format(msgspec.json.encode(compare(results))) + b"\n")
    found = msgspec.json.decode(DATA.read_bytes(), type=Comparison)
    for page in (PAGE, README):
        page.write_text(written(page.read_text(), found))
    from bench.plot import draw_rates  # matplotlib, which only this step needs

    draw_rates([(row.what, row.figures) for row in rates(found)], PICTURE)
    print(worse(found))


if __name__ == "__main__":
    main()
