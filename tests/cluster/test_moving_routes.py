"""The changes of a session that moves in the routes of the other nodes."""

from __future__ import annotations

from tests.cluster.fleet import Fleet
from tests.cluster.mistakes import numbers
from tests.cluster.test_takeover import lasting, publish, published, subscribe

from starlingmq.cluster.links.peer_frames import RouteRecords
from starlingmq.cluster.links.record_bytes import RouteRecord
from starlingmq.cluster.peers.route_exchange import GATHER_SECONDS


def told(fleet: Fleet) -> dict[tuple[int, int], list[RouteRecord]]:
    """(source, target) -> the route records that have arrived."""
    found: dict[tuple[int, int], list[RouteRecord]] = {}
    for envelope in fleet.carried:
        if isinstance(envelope.body, RouteRecords):
            found.setdefault((envelope.source, envelope.target), []).extend(envelope.body.records)
    return found


def move(fleet: Fleet) -> None:
    fleet.carried.clear()
    assert lasting(fleet, 0).connack.session_present
    fleet.advance(1.0)
    assert not any(node.cluster.takeovers.migrations.busy() for node in fleet.nodes), "the move is not complete"


def test_each_of_both_nodes_tells_each_other_node_once() -> None:
    fleet = Fleet(4)
    new, former, *others = numbers(fleet)
    client = lasting(fleet, 1)
    subscribe(client, b"devices/c/commands", 1)
    subscribe(client, b"devices/c/files", 0)
    client.drop()
    move(fleet)
    there = [RouteRecord(b"devices/c/commands", 2), RouteRecord(b"devices/c/files", 1)]
    gone = [RouteRecord(b"devices/c/commands", 0), RouteRecord(b"devices/c/files", 0)]
    expected = {(new, other): there for other in (former, *others)} | {
        (former, other): gone for other in (new, *others)
    }
    assert {way: sorted(records, key=lambda record: record.key) for way, records in told(fleet).items()} == expected


def moved(fleet: Fleet) -> None:
    """A client with a filter has just moved from the second node to the first one."""
    client = lasting(fleet, 1)
    subscribe(client, b"devices/c/commands", 1)
    client.drop()
    fleet.advance(1.0)
    assert lasting(fleet, 0).connack.session_present
    fleet.advance(0.05)
    assert not any(node.cluster.takeovers.migrations.busy() for node in fleet.nodes), "the move is not complete"
    fleet.carried.clear()


def test_a_filter_that_has_moved_away_goes_with_what_its_node_tells_next() -> None:
    fleet = Fleet(3)
    _, former, other = numbers(fleet)
    moved(fleet)
    subscribe(lasting(fleet, 1, "d"), b"devices/d/commands", 1)
    fleet.advance(1.0)
    frames = [
        envelope.body.records
        for envelope in fleet.carried
        if isinstance(envelope.body, RouteRecords) and (envelope.source, envelope.target) == (former, other)
    ]
    assert [sorted(record.key for record in records) for records in frames] == [
        [b"devices/c/commands", b"devices/d/commands"]
    ]


def test_a_filter_that_is_wanted_again_at_once_changes_nothing() -> None:
    fleet = Fleet(3)
    moved(fleet)
    subscribe(lasting(fleet, 1, "d"), b"devices/c/commands", 1)
    fleet.advance(1.0)
    assert told(fleet) == {}


def test_a_filter_that_both_nodes_want_anyway_changes_nothing() -> None:
    fleet = Fleet(4)
    for place in (0, 1):
        subscribe(lasting(fleet, place, f"stays-{place}"), b"all/#", 1)
    client = lasting(fleet, 1)
    subscribe(client, b"all/#", 1)
    client.drop()
    fleet.advance(1.0)
    move(fleet)
    assert told(fleet) == {}


def settled(fleet: Fleet, *client_ids: str) -> None:
    """Clients with a filter each are at the second node, and go."""
    clients = [lasting(fleet, 1, client_id) for client_id in client_ids]
    for client_id, client in zip(client_ids, clients, strict=True):
        subscribe(client, b"devices/%s/commands" % client_id.encode(), 1)
        client.drop()
    fleet.advance(1.0)
    fleet.carried.clear()


def frames(fleet: Fleet) -> list[list[bytes]]:
    """The filters that the first node has told the third one, by frame."""
    new, _, other = numbers(fleet)
    return [
        [record.key for record in envelope.body.records]
        for envelope in fleet.carried
        if isinstance(envelope.body, RouteRecords) and (envelope.source, envelope.target) == (new, other)
    ]


def test_filters_that_move_in_quick_succession_are_told_together() -> None:
    fleet = Fleet(3)
    settled(fleet, "c", "d", "e", "f")
    assert lasting(fleet, 0, "c").connack.session_present
    began = fleet.now
    assert frames(fleet) == [[b"devices/c/commands"]], "the first one did not go at once"
    assert lasting(fleet, 0, "d").connack.session_present
    assert lasting(fleet, 0, "e").connack.session_present
    assert fleet.now - began < GATHER_SECONDS
    assert frames(fleet) == [[b"devices/c/commands"]]
    fleet.advance(GATHER_SECONDS)
    assert frames(fleet)[1:] == [[b"devices/d/commands", b"devices/e/commands"]]
    fleet.advance(1.0)
    assert not any(node.cluster.takeovers.migrations.busy() for node in fleet.nodes), "a move is not complete"
    assert lasting(fleet, 0, "f").connack.session_present
    assert frames(fleet)[2:] == [[b"devices/f/commands"]], "none had moved for a while: it did not go at once"


def test_messages_arrive_while_the_filter_waits_to_be_told() -> None:
    fleet = Fleet(3)
    settled(fleet, "c", "d")
    publisher = lasting(fleet, 2, "publisher")
    assert lasting(fleet, 0, "c").connack.session_present
    moved = lasting(fleet, 0, "d")
    publish(publisher, b"devices/d/commands", b"while it waits")
    assert frames(fleet) == [[b"devices/c/commands"]]
    fleet.advance(1.0)
    publish(publisher, b"devices/d/commands", b"later", packet_id=2)
    fleet.advance(1.0)
    assert published(moved.receive()) == [b"while it waits", b"later"]


def test_a_suback_takes_filters_that_wait_with_it() -> None:
    fleet = Fleet(3)
    settled(fleet, "c", "d")
    assert lasting(fleet, 0, "c").connack.session_present
    moved = lasting(fleet, 0, "d")
    began = fleet.now
    subscribe(moved, b"devices/d/commands", 1)  # as it has it already
    assert fleet.now - began < GATHER_SECONDS
    assert frames(fleet)[1:] == [[b"devices/d/commands"]]


def test_a_session_that_is_reset_while_its_filter_waits_is_asked_for_no_markers() -> None:
    fleet = Fleet(3)
    settled(fleet, "c", "d")
    assert lasting(fleet, 0, "c").connack.session_present
    moved = lasting(fleet, 0, "d")
    (inbound,) = fleet[0].cluster.takeovers.migrations.of("d")
    assert inbound.is_unmarked() and inbound.needs_marks()
    assert inbound.session is not None
    inbound.session.require_reset()  # as when another node that may have the session becomes unreachable
    fleet.advance(1.0)
    assert frames(fleet)[1:] == [[b"devices/d/commands"]]
    assert inbound.is_unmarked(), "markers from before the client knows of the reset would count as later ones"
    assert not moved.closed
