"""One picture of a run: throughput by cell, paced cost and latency, memory, and the cost of subscriptions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from bench.report import OURS
from bench.results import Filters, Paced, Results, median

COLOURS = {
    OURS: "#1f6f8b",
    "mosquitto": "#e08e45",
    "mosquitto-nodelay": "#f2c899",
    "amqtt": "#8a8a8a",
    "rumqttd": "#7a5195",
    "aedes": "#5f9e6e",
    "hivemq": "#d4a017",
    "rabbitmq": "#c85a8e",
    "flashmq": "#b03a48",
    "fluxmq": "#3f3f8f",
}
KEEPING_COLOURS = {
    "starlingmq-process": "#1f6f8b",
    "starlingmq-power": "#123f50",
    "mosquitto-persistent": "#e08e45",
    "mosquitto-1s": "#f2c899",
    OURS: "#8fc1d4",
}
CAPACITY_COLOUR = "#b03a48"
DPI = 130


def draw(results: Results, path: Path) -> None:
    """Draw the measured sections into one PNG."""
    panels: list[Callable[[Results, Axes], None]] = []
    if results.paced:
        panels += [paced_cpu, paced_latency]
    if results.memory:
        panels += [memory, accepted]
    if results.subscriptions:
        panels.append(lambda found, axes: filter_cost(found.subscriptions, "unrelated subscriptions", axes))
    if results.wildcards:
        panels.append(replay)
    panels += kept_panels(results)
    rows = (2 if results.throughput else 0) + -(-len(panels) // 3)
    figure = plt.figure(figsize=(14, max(4.0, 3.1 * rows)), layout="constrained")
    places = figure.add_gridspec(max(rows, 1), 3)
    if results.throughput:
        throughput(results, figure.add_subplot(places[:2, :]))
    for number, panel in enumerate(panels):
        row = (2 if results.throughput else 0) + number // 3
        panel(results, figure.add_subplot(places[row, number % 3]))
    names = ", ".join(f"{peer} {version}" for peer, version in results.versions.items())
    figure.suptitle(f"{names}\n{results.machine.cpu}, broker on one core, {results.started[:10]}", fontsize=10)
    figure.savefig(path, dpi=DPI)
    plt.close(figure)


def draw_rates(cells: list[tuple[str, dict[str, float]]], path: Path) -> None:
    """Draw delivered messages per second by cell (``load, QoS n``) and broker, logarithmic, into a PNG."""
    figure, axes = plt.subplots(figsize=(11, 4), layout="constrained")
    names = list(cells[0][1])
    width = 0.8 / len(names)
    for number, peer in enumerate(names):
        places = [place + (number - (len(names) - 1) / 2) * width for place in range(len(cells))]
        rates = [figures[peer] for _, figures in cells]
        axes.bar(places, rates, width * 0.94, color=COLOURS[peer], label=peer)
        for at, rate in zip(places, rates, strict=True):
            axes.annotate(amount(rate), (at, rate), (0, 2), textcoords="offset points", ha="center", fontsize=6)
    axes.set_yscale("log")
    axes.set_ylim(bottom=3e3)
    axes.set_xticks(range(len(cells)), [what.replace(", ", "\n") for what, _ in cells], fontsize=8)
    axes.set_ylabel("delivered messages/s")
    axes.set_title("One broker on one core, 64-byte payloads", fontsize=10, loc="left")
    axes.legend(ncols=len(names), fontsize=8, loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False)
    plain(axes)
    figure.savefig(path, dpi=DPI)
    plt.close(figure)


def plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    axes.set_axisbelow(True)


def throughput(results: Results, axes: Axes) -> None:
    """Logarithmic, because the peers differ by factors; a dash shows the generator's capacity."""
    names = list(results.versions)
    width = 0.8 / len(names)
    for place, cell in enumerate(results.throughput):
        for number, peer in enumerate(names):
            at = place + (number - (len(names) - 1) / 2) * width
            if rate := cell.rate(peer):
                axes.bar(at, rate, width * 0.94, color=COLOURS[peer], label=peer if place == 0 else None)
                rates = [run.delivered_per_s for run in cell.runs[peer]]
                axes.vlines(at, min(rates), max(rates), color="black", lw=1)
                axes.annotate(
                    amount(rate), (at, max(rates)), (0, 2), textcoords="offset points", ha="center", fontsize=7
                )
            else:
                axes.annotate("failed", (at, 2e2), ha="center", rotation=90, fontsize=7, color="red")
        if cell.capacity:
            label = "the generator against a relay" if place == 0 else "_"  # an underscore: not in the legend
            capacity = cell.capacity.delivered_per_s
            axes.hlines(capacity, place - 0.42, place + 0.42, color=CAPACITY_COLOUR, lw=1.5, ls=":", label=label)
    axes.set_yscale("log")
    axes.set_ylim(bottom=1e2)
    axes.set_xticks(range(len(results.throughput)))
    axes.set_xticklabels([f"{cell.name}\nQoS {cell.qos}" for cell in results.throughput], fontsize=8)
    axes.set_ylabel("delivered messages/s")
    axes.set_title(
        "Pipelined throughput, 64-byte payloads (median; line: lowest to highest run)", fontsize=10, loc="left"
    )
    # Above the axes: bars and capacities take all the room inside.
    axes.legend(ncols=len(names) + 1, fontsize=8, loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False)
    plain(axes)


def amount(value: float) -> str:
    return f"{value / 1e6:.2f}M" if value >= 1e6 else f"{value / 1e3:.0f}k" if value >= 1e4 else f"{value / 1e3:.1f}k"


def bars(axes: Axes, rows: list[tuple[str, str, float]], title: str, form: str) -> None:
    """Draw rows of (label, peer, value)."""
    for place, (_, peer, value) in enumerate(rows):
        axes.bar(place, value, 0.7, color=COLOURS.get(peer) or KEEPING_COLOURS[peer])
        axes.annotate(format(value, form), (place, value), (0, 2), textcoords="offset points", ha="center", fontsize=7)
    axes.set_xticks(range(len(rows)))
    axes.set_xticklabels([label for label, _, _ in rows], fontsize=7)
    axes.margins(y=0.15)
    axes.set_title(title, fontsize=9)
    plain(axes)


def peer_label(peer: str) -> str:
    return peer.replace("-", "\n")


def paced_cpu(results: Results, axes: Axes) -> None:
    rows = [
        (f"{peer_label(peer)}\nQoS {place.qos}", peer, median([run.cpu_us_per_message for run in runs]))
        for place in first_load(results)
        for peer, runs in place.runs.items()
    ]
    bars(axes, rows, f"Paced {results.paced[0].rate:,.0f}/s: broker CPU per message, us", ".1f")


def first_load(results: Results) -> list[Paced]:
    """The paced load that is drawn: the first one, at each QoS."""
    first = results.paced[0]
    return [place for place in results.paced if (place.pairs, place.rate) == (first.pairs, first.rate)]


def paced_latency(results: Results, axes: Axes) -> None:
    """Draw a line per peer and QoS through p50, p99 and p99.9."""
    for place in first_load(results):
        for peer, runs in place.runs.items():
            values = [median([run.latency_us[index] for run in runs]) for index in range(3)]
            style = ("-", "--", ":")[place.qos]
            axes.plot(range(3), values, style, marker="o", ms=3, color=COLOURS[peer], label=f"{peer} QoS {place.qos}")
    axes.set_xticks(range(3))
    axes.set_xticklabels(["p50", "p99", "p99.9"], fontsize=8)
    axes.set_yscale("log")
    axes.set_title("Paced: latency, us", fontsize=9)
    axes.legend(fontsize=6, loc="lower right")
    plain(axes)


def memory(results: Results, axes: Axes) -> None:
    place = results.memory[0]
    rows = [(peer, peer, median([run.rss_per_connection for run in runs])) for peer, runs in place.runs.items()]
    bars(axes, rows, f"Bytes per idle connection ({place.connections:,} connections)", ",.0f")


def accepted(results: Results, axes: Axes) -> None:
    rows = [(peer, peer, median([run.accepted_per_s for run in runs])) for peer, runs in results.memory[0].runs.items()]
    bars(axes, rows, "Connections accepted and subscribed per second", ",.0f")


def filter_cost(places: list[Filters], kind: str, axes: Axes) -> None:
    for peer in COLOURS:
        points = [
            (place.filters, median([run.cpu_us_per_message for run in place.runs[peer]]))
            for place in places
            if peer in place.runs
        ]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", ms=3, color=COLOURS[peer], label=peer)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(kind, fontsize=8)
    axes.set_title("CPU per PUBLISH, us", fontsize=9)
    if axes.lines:
        axes.legend(fontsize=7)
    plain(axes)


def replay(results: Results, axes: Axes) -> None:
    place = results.wildcards[-1]
    rows = [
        (peer, peer, median([seconds * 1e3 for run in runs for seconds in run.replay_s]))
        for peer, runs in place.runs.items()
        if runs[0].replay_s
    ]
    title = f"Replay of {place.retained:,} retained messages, ms\n(beside {place.filters:,} wildcard filters)"
    bars(axes, rows, title, ",.1f")


def kept_panels(results: Results) -> list[Callable[[Results, Axes], None]]:
    """Draw the panels of the section about persistence."""
    panels: list[Callable[[Results, Axes], None]] = []
    if results.persistent:
        panels.append(kept_online)
    if results.away:
        panels.append(kept_away)
    if results.recovery and results.recovery[0].runs:
        panels.append(kept_recovery)
    return panels


def kept_label(peer: str) -> str:
    return peer.replace("-", "\n").replace("starlingmq", "starling").replace("mosquitto", "mosq.")


def kept_online(results: Results, axes: Axes) -> None:
    """Grouped by cell, in memory first."""
    peers = [OURS, *(peer for peer in KEEPING_COLOURS if peer != OURS)]
    width = 0.8 / len(peers)
    for place, cell in enumerate(results.persistent):
        for number, peer in enumerate(peers):
            at = place + (number - (len(peers) - 1) / 2) * width
            if rate := cell.rate(peer):
                label = ("in memory" if peer == OURS else peer) if place == 0 else "_"
                axes.bar(at, rate, width * 0.94, color=KEEPING_COLOURS[peer], label=label)
                axes.annotate(amount(rate), (at, rate), (0, 2), textcoords="offset points", ha="center", fontsize=6)
    axes.set_xticks(range(len(results.persistent)))
    axes.set_xticklabels([cell.name for cell in results.persistent], fontsize=7)
    axes.margins(y=0.15)
    axes.set_title("QoS 1 to persistent online sessions, messages/s", fontsize=9)
    axes.legend(fontsize=6)
    plain(axes)


def kept_away(results: Results, axes: Axes) -> None:
    rows = [
        (f"{kept_label(peer)}\n{place.publishers}x{place.window}", peer, place.rate(peer) or 0.0)
        for place in results.away
        for peer in place.runs
    ]
    for place, (_, peer, rate) in enumerate(rows):
        axes.bar(place, rate, 0.7, color=KEEPING_COLOURS[peer])
        axes.annotate(amount(rate), (place, rate), (0, 2), textcoords="offset points", ha="center", fontsize=6)
    axes.set_yscale("log")
    axes.set_xticks(range(len(rows)))
    axes.set_xticklabels([label for label, _, _ in rows], fontsize=5)
    axes.margins(y=0.15)
    axes.set_title("QoS 1 into queues of absent clients, messages/s", fontsize=9)
    plain(axes)


def kept_recovery(results: Results, axes: Axes) -> None:
    place = results.recovery[0]
    rows = []
    for peer, run in place.runs.items():
        if run.killed is not None:
            rows.append((f"{kept_label(peer)}\nkilled", peer, run.killed.served_s))
        rows.append((f"{kept_label(peer)}\nstopped", peer, run.stopped.served_s))
    title = f"{place.sessions:,} sessions with {place.each} messages:\nseconds from start to serving"
    bars(axes, rows, title, ",.1f")
