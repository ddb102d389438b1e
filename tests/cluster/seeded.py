"""The command of a kind of worlds: lives one after the other by their seeds, and tells what they saw and which fail."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from tests.sim.world import World

import starlingmq

W = TypeVar("W")


def interpreted_only() -> None:
    """For worlds that replace parts of the program: compiled code ignores that, so their results would be wrong."""
    if starlingmq.compiled():
        sys.exit("error: these worlds replace parts of the program, so they run interpreted: set STARLINGMQ_PURE=1")


def main(name: str, doc: str | None, run: Callable[[int, bool], W], figures: Callable[[W], Counter[str]]) -> int:
    """``run`` lives a seed, with a trace or without one, and raises where something is wrong; ``figures`` is what is
    added up over all that are well. ``name`` is that of the module. The exit status."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.cluster.{name}", description=doc)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--failures", type=int, default=1, help="stop after so many")
    parser.add_argument("--seed", type=int, help="live this one again, with a trace")
    parser.add_argument("--without-etcd", action="store_true", help="etcd is away while the clients do what they do")
    parser.add_argument(
        "--losses", action="store_true", help="nodes are lost again and again (will_world, presence_world)"
    )
    parser.add_argument("--one-machine", action="store_true", help="nodes that have ended do not count for a majority")
    parser.add_argument("--copies", type=int, default=1, help="cluster.copies; above 1, disks are lost")
    arguments = parser.parse_args()
    World.copies = arguments.copies
    World.one_machine = arguments.one_machine
    World.without_etcd = arguments.without_etcd
    World.loses_nodes = arguments.losses
    logging.getLogger("starlingmq").setLevel(logging.CRITICAL)
    if arguments.seed is not None:
        run(arguments.seed, True)
        return 0
    began = time.perf_counter()
    failures = 0
    seen: Counter[str] = Counter()
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        try:
            seen.update(figures(run(seed, False)))
        except Exception as error:  # whatever the code raises: this seed shows it
            if arguments.failures == 1:
                traceback.print_exc(limit=-4)
            print(f"FAILED seed {seed}: {str(error)[:300]}", flush=True)
            failures += 1
            if failures >= arguments.failures:
                return 1
    print(f"{arguments.seeds} seeds in {time.perf_counter() - began:.1f} s, {failures} failures")
    print(", ".join(f"{count} {what}" for what, count in seen.items()))
    return 1 if failures else 0
