"""Where clients find the other members: what nodes tell each other of their listeners."""

from __future__ import annotations

import pytest
from tests.cluster.fleet import Fleet

from starlingmq.config.settings import ListenerConfig
from starlingmq.net.listeners.listener_gate import ListenerGate
from starlingmq.net.listeners.listeners import Listener
from starlingmq.net.listeners.urls import parse_listener

MQTT = "mqtt://10.0.0.{}:1883"


def told(fleet: Fleet, place: int) -> dict[str, tuple[str, ...]]:
    names = {node.cluster.number: node.name for node in fleet.nodes}
    return {names[number]: urls for number, urls in fleet[place].cluster.node_directory.open().items()}


def fleet_of(count: int) -> Fleet:
    fleet = Fleet(count)
    for place, node in enumerate(fleet.nodes):
        node.cluster.node_directory.open_own([MQTT.format(place), f"wss://n{place}:443/mqtt"])
    fleet.advance(0.6)
    return fleet


def test_each_node_knows_the_listeners_of_those_that_serve() -> None:
    fleet = fleet_of(3)
    assert told(fleet, 0) == {
        "n2": ("mqtt://10.0.0.1:1883", "wss://n1:443/mqtt"),
        "n3": ("mqtt://10.0.0.2:1883", "wss://n2:443/mqtt"),
    }
    second, third = fleet[1].cluster.number, fleet[2].cluster.number
    fitting = fleet[0].cluster.node_directory.fitting
    assert fitting("mqtt://0.0.0.0:1883") == {second: "10.0.0.1:1883", third: "10.0.0.2:1883"}
    assert fitting("wss://[::]:443/mqtt") == {second: "n1:443", third: "n2:443"}
    assert fitting("wss://[::]:443/other") == fitting("mqtts://0.0.0.0:8883") == {}


def test_nodes_that_are_away_or_drain_are_not_listed() -> None:
    fleet = fleet_of(3)
    fleet[1].cluster.node_directory.draining = True
    fleet.advance(0.6)
    assert list(told(fleet, 0)) == ["n3"] and fleet[0].cluster.node_directory.drains(fleet[1].cluster.number)
    fleet[1].cluster.node_directory.draining = False
    fleet.cut(fleet[0].cluster.number, fleet[2].cluster.number)
    fleet.cut(fleet[1].cluster.number, fleet[2].cluster.number)
    fleet.advance(3.0)
    assert list(told(fleet, 0)) == ["n2"]
    fleet.heal()
    fleet.advance(3.0)
    assert list(told(fleet, 0)) == ["n2", "n3"]


def test_a_client_is_not_sent_to_the_address_it_is_connected_to() -> None:
    fleet = Fleet(2)
    for node in fleet.nodes:
        node.cluster.node_directory.open_own(["mqtt://10.0.0.1:1883"])
    fleet.advance(0.6)
    assert told(fleet, 0) == {"n2": ("mqtt://10.0.0.1:1883",)}
    assert fleet[0].cluster.node_directory.fitting("mqtt://10.0.0.1:1883") == {}


@pytest.mark.parametrize(
    ("url", "advertise", "node_host", "expected"),
    [
        ("mqtt://10.0.0.1:1883", "", "10.0.0.9", "mqtt://10.0.0.1:1883"),
        ("mqtt://0.0.0.0:1883", "", "n1.example.net", "mqtt://n1.example.net:1883"),
        ("ws://[::]:80/mqtt", "", "::1", "ws://[::1]:80/mqtt"),
        ("mqtts://0.0.0.0:8883", "mqtt.example.net:443", "10.0.0.9", "mqtts://mqtt.example.net:443"),
        ("mqtt://127.0.0.1:1883", "", "127.0.0.1", "mqtt://127.0.0.1:1883"),
        ("mqtt://127.0.0.1:1883", "", "10.0.0.9", ""),  # reached from this machine only, and others are elsewhere
        ("unix:///run/broker.sock", "", "127.0.0.1", ""),
    ],
)
def test_a_listener_advertises_an_address_that_clients_can_reach(
    url: str, advertise: str, node_host: str, expected: str
) -> None:
    scheme = url.partition(":")[0]
    config = ListenerConfig(url=url.replace("mqtts", "mqtt"), advertise=advertise)
    spec = parse_listener(config)._replace(scheme=scheme)
    assert Listener(spec, ListenerGate(url), None, None).advertised(node_host) == expected
