"""Mistakes made on purpose, one for each hazard that is known: the checkers have to find every one of them.

Each is a patch of the code that ships, for as long as its worlds run. That a mistake shows may take many worlds; how
many is bounded by ``SEEDS_MAX``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from tests.sim.run import run

from starlingmq.cluster import state as cluster_state
from starlingmq.cluster.frames import RouteRecords, RouteSnapshot
from starlingmq.cluster.lines import Line
from starlingmq.cluster.links import Link
from starlingmq.cluster.peer_routes import PeerRoutes
from starlingmq.cluster.quorum import Peer, Quorum
from starlingmq.cluster.relay import Relay
from starlingmq.cluster.routes import Routes
from starlingmq.core.client import Client
from starlingmq.core.context import Context
from starlingmq.core.forwarding import count_tracked
from starlingmq.core.peers import Peers

SEEDS_MAX = 400

Mistake = Callable[[], AbstractContextManager[Any]]


def suback_does_not_wait() -> Any:
    return patch.object(Routes, "applied_by", lambda self, nodes: self._own.version)


def suback_waits_for_nobody_that_was_lost_lately() -> Any:
    def publishers(self: Any, quorum: Quorum, now: float) -> list[int]:
        return [number for number in self.lines if quorum.is_connected(number)]

    return patch.object(cluster_state.ClusterState, "_publishers", publishers)


def suback_does_not_look_whom_others_reach() -> Any:
    return patch.object(Quorum, "is_connected_to_others", lambda self, number: False)


def taken_is_said_before_it_is_stored() -> Any:
    send_stored = Context.send_stored

    def at_once(self: Context, client: Client, frame: bytes) -> None:
        (self.send if client.link else lambda *_: send_stored(self, client, frame))(client, frame)

    return patch.object(Context, "send_stored", at_once)


def what_was_seen_is_forgotten_at_a_restart() -> Any:
    restore = Peers.restore
    return patch.object(Peers, "restore", lambda self, highest, facts: restore(self, {}, facts))


def what_was_seen_is_not_looked_at() -> Any:
    receive = Peers.receive

    def blind(self: Peers, peer: Any, reader: Any, frame: int) -> Any:
        peer.highest = 0
        return receive(self, peer, reader, frame)

    return patch.object(Peers, "receive", blind)


@contextmanager
def who_is_heard_counts_though_it_is_deaf() -> Iterator[None]:
    look = Quorum._look

    def trusting(self: Quorum, peer: Peer, now: float) -> None:
        peer.rests_on = max(peer.rests_on, peer.direct_at, peer.relayed_at)
        look(self, peer, now)

    with patch.object(Quorum, "_is_heard_by", lambda self, peer: True), patch.object(Quorum, "_look", trusting):
        yield


def nobody_has_to_be_there() -> Any:
    return patch.object(Quorum, "enough", lambda self: True)


def what_others_have_of_third_nodes_does_not_matter() -> Any:
    return patch.object(Routes, "_has", lambda self, number, state: True)


def records_are_applied_over_a_gap() -> Any:
    def careless(self: PeerRoutes, body: RouteRecords, changes: Any, facts: Any) -> None:
        for record in body.records:
            self._set(record, changes, facts)
        self._reached((body.epoch, body.first + len(body.records) - 1))

    return patch.object(PeerRoutes, "_apply", careless)


def a_snapshot_adds_and_takes_nothing_away() -> Any:
    received = PeerRoutes.received_piece

    def adding(self: PeerRoutes, body: RouteSnapshot) -> bool:
        wanted = received(self, body)
        if self._ready is not None:
            self._ready = {**self.table, **self._ready}
        return wanted

    return patch.object(PeerRoutes, "received_piece", adding)


@contextmanager
def the_cursor_moves_when_it_is_sent() -> Iterator[None]:
    send, acknowledged = Line.send, Link.acknowledged

    def moving(self: Line, data: bytes) -> None:
        send(self, data)
        self.acknowledged(count_tracked(data), self._broker.ctx.now)

    def silent(self: Link, *arguments: Any) -> int:
        acknowledged(self, *arguments)
        return 0

    with patch.object(Line, "send", moving), patch.object(Link, "acknowledged", silent):
        yield


def nothing_is_passed_on() -> Any:
    """No world of drawn faults is held to serve while they last: ``test_sim`` has one that is."""
    return patch.object(Relay, "pass_on", lambda self, envelope: None)


def nothing_is_sent_again() -> Any:
    return patch.object(Link, "resend", lambda self: None)


FOUND: dict[Mistake, int] = {
    suback_does_not_wait: 92,
    suback_waits_for_nobody_that_was_lost_lately: 199,
    taken_is_said_before_it_is_stored: 781,
    what_was_seen_is_forgotten_at_a_restart: 38,
    what_was_seen_is_not_looked_at: 38,
    who_is_heard_counts_though_it_is_deaf: 250,
    nobody_has_to_be_there: 0,
    what_others_have_of_third_nodes_does_not_matter: 325,
    records_are_applied_over_a_gap: 30,
    a_snapshot_adds_and_takes_nothing_away: 109,
    the_cursor_moves_when_it_is_sent: 12,
    nothing_is_sent_again: 5,
}
"""The mistakes, and a seed that finds each of them."""


def caught(mistake: Mistake, seeds: Iterable[int]) -> tuple[int, str]:
    """The first of these seeds that finds it, and how; (-1, "") if none does."""
    for seed in seeds:
        with mistake():
            try:
                run(seed)
            except (AssertionError, LookupError, ValueError) as error:
                return seed, f"{type(error).__name__}: {error}"
    return -1, ""
