"""``python -m bench.scale``: count in simulated clusters, fit the model, compare it with larger ones, write
docs/SCALE.md. ``--count NODES CLIENTS`` counts in one cluster, and prints the work for each kind of action.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.peers import ROOT, version
from bench.scale import page, picture
from bench.scale.costs import CostsError, costs_of
from bench.scale.results import Scale
from bench.scale.simulated import PHASES, Counted, Counting
from starlingmq import compiled

FITTED = ((3, 10_000), (3, 30_000), (5, 30_000), (10, 30_000), (20, 30_000))
HELD = ((3, 100_000), (10, 100_000), (30, 100_000), (100, 100_000))
DATA = ROOT / "docs" / "data" / "scale.json"
PAGE = ROOT / "docs" / "SCALE.md"
PICTURE = ROOT / "docs" / "images" / "scale.png"


def count(sizes: tuple[tuple[int, int], ...], progress: Progress) -> list[Counted]:
    found = []
    for nodes, clients in sizes:
        task = progress.add_task(f"{nodes} nodes, {clients:,} clients", total=PHASES)
        found.append(Counting(nodes, clients, lambda what, task=task: progress.update(task, advance=1)).count())  # type: ignore[misc]
    return found


def count_one(nodes: int, clients: int) -> None:
    """Print the work for one action of each kind, total over the nodes; for phases of idleness, for one second."""
    counted = Counting(nodes, clients, lambda what: print(what, file=sys.stderr)).count()
    print(f"{nodes} nodes, {clients:,} clients, {'compiled' if compiled() else 'interpreted'}")
    for name, work in counted.work.items():
        each = [work.bytes, work.frames, work.beats, work.puts, work.cpu_us]
        size, frames, beats, puts, cpu_us = [total / work.times for total in each]
        print(
            f"{name + ':':<20}{size:8,.0f} bytes{frames:8.1f} frames{beats:10,.0f} of heartbeats"
            f"{puts:6.1f} etcd writes{cpu_us:10,.0f} us of CPU"
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description="What a cluster costs by its size.")
    parser.add_argument("--results", type=Path, default=Path("out/bench/results.json"), help="of python -m bench")
    parser.add_argument("--largest", type=int, default=100_000, help="clients of the largest clusters (100000)")
    parser.add_argument("--count", type=int, nargs=2, metavar=("NODES", "CLIENTS"), help="count in this cluster only")
    parser.add_argument("--redraw", action="store_true", help="write the page and the picture from the data as it is")
    options = parser.parse_args()
    console = Console()
    if options.count:
        nodes, clients = options.count
        count_one(nodes, clients)
        return
    if not options.redraw:
        try:
            costs = costs_of(options.results)
        except CostsError as error:
            sys.exit(f"error: {error}")
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=console) as progress:
            fitted = count(FITTED, progress)
            held = count(tuple((nodes, min(clients, options.largest)) for nodes, clients in HELD), progress)
        scale = Scale(version=f"StarlingMQ {version('starlingmq')}", costs=costs, fitted=fitted, held=held)
        DATA.parent.mkdir(exist_ok=True)
        DATA.write_bytes(msgspec.json.format(msgspec.json.encode(scale)) + b"\n")
    scale = msgspec.json.decode(DATA.read_bytes(), type=Scale)
    page.write(PAGE, scale)
    picture.draw(scale, PICTURE)
    console.print(page.model(scale), page.reach(scale), page.first(scale), sep="\n\n", soft_wrap=True)


if __name__ == "__main__":
    main()
