"""Routes between a few nodes, frame by frame: who asks, what is sent, what a restart costs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.planting import Plant, around, during

from starlingmq.cluster.links.control_frames import Heartbeat, Membership, RouteSnapshot, SyncRequest
from starlingmq.cluster.links.peer_frames import Body, RouteApplied, RouteRecords
from starlingmq.cluster.links.record_bytes import PackedRecords, RouteRecord
from starlingmq.cluster.routes import peer_routes, route_facts
from starlingmq.cluster.routes.peer_routes import PeerRoutes
from starlingmq.cluster.routes.route_facts import Fact
from starlingmq.cluster.routes.route_table import ASK_AGAIN, BORROW_AFTER, RouteTable

Sent = list[tuple[int | None, Body]]


class Store:
    """The records that were given to be stored."""

    def __init__(self) -> None:
        self.facts: dict[bytes, bytes] = {}
        self.bytes = 0

    def take(self, facts: list[Fact]) -> None:
        for key, value in facts:
            if value is None:
                self.facts.pop(key, None)
            else:
                self.facts[key] = value
                self.bytes += len(key) + len(value)


def heartbeat(routes: RouteTable) -> Heartbeat:
    nobody = Membership(0, ())
    return Heartbeat(routes.epoch, routes.version, routes.vector(), {}, frozenset(), True, nobody, {}, 1, {})


def begin(
    me: int,
    wants: dict[bytes, int] | None = None,
    incarnation: int = 1,
    store: Store | None = None,
) -> RouteTable:
    routes = RouteTable(me, incarnation, store.facts if store else {}, 1000)
    routes.restart(wants or {})
    return routes


def exchange(one: RouteTable, two: RouteTable, now: float = 0.0) -> Sent:
    """Let each hear a heartbeat of the other and do all that follows; everything that was sent."""
    one.heartbeat(two.me, heartbeat(two), now)
    two.heartbeat(one.me, heartbeat(one), now)
    sent: Sent = []
    while one.pending() or two.pending():
        for routes, other in ((one, two), (two, one)):
            routes.take_changes()
            for target, body in routes.take_out():
                sent.append((target, body))
                other.received(routes.me, body, now)
    return sent


def records(sent: Sent) -> int:
    return sum(len(body.records) for _, body in sent if isinstance(body, RouteRecords | RouteSnapshot))


def test_two_nodes_that_know_nothing_of_each_other() -> None:
    one, two = begin(1, {b"a": 1, b"$share/g/b": 3}), begin(2)
    assert not two.caught_up(1)
    exchange(one, two)
    assert two.vector() == one.vector() == {1: (1, 2), 2: (1, 0)}
    assert two.caught_up(1) and one.caught_up(2)


def test_a_node_that_is_back_has_caught_up_when_it_has_the_routes_that_others_have_of_a_third() -> None:
    one, two, three = begin(1), begin(2), begin(3, {b"a": 2})
    for routes in (one, two):
        for other in {1, 2, 3} - {routes.me}:
            routes.member(other)
    exchange(one, three)
    exchange(one, two)
    assert one.caught_up(2) and not two.caught_up(1)
    exchange(two, three)
    assert two.caught_up(1)
    three.originate([(b"b", 1)])
    exchange(one, three)
    exchange(one, two)
    assert not two.caught_up(1)
    two.member_gone(3)
    assert two.caught_up(1)


def test_routes_of_an_absent_node_are_borrowed_from_others() -> None:
    one, two, three = begin(1), begin(2), begin(3, {b"%d" % number: 1 for number in range(3000)})
    for routes in (one, two):
        for other in {1, 2, 3} - {routes.me}:
            routes.member(other)
    exchange(one, three)
    exchange(one, two)
    sent = exchange(one, two, BORROW_AFTER)
    assert sent.count((1, SyncRequest(0, 0, 3))) == 1
    assert [body.of for _, body in sent if isinstance(body, RouteSnapshot)] == [3, 3, 3]
    assert two.table(3) == three.table(3) and two.vector()[3] == (1, 3000) and two.caught_up(1)
    # From there on it tells the difference itself.
    three.originate([(b"new", 1)])
    assert records(exchange(two, three, 2 * BORROW_AFTER)) <= 2, "told to all, and to who asked"
    # A node that does not hear of the change while nothing newer exists asks no other node.
    assert not any(isinstance(body, SyncRequest) for _, body in exchange(two, one, 5 * BORROW_AFTER) if body)


def test_pieces_of_two_givers_are_not_put_together() -> None:
    routes = begin(1)
    for other in (2, 3, 4):
        routes.member(other)

    def piece(giver: int, chunk: int, last: bool, *keys: bytes) -> None:
        entries = PackedRecords([RouteRecord(key, 1) for key in keys])
        routes.received(giver, RouteSnapshot(1, 4, chunk, last, entries, 4), 0.0)
        routes.take_changes()

    piece(2, 0, False, b"a", b"b")
    piece(3, 1, True, b"a", b"b")
    assert routes.table(4) == {}
    piece(3, 0, False, b"c", b"d")
    piece(2, 1, True, b"c", b"d")
    assert routes.table(4) == {}
    piece(3, 1, True, b"a", b"b")
    assert sorted(routes.table(4)) == [b"a", b"b", b"c", b"d"] and routes.vector()[4] == (1, 4)


def test_a_joining_node_may_be_gone_and_come_back() -> None:
    one, two = begin(1), begin(2, {b"a": 1})
    one.member(2)
    one.member_gone(2)
    exchange(one, two)
    assert 2 not in one.vector()
    one.member(2)
    exchange(one, two)
    assert one.vector()[2] == (1, 1)


def test_changes_come_out_once_and_only_those_of_others() -> None:
    one, two = begin(1), begin(2)
    one.member(2)
    exchange(one, two)
    assert one.originate([(b"a", 1), (b"b", 2), (b"a", 1)]) == 2
    one.confirm(2)
    assert one.take_changes() == []
    for _ in range(2):
        for _, body in one.take_out():
            two.received(1, body, 0.0)
    assert two.take_changes() == [(1, b"a", 1), (1, b"b", 2)]
    assert two.take_changes() == []
    assert two.take_out() == [(1, RouteApplied(1, 2))]


def test_new_records_are_sent_to_all_at_once_and_applied_by_all_when_the_last_says_so() -> None:
    one, two = begin(1), begin(2)
    one.member(2)
    exchange(one, two)
    one.originate([(b"a", 1)])
    one.confirm(1)
    assert one.take_out() == [(None, RouteRecords(1, 1, PackedRecords([RouteRecord(b"a", 1)]), ((1, 1),)))]
    assert one.applied_by([]) == 1
    assert one.applied_by([2]) == 0
    one.received(2, RouteApplied(1, 1), 0.0)
    assert one.applied_by([2]) == 1
    assert one.applied_by([2, 3]) == 0


def carried(one: RouteTable, two: RouteTable) -> Sent:
    """The frames of the second node in reply to all that the first one sends now."""
    for _, body in one.take_out():
        two.received(one.me, body, 0.0)
    two.take_changes()
    return two.take_out()


def test_records_that_nothing_waits_for_are_not_confirmed() -> None:
    one, two = begin(1), begin(2)
    one.member(2)
    exchange(one, two)
    one.originate([(b"a", 1)])
    assert one.pending()
    assert carried(one, two) == []
    assert two.vector()[1] == (1, 1) and not one.pending()


def test_records_are_confirmed_when_something_begins_to_wait_for_them() -> None:
    one, two = begin(1), begin(2)
    one.member(2)
    exchange(one, two)
    one.originate([(b"a", 1)])
    assert carried(one, two) == []
    for _ in range(2):
        one.confirm(1)
    assert one.pending()
    assert carried(one, two) == [(1, RouteApplied(1, 1))]
    assert not one.pending() and carried(one, two) == []
    one.received(2, RouteApplied(1, 1), 0.0)
    one.originate([(b"b", 1)])
    one.confirm(1)  # that is known
    assert carried(one, two) == []


def test_records_that_come_late_are_confirmed_then() -> None:
    one, two = begin(1), begin(2)
    one.member(2)
    exchange(one, two)
    one.originate([(b"a", 1)])
    lost = one.take_out()
    one.originate([(b"b", 1)])
    one.confirm(2)
    assert carried(one, two) == [(1, SyncRequest(1, 0))]
    two.received(1, lost[0][1], 0.0)
    two.take_changes()
    assert two.take_out() == [(1, RouteApplied(1, 1))]
    one.received(2, SyncRequest(1, 1), 0.0)
    assert carried(one, two) == [(1, RouteApplied(1, 2))]


def test_a_gap_is_asked_for_at_once_and_once() -> None:
    one, two = begin(1), begin(2)
    exchange(one, two)
    one.originate([(b"a", 1)])
    one.take_out()  # lost
    for key in (b"b", b"c"):
        one.originate([(key, 1)])
        for _, body in one.take_out():
            two.received(1, body, 0.0)
        assert two.take_changes() == []
    assert two.take_out() == [(1, SyncRequest(1, 0))]
    one.received(2, SyncRequest(1, 0), 0.0)
    [(target, body)] = one.take_out()
    assert target == 2 and records([(2, body)]) == 3
    two.received(1, body, 0.0)
    assert [key for _, key, _ in two.take_changes()] == [b"a", b"b", b"c"]
    assert two.vector() == one.vector() | {2: (1, 0)}


def test_a_node_that_is_behind_asks_again_only_after_a_while() -> None:
    one, two = begin(1, {b"a": 1}), begin(2)
    asked = []
    for tick in range(40):
        now = tick * 0.1
        two.heartbeat(1, heartbeat(one), now)
        asked += [now for _ in two.take_out()]
    assert len(asked) == 4 and asked[1] - asked[0] >= ASK_AGAIN


def test_a_restarted_node_asks_for_the_difference_only() -> None:
    store = Store()
    one, two = begin(1, {b"f/%d" % number: 1 for number in range(500)}), begin(2)
    exchange(one, two)
    store.take(two.take_facts())
    one.originate([(b"new/%d" % number, 1) for number in range(7)])
    one.take_out()
    two = begin(2, incarnation=2, store=store)
    loaded = two.take_changes()
    assert len(loaded) == 500
    sent = exchange(one, two)
    assert records(sent) == 7
    assert (1, SyncRequest(1, 500)) in sent
    assert two.vector() == one.vector()


def test_after_a_restart_a_node_sends_only_changed_routes() -> None:
    store = Store()
    wants = {b"f/%d" % number: 1 for number in range(500)}
    one, two = begin(1, wants), begin(2)
    exchange(one, two)
    store.take(one.take_facts())
    del wants[b"f/3"]
    wants[b"more"] = 2
    one = begin(1, wants, 2, store)
    two.take_changes()
    for _, body in one.take_out():
        two.received(1, body, 0.0)
    assert two.take_changes() == [(1, b"more", 2), (1, b"f/3", 0)]  # additions first
    assert two.vector()[1] == (2, 502)


def test_an_epoch_without_a_change_costs_nothing() -> None:
    store = Store()
    one, two = begin(1, {b"a": 1}), begin(2)
    exchange(one, two)
    store.take(one.take_facts())
    one = begin(1, {b"a": 1}, 2, store)
    assert records(exchange(one, two, 10.0)) == 0
    assert two.vector()[1] == (2, 1)


def test_versions_that_were_told_and_lost_are_replaced_by_a_snapshot() -> None:
    store = Store()
    one, two = begin(1, {b"a": 1}), begin(2)
    exchange(one, two)
    store.take(one.take_facts())
    one.originate([(b"lost", 1)])
    for _, body in one.take_out():
        two.received(1, body, 0.0)
    assert two.take_changes() == [(1, b"lost", 1)]
    one = begin(1, {b"a": 1, b"other": 1}, 2, store)
    for _, body in one.take_out():  # version 2 again, and another one
        two.received(1, body, 5.0)
    assert two.take_changes() == []
    one.received(2, SyncRequest(1, 2), 5.0)
    for _, body in one.take_out():
        two.received(1, body, 5.0)
    assert two.take_changes() == [(1, b"other", 1), (1, b"lost", 0)]
    assert two.vector()[1] == (2, 2)


def test_records_of_another_epoch_are_not_taken_by_their_numbers() -> None:
    """Version 2 is told, and lost by who told it. Its next life gives out version 2 again, to something else, and goes
    on: who has heard the first one is not to take the rest by its numbers."""
    store = Store()
    one, two = begin(1, {b"a": 1}), begin(2)
    exchange(one, two)
    store.take(one.take_facts())
    one.originate([(b"lost", 1)])
    for _, body in one.take_out():
        two.received(1, body, 0.0)
    one = begin(1, {b"a": 1, b"other": 1}, 2, store)
    one.take_out()  # the frames of its start reach no node
    one.originate([(b"new", 1)])
    for _, body in one.take_out():
        two.received(1, body, 5.0)
    exchange(one, two, 5.0)
    assert two.table(1) == {b"a": 1, b"other": 1, b"new": 1}


def test_what_recovery_applies_again_is_stored() -> None:
    """A crash cuts off an entry, but not the records that led to it. Then the next records replace those."""
    store = Store()
    one, two = begin(1, {b"a": 1}), begin(2)
    exchange(one, two)
    store.take(two.take_facts())
    for incarnation, key in enumerate((b"cut off", b"next"), start=2):
        one.originate([(key, 1)])
        for _, body in one.take_out():
            two.received(1, body, 0.0)
        two.take_changes()
        facts = two.take_facts()
        store.take(facts[:1] if key == b"cut off" else facts)
        two = begin(2, None, incarnation, store)
        store.take(two.take_facts())
        two.take_changes()
    assert two.table(1) == {b"a": 1, b"cut off": 1, b"next": 1}


@pytest.mark.interpreted_only("what is compiled cannot be patched")
@pytest.mark.parametrize(
    ("plant", "found_by"),
    [
        (
            during(PeerRoutes, "_apply", peer_routes, "in_history", lambda history, state: True),
            test_records_of_another_epoch_are_not_taken_by_their_numbers,
        ),
        (
            around(route_facts, "_apply", lambda apply, *of: apply(*of[:-1], [])),
            test_what_recovery_applies_again_is_stored,
        ),
    ],
    ids=["the epoch is ignored", "what was applied again is not stored"],
)
def test_planted_bugs_are_found(plant: Plant, found_by: Callable[[], None]) -> None:
    with plant, pytest.raises(AssertionError):
        found_by()


def test_a_large_snapshot_comes_in_pieces_and_is_in_force_when_it_is_whole() -> None:
    one, two = begin(1, {b"f/%d" % number: 1 for number in range(10_000)}), begin(2)
    one.received(2, SyncRequest(0, 0), 0.0)
    pieces = []
    while one.pending():
        out = one.take_out()
        assert records(out) <= 3072
        pieces += [body for _, body in out if isinstance(body, RouteSnapshot)]
    assert [piece.last for piece in pieces] == [False] * 9 + [True]
    for piece in reversed(pieces):
        assert not two.pending()
        two.received(1, piece, 0.0)
    changes = []
    while two.pending():
        assert 1 not in two.vector() or not two.take_changes()
        changes += two.take_changes()
        two.take_out()
    assert len(changes) == 10_000
    assert two.vector()[1] == (1, 10_000)


def test_a_member_that_is_gone_takes_its_routes_with_it() -> None:
    store = Store()
    one, two = begin(1, {b"f/%d" % number: 1 for number in range(3000)}), begin(2)
    exchange(one, two)
    two.member_gone(1)
    changes = []
    while two.pending():
        changes += two.take_changes()
    assert len(changes) == 3000 and not any(value for _, _, value in changes)
    two.heartbeat(1, heartbeat(one), 9.0)
    assert two.take_out() == [] and two.nodes() == [] and two.vector() == {2: (1, 0)}
    store.take(two.take_facts())
    assert list(store.facts) == [b"h"]


def test_facts_of_another_node_are_deleted() -> None:
    store = Store()
    one = begin(1, {b"a": 1})
    store.take(one.take_facts())
    two = begin(2, store=store)
    assert two.version == 0
    store.take(two.take_facts())
    assert list(store.facts) == [b"h"]


def test_the_log_is_bounded() -> None:
    store = Store()
    one = RouteTable(1, 1, {}, 100)
    for number in range(5000):
        one.originate([(b"a", number % 3 + 1)])
        one.take_out()
        store.take(one.take_facts())
    assert 100 <= len([key for key in store.facts if key.startswith(b"l")]) <= 125
    assert begin(1, {b"a": 4}, 2, store).version == 5001
