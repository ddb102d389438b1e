"""Malformed input: the right error, a closed connection where the protocol says so, and no harm to other clients."""

from __future__ import annotations

from random import Random

import pytest
from tests.harness import World
from tests.nats.talk import Msg, NatsPeer, connect, frames
from tests.wire.nats_cases import BAD

from starlingmq.config.nats_section import NatsConfig
from starlingmq.core.session.connection import CLOSED


def small_world() -> World:
    world = World()
    world.state.nats.configure(NatsConfig(max_payload=100, max_control_line=256))
    return world


@pytest.mark.parametrize(("data", "text"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
@pytest.mark.parametrize("connected", [False, True])
def test_bad_commands(data: bytes, text: str, connected: bool) -> None:
    world = small_world()
    other = connect(world)
    other.send("SUB > 1")
    peer = connect(world) if connected else NatsPeer(world)
    peer.send_raw(b"PUB a 1\r\nx\r\n" + data + b"\r\nPUB never 1\r\nx\r\n")
    said = peer.heard()
    assert said[-1] == f"-ERR '{text}'", said
    assert peer.closed
    assert other.heard() == [Msg("a", "1", b"x")]
    assert world.state.ctx.counters.errors == {"nats": 1}


@pytest.mark.parametrize("options", ["", "x", "[]", "7", '{"a":', '"\\ud800"', "[" * 200, "{" * 200])
def test_bad_options(options: str) -> None:
    peer = NatsPeer(small_world())
    peer.send(f"CONNECT {options}")
    assert peer.heard() == ["-ERR 'Parser Error'"]
    assert peer.closed


def test_half_a_line_waits_for_the_other_half() -> None:
    world = small_world()
    peer = connect(world)
    peer.send("SUB a 1")
    for byte in b"PUB a 5\r\nhello\r\nPING\r\n":
        peer.send_raw(bytes((byte,)))
    assert peer.heard() == [Msg("a", "1", b"hello"), "PONG"]
    peer.send_raw(b"PUB a 5\r\nhe")
    peer.fake.drop()
    assert world.state.ctx.counters.clients_connected == 0


def test_a_large_payload_in_pieces() -> None:
    world = World()
    peer = connect(world)
    peer.send("SUB a 1")
    payload = b"0123456789" * 100_000
    data = b"PUB a 1000000\r\n" + payload + b"\r\nPING\r\n"
    for start in range(0, len(data), 65_536):
        peer.send_raw(data[start : start + 65_536])
    assert peer.heard() == [Msg("a", "1", payload), "PONG"]


@pytest.mark.parametrize("seed", range(20))
def test_noise(seed: int) -> None:
    """Commands with bytes changed, left out and put in: whatever is said is whole, and others go on."""
    rng = Random(seed)
    world = small_world()
    sane = connect(world)
    sane.send("SUB sane.exchange 1")
    pieces = [b"PUB a 5\r\nhello\r\n", b"SUB a.> q 1\r\n", b"UNSUB 1 2\r\n", b"PING\r\n", b"CONNECT {}\r\n"]
    pieces += [b"HPUB a r 12 13\r\nNATS/1.0\r\n\r\nx\r\n", b"SUB \xff 7\r\n", b"PUB > 0\r\n\r\n", bytes(range(256))]
    for _ in range(40):
        peer = NatsPeer(world)
        for _ in range(10):
            data = bytearray(b"".join(rng.choices(pieces, k=3)))
            for _ in range(rng.randrange(4)):
                at = rng.randrange(len(data))
                if rng.random() < 0.5:
                    data[at] = rng.randrange(256)
                else:
                    del data[at : at + rng.randrange(5)]
            peer.send_raw(bytes(data))
            frames(peer.fake.output)
            if peer.closed:
                assert peer.client.state == CLOSED
                break
        sane.pub("sane.exchange", b"still")
        assert sane.heard() == [Msg("sane.exchange", "1", b"still")]
        if not peer.closed:
            peer.fake.drop()
    world.advance(31.0)  # groups wait for members that were lost
    assert len(world.state.router.tree) == 1
    assert list(world.state.ctx.sessions) == [sane.client.client_id]
