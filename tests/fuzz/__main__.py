"""``python -m tests.fuzz --seconds N --seed S``: mutated packets into the decoder, the core and a broker process.

Every episode has a seed of its own, ``target:number``; a failure names it, and ``--replay`` runs it alone.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable
from random import SystemRandom
from typing import Final

from starlingmq import compiled
from tests.fuzz import cluster, codec, core, cost, flight, http, nats, process, websocket

TARGETS: Final[dict[str, Callable[[int], int]]] = {
    "codec": codec.run,
    "core": core.run,
    "nats": nats.run,
    "cost": cost.run,
    "process": process.run,
    "http": http.run,
    "websocket": websocket.run,
    "cluster": cluster.run,
    "flight": flight.run,
}
ENDS: Final[dict[str, Callable[[], None]]] = {
    "process": process.stop,
    "http": http.stop,
    "websocket": websocket.stop,
    "flight": flight.stop,
}
"""For targets that are processes: stop them, and look how they stop."""


def fuzz(target: str, seed: int, seconds: float) -> bool:
    """Run episodes of one target for a time; False after the first that failed, which is printed."""
    run, done, episode = TARGETS[target], 0, seed
    began = time.perf_counter()
    taken = 0.0
    try:
        while taken < seconds or episode == seed:
            done += run(episode)
            episode += 1
            taken = time.perf_counter() - began
        if target in ENDS:
            ENDS[target]()
    except Exception:
        traceback.print_exc()
        print(f"FAILED {target} after {done} executions; again: python -m tests.fuzz --replay {target}:{episode}")
        return False
    print(
        f"{target}: {episode - seed} episodes, {done} executions, {done / taken:,.0f} a second, no failure", flush=True
    )
    return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all targets together")
    parser.add_argument("--each", type=float, help="for each target, in place of --seconds")
    parser.add_argument("--seed", type=int, help="of the first episode; drawn by default")
    parser.add_argument("--target", choices=list(TARGETS), action="append", help="may be given again")
    parser.add_argument("--replay", metavar="TARGET:SEED", help="run one episode again, with its traceback")
    arguments = parser.parse_args()
    if arguments.replay:
        target, _, seed = arguments.replay.partition(":")
        return 0 if fuzz(target, int(seed), 0.0) else 1
    seed = SystemRandom().randrange(1 << 40) if arguments.seed is None else arguments.seed
    targets = arguments.target or list(TARGETS)
    print(f"{'compiled' if compiled() else 'interpreted'}, seed {seed}", flush=True)
    seconds = arguments.each or arguments.seconds / len(targets)
    passed = [fuzz(target, seed, seconds) for target in targets]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
