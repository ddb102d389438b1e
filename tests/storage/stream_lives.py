"""``python -m tests.storage.stream_lives --seeds N``: the lives of tests.storage.seeds, with a stream that keeps.

Besides what every life is held to:

- an acknowledged message is in the stream; at QoS 2 it is there once, at QoS 0 once at most;
- what could be read once can be read for ever, at the same offset; nothing is ever given to that offset again;
- offsets have no gaps, and what of one publisher came in order is there in order (but for what came again).
"""

from __future__ import annotations

import argparse
import logging
import sys
import traceback
from typing import Any

from tests.storage.seeds import Life

from starlingmq.storage.records import decode_message


class StreamLife(Life):
    topics = ("t/#", "g/#", "t/a")  # the last two overlap with what others are subscribed to, and with the first

    def __init__(self, seed: int, **fixed: Any) -> None:
        self.read: dict[int, bytes] = {}  # messages that a reader has had so far
        super().__init__(seed, **fixed)

    def act(self) -> None:
        super().act()
        if self.random.random() < 0.3:
            self.read_on()

    def read_on(self) -> None:
        """Read what may be read, and once more what was read."""
        records = self.world.stream_journal.records
        for offset in range(self.world.shown):
            assert offset in records, f"offset {offset} could be read, and is gone"
            payload = decode_message(records[offset]).payload
            assert self.read.setdefault(offset, payload) == payload, f"offset {offset} is another message now"

    def check(self) -> None:
        super().check()
        self.read_on()
        assert sorted(self.world.stream_journal.records) == list(range(self.world.shown)), "offsets have gaps"
        counts: dict[bytes, int] = {}
        for offset in range(self.world.shown):
            counts[self.read[offset]] = counts.get(self.read[offset], 0) + 1
        wanted = [payload for payload, packet in self.all.items() if packet.topic[:2] in (b"t/", b"g/")]
        missing = [payload for payload in wanted if payload in self.acked and payload not in counts]
        assert not missing, f"not in the stream: {missing[:5]}, {len(missing)} in all"
        for payload, count in counts.items():
            assert payload in self.all and payload not in self.refused, payload
            qos = payload.split()[2]
            if qos == b"2" or (qos == b"0" and not self.power):
                assert count == 1, f"{payload!r} is in the stream {count} times"
        self.check_order()

    def check_order(self) -> None:
        last: dict[tuple[bytes, ...], int] = {}
        seen: set[bytes] = set()
        for offset in range(self.world.shown):
            payload = self.read[offset]
            *key, number = payload.split()
            if payload in seen or payload in self.resent or not self.ordered:
                continue
            seen.add(payload)
            assert last.get(tuple(key), 0) < int(number), f"{payload!r} comes after {last[tuple(key)]}"
            last[tuple(key)] = int(number)


def run(seed: int, acts: int = 120, **fixed: Any) -> int:
    """Live one seed; how often the broker died."""
    life = StreamLife(seed, **fixed)
    life.live(acts)
    return life.world.crashes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.storage.stream_lives", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    logging.getLogger("starlingmq").setLevel(logging.CRITICAL)
    crashes = 0
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        try:
            crashes += run(seed)
        except AssertionError:
            traceback.print_exc(limit=-4)
            print(f"FAILED seed {seed}; again: python -m tests.storage.stream_lives --first {seed} --seeds 1")
            return 1
    print(f"{arguments.seeds} seeds, {crashes} crashes, all is well")
    return 0


if __name__ == "__main__":
    sys.exit(main())
