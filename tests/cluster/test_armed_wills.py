"""A will is registered by the claim of its CONNECT, at the leader of the share and at its deputy, before CONNACK."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from tests.cluster.fleet import Fleet
from tests.cluster.owner_store import will_keys
from tests.cluster.test_shares import ShareFleet, share_fleet
from tests.cluster.test_wills import kill, leave_will, published, watch
from tests.cluster.will_world import run
from tests.harness import FakeClient
from tests.planting import first_to_find

from starlingmq.cluster.shares.owner_book import OwnerBook
from starlingmq.cluster.shares.share_books import ShareBooks
from starlingmq.cluster.shares.share_leader import ShareLeader
from starlingmq.cluster.shares.share_messages import Claim, KeyChanged, Release, Request, WillChange
from starlingmq.cluster.shares.share_table import Pair, ShareTable, share_of
from starlingmq.cluster.takeover.owner_store import OwnerKey
from starlingmq.cluster.takeover.transfer_frames import CANCELLED
from starlingmq.cluster.wills.cluster_wills import ClusterWills
from starlingmq.cluster.wills.will_records import (
    ARMED,
    FIRING,
    SETTLED,
    RegisteredWill,
    decode_will,
    encode_will,
    will_key,
)
from starlingmq.core.connect.connecting import Connecting
from starlingmq.core.context.owner_claims import OwnerClaims
from starlingmq.wire.mqtt import Connack, Connect, Disconnect, Will
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL

pytestmark = pytest.mark.interpreted_only("compiled code cannot be patched")

KEY = will_key(1, "c")


def claim_with(identity: int) -> Claim:
    return Claim(1, "c", 1, 0, 0, encode_will(RegisteredWill(ARMED, identity, b"t", b"gone")))


# The book


def test_a_claim_registers_the_will_of_its_connect_in_its_epoch() -> None:
    book = OwnerBook(1, 0)
    claim = claim_with(7)
    key, _ = book.claim(1, claim, 1)
    value = decode_will(book.arm(key, claim))
    assert (value.state, value.id, value.payload, value.epoch) == (ARMED, 7, b"gone", key.epoch)
    assert book.wills.of_client("c") == ((KEY, key.epoch, encode_will(value)),)
    assert book.counter == key.epoch, "the next revision is above it"


def test_a_claim_that_is_made_again_registers_its_will_again() -> None:
    """The first answer was lost with the table in which it was given."""
    book = OwnerBook(1, 0)
    claim = claim_with(7)
    for version in (1, 2):
        key, _ = book.claim(1, claim, version)
        assert decode_will(book.arm(key, claim)).epoch == key.epoch
    assert [revision for _, revision, _ in book.wills.of_client("c")] == [key.epoch]


@pytest.mark.parametrize(("state", "identity"), [(ARMED, 6), (FIRING, 6), (SETTLED, 6), (SETTLED, 7)])
def test_a_claim_replaces_no_record_of_an_earlier_will_and_none_that_is_settled(state: int, identity: int) -> None:
    book = OwnerBook(1, 0)
    earlier = encode_will(RegisteredWill(state, identity))
    book.wills.write(3, ((KEY, earlier),))
    claim = claim_with(7)
    key, _ = book.claim(1, claim, 1)
    assert book.arm(key, claim) == b""
    assert book.wills.of_client("c") == ((KEY, 3, earlier),)


def test_the_deputy_writes_the_will_with_the_key() -> None:
    share = share_of("c")
    books = ShareBooks()
    pairs = tuple([Pair(2, 3, 1, 0)] * (share + 1))
    books._table, books._me = ShareTable(1, {2: 1, 3: 1}, pairs), 3
    books.books[share] = OwnerBook(1, 0, True)
    will = claim_with(7).will
    assert books.keep(2, KeyChanged(share, "c", OwnerKey(1, 9, 9), 1, (), will))
    assert books.books[share].wills.of_client("c") == ((KEY, 9, will),)


# Fleets


@contextmanager
def requests() -> Iterator[list[Request]]:
    """Everything that leaders of shares are asked."""
    asked: list[Request] = []
    take = ShareLeader.take

    def noting(self: ShareLeader, node: int, message: Request) -> None:
        asked.append(message)
        take(self, node, message)

    with patch.object(ShareLeader, "take", noting):
        yield asked


@contextmanager
def registered_at_connack(fleet: Fleet) -> Iterator[list[bool]]:
    """For each CONNACK: whether the leader has the record of the will that the connection leaves."""
    seen: list[bool] = []
    welcome = Connecting._welcome

    def noting(self: Connecting, client: Any, session: Any, *more: Any) -> bool:
        if session.will is not None:
            record = fleet.will(will_key(self.ctx.node, session.client_id))
            seen.append(record is not None and (record.state, record.id) == (ARMED, session.will.id))
        return welcome(self, client, session, *more)

    with patch.object(Connecting, "_welcome", noting):
        yield seen


def come(fleet: Fleet, place: int, payload: bytes = b"gone", clean_start: bool = False) -> FakeClient:
    client = fleet[place].open()
    will = Will(b"will/c", payload, 1, False, {})
    client.send(Connect(5, "c", clean_start, will=will, properties={SESSION_EXPIRY_INTERVAL: 3600}))
    fleet.advance(0.5, 0.02)
    return client


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_connect_with_a_will_asks_the_leader_of_its_share_once(place: int) -> None:
    fleet = share_fleet(3)
    name = next(each for each in (f"c{n}" for n in range(10000)) if leads(fleet, 0, each))
    with requests() as asked, registered_at_connack(fleet) as registered:
        leave_will(fleet, place, name, expiry=3600)
    assert [type(each) for each in asked] == [Claim]
    assert registered == [True]
    assert will_keys([node.cluster for node in fleet.nodes]) == [will_key(fleet[place].cluster.number, name)]


def test_a_client_that_is_back_elsewhere_has_its_will_settled_without_a_read() -> None:
    """The answer to its claim has the record."""
    fleet = Fleet(3)
    watcher = watch(fleet, 2)
    leave_will(fleet, 0, "c", delay=5, expiry=3600).drop()
    fleet.advance(0.5)
    with requests() as asked:
        assert come(fleet, 1).expect(Connack).session_present
    assert [type(each) for each in asked if not isinstance(each, Release)] == [Claim, WillChange, WillChange]
    assert published(watcher, 20.0) == [] and fleet.will_keys() == [will_key(2, "c")]


def leads(fleet: ShareFleet, place: int, name: str) -> bool:
    return fleet[0].cluster.shares.table.of(name).leader == fleet[place].cluster.number


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("clean_start", [False, True])
def test_a_client_that_takes_its_own_place_has_its_new_will_registered_before_connack(
    place: int, clean_start: bool
) -> None:
    fleet = Fleet(2)
    watcher = watch(fleet, 1)
    with registered_at_connack(fleet) as registered:
        come(fleet, 0, b"first")
        second = come(fleet, place, b"second", clean_start)
        assert second.expect(Connack).reason == 0
    assert registered == [True, True]
    assert published(watcher) == [b"will/c"]
    assert fleet.will_keys() == [will_key(fleet[place].cluster.number, "c")]
    second.send(Disconnect())
    fleet.advance(0.5)
    assert fleet.will_keys() == []


def test_the_will_of_a_connect_that_is_given_up_is_registered_and_then_deleted() -> None:
    fleet = Fleet(3)
    watcher = watch(fleet, 1)
    come(fleet, 0, b"first")
    fleet.mute = {(1, 2), (2, 1), (1, 3), (3, 1)}  # the session does not come
    second = come(fleet, 1, b"second")
    assert not second.output
    assert will_key(2, "c") in fleet.will_keys()
    second.drop()
    fleet.speak()
    fleet.advance(20.0, 0.05)
    assert fleet.will_keys() == []
    assert published(watcher) == [b"will/c"], "that of the first connection, which the second has ended"


def test_a_connect_is_refused_when_other_nodes_take_its_will_meanwhile() -> None:
    """They take its node for gone, and publish a will that its client may have left."""
    fleet = Fleet(3)
    come(fleet, 0, b"first")
    fleet.mute = {(1, 2), (2, 1), (1, 3), (3, 1)}
    second = come(fleet, 1, b"second")
    value = fleet.will(will_key(2, "c"))
    assert value is not None and not second.output
    fleet.write_wills(2, (will_key(2, "c"), RegisteredWill(SETTLED, value.id, epoch=value.epoch, taker=3)))
    fleet.advance(0.5)
    assert second.expect(Connack).reason == 0x89
    fleet.speak()
    fleet.advance(5.0, 0.05)
    assert will_key(2, "c") not in fleet.will_keys()


def test_a_node_dies_while_a_will_that_its_client_has_taken_back_is_still_registered() -> None:
    """The client is at another node then, and stays there."""
    fleet = Fleet(3)
    fleet.keep_owners_at(1, 2)
    watcher = watch(fleet, 2)
    client = leave_will(fleet, 0, "c", expiry=3600)
    fleet.hold_owners(0)  # the leader does not hear of DISCONNECT
    client.send(Disconnect())
    fleet.advance(0.01)
    second = fleet[1].open()
    second.send(Connect(5, "c", False, properties={SESSION_EXPIRY_INTERVAL: 3600}))
    fleet.advance(0.5, 0.02)
    assert second.expect(Connack).session_present
    kill(fleet, 0)
    fleet.give_owners()
    assert published(watcher, 30.0) == []


def test_leader_and_node_of_a_will_die_right_after_connack() -> None:
    """The deputy has the will and publishes it."""
    fleet = Fleet(5)
    fleet.keep_owners_at(1, 2)
    watcher = watch(fleet, 2)
    client = fleet[0].open()
    client.send(Connect(5, "c", False, will=Will(b"will/c", b"gone", 1, False, {})))
    while not client.output:
        fleet.advance(0.001, 0.001)
    kill(fleet, 1)
    kill(fleet, 0)
    assert published(watcher, 30.0) == [b"will/c"]


def test_a_client_is_back_at_its_node_while_etcd_has_not_what_its_earlier_will_retains() -> None:
    """The record of that will stays, as other nodes have to wait for it. The new one is registered after that."""
    fleet = Fleet(2)
    will = Will(b"will/c", b"gone", 1, True, {})
    fleet[0].open().send(Connect(5, "c", True, will=will))
    fleet.advance(0.5)
    fleet.etcd.lose_leader(fleet.now, 20.0)
    second = fleet[0].open()
    second.send(Connect(5, "c", True, will=will))
    fleet.advance(1.0, 0.02)
    assert second.expect(Connack).reason == 0
    before = fleet.will(KEY)
    assert before is not None and before.state == FIRING
    fleet.advance(40.0, 0.1)
    after = fleet.will(KEY)
    assert after is not None and after.state == ARMED


# Mistakes


def a_connect_does_not_wait_for_its_will() -> Any:
    return patch.object(ClusterWills, "_is_armed", lambda self, client_id: True)


def claims_bring_no_wills_and_no_connect_waits_for_its_own() -> Any:
    return patch.multiple(ClusterWills, _is_armed=lambda self, client_id: True, arm=lambda self, client_id: b"")


def the_will_of_a_connect_that_is_given_up_stays() -> Any:
    def drop(self: OwnerClaims, client_id: str) -> Any:
        self.unowned.pop(client_id, None)
        return self.waiting.pop(client_id, None)

    return patch.multiple(OwnerClaims, drop=drop, holds=lambda self, client: False)


MISTAKES: tuple[Callable[[], Any], ...] = (
    a_connect_does_not_wait_for_its_will,
    claims_bring_no_wills_and_no_connect_waits_for_its_own,
)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_world_finds_each_mistake(mistake: Callable[[], Any]) -> None:
    assert first_to_find(range(8), mistake, run) >= 0


def a_record_that_is_left_is_not_told() -> Any:
    leave = ClusterWills.leave

    def silent(self: ClusterWills, client_id: str, node: int, epoch: int) -> tuple[bool, int]:
        left, will = leave(self, client_id, node, epoch)
        return left and will != CANCELLED, will

    return patch.object(ClusterWills, "leave", silent)


def the_deputy_forgets_the_will() -> Any:
    keep = ShareBooks.keep

    def without_will(self: ShareBooks, source: int, change: KeyChanged) -> bool:
        return keep(self, source, KeyChanged(change.share, change.client_id, change.key, change.ticket, change.found))

    return patch.object(ShareBooks, "keep", without_will)


SHOWN_BY: tuple[tuple[Callable[[], Any], Callable[[], None]], ...] = (
    (
        the_will_of_a_connect_that_is_given_up_stays,
        test_the_will_of_a_connect_that_is_given_up_is_registered_and_then_deleted,
    ),
    (
        a_record_that_is_left_is_not_told,
        test_a_node_dies_while_a_will_that_its_client_has_taken_back_is_still_registered,
    ),
    (the_deputy_forgets_the_will, test_leader_and_node_of_a_will_die_right_after_connack),
)


@pytest.mark.parametrize(("mistake", "scene"), SHOWN_BY, ids=lambda each: getattr(each, "__name__", None))
def test_each_mistake_is_found(mistake: Callable[[], Any], scene: Callable[[], None]) -> None:
    scene()
    with mistake(), pytest.raises(AssertionError):
        scene()
