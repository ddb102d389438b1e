"""``python -m tests.storage.copy_lives --seeds N``: the lives of tests.storage.stream_lives, with followers.

Every life is held to what those are held to, although the broker's disk is lost for good; a follower in step takes
over. At the end, each follower in step has exactly the state of the broker.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from typing import Any

import msgspec
from tests.storage.copy_world import CopyWorld, FollowerNode
from tests.storage.crash_engines import CrashJournal, CrashKv
from tests.storage.stream_lives import StreamLife

from starlingmq.storage import recovery


class CopyLife(StreamLife):
    world: CopyWorld

    def make_world(self, **settings: Any) -> CopyWorld:
        copies = self.random.choice([2, 2, 3])
        required = self.random.choice([1, copies - 1, copies])
        return CopyWorld(copies=copies, required=required, **settings)

    def invite(self) -> None:
        super().invite()
        self.power = True  # unacknowledged records may be lost, as by a power failure

    def act(self) -> None:
        chance = self.random.random()
        if chance < 0.75:
            super().act()
            return
        follower = self.random.choice(self.world.followers)
        if chance < 0.95:
            self.world.dial(follower)
            self.world.run()
        elif chance < 0.97:
            self.world.cut(follower)
        elif chance < 0.98:
            self.world.lose_disk(follower)
        elif follower.connection is None:
            self.world.leave(follower)
        else:
            self.world.pump(1.0)

    def check(self) -> None:
        super().check()
        self.world.settle()
        for follower in self.world.followers:
            assert follower.name in self.world.in_step, f"{follower.name} never gets in step"
            self.check_copy(follower)

    def check_copy(self, follower: FollowerNode) -> None:
        own, disk = self.world.own_disk(), follower.disk
        assert described(own.kv, own.journal) == described(disk.kv, disk.journal), f"{follower.name} has another state"
        assert {number: log.records for number, log in own.streams.items()} == {
            number: log.records for number, log in disk.streams.items()
        }, f"{follower.name} has other streams"


def described(kv: CrashKv, journal: CrashJournal) -> bytes:
    """The state that a start finds."""
    image, _ = recovery.read(kv, journal, lambda puts: None)
    return repr(plain(image)).encode()


def plain(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: plain(value) for key, value in found.items()}
    if isinstance(found, (list, tuple)):
        return [plain(value) for value in found]
    if isinstance(found, msgspec.Struct):
        return found
    names = getattr(type(found), "__mypyc_attrs__", None) or getattr(found, "__dict__", ())  # a compiled class has none
    if not names:
        return found
    return {name: plain(getattr(found, name)) for name in names if name not in ("touched", "changes")}


def run(seed: int, acts: int = 120, **fixed: Any) -> CopyLife:
    life = CopyLife(seed, **fixed)
    life.live(acts)
    return life


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.storage.copy_lives", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--failures", type=int, default=1)
    arguments = parser.parse_args()
    logging.getLogger("starlingmq").setLevel(logging.CRITICAL)
    began = time.perf_counter()
    crashes = takeovers = follower_crashes = failures = whole = 0
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        try:
            world = run(seed).world
        except Exception:
            traceback.print_exc(limit=-8)
            print(f"FAILED seed {seed}; again: python -m tests.storage.copy_lives --first {seed} --seeds 1", flush=True)
            failures += 1
            if failures >= arguments.failures:
                return 1
            continue
        crashes += world.crashes
        takeovers += world.takeovers
        whole += world.whole_stores
        follower_crashes += sum(follower.crashes for follower in world.followers)
    print(
        f"{arguments.seeds} seeds, {crashes} crashes, {takeovers} takeovers, {follower_crashes} crashes of followers, "
        f"{whole} whole stores, {time.perf_counter() - began:.1f} s, {failures} failures"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
