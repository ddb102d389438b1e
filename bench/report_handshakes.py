"""Targets, tables and the picture of the section about QoS 2 handshakes."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from rich.table import Table

from bench.handshake_model import SECONDS, WINDOW, Modelled
from bench.results import Handshakes, Results, median
from bench.tables import Target, grid

SAME = 1.03
BACK_S = 10.0
COLOURS = ("#1f6f8b", "#e08e45", "#7a4f9a")
DPI = 130


def targets(results: Results) -> list[Target]:
    place = results.handshakes
    if place is None:
        return []
    found: list[Target] = []
    for run in place.local:
        for moved, what in ((False, "in a cluster"), (True, "of a session from another node")):
            found.append(Target(f"QoS 2 handshake {what}: times alone", median(run.ratios(moved)), SAME, False))
    for back in place.returning:
        name = f"{back.clients:,} clients come back elsewhere"
        found.append(Target(f"{name}: s until all have PUBCOMP", back.back_s + back.resolved_s, BACK_S, False))
        found.append(Target(f"{name}: calls", back.calls, back.bound, False))
        found.append(Target(f"{name}: messages that came", back.routed, back.clients, True))
        found.append(Target(f"{name}: messages that came twice", back.doubled, 0, False))
    for each in place.modelled:
        name = f"{each.clients:,} clients, {each.nodes} nodes, {'hint' if each.hint else 'all asked'}: calls"
        found.append(Target(name, each.calls, each.bound, False))
    return found


def failures(results: Results) -> list[str]:
    return [] if results.handshakes is None else [f"handshakes: {text}" for text in results.handshakes.errors]


def tables(results: Results) -> list[Table]:
    place = results.handshakes
    return [] if place is None else [cost_table(place), back_table(place), model_table(place)]


def cost_table(place: Handshakes) -> Table:
    table = grid(
        "A QoS 2 handshake that stays at its node: CPU us in the broker, medians of rounds that take turns",
        *("", "us", "times alone", "middle half of the rounds"),
    )
    for run in place.local:
        table.add_row("alone", f"{median(run.alone_us):.3f}", "", "")
        for moved, what in ((False, "in a cluster"), (True, "its session came from another node")):
            ratios = sorted(run.ratios(moved))
            middle = f"{ratios[len(ratios) // 4]:.3f} to {ratios[3 * len(ratios) // 4]:.3f}"
            costs = run.moved_us if moved else run.clustered_us
            table.add_row(what, f"{median(costs):.3f}", f"{median(ratios):.3f}", middle)
    return table


def back_table(place: Handshakes) -> Table:
    table = grid(
        "All clients come back to another node of three, and then say PUBREL at once",
        *(
            "clients",
            "back in s",
            "found",
            "PUBCOMP in s",
            "messages",
            "twice",
            "calls",
            "windows x nodes",
            "one by one",
        ),
        *("hint", "all asked"),
    )
    for run in place.returning:
        table.add_row(
            f"{run.clients:,}",
            f"{run.back_s:.2f}",
            f"{run.found:,}",
            f"{run.resolved_s:.2f}",
            f"{run.routed:,}",
            f"{run.doubled:,}",
            f"{run.calls:,}",
            f"{run.bound:,}",
            f"{run.one_by_one:,}",
            f"{run.hits:,}",
            f"{run.broadcasts:,}",
        )
    return table


def model_table(place: Handshakes) -> Table:
    table = grid(
        f"Calls when all clients come back within {SECONDS:g} s, in virtual time, windows of {1000 * WINDOW:g} ms",
        *("clients", "nodes", "asked", "calls", "windows x nodes", "one by one", "last PUBCOMP after s"),
    )
    for run in place.modelled:
        table.add_row(
            f"{run.clients:,}",
            str(run.nodes),
            "who the hint names" if run.hint else "all",
            f"{run.calls:,}",
            f"{run.bound:,}",
            f"{run.one_by_one:,}",
            f"{run.seconds:.2f}",
        )
    return table


def draw(results: Results, path: Path) -> bool:
    """Draw the plot of calls by clients and by nodes; False if there is no data."""
    place = results.handshakes
    if place is None or not place.modelled:
        return False
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 4.6), layout="constrained")
    by_clients(left, [run for run in place.modelled if run.hint], "the takeover told whom to ask")
    by_clients(middle, [run for run in place.modelled if not run.hint], "all nodes are asked")
    by_nodes(right, place.modelled)
    figure.suptitle(
        f"Calls between nodes when all clients come back elsewhere within {SECONDS:g} s, in the middle of a QoS 2 "
        f"handshake; windows of {1000 * WINDOW:g} ms",
        fontsize=10,
    )
    figure.savefig(path, dpi=DPI)
    plt.close(figure)
    return True


def by_clients(axes: Axes, runs: list[Modelled], title: str) -> None:
    """Calls from one node to another: bounded by the number of windows."""
    for colour, nodes in zip(COLOURS, sorted({run.nodes for run in runs}), strict=False):
        line = sorted([run for run in runs if run.nodes == nodes], key=lambda run: run.clients)
        clients = [run.clients for run in line]
        pairs = nodes * (nodes - 1)
        axes.plot(clients, [run.calls / pairs for run in line], "o-", color=colour, label=f"{nodes} nodes", ms=4)
        axes.plot(clients, [run.one_by_one / pairs for run in line], ":", color=colour, label=f"{nodes}, one by one")
    bound = max([run.bound / run.nodes / (run.nodes - 1) for run in runs], default=1.0)
    axes.axhline(bound, color="#b03a48", lw=1, label="windows that passed")
    axes.set(xscale="log", yscale="log", xlabel="clients", ylabel="calls from one node to another one", title=title)
    finish(axes)


def by_nodes(axes: Axes, runs: list[Modelled]) -> None:
    most = max(run.clients for run in runs)
    for colour, hint in zip(COLOURS, (True, False), strict=False):
        line = sorted([run for run in runs if run.clients == most and run.hint == hint], key=lambda run: run.nodes)
        nodes = [run.nodes for run in line]
        what = "hint" if hint else "all asked"
        pairs = [count * (count - 1) for count in nodes]
        calls = [run.calls / pair for run, pair in zip(line, pairs, strict=True)]
        single = [run.one_by_one / pair for run, pair in zip(line, pairs, strict=True)]
        axes.plot(nodes, calls, "o-", color=colour, label=what, ms=4)
        axes.plot(nodes, single, ":", color=colour, label=f"{what}, one by one")
    axes.set(xscale="log", yscale="log", xlabel="nodes", ylabel="calls from one node to another one")
    axes.set_title(f"{most:,} clients")
    axes.set_xticks(sorted({run.nodes for run in runs}), [str(n) for n in sorted({run.nodes for run in runs})])
    axes.minorticks_off()
    finish(axes)


def finish(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    axes.legend(fontsize=7, frameon=False)
