"""The day in a picture: ``python chart.py /data/factory factory.png``."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pyarrow.dataset as ds  # type: ignore[import-untyped]
from matplotlib.dates import DateFormatter

QUARTER = timedelta(minutes=15)


def chart(rows: list[dict[str, Any]], out: Path) -> None:
    machines = sorted({row["machine"] for row in rows})
    figure, axes = plt.subplots(len(machines), 1, figsize=(10, 2 * len(machines)), sharex=True, layout="constrained")
    for machine, ax in zip(machines, axes, strict=True):
        of = sorted((row for row in rows if row["machine"] == machine), key=lambda row: row["quarter"])
        known = {row["quarter"]: row for row in of}
        times = [of[0]["quarter"] + n * QUARTER for n in range((of[-1]["quarter"] - of[0]["quarter"]) // QUARTER + 1)]
        mean, low, high = (
            [known[time][name] if time in known and known[time][name] is not None else float("nan") for time in times]
            for name in ("mean", "low", "high")
        )
        ax.plot(times, mean, color="C0")
        ax.fill_between(times, low, high, color="C0", alpha=0.2, linewidth=0)
        for number, time in enumerate(times):
            if time not in known:
                ax.axvspan(time, time + QUARTER, color="0.85", label="no data" if number == 0 else None)
        strange = [row["quarter"] for row in of if row["out_of_range"]]
        ax.plot(strange, [min(row["low"] for row in of)] * len(strange), "v", color="C3", label="out of range")
        lost = [row["quarter"] for row in of if row["missing"]]
        ax.plot(lost, [min(row["low"] for row in of)] * len(lost), "|", color="0.5", label="readings missing")
        ax.set_ylabel(f"{machine}, °C")
        ax.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    axes[0].legend(handles, labels, loc="upper left", ncols=3, frameon=False)
    axes[0].set_title("A day of the factory: mean, minimum and maximum of each quarter; grey: no data", pad=14)
    formatter: Any = DateFormatter
    axes[-1].xaxis.set_major_formatter(formatter("%H:%M"))
    figure.savefig(out, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    chart(ds.dataset(sys.argv[1]).to_table().to_pylist(), Path(sys.argv[2]))
