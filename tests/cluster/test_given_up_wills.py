"""A CONNECT with a will is given up before it is answered: nothing of the will is left, wherever its claim is by then;
and no share waits for the records of another one."""

from __future__ import annotations

from typing import Final

from tests.cluster.fleet import Fleet
from tests.cluster.test_armed_wills import come
from tests.cluster.test_shares import share_fleet
from tests.cluster.test_wills import kill, watch
from tests.harness import FakeClient

from starlingmq.cluster.shares.share_messages import Claim
from starlingmq.cluster.wills.will_records import will_key
from starlingmq.wire.mqtt import Connack, Connect, Publish, Will
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL, WILL_DELAY_INTERVAL, Properties

LASTING: Final[Properties] = {SESSION_EXPIRY_INTERVAL: 3600}


def begin(fleet: Fleet, place: int, client_id: str, payload: bytes, delay: int = 0) -> FakeClient:
    """A CONNECT that is on its way."""
    client = fleet[place].open()
    properties: Properties = {WILL_DELAY_INTERVAL: delay} if delay else {}
    will = Will(b"will/c", payload, 1, True, properties)
    client.send(Connect(5, client_id, False, will=will, properties=LASTING))
    fleet.advance(0.2, 0.02)
    return client


def test_a_claim_that_comes_late_does_not_bring_the_will_of_a_connect_that_was_given_up() -> None:
    """Its node dies a moment after the claim has come, and the client is served elsewhere by then."""
    fleet = Fleet(4)
    fleet.keep_owners_at(2, 3)
    watcher = watch(fleet, 2)
    fleet.hold_owners(0)
    first = begin(fleet, 0, "c", b"offline 1")
    assert not first.output
    first.drop()
    second = begin(fleet, 1, "c", b"offline 2")
    assert second.expect(Connack).reason == 0
    second.send(Publish(b"will/c", b"online", 1, True, packet_id=1))
    fleet.advance(0.5, 0.02)
    fleet.held = set()
    fleet.cuts = {(2, 1), (3, 1), (4, 1)}  # no answer arrives before the node is gone
    fleet[0].cluster.connected(3, fleet.now)
    fleet.advance(2.0)
    assert fleet.owners("c") == [1, 2], "the claim has come"
    kill(fleet, 0)
    fleet.cuts = set()
    fleet.advance(30.0, 0.1)
    assert not second.closed
    assert [packet.payload for packet in watcher.receive() if isinstance(packet, Publish)] == [b"online"]


def test_claims_that_wait_for_their_leader_do_not_keep_the_wills_of_clients_that_are_gone() -> None:
    fleet = Fleet(3)
    fleet.hold_owners(0)
    for number in range(30):
        begin(fleet, 0, f"c{number}", b"x" * 60_000).drop()
    fleet.advance(1.0)
    waiting = [asked.message for asked in fleet[0].cluster.shares.owners.lines.asked.values()]
    assert waiting and not any(isinstance(each, Claim) and each.will for each in waiting)
    fleet.give_owners()
    fleet.advance(10.0)
    assert fleet.will_keys() == []


def test_a_connect_that_is_given_up_while_its_session_is_on_its_way_leaves_no_record() -> None:
    fleet = Fleet(3)
    come(fleet, 0, b"first")
    fleet.mute = {(1, 2), (2, 1), (1, 3), (3, 1)}
    second = come(fleet, 1, b"second")
    assert not second.output and will_key(2, "c") in fleet.will_keys()
    second.drop()
    fleet.advance(5.0)
    assert will_key(2, "c") not in fleet.will_keys()


def test_a_client_with_a_will_comes_back_while_a_leader_of_other_shares_does_not_answer() -> None:
    fleet = share_fleet(4)
    table = fleet[0].cluster.shares.table
    fleet.hold_owners(3)
    fleet.begin()
    while fleet[0].cluster.shares.table.version == table.version:
        fleet.advance(0.001, 0.001)
    fleet.etcd.lose_leader(fleet.now, 10_000.0)
    kill(fleet, 3)
    fleet.advance(2.0)
    others = [name for name in map("c{}".format, range(50)) if 4 not in fleet[0].cluster.shares.table.of(name)[:2]]
    came = (begin(fleet, 0, name, b"will", delay=100) for name in others)
    first = next(client for client in came if client.output and client.expect(Connack).reason == 0)
    assert not fleet[0].cluster.wills.registration.is_complete(), "the records of other shares are not known"
    first.drop()
    again = begin(fleet, 0, first.client.client_id, b"will", delay=100)
    fleet.advance(2.0)
    assert again.expect(Connack).reason == 0
