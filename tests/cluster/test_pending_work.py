"""A turn that is left out would have found nothing to do (cluster.view.pending_work)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final
from unittest.mock import patch

import pytest
from tests.cluster import drain_world, handshake_world, takeover_world, will_world
from tests.cluster.fleet import Fleet
from tests.few import few
from tests.sim.run import run

from starlingmq.cluster.balance.drain import Drain
from starlingmq.cluster.cluster_state import ClusterReady, ClusterState
from starlingmq.cluster.groups.queue_groups import QueueGroups
from starlingmq.cluster.peers.route_exchange import RouteExchange
from starlingmq.cluster.retained.retained_sync import RetainedSync
from starlingmq.cluster.takeover.takeover_subsystem import TakeoverSubsystem
from starlingmq.cluster.view.pending_work import PendingWork
from starlingmq.cluster.wills.cluster_wills import ClusterWills

pytestmark = pytest.mark.interpreted_only("what is compiled can not be patched")


class Left:
    """How many turns were quiet, and what they would have done."""

    def __init__(self) -> None:
        self.quiet = 0
        self.missed: list[str] = []


@contextmanager
def quiet_turns_are_taken() -> Iterator[Left]:
    """Each turn is a whole one, also where no node has anything due as it says; those that would have been left out are
    looked at closely."""
    left = Left()
    turn, take_ready, is_quiet = ClusterState.turn, ClusterState.take_ready, ClusterState._is_quiet
    looked_at: dict[ClusterState, tuple[bool, int, bool]] = {}

    def whole_turn(self: ClusterState, now: float) -> None:
        ready = self.broker.ctx.ready
        quiet = is_quiet(self, now)
        before = len(ready.writes) + len(ready.dirty)
        claims = self._has_claims  # of other nodes: frames about owners go out in a quiet turn as well
        with patch.object(ClusterState, "_is_quiet", lambda self, now: False):
            turn(self, now)
        looked_at[self] = quiet, len(ready.writes) + len(ready.dirty) - before, claims

    def whole_ready(self: ClusterState) -> ClusterReady:
        ready = take_ready(self)
        quiet, written, claims = looked_at.pop(self, (False, 0, False))
        if quiet:
            left.quiet += 1
            told: list[object] = [*ready.requests, *(ready.peers or ()), *ready.notices, *ready.news]
            allowed = ("Data", "DataAck", "ShareFrame") if claims else ("Data", "DataAck")
            told += [type(envelope.body) for _, envelope in ready.now if type(envelope.body).__name__ not in allowed]
            # with frames about owners come answers, which the turn after a quiet one gives (``Shares.is_pending``)
            if told or (written and not claims) or self.pending_work.is_pending():
                left.missed.append(f"{self.name}: {told} {written} {self.pending_work.is_pending()}")
        return ready

    with (
        patch.object(ClusterState, "turn", whole_turn),
        patch.object(ClusterState, "take_ready", whole_ready),
        patch.object(Fleet, "_due_at", lambda self: 0.0),
    ):
        yield left


Run = Callable[[int], object]


def sim(theme: str) -> Run:
    return lambda seed: run(seed, False, theme)


WORLDS: Final[dict[str, Run]] = {
    "plain": sim(""),
    "groups": sim("groups_lose_their_primary"),
    "retained": sim("all_retain"),
    "lives": sim("many_lives"),
    "roaming": takeover_world.run,
    "handshakes": handshake_world.run,
    "drains": drain_world.run,
    "wills": will_world.run,
}


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("seed", few(range(2), 1))
def test_skipped_turns_would_have_done_nothing(name: str, seed: int) -> None:
    with quiet_turns_are_taken() as left:
        WORLDS[name](seed)
    assert left.quiet, "the mistakes below would not be found either"
    assert not left.missed, left.missed[:5]


def test_turns_of_a_cluster_at_rest_are_left_out() -> None:
    fleet = Fleet(3)
    fleet.advance(3.0)
    with quiet_turns_are_taken() as left:
        for _ in range(100):
            fleet[0].turn()
    assert left.quiet == 100 and not left.missed


BLIND: Final[dict[str, tuple[str, type, str]]] = {
    "nothing is seen": ("plain", PendingWork, "has_input"),
    "routes": ("plain", RouteExchange, "has_input"),
    "groups": ("groups", QueueGroups, "has_input"),
    "retained": ("retained", RetainedSync, "has_input"),
    "sessions": ("roaming", TakeoverSubsystem, "has_input"),
    "claims": ("wills", TakeoverSubsystem, "is_busy"),
    "drains": ("drains", Drain, "is_busy"),
    "wills": ("wills", ClusterWills, "has_input"),
    "due wills": ("wills", ClusterWills, "is_busy"),
}
"""For each kind of overlooked work: the world, and the method that wrongly reports nothing to do."""


@pytest.mark.timeout(300)  # few worlds have a will that becomes due while nothing else happens
@pytest.mark.parametrize("name", few(BLIND, "nothing is seen", "sessions", "wills"))
def test_work_that_is_never_looked_at_is_found(name: str) -> None:
    world, kind, method = BLIND[name]
    with (
        patch.object(kind, method, lambda self: False),
        quiet_turns_are_taken() as left,
    ):
        for seed in range(100):
            WORLDS[world](seed)
            if left.missed:
                return
    raise AssertionError("nothing was missed")
