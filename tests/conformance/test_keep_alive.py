"""Keep alive: PINGREQ, silence, and who sets the interval (MQTT 3.1.2.10, 3.12)."""

from __future__ import annotations

import pytest

from starlingmq.wire.mqtt import Pingreq, Pingresp
from starlingmq.wire.properties import SERVER_KEEP_ALIVE
from starlingmq.wire.reasons import Reason
from tests.conformance.clauses import clause
from tests.conformance.conftest import MakeWorld
from tests.conformance.kit import ALL, ended, payloads, publish, sole, subscriber, will
from tests.harness import World


@clause(v3="3.12.4-1", v5="3.12.4-1")
@pytest.mark.parametrize("version", ALL)
def test_every_pingreq_gets_its_pingresp(w: World, version: int) -> None:
    c = w.connect(client_id="a", version=version)
    c.send(b"\xc0\x00" * 3)
    assert c.receive() == [Pingresp()] * 3


@clause(v3="3.1.2-24 3.1.2-8", v5="3.1.2-22 3.1.2-8 3.2.2-22")
@pytest.mark.parametrize("version", ALL)
def test_silence_of_one_and_a_half_keep_alives_ends_the_connection_like_a_broken_network(
    w: World, version: int
) -> None:
    watcher = subscriber(w, "will")
    c = w.connect(client_id="a", version=version, keep_alive=60, will=will())
    assert SERVER_KEEP_ALIVE not in c.connack.properties
    w.advance(89)
    assert not c.closed
    w.advance(3)
    ended(c, Reason.KEEP_ALIVE_TIMEOUT)
    assert payloads(watcher) == [b"gone"]


@clause(v3="3.1.2-24", v5="3.1.2-22")
@pytest.mark.parametrize("version", ALL)
def test_any_packet_shows_that_the_client_is_there(w: World, version: int) -> None:
    c = w.connect(client_id="a", version=version, keep_alive=60)
    w.advance(80)
    c.send(Pingreq())
    assert sole(c, Pingresp) == Pingresp()
    w.advance(80)
    publish(c, "t")
    w.advance(80)
    assert not c.closed
    w.advance(12)
    ended(c, Reason.KEEP_ALIVE_TIMEOUT)


@clause(v3="3.1.2-24", v5="3.1.2-22")
@pytest.mark.parametrize("version", ALL)
def test_keep_alive_0_is_for_ever(w: World, version: int) -> None:
    c = w.connect(client_id="a", version=version, keep_alive=0)
    w.advance(100_000)
    assert not c.closed


@clause(v3="3.1.2-24", v5="3.1.2-22")
@pytest.mark.parametrize("version", ALL)
def test_output_of_the_broker_does_not_count_for_keep_alive(w: World, version: int) -> None:
    c = subscriber(w, "t", version=version, client_id="mute")
    quiet = w.connect(client_id="quiet", version=version, keep_alive=10)
    assert quiet.connack.reason == 0
    quiet.drop()
    c.drop()
    c = w.connect(client_id="listener", version=version, keep_alive=60)
    pub = w.connect(client_id="pub")
    w.advance(50)
    publish(pub, "t")
    w.advance(42)
    ended(c, Reason.KEEP_ALIVE_TIMEOUT)


@clause(v5="3.1.2-21 3.1.2-22 3.2.2-21")
@pytest.mark.parametrize("asked", [0, 5, 600])
def test_a_server_keep_alive_is_told_and_stands(make_world: MakeWorld, asked: int) -> None:
    w = make_world(server_keep_alive=60)
    c = w.connect(client_id="a", keep_alive=asked)
    assert c.connack.properties[SERVER_KEEP_ALIVE] == 60
    w.advance(89)
    assert not c.closed
    w.advance(3)
    ended(c, Reason.KEEP_ALIVE_TIMEOUT)
