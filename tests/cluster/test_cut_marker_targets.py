"""Which nodes a cut marker is sent to: the new owner, and the nodes that may have state of an earlier owner."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
from tests.cluster import test_cut_marker_hazards
from tests.cluster.fleet import Fleet
from tests.cluster.mistakes import Mistake, each_mistake, each_scene, numbers
from tests.cluster.test_takeover import LASTING, lasting, publish, published, subscribe

from starlingmq.cluster.links.peer_frames import Data
from starlingmq.cluster.takeover.cut_markers import CutMarkers
from starlingmq.cluster.takeover.inbound import InboundSession
from starlingmq.cluster.takeover.short_names import short
from starlingmq.cluster.takeover.takeover_target import TakeoverTarget
from starlingmq.cluster.takeover.transfer_frames import (
    NOTHING,
    Head,
    Mark,
    ShortMark,
    TransferError,
    TransferFrame,
    unpack,
)
from starlingmq.core.delivery.forward_batch import FOR_THE_NODE, ForwardReader
from starlingmq.wire.mqtt import Connack, Connect, encode

holders = CutMarkers._holders


def said(fleet: Fleet) -> list[tuple[int, int, TransferFrame]]:
    """The frames about sessions that have arrived: (source, target, frame)."""
    found: list[tuple[int, int, TransferFrame]] = []
    for envelope in fleet.carried:
        if isinstance(envelope.body, Data):
            reader = ForwardReader(envelope.body.blob, envelope.source, 0.0)
            while reader.left():
                forward = reader.next()
                if forward.group == FOR_THE_NODE:
                    with suppress(TransferError):
                        frames = unpack(forward.message.payload)
                        found += [(envelope.source, envelope.target, frame) for frame in frames]
    return found


def marks(fleet: Fleet) -> dict[tuple[int, int], int]:
    """(source, target) of the cut markers that have arrived -> their owner."""
    found = [(source, target, frame) for source, target, frame in said(fleet) if isinstance(frame, Mark | ShortMark)]
    return {(source, target): frame.owner for source, target, frame in found}


def a_move_concerns_two_nodes() -> None:
    """Of six nodes, four have nothing to do with the session."""
    fleet = Fleet(6)
    new, former, *others = numbers(fleet)
    client = lasting(fleet, 1)
    subscribe(client, b"t", 1)
    client.drop()
    fleet.carried.clear()
    client = lasting(fleet, 0)
    assert client.connack.session_present
    fleet.advance(1.0)
    assert not any(node.cluster.takeovers.migrations.busy() for node in fleet.nodes), "the move is not complete"
    ways = {(source, target) for source in (new, former, *others) for target in (new, former) if source != target}
    assert marks(fleet) == dict.fromkeys(ways, new)


def a_part_that_is_still_on_its_way_is_marked() -> None:
    """A client moves on while its first node still hands over to the second one. The first node tells the third one
    that it has no session any more, but it still takes the messages of a fourth node: it has to stop as well."""
    fleet = Fleet(5)
    home, between, new, fourth, _ = numbers(fleet)
    publisher, client = fleet.connect(3, "p"), lasting(fleet, 0)
    subscribe(client, b"t", 1)
    client.drop()
    fleet.mute = {(between, fourth)}  # so the fourth node is not asked for its marker
    client = lasting(fleet, 1)
    assert client.connack.session_present
    fleet.advance(0.2)
    client.drop()
    client = lasting(fleet, 2)
    assert client.connack.session_present
    fleet.advance(0.2)
    assert marks(fleet).get((fourth, home)) == new, "the first node has no marker"
    publish(publisher, b"t", b"one")
    fleet.advance(0.2)
    fleet.speak()
    fleet.advance(1.0)
    assert published(client.receive()) == [b"one"]
    assert not any(node.cluster.takeovers.migrations.busy() for node in fleet.nodes), "the moves are not complete"
    assert fleet.owners("c") == [new]


def a_node_that_hands_over_keeps_its_owner_key() -> None:
    """Another node than the one that it hands over to owns the client id meanwhile. Should the one that it hands over
    to leave, the session would be at this node again, and later owners would have to find it."""
    fleet = Fleet(4)
    home, between, new, fourth = numbers(fleet)
    client = lasting(fleet, 0)
    subscribe(client, b"t", 1)
    fleet.mute = {(between, fourth), (new, fourth)}  # so the fourth node is not asked for its marker
    for place in (1, 2):
        client.drop()
        client = lasting(fleet, place)
        assert client.connack.session_present
        fleet.advance(0.2)
    assert home in fleet.owners("c"), "a later owner would not find it"
    fleet.speak()
    fleet.advance(1.0)
    assert fleet.owners("c") == [new]


release = TakeoverTarget._release


def releases_at_once(self: TakeoverTarget, inbound: InboundSession, node: int, epoch: int, frame: Any) -> None:
    if isinstance(frame, Head):
        frame.held = NOTHING
    release(self, inbound, node, epoch, frame)


def alike() -> tuple[str, str]:
    """Two client ids with the same short name."""
    known: dict[int, str] = {}
    for number in count():
        client_id = f"c{number}"
        if short(client_id) in known:
            return known[short(client_id)], client_id
        known[short(client_id)] = client_id
    raise AssertionError("not reached")


def test_two_sessions_with_one_short_name_move_together() -> None:
    """They are in one share, so their epochs are different ones."""
    fleet = Fleet(3)
    publisher, names = fleet.connect(2, "p"), alike()
    for client_id in names:
        client = lasting(fleet, 1, client_id)
        subscribe(client, client_id.encode(), 1)
        client.drop()
    clients = [fleet[0].open(5, client_id) for client_id in names]
    for client, client_id in zip(clients, names, strict=True):
        connect = encode(Connect(5, client_id, False, properties=LASTING), 5)
        fleet[0].state.receive(client.client, connect, fleet.now)  # all of them before the next turn
    fleet.advance(1.0)
    assert all(client.expect(Connack).session_present for client in clients)
    assert not any(node.cluster.takeovers.migrations.busy() for node in fleet.nodes), "the moves are not complete"
    for client, client_id in zip(clients, names, strict=True):
        publish(publisher, client_id.encode(), b"one")
        fleet.advance(0.1)
        assert published(client.receive()) == [b"one"]


before_its_session = test_cut_marker_hazards.a_marker_counts_that_arrives_before_its_session


def first_only(self: CutMarkers, inbound: InboundSession) -> tuple[int, ...] | None:
    """A marker too few."""
    found = holders(self, inbound)
    return None if found is None else found[1:]


def sources_only(self: CutMarkers, inbound: InboundSession) -> tuple[int, ...]:
    return tuple(inbound.sources)


def neighbours(self: CutMarkers, inbound: InboundSession) -> tuple[int, ...] | None:
    """A marker to the wrong nodes."""
    found = holders(self, inbound)
    members = list(self._migrations.members)
    return None if found is None else tuple(members[members.index(node) - 1] for node in found)


MISTAKES: dict[str, Mistake] = {
    "a marker too few": Mistake(CutMarkers, "_holders", first_only, a_part_that_is_still_on_its_way_is_marked),
    "every node hears of it": Mistake(CutMarkers, "_holders", lambda *_: None, a_move_concerns_two_nodes),
    "a former owner hears nothing of it": Mistake(CutMarkers, "_holders", first_only, a_move_concerns_two_nodes),
    "another node hears of it instead": Mistake(
        CutMarkers, "_holders", neighbours, a_part_that_is_still_on_its_way_is_marked
    ),
    "only nodes with the session hear of it": Mistake(
        CutMarkers, "_holders", sources_only, a_part_that_is_still_on_its_way_is_marked
    ),
    "a key is deleted while its node hands over": Mistake(
        TakeoverTarget, "_release", releases_at_once, a_node_that_hands_over_keeps_its_owner_key
    ),
    "nodes that were not heard have told all": Mistake(CutMarkers, "_holders", sources_only, before_its_session),
}


@each_scene(MISTAKES)
def test_the_scene_ends_well(scene: Callable[[], None]) -> None:
    scene()


@each_mistake(MISTAKES, "a marker too few", "a key is deleted while its node hands over")
def test_each_mistake_is_found(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake.must_show(monkeypatch)
