"""The command line of a run of chaos, and the settings that it draws."""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any


def parser(description: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m tests.cluster.chaos", description=description)
    made.add_argument("--rounds", type=int, default=50, help="faults")
    made.add_argument("--nodes", type=int, default=3)
    made.add_argument("--seed", type=int, default=None, help="draws the same faults again (not their times)")
    made.add_argument("--rate", type=int, default=2000, help="messages a second at most")
    made.add_argument("--minutes", type=float, default=0.0, help="so long, in place of rounds; clients roam")
    made.add_argument("--load", type=int, default=0, help="busy processes beside the cluster, for all the time")
    made.add_argument(
        "--etcd-away",
        type=float,
        default=1 / 3,
        help="share of the time that no etcd answers; a third without it",
    )
    made.add_argument("--copies", type=int, default=1, help="the setting cluster.copies")
    made.add_argument("--report", type=Path, help="a directory for the report; with --minutes build/chaos")
    made.add_argument("--dir", type=Path, help="a new directory for what the nodes keep and say; it stays")
    return made


def draw_settings(draw: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of cluster and storage: as they are by default, or so that bounds are met all the time."""
    cluster = {
        "link_window": draw.choice(["8MiB", "64KiB", "4KiB"]),
        "route_log": draw.choice([100_000, 2]),
        "resend_interval": draw.choice(["2s", "500ms"]),
    }
    storage = {"journal": draw.choice(["segment", "rocksdb"]), "durability": draw.choice(["process", "power"])}
    return cluster, storage
