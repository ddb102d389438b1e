"""``python -m tests.sim --seeds N``: worlds by the dozen; ``--seed N`` lives one again, with a trace."""

from __future__ import annotations

import argparse
import logging
import time
import traceback

from tests.cluster.takeover_world import RoamingWorld
from tests.sim.seen import EVERYTHING, WITH_COPIES, Seen, told
from tests.sim.themes import THEMES
from tests.sim.world import World

ROAMING = "roaming"  # a theme: subscribers hop from node to node
ROAMING_EVERY = 25  # of so many worlds the last one is about that


def run(seed: int, trace: bool = False, theme: str = "") -> World:
    """Live one world. Raises AssertionError (or what the code that is tested raises) when something does not hold."""
    roams = theme == ROAMING or (not theme and seed % ROAMING_EVERY == ROAMING_EVERY - 1)
    world = RoamingWorld(seed, trace) if roams else World(seed, trace, theme)
    world.live()
    return world


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many worlds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--failures", type=int, default=1, help="stop after so many")
    parser.add_argument("--seed", type=int, help="live this one again, with a trace")
    parser.add_argument("--theme", choices=[*THEMES, ROAMING], default="", help="all worlds are about this")
    parser.add_argument("--copies", type=int, default=1, help="cluster.copies; above 1, disks are lost")
    parser.add_argument("--summaries", action="store_true", help="nodes tell each other summaries of their filters")
    arguments = parser.parse_args()
    World.copies = arguments.copies
    World.summaries = arguments.summaries
    if arguments.seed is not None:
        run(arguments.seed, True, arguments.theme)
        return 0
    logging.getLogger("starlingmq").setLevel(logging.CRITICAL)  # of disks that fail there is no end
    began = time.perf_counter()
    messages = failures = lived = 0
    seen = Seen()
    virtual = 0.0
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        if lived and lived % 1000 == 0:
            print(f"{lived} seeds, {failures} failures so far", flush=True)
        lived += 1
        try:
            world = run(seed, False, arguments.theme)
        except Exception:  # whatever the code raises: this seed shows it
            traceback.print_exc(limit=-6)
            theme = f" --theme {arguments.theme}" if arguments.theme else ""
            theme += f" --copies {arguments.copies}" if arguments.copies > 1 else ""
            theme += " --summaries" if arguments.summaries else ""
            print(f"FAILED seed {seed}; again, with a trace: python -m tests.sim --seed {seed}{theme}", flush=True)
            failures += 1
            if failures >= arguments.failures:
                break
            continue
        seen += world.seen
        messages += world.books.acknowledged_count
        virtual += world.schedule.now - world.schedule.start
    took = time.perf_counter() - began
    print(
        f"{lived} seeds in {took:.1f} s ({lived / took:.1f} seeds/s), {virtual:.0f} s of virtual time, "
        f"{messages} messages acknowledged, {failures} failures"
    )
    print(f"Seen: {told(seen, EVERYTHING if arguments.copies == 1 else EVERYTHING + WITH_COPIES)}")
    return 1 if failures else 0
