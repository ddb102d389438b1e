"""A picture of the result of a recipe: ``python plot.py downsample /data/downsample downsample.png``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pyarrow.dataset as ds  # type: ignore[import-untyped]
from matplotlib.dates import DateFormatter

Rows = list[dict[str, Any]]


def groups(rows: Rows, column: str, order: str) -> dict[str, Rows]:
    found: dict[str, Rows] = {}
    for row in sorted(rows, key=lambda row: row[order]):
        found.setdefault(row[column], []).append(row)
    return dict(sorted(found.items()))


def downsample(rows: Rows, axes: Any) -> None:
    for device, of in groups(rows, "device", "minute").items():
        minutes = [row["minute"] for row in of]
        (line,) = axes.plot(minutes, [row["mean"] for row in of], label=device)
        low, high = ([row[name] for row in of] for name in ("low", "high"))
        axes.fill_between(minutes, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(title="Mean of each minute, with minimum and maximum", ylabel="°C")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def dwell(rows: Rows, axes: Any) -> None:
    zones = sorted({row["zone"] for row in rows})
    tags = sorted({row["tag"] for row in rows}, reverse=True)
    for zone in zones:
        of = [row for row in rows if row["zone"] == zone]
        lengths = [row["left"] - row["arrived"] for row in of]
        axes.barh([tags.index(row["tag"]) for row in of], lengths, left=[row["arrived"] for row in of], label=zone)
    axes.set_yticks(range(len(tags)), tags)
    axes.set(title="Visits of zones")
    axes.legend(loc="upper center", ncols=len(zones), bbox_to_anchor=(0.5, -0.12), frameon=False)


def latest(rows: Rows, axes: Any) -> None:
    rows = sorted(rows, key=lambda row: row["device"], reverse=True)
    bars = axes.barh([row["device"] for row in rows], [row["value"] for row in rows])
    axes.bar_label(bars, [f"{row['value']:.1f} at {row['at']:%H:%M:%S}" for row in rows], padding=4)
    axes.set(title="Last value of each device", xlabel="°C")
    axes.margins(x=0.3)


def join(rows: Rows, axes: Any) -> None:
    for _, of in groups(rows, "job", "second").items():
        device = of[0]["device"]
        color = f"C{sorted({row['device'] for row in rows}).index(device)}"
        axes.plot(
            [row["second"] / 60 for row in of], [row["value"] for row in of], color=color, alpha=0.7, label=device
        )
    axes.set(title="Each job, from its start", xlabel="minutes since the start", ylabel="°C")
    lines = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    axes.legend(lines.values(), lines.keys(), loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def anomalies(rows: Rows, axes: Any) -> None:
    for device, of in groups(rows, "device", "at").items():
        axes.plot([row["at"] for row in of], [row["z"] for row in of], "o", label=device)
    for limit in (-4, 4):
        axes.axhline(limit, color="grey", linestyle="--", linewidth=1)
    axes.set(title="Anomalies", ylabel="standard deviations from the mean")
    axes.legend()


def consumption(rows: Rows, axes: Any) -> None:
    for meter, of in groups(rows, "meter", "at").items():
        total, sums = 0.0, []
        for row in of:
            total += row["used"]
            sums.append(total)
        (line,) = axes.plot([row["at"] for row in of], sums, label=meter)
        again = [(row["at"], value) for row, value in zip(of, sums, strict=True) if row["restarted"]]
        axes.plot(*zip(*again, strict=True), "v", color=line.get_color()) if again else None
    axes.set(title="Consumption; ▾: the counter began at 0 again", ylabel="kWh")
    axes.legend()


PLOTS: dict[str, Callable[[Rows, Any], None]] = {
    "downsample": downsample,
    "dwell": dwell,
    "latest": latest,
    "join": join,
    "anomalies": anomalies,
    "consumption": consumption,
}


def plot(recipe: str, rows: Rows, out: Path) -> None:
    figure, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
    PLOTS[recipe](rows, axes)
    axes.spines[["top", "right"]].set_visible(False)
    if recipe not in ("latest", "join"):
        formatter: Any = DateFormatter
        axes.xaxis.set_major_formatter(formatter("%H:%M"))
    figure.savefig(out, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    plot(sys.argv[1], ds.dataset(sys.argv[2]).to_table().to_pylist(), Path(sys.argv[3]))
