"""A client that is back, at the node of its will or elsewhere, waits for another node that has taken the will."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from msgspec import structs
from tests.cluster.fleet import Fleet
from tests.cluster.test_wills import kill, leave_will, published, watch
from tests.cluster.will_records import WillRecords
from tests.harness import FakeClient

from starlingmq.cluster.shares.share_messages import WillChange
from starlingmq.cluster.shares.will_book import WillBook
from starlingmq.cluster.takeover.transfer_frames import CANCELLED
from starlingmq.cluster.wills.taken_away import TakenAway
from starlingmq.cluster.wills.taken_wills import TakenWills
from starlingmq.cluster.wills.will_entry import WillEntry
from starlingmq.cluster.wills.will_records import (
    ARMED,
    FIRING,
    SETTLED,
    RegisteredWill,
    taken_key,
    taken_name,
    will_from,
)
from starlingmq.cluster.wills.will_settlement import AGAIN_SECONDS, KEPT_SECONDS, WillSettlements
from starlingmq.wire.mqtt import Connack, Connect
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL

SECONDS = 3.0  # for which a change allows to publish
WILL = RegisteredWill(ARMED, 7, epoch=4)


class Settling:
    """The settlements of node 1, and the records as they see them."""

    def __init__(self, *connected: int) -> None:
        self.now = 1.0
        self.unpublished = False  # node 1 has heard of its copy, and has not published it
        self.published = 0  # the id of the will that it has published
        self.store = WillRecords()
        self.found = WillSettlements(
            self.store,
            SECONDS,
            lambda node: node in connected,
            lambda name: self.unpublished,
            self._is_published,
            lambda changed: None,
        )
        self.found.enter(1)
        self.put = self.store.put

    def _is_published(self, name: str, will: int) -> bool:
        return will == self.published

    def pass_time(self, seconds: float) -> None:
        """Requests are answered at once."""
        for _ in range(int(seconds / AGAIN_SECONDS)):
            self.now += AGAIN_SECONDS
            self.found.turn(self.now)
            self.store.answer()

    def is_settled(self, will: int) -> bool:
        return self.found.settle("c", 2, 5, None, False, will, 0.0)


def test_a_settlement_waits_for_the_copy_that_this_node_took_before_this_node_hears_of_it() -> None:
    """The answer to the change was lost, and the node finds in the other node's key that it has taken the will."""
    for heard in (False, True):
        world = Settling(2)
        copy = taken_key(1, 2, "c")
        world.put(b"2/c", RegisteredWill(SETTLED, 7, epoch=5, taker=1))
        world.put(copy, WILL)
        assert not world.is_settled(7)
        world.pass_time(2 * SECONDS)
        assert not world.is_settled(7), "the will would be published after the CONNACK"
        if heard:
            world.published = 7  # and the retained message may not be in etcd yet
        else:
            world.put(copy, None)
        world.pass_time(0.1)
        assert world.is_settled(7)


@pytest.mark.parametrize("changed", [False, True])
def test_a_will_that_the_claim_was_told_of_is_settled_without_a_read_unless_it_has_changed(changed: bool) -> None:
    world = Settling(2)
    world.put(b"2/c", WILL)
    world.found.told(5, [world.store.get(b"2/c")])
    if changed:
        world.put(b"2/c", structs.replace(WILL, state=FIRING))
    assert not world.is_settled(CANCELLED)
    ((asked, _, _, _),) = world.store.changes
    assert asked == b"2/c"
    world.pass_time(0.1)
    assert world.is_settled(CANCELLED) != changed, "it is published after the claim"
    if changed:
        world.put(b"2/c", None)
        world.pass_time(0.1)
        assert world.is_settled(CANCELLED)


@pytest.mark.parametrize("connected", [True, False])
def test_a_will_of_a_node_that_is_connected_and_was_not_asked_is_read(connected: bool) -> None:
    """An earlier claim has asked it. The CONNECT that has left the will there since may have been given up."""
    world = Settling(*([2] if connected else []))
    world.put(b"2/c", WILL)
    world.found.told(5, [world.store.get(b"2/c")])
    assert not world.is_settled(0)
    assert len(world.store.changes) == (not connected)
    world.put(b"2/c", None)
    world.pass_time(0.1)
    assert world.is_settled(0) and taken_key(1, 2, "c") not in world.store.records


def test_what_a_claim_was_told_counts_for_no_other_claim_and_not_for_ever() -> None:
    for epoch, seconds in ((4, 0.0), (5, KEPT_SECONDS + 1.0)):
        world = Settling(2)
        world.pass_time(0.1)
        world.put(b"2/c", WILL)
        world.found.told(epoch, [world.store.get(b"2/c")])
        world.pass_time(seconds)
        assert not world.is_settled(CANCELLED) and world.store.changes == [], "the record is read first"
        assert not world.found._told


def test_a_will_that_was_published_while_its_node_was_given_up_leaves_nothing_to_settle() -> None:
    """Node 2 was not heard for long, and has published the will and deleted its record before it could be settled."""
    world = Settling()
    world.put(b"2/c", structs.replace(WILL, state=FIRING))
    assert not world.is_settled(0)
    world.pass_time(SECONDS)
    settle = partial(world.found.settle, "c", 2, 6, None, False, 0, 0.0)
    assert not settle(), "that is the next CONNECT; the record has been unchanged for almost long enough"
    world.found.turn(world.now + SECONDS)
    assert world.store.answer(1) == 1 and len(world.store.changes) == 1
    world.put(b"2/c", None)
    world.store.answer()
    assert len(world.store.changes) == 1 and settle()


def test_the_end_of_a_copy_does_not_settle_a_later_will_of_the_same_node() -> None:
    """Node 3 has published an earlier will of node 2. The next one is due there, and not written."""
    world = Settling(2, 3)
    world.put(b"2/c", RegisteredWill(SETTLED, 7, epoch=3, taker=3))
    world.put(taken_key(3, 2, "c"), WILL)
    assert not world.is_settled(8)
    world.pass_time(0.1)
    world.put(taken_key(3, 2, "c"), None)
    world.pass_time(2 * SECONDS)
    assert not world.is_settled(8), "will 8 would be published after the CONNACK"
    world.put(b"2/c", RegisteredWill(ARMED, 8, epoch=4))
    world.pass_time(0.1)
    assert world.store.get(b"2/c").value == RegisteredWill(SETTLED, 8, epoch=5, taker=1)


@pytest.mark.parametrize("connected", [True, False])
def test_a_taken_will_is_waited_for_as_long_as_its_taker_may_publish_it(connected: bool) -> None:
    world = Settling(*([2] if connected else []))
    copy = taken_key(2, 1, "c")
    taken = TakenAway(world.found, 0.0)
    taken.note("c", world.now)
    world.put(copy, WILL)
    assert taken.is_unpublished("c", world.now) and not taken.is_unpublished("another", world.now)
    world.pass_time(SECONDS - 0.5)
    world.put(copy, WILL)  # it has asked again
    world.pass_time(SECONDS - 0.5)
    assert taken.is_unpublished("c", world.now)
    world.pass_time(1.5)
    assert taken.is_unpublished("c", world.now) == connected
    assert (copy in world.store.records) == connected, (
        "a copy of a node that is gone would be published when it is back"
    )


def test_a_taken_will_ends_with_its_copy_or_is_forgotten_when_no_connect_waits() -> None:
    world = Settling(2)
    taken = TakenAway(world.found, 0.0)
    taken.note("gone", world.now)
    assert taken.is_unpublished("gone", world.now)
    world.pass_time(0.1)
    assert not taken.is_unpublished("gone", world.now) and "gone" not in taken
    world.put(taken_key(2, 1, "c"), WILL)
    taken.note("c", world.now)
    for _ in range(5):
        world.pass_time(KEPT_SECONDS / 3.0)
        taken.turn(world.now)
        world.put(taken_key(2, 1, "c"), WILL)  # it has asked again
        assert taken.is_unpublished("c", world.now), "a CONNECT waits for it"
    world.pass_time(KEPT_SECONDS + 1.0)
    taken.turn(world.now)
    assert "c" not in taken
    world.pass_time(1.0)
    assert world.found.wake_at() == 0.0, "its records are not read any more"


def test_each_will_that_a_node_takes_is_waited_for() -> None:
    world = Settling(2)
    taken = TakenAway(world.found, 0.0)
    taken.note("c", world.now)
    assert taken.is_unpublished("c", world.now)
    world.pass_time(0.1)
    taken.note("c", world.now)
    world.put(taken_key(2, 1, "c"), RegisteredWill(ARMED, 8, epoch=5))
    assert taken.is_unpublished("c", world.now), "that will 7 is gone says nothing of will 8"
    world.pass_time(0.1)
    assert taken.is_unpublished("c", world.now)


def come_back(fleet: Fleet) -> FakeClient:
    client = fleet[0].open()
    client.send(Connect(5, "c", False, 0, properties={SESSION_EXPIRY_INTERVAL: 600}))
    fleet.advance(1.0)
    return client


@pytest.mark.parametrize("published", [True, False])
def test_a_client_waits_at_the_node_of_its_will_for_the_node_that_has_taken_it(published: bool) -> None:
    """Node 3 has taken the will, and is killed. Its last word on it may still be on the way to etcd."""
    fleet = Fleet(3)
    fleet.keep_owners_at(0, 1)
    client = leave_will(fleet, 0, "c", expiry=600)
    kill(fleet, 2)
    value = fleet.will(b"1/c")
    assert value is not None
    copy = b"3/" + taken_name(1, "c").encode()
    fleet.write_wills(1, (b"1/c", RegisteredWill(SETTLED, value.id, taker=3)), (copy, value))
    fleet.advance(0.2)
    assert client.closed and fleet.will(b"1/c") is None
    back = come_back(fleet)
    assert not back.output, "it would publish before its will"
    if published:
        fleet.write_wills(1, (copy, None))
        fleet.advance(0.2)
    else:
        fleet.advance(1.2 * SECONDS)
    assert back.expect(Connack).reason == 0
    assert fleet.will(copy) is None


def taken(fleet: Fleet, taker: int, claimed: bool) -> tuple[FakeClient, FakeClient]:
    """The will of a client of node 1 was taken by node ``taker``, which has not published it in time; a subscriber, and
    a CONNECT of the client at node 2. ``claimed``: before the will was taken."""
    watcher = watch(fleet, 2)
    leave_will(fleet, 0, "c", expiry=600 if claimed else 0)
    value = fleet.will(b"1/c")
    assert value is not None
    copy = taken_key(taker, 1, "c")
    back = fleet[1].open()
    if claimed:
        fleet.mute = {(1, 2), (2, 1)}  # the session does not come
        back.send(Connect(5, "c", False, 0, properties={SESSION_EXPIRY_INTERVAL: 600}))
        fleet.advance(0.5)
        assert fleet.owners("c") == [1, 2] and not back.output
    fleet.write_wills(2, (b"1/c", RegisteredWill(SETTLED, value.id, taker=taker)), (copy, value))
    fleet.advance(0.5)
    if not claimed:
        assert fleet.will(b"1/c") is None and fleet.owners("c") == [], "no key leads to the copy"
        back.send(Connect(5, "c", False, 0, properties={SESSION_EXPIRY_INTERVAL: 600}))
        fleet.advance(2.0 * SECONDS)
    return watcher, back


@pytest.mark.parametrize("given_up", [False, True])
def test_a_taken_will_is_published_though_a_connect_waits_elsewhere(given_up: bool) -> None:
    fleet = Fleet(4)
    fleet.keep_owners_at(1, 2)
    watcher, back = taken(fleet, 4, claimed=True)
    if given_up:
        back.drop()
    assert published(watcher, 1.0) == [b"will/c"]
    fleet.speak()
    fleet.advance(2.0)
    if not given_up:
        assert back.expect(Connack).reason == 0
    assert fleet.will_keys() == [] and published(watcher, 10.0) == []


def test_a_connect_waits_for_a_copy_to_which_no_key_leads() -> None:
    """Its taker does not hear the leader for a while."""
    fleet = Fleet(4)
    fleet.keep_owners_at(1, 2)
    fleet.hold_owners(3)
    watcher, back = taken(fleet, 4, claimed=False)
    assert not back.output, "the client would publish before its will"
    assert published(watcher, 1.0) == []
    fleet.give_owners()
    assert published(watcher, 1.0) == [b"will/c"]
    assert back.expect(Connack).reason == 0


def test_a_copy_of_a_node_that_is_gone_is_not_published_once_its_client_is_back() -> None:
    fleet = Fleet(4)
    fleet.keep_owners_at(1, 2)
    fleet.hold_owners(3)
    kill(fleet, 3)
    watcher, back = taken(fleet, 4, claimed=False)
    assert back.expect(Connack).reason == 0
    assert fleet.will_keys() == [] and published(watcher) == []


def test_a_connect_that_was_claimed_before_its_will_was_taken_waits_for_the_copy() -> None:
    """The node of the will has deleted its key when it is asked for the session, and tells that there was one."""
    fleet = Fleet(4)
    fleet.keep_owners_at(1, 2)
    fleet.hold_owners(3)
    watcher, back = taken(fleet, 4, claimed=True)
    assert fleet.will(b"1/c") is None
    fleet.speak()
    fleet.advance(2.0)
    assert not back.output, "the client would publish before its will"
    fleet.give_owners()
    assert published(watcher, 1.0) == [b"will/c"]
    assert back.expect(Connack).reason == 0


def test_wills_are_not_left_again_to_a_node_whose_connection_was_lost_meanwhile() -> None:
    """This node was about to publish, and waits until etcd has the retained message of an earlier will."""
    fleet = Fleet(3)
    node = fleet[0]
    wills, port = node.cluster.wills, node.state.ctx.cluster.wills
    assert port is not None
    wills.table.entry("c").sequence = 1 << 62
    port.fire("c", will_from(WILL))
    assert wills.leave("c", 2, 5) == (True, 7)
    entry = wills.table.entry("c")
    kill(fleet, 1)
    fleet.advance(SECONDS + 30.0, 0.1)
    assert entry.due and not entry.is_held(fleet.now, lambda node: True)
    assert wills.leave("none", 2, 5) == (False, CANCELLED)


@pytest.mark.parametrize("stored", [True, False])
def test_a_node_without_storage_gives_up_what_its_earlier_incarnation_has_taken(stored: bool) -> None:
    """That one may have published the copy, and answered the client: in shares, the copy stays until etcd has the
    retained message."""
    node = Fleet(2)[0]
    wills = node.cluster.wills
    node.state.ctx.recording = stored
    wills.taken.begin(100)
    for revision in (99, 101):
        name = taken_name(2, f"c{revision}")
        entry = wills.table.entry(name)
        entry.known, entry.revision = WILL, revision
        assert wills.unpublished(f"c{revision}"), "the client comes back here, and would publish before its will"
        wills.taken.step(name, entry, node.now)
        assert wills.unpublished(f"c{revision}") == (stored or revision > 100)
    assert wills.taken.lost == (not stored)


@pytest.mark.parametrize(("revision", "state"), [(99, ARMED), (101, FIRING)])
def test_a_copy_that_is_given_up_or_was_published_by_an_earlier_incarnation_is_deleted(
    revision: int, state: int
) -> None:
    node = Fleet(2)[0]
    wills = node.cluster.wills
    wills.taken.begin(100)
    name = taken_name(2, "c")
    entry = wills.table.entry(name)
    entry.known, entry.revision = structs.replace(WILL, state=state), revision
    assert wills.unpublished("c") == (state == ARMED)
    wills.taken.step(name, entry, node.now)
    ((_, change),) = node.cluster.shares.wills.take_messages()
    assert isinstance(change, WillChange) and change.writes == ((taken_key(1, 2, "c"), None),)


# Mistakes


def claims_are_told_of_no_copies() -> Any:
    return patch.object(WillBook, "besides", lambda self, client_id, node: ())


def the_node_of_a_taken_will_says_that_there_was_none() -> Any:
    return patch.object(TakenAway, "__contains__", lambda self, client_id: False)


def a_taker_drops_what_it_has_not_published_in_time() -> Any:
    step = TakenWills.step

    def dropping(self: TakenWills, name: str, entry: WillEntry, now: float) -> None:
        if entry.known is not None and now >= entry.allowed_until:
            entry.published = entry.known.id
        step(self, name, entry, now)

    return patch.object(TakenWills, "step", dropping)


SHOWN_BY: tuple[tuple[Callable[[], Any], Callable[[], None]], ...] = (
    (claims_are_told_of_no_copies, test_a_connect_waits_for_a_copy_to_which_no_key_leads),
    (
        the_node_of_a_taken_will_says_that_there_was_none,
        test_a_connect_that_was_claimed_before_its_will_was_taken_waits_for_the_copy,
    ),
    (
        a_taker_drops_what_it_has_not_published_in_time,
        partial(test_a_taken_will_is_published_though_a_connect_waits_elsewhere, False),
    ),
)


@pytest.mark.interpreted_only("what is compiled cannot be patched")
@pytest.mark.parametrize(("mistake", "scene"), SHOWN_BY, ids=lambda each: getattr(each, "__name__", None))
def test_each_mistake_is_found(mistake: Callable[[], Any], scene: Callable[[], None]) -> None:
    with mistake(), pytest.raises(AssertionError):
        scene()
