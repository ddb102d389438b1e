"""How long a node is busy with many wills that are due at once: ``python -m tests.cluster.many_wills --wills 100000``.

Real state machines of a cluster, in virtual time, in which frames about wills take 2 ms. What is told is the CPU time
of single turns: while a node takes one it does nothing else.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable

from tests.cluster.fleet import Fleet, NodeWorld

from starlingmq.cluster.links.peer_frames import Envelope
from starlingmq.core.messages.message import Message
from starlingmq.core.peers.peer_receivers import link
from starlingmq.core.session.session import Session, Will
from starlingmq.node.node_process import YOUNG_MAX

STEP = 0.002  # seconds
LONG_STEP = 0.02  # while nothing of it matters
DELAY = 5  # seconds until a will is due


class Timed(NodeWorld):
    """Each turn of it, and each frame that it takes, is timed."""

    turns: list[float]

    def turn(self) -> bool:
        began = time.thread_time()
        busy = super().turn()
        self.turns.append(time.thread_time() - began)
        return busy

    def received(self, envelope: Envelope) -> None:
        began = time.thread_time()
        super().received(envelope)
        self.turns.append(time.thread_time() - began)


class Crowd:
    """Two nodes, and so many clients of the first one that have left wills, and are not there."""

    def __init__(self, wills: int) -> None:
        self.wills = wills
        self.fleet = Fleet(0)
        self.fleet.slow_owners = True
        self.turns: list[float] = []
        for _ in range(2):
            self._add()
        self.node = self.fleet[0]
        self.due_at = 0.0

    def _add(self) -> None:
        fleet = self.fleet
        node = Timed(fleet, f"n{len(fleet.nodes) + 1}")
        node.turns = self.turns
        fleet.nodes.append(node)
        node.cluster.start(fleet.now)
        self.until(lambda: all(fleet._whole(other) for other in fleet.nodes), LONG_STEP)

    def until(self, done: Callable[[], bool], step: float = STEP) -> float:
        """How long it takes, in virtual seconds."""
        began = self.fleet.now
        while not done():
            self.fleet.advance(step, step)
        return self.fleet.now - began

    def come(self, due_at: float) -> float:
        """Leave the wills: seconds until the leaders of their shares have them.

        ``due_at`` 0.0: ``DELAY`` after their node is gone.
        """
        ctx, now = self.node.state.ctx, self.fleet.now
        client = link("client", None)
        assert ctx.cluster.wills is not None
        for number in range(self.wills):
            session = Session(f"c{number}", ctx.next_number)
            ctx.next_number += 1
            ctx.sequence += 1
            session.expiry = 3600
            message = Message(b"will/%d" % number, b"gone", 1, False, b"", 0.0, "", now)
            session.will = Will(message, DELAY, -1, client, ctx.sequence)
            session.will_at = due_at
            ctx.sessions[session.client_id] = session
            if due_at:
                ctx.arm(session, due_at)
            ctx.cluster.wills.change(session.client_id)
        return self.until(lambda: len(self.fleet.will_keys()) == self.wills)

    def fire(self) -> tuple[float, float]:
        """All are due: seconds until they are published, and until the leaders have forgotten them."""
        cluster = self.node.cluster
        self.until(lambda: cluster.wills.fired > 0, LONG_STEP)
        published = self.until(lambda: cluster.wills.fired == self.wills)
        return published, published + self.until(lambda: not self.fleet.will_keys())

    def die(self) -> tuple[float, float]:
        """Their node dies: seconds until the first one is published by another, and from then until all are."""
        self._add()
        self.fleet.nodes.remove(self.node)
        self.node.etcd.close(self.fleet.now, revoke=False)
        first = self.until(lambda: self._taken() > 0, LONG_STEP)
        return first, self.until(lambda: self._taken() == self.wills)

    def _taken(self) -> int:
        return sum(node.cluster.wills.taken.published for node in self.fleet.nodes)

    def told(self, what: str) -> str:
        turns, self.turns[:] = sorted(self.turns), []
        longest = ", ".join([f"{1000 * seconds:.1f}" for seconds in turns[-3:]])
        return f"{what}; {sum(turns):.1f} s of CPU in {len(turns)} turns, the longest {longest} ms"


def own(wills: int) -> Crowd:
    crowd = Crowd(wills)
    took = crowd.come(crowd.fleet.now + wills / 5000 + 5)
    print(crowd.told(f"{wills} wills are at the leaders after {took:.1f} s"))
    published, forgotten = crowd.fire()
    print(crowd.told(f"all due at once: published within {published:.1f} s, forgotten after {forgotten:.1f} s"))
    return crowd


def of_a_dead_node(wills: int) -> Crowd:
    crowd = Crowd(wills)
    crowd.come(0.0)
    crowd.turns.clear()
    first, rest = crowd.die()
    print(crowd.told(f"their node dies: the first one comes after {first:.1f} s, all within {rest:.1f} s"))
    return crowd


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.many_wills", description=__doc__)
    parser.add_argument("--wills", type=int, default=100_000)
    arguments = parser.parse_args()
    gc.set_threshold(YOUNG_MAX, 1_000_000, 1_000_000)  # as a node does
    own(arguments.wills)
    of_a_dead_node(arguments.wills)
    return 0


if __name__ == "__main__":
    sys.exit(main())
