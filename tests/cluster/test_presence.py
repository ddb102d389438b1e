"""Presence, one thing at a time: will ``offline``, ``online`` after CONNACK.

No will follows a message of its client's newer connection, whichever node publishes it and whatever fails in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from tests.cluster.fleet import Fleet
from tests.cluster.presence_world import run
from tests.cluster.test_wills import kept, kill
from tests.few import few
from tests.harness import FakeClient
from tests.planting import first_to_find, row_of

import starlingmq
from starlingmq.cluster.retained.retained_sync import RetainedSync
from starlingmq.cluster.takeover.inbound_claims import InboundClaims
from starlingmq.cluster.wills.will_records import FIRING, SETTLED, RegisteredWill, taken_name
from starlingmq.cluster.wills.will_settlement import WillSettlements
from starlingmq.cluster.wills.will_states import WILL_TABLE, WillAction, WillEvent, WillState
from starlingmq.core.connect.connecting import Connecting
from starlingmq.core.session.session import Client
from starlingmq.core.structures.state_table import goes
from starlingmq.wire.mqtt import Connack, Connect, Publish, Subscribe, SubscribeRequest, Will
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL, WILL_DELAY_INTERVAL, Properties

TOPIC = b"presence/c"


def watch(fleet: Fleet, place: int) -> FakeClient:
    watcher = fleet.connect(place, "watcher")
    watcher.send(Subscribe(1, [SubscribeRequest(b"presence/#", 1)]))
    fleet.advance(0.2)
    watcher.receive()
    return watcher


def ask(fleet: Fleet, place: int, version: int, clean: bool, delay: int = 0, number: int = 1) -> FakeClient:
    properties: Properties = {WILL_DELAY_INTERVAL: delay} if delay else {}
    will = Will(TOPIC, b"offline %d" % number, 1, True, properties)
    expiry: Properties = {SESSION_EXPIRY_INTERVAL: 600} if version == 5 and not clean else {}
    client = fleet[place].open(version, "c")
    client.send(Connect(version, "c", clean, will=will, properties=expiry))
    return client


def come(fleet: Fleet, place: int, version: int, clean: bool, delay: int = 0, number: int = 1) -> FakeClient:
    """Connect, and be online as soon as that is answered."""
    client = ask(fleet, place, version, clean, delay, number)
    for _ in range(1000):
        if client.output:
            break
        fleet.advance(0.01)
    assert client.expect(Connack).reason == 0
    client.send(Publish(TOPIC, b"online %d" % number, 1, True, packet_id=number))
    fleet.advance(0.1)
    return client


def said(watcher: FakeClient, seconds: float = 30.0) -> list[bytes]:
    watcher.world.fleet.advance(seconds, 0.1)  # type: ignore[attr-defined]
    return [packet.payload for packet in watcher.receive() if isinstance(packet, Publish)]


def retained(fleet: Fleet) -> list[bytes]:
    shown = [node.state.retained.get(TOPIC) for node in fleet.nodes]
    return [b"" if message is None else message.payload for message in shown]


KINDS = [(4, False), (4, True), (5, False), (5, True)]


@pytest.mark.parametrize(("version", "clean"), KINDS)
def test_the_will_of_a_killed_node_comes_before_the_connack_elsewhere(version: int, clean: bool) -> None:
    fleet = Fleet(3)
    watcher = watch(fleet, 2)
    come(fleet, 0, version, clean)
    kill(fleet, 0)
    fleet.advance(1.4, 0.1)
    come(fleet, 1, version, clean, number=2)
    assert said(watcher) == [b"online 1", b"offline 1", b"online 2"]
    assert retained(fleet) == [b"online 2"] * 2


@pytest.mark.parametrize("clean", [False, True])
def test_a_delayed_will_of_a_killed_node_is_cancelled_unless_its_session_is_over(clean: bool) -> None:
    fleet = Fleet(3)
    watcher = watch(fleet, 2)
    come(fleet, 0, 5, False, delay=5)
    kill(fleet, 0)
    fleet.advance(1.4, 0.1)
    come(fleet, 1, 5, clean, delay=5, number=2)
    assert said(watcher) == [b"online 1", b"offline 1", b"online 2"] if clean else [b"online 1", b"online 2"]
    assert retained(fleet) == [b"online 2"] * 2


@pytest.mark.parametrize(("version", "clean"), KINDS)
@pytest.mark.parametrize("place", [0, 1])
def test_a_client_that_takes_its_place_while_it_is_connected_is_online(version: int, clean: bool, place: int) -> None:
    """At the same node, or at another one."""
    fleet = Fleet(3)
    fleet.slow_owners = True
    watcher = watch(fleet, 2)
    come(fleet, 0, version, clean)
    come(fleet, place, version, clean, number=2)
    assert said(watcher) == [b"online 1", b"offline 1", b"online 2"]
    assert retained(fleet) == [b"online 2"] * 3
    assert kept(fleet) == [b"%d/c" % (place + 1)]


def test_a_will_without_a_record_is_not_published_after_its_client_is_back() -> None:
    """Its node was cut off before it could say that it has one."""
    fleet = Fleet(3)
    watcher = watch(fleet, 2)
    client = come(fleet, 0, 5, False)
    for other in (2, 3):
        fleet.cut(1, other)
    fleet.write_wills(1, (b"1/c", None))
    fleet.advance(3.0, 0.1)
    come(fleet, 1, 5, False, number=2)
    will = fleet.will(b"1/c")
    assert will is not None and will.state == SETTLED
    client.drop()
    fleet.heal()
    assert said(watcher) == [b"online 1", b"online 2"]
    assert retained(fleet) == [b"online 2"] * 3


def test_a_connack_waits_for_a_will_and_for_its_retained_message() -> None:
    """The connection broke just before; etcd is told of what the will retains after a while."""
    fleet = Fleet(3)
    watcher = watch(fleet, 2)
    client = come(fleet, 0, 4, True)
    writer = fleet[0].cluster.retained.writer
    writer._retry.at = fleet.now + 1.0
    client.drop()
    fleet.advance(0.1)
    assert retained(fleet)[0] == b"offline 1"
    again = ask(fleet, 1, 4, True, number=2)
    fleet.advance(0.8)
    assert not again.output
    fleet.advance(0.5)
    assert again.expect(Connack).reason == 0
    again.send(Publish(TOPIC, b"online 2", 1, True, packet_id=2))
    assert said(watcher) == [b"online 1", b"offline 1", b"online 2"]
    assert retained(fleet) == [b"online 2"] * 3
    assert kept(fleet) == [b"2/c"]


@pytest.mark.parametrize("clean", [False, True])
def test_a_connack_waits_for_a_will_that_its_connected_node_cannot_register_yet(clean: bool) -> None:
    """For longer than ``takeover_timeout``: the node is heard, so the will is not given up. Its record was lost
    with the leader and the deputy of the share."""
    fleet = Fleet(3)
    watcher = watch(fleet, 2)
    client = ask(fleet, 0, 5, False)
    while not client.output:
        fleet.advance(0.001, 0.001)
    assert client.expect(Connack).reason == 0
    fleet.hold_owners(0)
    fleet.write_wills(1, (b"1/c", None))
    client.drop()
    fleet.advance(0.1)
    again = ask(fleet, 1, 5, clean, number=2)
    fleet.advance(5.0, 0.1)
    assert not again.output
    assert kept(fleet) == [b"2/c"]
    fleet.give_owners()
    fleet.advance(5.0, 0.1)
    assert again.expect(Connack).reason == 0
    again.send(Publish(TOPIC, b"online 2", 1, True, packet_id=2))
    assert said(watcher) == [b"offline 1", b"online 2"]
    assert kept(fleet) == [b"2/c"]


def test_a_connack_waits_for_the_copy_of_a_will_whose_original_key_is_gone() -> None:
    """The disk of the new node is slow, so it publishes late. The former node deletes its key meanwhile."""
    fleet = Fleet(3)
    watcher = watch(fleet, 2)
    come(fleet, 0, 4, True)
    node = fleet[1]
    stored, write_link = node.cluster.wills.table.stored, node._write_link
    held: list[Client] = []

    def hold(client: Client) -> None:
        if client.transport is stored:
            held.append(client)
        else:
            write_link(client)

    node._write_link = hold  # type: ignore[method-assign]
    again = ask(fleet, 1, 4, True, number=2)
    fleet.advance(0.5)
    assert kept(fleet) == [b"2/\0c/1", b"2/c"]
    assert not again.output
    node._write_link = write_link  # type: ignore[method-assign]
    write_link(held[0])
    fleet.advance(0.5)
    assert again.expect(Connack).reason == 0
    again.send(Publish(TOPIC, b"online 2", 1, True, packet_id=2))
    assert said(watcher) == [b"online 1", b"offline 1", b"online 2"]
    assert retained(fleet) == [b"online 2"] * 3


@pytest.mark.parametrize("answered", [False, True])
def test_a_client_that_gave_up_a_clean_start_elsewhere_waits_for_the_wills_that_this_left(answered: bool) -> None:
    """The node of the will is slow, so the session has not come. Then a clean start at a third node throws it away; its
    client gives up before that node, which etcd does not answer, has settled the will. ``answered``: the node of the
    will says that it has one before the client is back."""
    fleet = Fleet(4)
    watcher = watch(fleet, 3)
    come(fleet, 0, 5, False)
    fleet.mute = {(1, 2), (2, 1), (1, 3), (3, 1)}
    second = ask(fleet, 1, 5, False, number=2)
    fleet.advance(0.3)
    assert not second.output
    second.drop()
    third = fleet[2].open(5, "c")
    third.send(Connect(5, "c", True))
    for _ in range(100):
        if any(claim.epoch for claim in fleet[2].state.ctx.cluster.claims.waiting.values()):  # type: ignore[union-attr]
            break
        fleet.advance(0.001, 0.001)
    fleet.etcd.cut("n3")
    fleet.advance(0.3)
    assert not third.output
    third.drop()
    if answered:
        fleet.speak()
        fleet.advance(0.3)
    come(fleet, 1, 5, False, number=4)
    fleet.speak()
    assert said(watcher) == [b"online 1", b"offline 1", b"online 4"]
    assert retained(fleet)[1] == b"online 4"


def test_a_will_is_given_up_when_its_node_died_while_it_published_it() -> None:
    """Whether the dead node did is unknown. CONNACK waits until it would not publish any more, were it alive."""
    fleet = Fleet(3)
    watcher = watch(fleet, 2)
    come(fleet, 0, 5, False)
    kill(fleet, 0)
    value = fleet.will(b"1/c")
    assert value is not None
    fleet.write_wills(1, (b"1/c", RegisteredWill(FIRING, value.id, epoch=value.epoch)))
    fleet.advance(2.5, 0.1)
    again = ask(fleet, 1, 5, False, number=2)
    fleet.advance(3.0)
    assert not again.output
    fleet.advance(0.6)
    assert again.expect(Connack).reason == 0
    assert said(watcher) == [b"online 1"]


def test_a_will_is_given_up_when_the_node_that_had_taken_it_died() -> None:
    fleet = Fleet(5)
    fleet.keep_owners_at(1, 2)
    watcher = watch(fleet, 2)
    come(fleet, 0, 5, False)
    kill(fleet, 0)
    value = fleet.will(b"1/c")
    assert value is not None
    copy = b"4/" + taken_name(1, "c").encode()
    fleet.end(2)  # number 4
    fleet.write_wills(1, (b"1/c", RegisteredWill(SETTLED, value.id, taker=4)), (copy, value))
    fleet.advance(2.5, 0.1)
    again = ask(fleet, 0, 5, False, number=2)
    fleet.advance(3.0)
    assert not again.output
    fleet.advance(0.6)
    assert again.expect(Connack).reason == 0
    assert fleet.will(copy) is None
    assert said(watcher) == [b"online 1"]


def test_a_node_that_was_given_leave_long_ago_asks_again_before_it_publishes() -> None:
    """Its answer was late: a client that is back elsewhere may have had the will settled meanwhile."""
    fleet = Fleet(2)
    fleet.slow_owners = True
    watcher = watch(fleet, 1)
    client = come(fleet, 0, 5, False)
    found = fleet[0].cluster.wills.registration
    found._seconds = -1.0  # each leave is over when it comes
    client.drop()
    assert said(watcher, 2.0) == [b"online 1"]
    found._seconds = 3.0
    assert said(watcher, 2.0) == [b"offline 1"]


def test_a_key_of_this_node_stays_as_long_as_it_has_a_will_to_publish() -> None:
    """Others find by it that there is one."""
    fleet = Fleet(2)
    client = come(fleet, 0, 4, True)
    fleet.hold_owners()
    ownership = fleet[0].cluster.ownership
    client.drop()
    fleet.advance(0.5)
    assert ownership.idle() and "c" not in fleet[0].state.ctx.sessions
    assert fleet.owners("c") == [1]
    fleet.give_owners()
    fleet.advance(5.0)
    assert fleet.owners("c") == []


def wills_at_other_nodes_are_not_settled() -> Any:
    return patch.object(WillSettlements, "settle", lambda self, *arguments: True)


def wills_of_this_node_are_not_waited_for() -> Any:
    return patch.object(InboundClaims, "_is_will_unpublished", lambda self, client_id: False)


def wills_at_this_node_are_due_only_with_the_connack() -> Any:
    return patch.object(Connecting, "settle_will_for_connect", lambda self, client_id: None)


def no_record_is_written_where_none_is() -> Any:
    return row_of(WILL_TABLE, goes(WillState.NONE, WillEvent.UNHEARD, WillState.NONE, WillAction.CONCLUDE))


def a_will_that_is_under_way_is_not_waited_for() -> Any:
    return row_of(WILL_TABLE, goes(WillState.FIRING, WillEvent.EXPECTED, WillState.FIRING, WillAction.CONCLUDE))


def a_copy_is_not_waited_for() -> Any:
    return patch.object(WillSettlements, "_look_at_copies", lambda self, each, copies: self._conclude(each))


def retained_wills_are_not_waited_for() -> Any:
    return patch.object(RetainedSync, "written_up_to", lambda self: 1 << 63)


def killed() -> None:
    test_the_will_of_a_killed_node_comes_before_the_connack_elsewhere(4, True)


def taken_over_here() -> None:
    test_a_client_that_takes_its_place_while_it_is_connected_is_online(5, False, 0)


SHOWN_BY = (
    (wills_at_other_nodes_are_not_settled, killed),
    (wills_at_this_node_are_due_only_with_the_connack, taken_over_here),
    (
        no_record_is_written_where_none_is,
        test_a_will_without_a_record_is_not_published_after_its_client_is_back,
    ),
    (a_will_that_is_under_way_is_not_waited_for, test_a_will_is_given_up_when_its_node_died_while_it_published_it),
    (a_copy_is_not_waited_for, test_a_will_is_given_up_when_the_node_that_had_taken_it_died),
    (
        retained_wills_are_not_waited_for,
        test_a_connack_waits_for_a_will_and_for_its_retained_message,
    ),
)  # fmt: skip


@pytest.mark.interpreted_only("what is compiled can not be patched")
@pytest.mark.parametrize(("mistake", "scene"), SHOWN_BY, ids=lambda each: getattr(each, "__name__", None))
def test_each_mistake_is_found(mistake: Callable[[], Any], scene: Callable[[], None]) -> None:
    scene()
    with mistake(), pytest.raises(AssertionError):
        scene()


@pytest.mark.interpreted_only("what is compiled can not be patched")
@pytest.mark.parametrize(
    "mistake",
    few(
        [wills_at_other_nodes_are_not_settled, wills_of_this_node_are_not_waited_for],
        wills_at_other_nodes_are_not_settled,
    ),
)
@pytest.mark.long(kept="tests/cluster/test_presence.py::test_each_mistake_is_found")
def test_a_world_finds_each_mistake(mistake: Callable[[], Any]) -> None:
    assert first_to_find(range(8), mistake, run) >= 0


@pytest.mark.interpreted_only("what is compiled can not be patched")
@pytest.mark.parametrize("seed", few((1, 4, 5), 1))
def test_clients_stay_online_when_nodes_are_lost_that_live(seed: int) -> None:
    assert run(seed, losses=True).wills or starlingmq.compiled()  # compiled code is not listened to


@pytest.mark.parametrize("seed", few(range(11, 16), 11, 12))
def test_worlds_in_which_clients_stay_online(seed: int) -> None:
    assert run(seed).wills or starlingmq.compiled()
