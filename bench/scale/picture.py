"""Plots of the model with the counted figures, and of the load of each part of a cluster as its fleet grows."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from bench.scale.reach import Fleet, Room, loads, nodes_for
from bench.scale.results import Scale

DPI = 130
SHOWN = ("heartbeats", "a filter", "a message to another node", "a return", "a takeover")


def draw(scale: Scale, path: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5), layout="constrained")
    fit_panel(scale, left)
    reach_panel(scale, right)
    figure.savefig(path, dpi=DPI)
    plt.close(figure)


def fit_panel(scale: Scale, axes: Axes) -> None:
    nodes = np.arange(2, 101)
    shown = [each for each in scale.laws() if each.law.name in SHOWN and each.law.unit.startswith("bytes")]
    for place, fitted in enumerate(shown):
        law, colour = fitted.law, f"C{place}"
        axes.plot(nodes, [fitted.predict(int(n)) for n in nodes], color=colour, label=f"{law.name}, {law.unit}")
        axes.plot([c.nodes for c in scale.fitted], [law.figure(c) for c in scale.fitted], "o", color=colour)
        axes.plot([c.nodes for c in scale.held], [law.figure(c) for c in scale.held], "D", color=colour, mfc="white")
    axes.set(
        xscale="log", yscale="log", xlabel="nodes", title="Sum of all nodes: model, fitted (dots), predicted (diamonds)"
    )
    axes.legend(frameon=False)
    axes.grid(alpha=0.25)


def reach_panel(scale: Scale, axes: Axes) -> None:
    fitted, fleet, room = scale.laws(), Fleet(), Room()
    sizes = np.unique(np.geomspace(1e4, 1e8, 60).astype(int))
    lines: dict[str, list[float]] = {}
    for clients in map(int, sizes):
        nodes = nodes_for(clients, fitted, scale.costs, fleet, room)
        for load in loads(clients, nodes, fitted, scale.costs, fleet, room):
            lines.setdefault(load.name, []).append(load.share)
    for name, shares in sorted(lines.items(), key=lambda line: -line[1][-1]):
        axes.plot(sizes, shares, label=name)
    axes.axhline(1, color="black", linewidth=1)
    axes.set(xscale="log", yscale="log", ylim=(1e-3, 10), xlabel="clients, on as many nodes as they need, 100 at most")
    axes.set_title("Share of capacity; above 1 it does not work")
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.25)
