"""The settings of bridges to NATS servers, and what the core does for them."""

from __future__ import annotations

from base64 import b32encode
from binascii import crc_hqx
from typing import Any

import pytest
from tests.harness import FakeClient, World
from tests.nats.talk import Msg, NatsPeer, connect, frames

from starlingmq.config.bridges_section import speaks_nats
from starlingmq.config.nkeys import USER_SEED, user_key, user_key_text, user_seed
from starlingmq.config.section_types import ConfigError
from starlingmq.config.settings import from_tree
from starlingmq.core.session.session import BRIDGE_LISTENER
from starlingmq.wire.nats_subjects import without_filter

BODY = USER_SEED + bytes(range(32))
SEED = b32encode(BODY + crc_hqx(BODY, 0).to_bytes(2, "little")).decode().rstrip("=")


def bridge(**settings: Any) -> dict[str, Any]:
    tree = {"name": "b", "servers": ["nats://host"], "topics": [{"filter": "a"}], **settings}
    return {"bridges": [tree], "listeners": ["nats://127.0.0.1:0"]}


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"servers": ["nats://host", "mqtt://host"]}, "all speak MQTT, all NATS or all Kafka"),
        ({"servers": ["mqtt://host"], "credentials": {"creds_file": "/x"}}, "is for servers that speak NATS"),
        ({"credentials": {"creds_file": "/x", "username": "u"}}, "set only one of them"),
        ({"start": "lazy"}, "has no queue"),
        ({"servers": ["nats://u:p@host"]}, "has a login"),
        ({"topics": [{"filter": "$share/g"}]}, r"\$share/GROUP/FILTER"),
        ({"topics": [{"filter": "$share/a b/c"}]}, r"\$share/GROUP/FILTER"),
        ({"topics": [{"filter": "$share/g/$SYS/#"}]}, "are not carried"),
        ({"servers": ["mqtt://host"], "topics": [{"filter": "$share/g/a"}]}, "are not carried"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], wrong: str) -> None:
    from_tree(bridge())
    from_tree(bridge(topics=[{"filter": "$share/g/a/#", "direction": "both"}]))
    with pytest.raises(ConfigError, match=wrong):
        from_tree(bridge(**settings))


def test_a_seed_is_read_and_a_wrong_one_not_shown() -> None:
    assert user_seed(SEED) == bytes(range(32)) and SEED.startswith("SU")
    assert user_key(user_key_text(bytes(32))) == bytes(32)
    for wrong in ("", SEED[:-1], SEED[:-1] + "A", "SA" + SEED[2:], "ü" * 58):
        with pytest.raises(ValueError, match="not the NKey seed") as refused:
            user_seed(wrong)
        assert not wrong or wrong not in str(refused.value)


@pytest.mark.parametrize(
    ("subject", "without"),
    [
        (b"$JS.API.CONSUMER.CREATE.S.C.orders.>", b"$JS.API.CONSUMER.CREATE.S.C"),
        (b"$JS.hub.API.CONSUMER.CREATE.S.C.*", b"$JS.hub.API.CONSUMER.CREATE.S.C"),
        (b"$JS.API.CONSUMER.CREATE.S.C", b""),
        (b"$JS.API.STREAM.NAMES.S.C.>", b""),
        (b"API.CONSUMER.CREATE.S.C.>", b""),
        (b"$JS.API.DIRECT.GET.S.orders.>", b"$JS.API.DIRECT.GET.S"),
        (b"$JS.API.DIRECT.GET.S.orders.>.x", b""),
        (b"$JS.hub.API.DIRECT.GET.S.>", b""),
    ],
)
def test_the_filter_of_a_request_is_left_out_of_its_subject(subject: bytes, without: bytes) -> None:
    assert without_filter(subject) == without


def test_a_publisher_without_echo_is_no_responder_to_itself() -> None:
    world = World()
    peer = connect(world, echo=False)
    peer.send("SUB svc.> 1", "SUB in.box 2")
    peer.pub("svc.x", b"", "in.box")
    assert [frame.headers for frame in peer.heard() if isinstance(frame, Msg)] == [" 503"]
    other = connect(world)
    other.send("SUB svc.x 1")
    peer.pub("svc.x", b"", "in.box")
    assert peer.heard() == [] and len(other.heard()) == 1


def near_end(world: World) -> FakeClient:
    """A bridge's connection to this broker."""
    client = world.state.open(BRIDGE_LISTENER, "bridge far", world.now)
    world.state.nats.open(client)
    fake = FakeClient(world, client, 0, "")
    world.clients.append(fake)
    world._by_client[client] = fake
    world.run()
    return fake


def test_a_bridge_needs_no_login_and_has_no_limit_of_subscriptions() -> None:
    world = World(subscriptions_per_client=2, allow_anonymous=False)
    fake = near_end(world)
    fake.send(b'CONNECT {"verbose": false}\r\n' + b"".join(b"SUB a%d %d\r\n" % (n, n) for n in range(5)) + b"PING\r\n")
    assert frames(fake.output)[1:] == ["PONG"]
    stranger = NatsPeer(world)
    assert stranger.said('CONNECT {"verbose": false}', "PING") == ["-ERR 'Authorization Violation'"]


def test_info_names_the_site() -> None:
    world = World()
    assert "starlingmq_site" not in NatsPeer(world).info
    world.state.ctx.site = "24ad2250"
    assert NatsPeer(world).info["starlingmq_site"] == "24ad2250"


def test_schemes_may_be_in_capitals() -> None:
    assert speaks_nats(from_tree(bridge(servers=["NATS://host", "tls://host"])).bridges[0])
