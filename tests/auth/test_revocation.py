"""Users who are not let in any more: a reload disconnects their clients, and their wills are not published."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import jwt
import pytest

import nats
from starlingmq import Broker
from starlingmq.config.settings import from_tree
from starlingmq.core.conditions.reauthorization import CLIENTS_PER_TURN
from starlingmq.core.limits.access import EVERY_PUBLISH, PUBLISH, Grant, Rights
from starlingmq.core.session.session import Client
from starlingmq.storage.session_values import decode_session, encode_session, restore_will
from starlingmq.wire.mqtt import Connack, Connect, Disconnect, Publish, Suback, Subscribe, SubscribeRequest, Will
from starlingmq.wire.properties import WILL_DELAY_INTERVAL
from starlingmq.wire.reasons import Reason
from tests.auth.conftest import Join, Passwd, Serve
from tests.core.test_session_owner import LASTING
from tests.harness import World
from tests.patience import within
from tests.peer import Peer

FAST: dict[str, Any] = {"failures": {"delay": 0}}
SECRET = b"0123456789abcdef0123456789abcdef"
OTHER = b"another-secret-of-32-bytes-00000"


async def gone(peer: Peer) -> bool:
    """Whether the broker has ended the connection, in words where the version has some."""
    if peer.version == 5:
        return (await peer.expect(Disconnect)).reason == Reason.NOT_AUTHORIZED
    return await peer.ended()


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("changed", [{}, {"ann": "another"}])
async def test_a_user_whose_password_has_changed_or_gone_is_disconnected(
    serve: Serve, join: Join, passwd: Passwd, version: int, changed: dict[str, str]
) -> None:
    broker = await serve(auth={"password": {"file": passwd(ann="right", bob="other")}, **FAST})
    path = Path(broker.config.auth.password.file)
    ann = await join(broker, "a", version, username="ann", password=b"right")
    bob = await join(broker, "b", version, username="bob", password=b"other")
    hashes = path.read_text()
    broker.reload(broker.config)
    assert await bob.publish("t", qos=1) is not None and await ann.publish("t", qos=1) is not None, "nothing changed"
    passwd(**changed, bob="x")
    kept = [line for line in hashes.splitlines() if line.startswith("bob:")]
    path.write_text("\n".join([line for line in path.read_text().splitlines() if line.startswith("ann:")] + kept))
    broker.reload(broker.config)
    assert await gone(ann)
    assert await bob.publish("t", qos=1) is not None
    assert broker.state.ctx.counters.errors["access_revoked"] == 1


async def test_a_token_whose_key_is_withdrawn_ends_its_connections(serve: Serve, join: Join, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    broker = await serve(auth={"jwt": {"secret_file": str(path)}, **FAST})
    token = jwt.encode({"sub": "ann", "exp": time.time() + 60}, SECRET, "HS256").encode()
    ann = await join(broker, "a", username="x", password=token)
    broker.reload(broker.config)
    assert await ann.publish("t") == Reason.NO_MATCHING_SUBSCRIBERS
    path.write_bytes(OTHER)
    broker.reload(broker.config)
    assert await gone(ann)


@pytest.mark.parametrize(
    "text",
    [
        "{default: allow, rules: [{deny: connect, users: [ann]}]}",
        "{default: allow, clients: ['%u-*']}",
        "{default: allow, rules: [{deny: connect, addresses: [127.0.0.0/8]}]}",
    ],
)
async def test_a_client_that_the_rules_do_not_let_in_any_more_is_disconnected(
    serve: Serve, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "acl"
    path.write_text("{default: allow}")
    both = ["mqtt://127.0.0.1:0", "nats://127.0.0.1:0"]
    broker = await serve(listeners=both, auth={"acl": {"file": str(path)}, "allow_anonymous": True, **FAST})
    ann = await Peer.connect(broker.address(), "a", 5, username="ann")
    errors: list[str] = []

    async def note(error: Exception) -> None:
        errors.append(str(error))

    closed = asyncio.Event()

    async def end() -> None:
        closed.set()

    other = await nats.connect(
        broker.address("nats"),
        user="ann",
        password="x",
        error_cb=note,
        closed_cb=end,
        allow_reconnect=False,
    )
    path.write_text(text)
    broker.reload(broker.config)
    assert await gone(ann)
    if "clients" in text:
        await other.flush()  # it has no client id
        await other.close()
    else:
        async with within(20):
            await closed.wait()
        assert "uthorization" in str(other.last_error) or any("uthorization" in error for error in errors)
    await ann.close()


async def test_anonymous_clients_are_disconnected_when_everybody_has_to_log_in(
    serve: Serve, join: Join, passwd: Passwd
) -> None:
    broker = await serve()
    peer = await join(broker, "a")
    broker.reload(changed(broker, auth={"password": {"file": passwd(ann="right")}, **FAST}))
    assert await gone(peer)
    named = await join(broker, "b", username="ann", password=b"right")
    broker.reload(changed(broker, auth={}))
    assert await named.publish("t") == Reason.NO_MATCHING_SUBSCRIBERS, "everybody is let in again"


def changed(broker: Broker, **sections: Any) -> Any:
    return from_tree({"listeners": [listener.url for listener in broker.config.listeners], **sections})


async def test_the_will_of_a_user_who_is_gone_is_not_published(serve: Serve, join: Join, passwd: Passwd) -> None:
    broker = await serve(auth={"password": {"file": passwd(ann="right", bob="other")}, **FAST})
    bob = await join(broker, "b", username="bob", password=b"other")
    assert await bob.subscribe("gone", "alive", qos=1) == [1, 1]
    ann = await Peer.open(broker.address())
    ann.send(Connect(5, "a", True, username="ann", password=b"right", will=Will(b"gone", b"x", 1)))
    assert (await ann.expect(Connack)).reason == 0
    path = Path(broker.config.auth.password.file)
    path.write_text("".join(line for line in path.read_text().splitlines(True) if line.startswith("bob:")))
    broker.reload(broker.config)
    assert await gone(ann)
    assert await bob.publish("alive") == 0 and (await bob.message()).topic == b"alive"
    assert broker.state.ctx.counters.dropped["revoked"] == 1
    await ann.close()


# In the core, with rules that a test makes


def only(topic: bytes) -> Rights:
    return Rights([Grant(True, PUBLISH, EVERY_PUBLISH, [topic], False, b"")], False)


def watched(world: World) -> Any:
    watcher = world.connect("watcher")
    watcher.send(Subscribe(1, [SubscribeRequest(b"gone", 0)]))
    watcher.expect(Suback)
    return watcher


@pytest.mark.parametrize("allowed", [True, False])
def test_a_will_is_checked_against_the_rules_of_the_time_when_it_is_published(allowed: bool) -> None:
    world = World()
    watcher = watched(world)
    ann = world.connect(
        "a", username="ann", will=Will(b"gone", b"x", properties={WILL_DELAY_INTERVAL: 60}), properties=LASTING
    )
    ann.drop()
    world.state.ctx.rights_of = lambda client: only(b"gone" if allowed else b"other") if client.username else None
    world.state.entitle()
    world.run()
    world.advance(120.0)
    assert [p.payload for p in watcher.receive() if isinstance(p, Publish)] == ([b"x"] if allowed else [])
    assert world.state.ctx.counters.dropped.get("revoked", 0) == (not allowed)


@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize("delay", [0, 60])
def test_a_will_whose_client_was_there_when_the_rules_changed_is_checked_by_the_new_ones(
    delay: int, allowed: bool
) -> None:
    world = World()
    watcher = watched(world)
    will = Will(b"gone", b"x", properties={WILL_DELAY_INTERVAL: delay})
    ann = world.connect("a", username="ann", will=will, properties=LASTING)
    world.state.ctx.rights_of = lambda client: only(b"gone" if allowed else b"other") if client.username else None
    world.state.entitle()
    world.run()
    ann.drop()
    world.advance(120.0)
    assert [p.payload for p in watcher.receive() if isinstance(p, Publish)] == ([b"x"] if allowed else [])
    assert world.state.ctx.counters.dropped.get("revoked", 0) == (not allowed)


@pytest.mark.parametrize("granted", [True, False])
def test_a_will_that_is_restored_is_checked_unless_rules_of_its_own_allowed_it(granted: bool) -> None:
    world = World()
    watcher = watched(world)
    ann = world.connect("a", username="ann", will=Will(b"gone", b"x"), properties=LASTING)
    session = world.state.ctx.sessions["a"]
    assert session.will is not None
    session.will.granted = granted
    value = decode_session(encode_session(session)).will
    assert value is not None
    ann.disconnect()
    seen: list[str] = []

    def rights_of(client: Client) -> Rights | None:
        seen.append(client.username)
        return only(b"other")

    world.state.ctx.rights_of = rights_of
    world.state.ending.publish_will(restore_will(value, "a"))
    world.run()
    assert len(watcher.receive()) == granted and seen == ([] if granted else ["ann"])


def test_a_client_that_was_connecting_while_the_rules_changed_is_held_against_the_new_ones() -> None:
    world = World(ask_authenticate=True)
    fakes = [world.open(5, name) for name in ("a", "b")]
    for fake in fakes:
        fake.send(Connect(5, fake.client_id, True, username=fake.client_id))
    questions = [world.question(), world.question()]
    world.state.ctx.standing_of = lambda client: Reason.NOT_AUTHORIZED if client.username == "a" else 0
    world.state.ctx.rights_of = lambda client: only(b"new")
    world.state.entitle()
    world.run()
    for question in questions:
        world.answer(question, 0)
    assert [fake.expect(Connack).reason for fake in fakes] == [Reason.NOT_AUTHORIZED, 0]
    fakes[1].send(Publish(b"old", b"", 1, packet_id=1))
    assert world.state.ctx.counters.dropped["not_authorized"] == 1


def test_everybody_is_looked_at_a_bounded_number_a_turn_and_once_by_the_rules_of_now() -> None:
    world = World()
    count = 3 * CLIENTS_PER_TURN
    for number in range(count):
        world.connect(f"c{number}")
    asked: list[str] = []

    def standing_of(client: Client) -> int:
        asked.append(client.client_id)
        return int(Reason.NOT_AUTHORIZED)

    world.state.ctx.standing_of = standing_of
    world.state.entitle()
    world.state.entitle()
    steps: list[int] = []
    for job in list(world.state.ctx.jobs):
        while not job.step():
            steps.append(len(asked))
    assert steps == [CLIENTS_PER_TURN, 2 * CLIENTS_PER_TURN] and sorted(asked) == sorted(f"c{n}" for n in range(count))
    world.run()
    assert world.state.ctx.counters.clients_connected == 0
