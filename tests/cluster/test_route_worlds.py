"""Routes in worlds of faults, drawn from seeds; and bugs planted into them, each of which the worlds must find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from tests.cluster import route_world
from tests.few import few
from tests.planting import Plant, Together, around, during, first_to_find, nothing

from starlingmq.cluster.links.control_frames import RouteSnapshot
from starlingmq.cluster.links.peer_frames import RouteRecords
from starlingmq.cluster.routes import own_routes, peer_routes, route_facts, route_table
from starlingmq.cluster.routes.own_routes import OwnRoutes
from starlingmq.cluster.routes.peer_routes import PeerRoutes
from starlingmq.cluster.routes.route_facts import State, encode_state, vector_key
from starlingmq.cluster.routes.route_table import RouteTable

pytestmark = pytest.mark.interpreted_only("compiled code has no small bounds, and no planted bugs")

Sound = Callable[..., Any]


def at_any_later_version(apply: Sound, peer: Any, body: RouteRecords, *out: Any) -> None:
    state = peer.state
    later = peer.state = (state[0], max(state[1], body.first - 1))
    apply(peer, body, *out)
    if peer.state == later:
        peer.state = state


def received_again(received: Sound, peer: Any, body: RouteRecords) -> None:
    state, peer.state = peer.state, (0, 0)
    received(peer, body)
    peer.state = state


def applied_again(apply: Sound, peer: Any, body: RouteRecords, *out: Any) -> None:
    if (body.epoch, body.first + len(body.records) - 1) <= peer.state:
        peer.state = (body.epoch, body.first - 1)
    apply(peer, body, *out)


def true(history: list[State], state: State) -> bool:
    """In place of ``in_history``."""
    return True


def an_epoch_of_it(history: list[State], state: State) -> bool:
    return any(epoch == state[0] for epoch, _ in history)


def without_vector(apply: Sound, peer: Any, body: RouteRecords, changes: Any, facts: Any) -> None:
    found: list[Any] = []
    apply(peer, body, changes, found)
    facts += [fact for fact in found if fact[0] != vector_key(peer.number)]


def log_last(store: Sound, own: Any, records: Any) -> None:
    facts, own._facts = own._facts, []
    store(own, records)
    facts += own._facts[1:] + own._facts[:1]
    own._facts = facts


def adding_alone(replace: Sound, peer: Any, *arguments: Any) -> Any:
    peer._removing = None
    return replace(peer, *arguments)


def mixed(received: Sound, peer: Any, body: RouteSnapshot, giver: int = 0) -> Any:
    state = (body.epoch, body.version)
    if state > max(peer.state, peer._ready_state, peer._target_state, peer._incoming):
        peer._incoming, peer._giver = state, giver
    return received(peer, body, giver)


def complete_with_the_last(received: Sound, peer: Any, body: RouteSnapshot, giver: int = 0) -> Any:
    if body.last:
        here = len(peer._pieces) if peer._incoming == (body.epoch, body.version) else 0
        peer._pieces = set(range(len(peer._pieces)))
        body = RouteSnapshot(body.epoch, body.version, here, True, body.records, body.of)
    return received(peer, body, giver)


def as_applied_before(heartbeat: Sound, table: Any, source: int, *beat: Any) -> None:
    peer = table._peers.get(source)
    applied = route_facts.UNKNOWN if peer is None else peer.applied
    heartbeat(table, source, *beat)
    if peer is not None:
        peer.applied = max(peer.applied, applied)


def as_if_all_were_sent(trim: Sound, own: Any) -> None:
    sent, own.sent_version = own.sent_version, own.version
    trim(own)
    own.sent_version = sent


RECEIVER_IGNORES_EPOCH = during(PeerRoutes, "_apply", peer_routes, "in_history", true)

BUGS: dict[str, Plant] = {
    "apply at any later version": around(PeerRoutes, "_apply", at_any_later_version),
    "apply again what is applied": Together(
        around(PeerRoutes, "received_records", received_again), around(PeerRoutes, "_apply", applied_again)
    ),
    "receiver ignores the epoch": RECEIVER_IGNORES_EPOCH,
    "sender ignores the epoch": Together(RECEIVER_IGNORES_EPOCH, patch.object(own_routes, "in_history", true)),
    "history without its bounds": Together(
        *(patch.object(module, "in_history", an_epoch_of_it) for module in (own_routes, peer_routes, route_table))
    ),
    "vector stored before the table": during(
        PeerRoutes, "_apply", peer_routes, "encode_state", lambda state, records: encode_state(state, [])
    ),
    "vector never stored": around(PeerRoutes, "_apply", without_vector),
    "own table stored before the log": around(OwnRoutes, "_store", log_last),
    "snapshot without replacing": around(PeerRoutes, "_replace", adding_alone),
    "replaced under the old vector": around(
        PeerRoutes, "_begin_to_replace", lambda begin, peer, target, facts: begin(peer, target, [])
    ),
    "pieces of two snapshots mixed": around(PeerRoutes, "received_piece", mixed),
    "snapshot complete with the last piece": around(PeerRoutes, "received_piece", complete_with_the_last),
    "vector before the router knows": patch.object(PeerRoutes, "loaded", lambda peer: True),
    "applied by the life before": around(RouteTable, "heartbeat", as_applied_before),
    "applied in another epoch": patch.object(RouteTable, "_counts", lambda table, state: True),
    "log shortened by what is not sent": around(OwnRoutes, "_trim", as_if_all_were_sent),
    "asked once and never again": patch.object(route_table, "ASK_AGAIN", 1e9),
    "restart tells nothing": during(OwnRoutes, "restart", OwnRoutes, "originate", nothing),
}


@pytest.mark.parametrize("seeds", [60, pytest.param(300, marks=pytest.mark.long)])
def test_worlds(seeds: int) -> None:
    for seed in range(seeds):
        route_world.run(seed)


def test_a_seed_is_the_same_world_again() -> None:
    one, two = (route_world.run(4711) for _ in range(2))
    assert one.truth == two.truth
    assert [node.disk for node in one.nodes.values()] == [node.disk for node in two.nodes.values()]


@pytest.mark.parametrize(
    "bug",
    few(
        BUGS,
        "apply at any later version",
        "sender ignores the epoch",
        "vector stored before the table",
        "snapshot without replacing",
        "asked once and never again",
        "restart tells nothing",
    ),
)
def test_planted_bugs_are_found(bug: str) -> None:
    assert first_to_find(range(1000), lambda: BUGS[bug], route_world.run) >= 0, f"no world of 1000 finds this: {bug}"
