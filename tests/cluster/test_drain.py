"""A node that drains: where its clients and their sessions go (docs/CLUSTER.md)."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from tests.cluster.fleet import Fleet, NodeWorld
from tests.cluster.test_takeover import LASTING, lasting, publish, published, subscribe
from tests.nats.talk import connect

from starlingmq.cluster.balance.drain import Drain
from starlingmq.cluster.takeover.transfer_frames import Offer
from starlingmq.core.session.session import MOVED_PREFIX
from starlingmq.wire.mqtt import Connack, Connect, Disconnect, Will
from starlingmq.wire.properties import SERVER_REFERENCE, WILL_DELAY_INTERVAL
from starlingmq.wire.reasons import Reason


def fleet_of(count: int, listeners: bool = True, **settings: Any) -> Fleet:
    fleet = Fleet(count, **settings)
    for place, node in enumerate(fleet.nodes):
        if listeners:
            node.cluster.node_directory.open_own([f"mqtt://n{place + 1}:1883"])
    fleet.advance(0.6)
    return fleet


def drain(fleet: Fleet, place: int, seconds: float = 30.0) -> Drain:
    node = fleet[place].cluster
    node.begin_drain(fleet.now, seconds)
    until(fleet, lambda: node.drain.done)
    return node.drain


def until(fleet: Fleet, condition: object, seconds: float = 20.0) -> None:
    assert callable(condition)
    for _ in range(int(seconds / 0.05)):
        if condition():
            return
        fleet.advance(0.05)
    raise AssertionError("it does not come to be so")


def sessions(node: NodeWorld) -> list[str]:
    return [name for name in node.state.ctx.sessions if not name.startswith("$node/")]


def home(fleet: Fleet, client_id: str) -> int:
    (found,) = [place for place, node in enumerate(fleet.nodes) if client_id in node.state.ctx.sessions]
    return found


def test_clients_are_told_where_to_go_and_find_their_sessions() -> None:
    fleet = fleet_of(3)
    client = lasting(fleet, 0)
    subscribe(client, b"t", 1)
    fleet[0].cluster.begin_drain(fleet.now)
    fleet.advance(0.2)
    bye = client.expect(Disconnect)
    assert (bye.reason, bye.properties[SERVER_REFERENCE]) == (Reason.USE_ANOTHER_SERVER, "n2:1883")
    client = lasting(fleet, 1)
    assert client.connack.session_present
    until(fleet, lambda: fleet[0].cluster.drain.done)
    assert sessions(fleet[0]) == []
    publish(fleet.connect(2, "p"), b"t", b"after")
    assert published(client.receive()) == [b"after"]


def test_clients_that_cannot_be_redirected_are_disconnected_without_a_server_reference() -> None:
    fleet = fleet_of(2, listeners=False)
    old, new = fleet.connect(0, "old", version=4), fleet.connect(0, "new")
    drain(fleet, 0)
    assert old.closed and old.receive() == []
    (bye,) = new.receive()
    assert isinstance(bye, Disconnect) and bye.reason == Reason.USE_ANOTHER_SERVER
    assert SERVER_REFERENCE not in bye.properties


@pytest.mark.parametrize(("limit", "least", "most"), [(20.0, 0.0, 1.5), (inf, 9.5, 12.0)])
def test_a_stop_closes_nats_clients_at_once_and_a_drain_over_the_period_of_lame_duck_mode(
    limit: float, least: float, most: float
) -> None:
    fleet = fleet_of(2)
    client = connect(fleet[0], protocol=1)
    began = fleet.now
    fleet[0].cluster.begin_drain(began, limit)
    until(fleet, lambda: fleet[0].cluster.drain.done)
    assert client.closed and least <= fleet.now - began <= most
    assert any('"ldm":true' in str(frame) for frame in client.heard())


def test_a_stop_during_a_drain_does_not_wait_for_its_period() -> None:
    fleet = fleet_of(2)
    client = connect(fleet[0], protocol=1)
    fleet[0].cluster.begin_drain(fleet.now)
    fleet.advance(1.0)
    assert not client.closed
    began = fleet.now
    fleet[0].cluster.begin_drain(began, 20.0)
    until(fleet, lambda: fleet[0].cluster.drain.done)
    assert client.closed and fleet.now - began <= 1.5


def test_a_draining_node_refuses_clients() -> None:
    fleet = fleet_of(2)
    late = fleet[0].open()
    drain(fleet, 0)
    late.send(Connect(5, "late", True))
    refused = late.expect(Connack)
    assert (refused.reason, refused.properties[SERVER_REFERENCE]) == (Reason.USE_ANOTHER_SERVER, "n2:1883")
    old = fleet[0].open(4)
    old.send(Connect(4, "old", True))
    assert old.expect(Connack).reason == 3
    fleet[0].cluster.end_drain()
    assert fleet.connect(0, "late").connack.reason == 0


def test_sessions_of_absent_clients_go_to_the_others_with_all_they_have() -> None:
    fleet = fleet_of(3)
    publisher = fleet.connect(1, "p")
    for number in range(6):
        client = lasting(fleet, 0, f"c{number}", version=4 + number % 2)
        subscribe(client, b"t", 1)
        client.drop()
    publish(publisher, b"t", b"before")
    done = drain(fleet, 0)
    publish(publisher, b"t", b"after")
    assert sessions(fleet[0]) == [] and (done.handed, done.declined, done.sessions_left) == (6, 0, 0)
    assert sorted(home(fleet, f"c{number}") for number in range(6)) == [1, 1, 1, 2, 2, 2]
    for number in range(6):
        client = lasting(fleet, 1, f"c{number}", version=4 + number % 2)
        assert client.connack.session_present
        fleet.advance(0.3)
        assert published(client.receive()) == [b"before", b"after"]


def test_a_session_with_a_pending_will_goes_when_that_is_published() -> None:
    fleet = fleet_of(2)
    witness = fleet.connect(1, "w")
    subscribe(witness, b"will", 1)
    will = Will(b"will", b"gone", 1, properties={WILL_DELAY_INTERVAL: 3})
    for client_id in ("stays away", "comes back"):
        fleet.connect(0, client_id, clean_start=False, properties=LASTING, will=will).drop()
    fleet[0].cluster.begin_drain(fleet.now, 30.0)
    fleet.advance(2.0)
    assert home(fleet, "stays away") == 0
    assert lasting(fleet, 1, "comes back").connack.session_present
    until(fleet, lambda: fleet[0].cluster.drain.done)
    assert published(witness.receive()) == [b"gone"]
    assert home(fleet, "stays away") == 1


def test_a_will_that_is_due_after_the_end_is_not_waited_for() -> None:
    fleet = fleet_of(2)
    will = Will(b"will", b"gone", 1, properties={WILL_DELAY_INTERVAL: 300})
    fleet.connect(0, "c", clean_start=False, properties=LASTING, will=will).drop()
    began = fleet.now
    done = drain(fleet, 0, 10.0)
    assert fleet.now < began + 3.0 and done.sessions_left == 1 and home(fleet, "c") == 0


def test_a_member_of_a_group_that_goes_takes_its_membership_along() -> None:
    fleet = fleet_of(2)
    client = lasting(fleet, 0)
    subscribe(client, b"$share/g/t", 1)
    client.drop()
    drain(fleet, 0)
    publish(fleet.connect(0 + 1, "p"), b"t", b"one")
    client = lasting(fleet, 1)
    fleet.advance(0.1)  # it is claimed with etcd, then the group looks for a member
    assert published(client.receive()) == [b"one"]


def test_an_offer_to_a_node_that_drains_too_is_declined_and_nothing_is_lost() -> None:
    fleet = fleet_of(3)
    client = lasting(fleet, 0)
    subscribe(client, b"t", 1)
    client.drop()
    fleet[1].cluster.begin_drain(fleet.now)
    fleet[0].cluster.begin_drain(fleet.now)
    until(fleet, lambda: fleet[0].cluster.drain.done)
    assert home(fleet, "c") == 2


def test_a_session_stays_if_no_node_accepts_it() -> None:
    fleet = fleet_of(2)
    client = lasting(fleet, 0)
    subscribe(client, b"t", 1)
    fleet[1].cluster.begin_drain(fleet.now)
    fleet.advance(1.0)
    done = drain(fleet, 0)
    assert client.closed and (done.sessions_left, done.handed) == (1, 0)
    fleet[0].cluster.end_drain()
    assert lasting(fleet, 0).connack.session_present


def test_a_peer_that_goes_away_in_the_middle_costs_time_only() -> None:
    fleet = fleet_of(3)
    second = fleet[1].cluster.number
    client = lasting(fleet, 0)
    subscribe(client, b"t", 1)
    client.drop()
    fleet[2].cluster.begin_drain(fleet.now)  # so that it is offered to the second one
    fleet.advance(0.6)
    for node in (fleet[0], fleet[2]):
        fleet.cut(node.cluster.number, second)
    fleet[0].cluster.begin_drain(fleet.now)
    fleet[2].cluster.end_drain()
    until(fleet, lambda: fleet[0].cluster.drain.handed == 1)
    fleet.heal()
    until(fleet, lambda: fleet[0].cluster.drain.done)
    fleet.advance(3.0)
    publish(fleet.connect(1, "p"), b"t", b"one")
    client = lasting(fleet, 1)
    assert client.connack.session_present and published(client.receive()) == [b"one"]
    fleet.advance(3.0)
    assert not any(name.startswith(MOVED_PREFIX) for node in fleet.nodes for name in sessions(node))


def test_a_client_that_comes_back_meanwhile_is_not_taken_from_where_it_is() -> None:
    """An offer is for one epoch: a client id that was claimed since then is left alone."""
    fleet = fleet_of(3)
    client = lasting(fleet, 0)
    subscribe(client, b"t", 1)
    client.drop()
    session = fleet[0].state.ctx.sessions["c"]
    offers = fleet[1].cluster.takeovers.offers
    fleet[0].cluster.begin_drain(fleet.now)
    again = lasting(fleet, 2)
    assert again.connack.session_present
    assert offers.offered(fleet[0].cluster.number, Offer([("c", session.epoch)])) == []
    fleet.advance(2.0)
    assert not again.closed and home(fleet, "c") == 2
    publish(fleet.connect(1, "p"), b"t", b"one")
    assert published(again.receive()) == [b"one"]
    assert offers.accepted == 0


def test_a_client_that_came_back_after_all_keeps_its_session() -> None:
    """The drain is called off; the claim that an offer led to comes late."""
    fleet = fleet_of(2)
    client = lasting(fleet, 0)
    subscribe(client, b"t", 1)
    client.drop()
    epoch = fleet[0].state.ctx.sessions["c"].epoch
    again = lasting(fleet, 0)
    fleet[1].cluster.takeovers.offers.offered(fleet[0].cluster.number, Offer([("c", epoch)]))
    fleet.advance(1.0)
    assert not again.closed and home(fleet, "c") == 0
    again.drop()
    assert lasting(fleet, 1).connack.session_present


def test_in_a_storm_clients_are_sent_to_the_node_with_the_fewest_clients() -> None:
    fleet = fleet_of(3, connect_rate=10)
    for number in range(10):
        fleet.connect(0, f"c{number}")
    fleet.connect(1, "there")
    fleet.advance(0.6)
    before = [fleet[0].open() for _ in range(11)]
    for number, client in enumerate(before):
        client.send(Connect(5, f"late{number}", True))
    refused = before[-1].expect(Connack)
    assert (refused.reason, refused.properties[SERVER_REFERENCE]) == (Reason.USE_ANOTHER_SERVER, "n3:1883")


def test_in_a_storm_of_all_nodes_and_for_3_x_clients_a_connect_is_refused() -> None:
    fleet = fleet_of(2, connect_rate=10)
    fleet.slow_owners = True  # CONNECTs take time
    for place in (0, 1):
        for number in range(10):
            fleet.connect(place, f"c{place}{number}")
    fleet.advance(0.6)
    several = [fleet[0].open() for _ in range(11)]
    for number, client in enumerate(several):
        client.send(Connect(5, f"late{number}", True))
    refused = several[-1].expect(Connack)
    assert refused.reason == Reason.CONNECTION_RATE_EXCEEDED and SERVER_REFERENCE not in refused.properties
    old = fleet[1].open(4)
    for number in range(10):
        fleet[1].open().send(Connect(5, f"more{number}", True))
    old.send(Connect(4, "old", True))
    assert old.expect(Connack).reason == 3


def test_clients_are_spread_evenly_again() -> None:
    fleet = fleet_of(3)
    clients = [fleet.connect(0, f"c{number}", properties=LASTING) for number in range(9)]
    old = [fleet.connect(1, f"old{number}", version=4) for number in range(3)]
    fleet.advance(0.6)
    fleet[2].cluster.rebalance(0, fleet.now)
    fleet.advance(1.0)
    told = [packet for client in clients for packet in client.receive()]
    references = sorted(str(packet.properties[SERVER_REFERENCE]) for packet in told if isinstance(packet, Disconnect))
    assert references == ["n2:1883", "n3:1883", "n3:1883", "n3:1883", "n3:1883"]
    assert not any(client.closed for client in old)
    assert fleet[0].cluster.rebalancing.moved == 5 and not fleet[0].cluster.rebalancing.active
