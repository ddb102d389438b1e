"""Bridges to a real nats-server: messages, requests, queue groups, JetStream, accounts, TLS, and sudden ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
from base64 import b32encode, urlsafe_b64encode
from binascii import crc_hqx
from collections import Counter
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import trustme
from nacl.signing import SigningKey
from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from tests.bridges.nats_real import HAS_NATS_SERVER, PATIENCE, Ends, NatsServer, ends, known, payloads, until, view
from tests.few import few

from starlingmq import Broker
from starlingmq.bridges.nats_bridge import NatsBridge
from starlingmq.cli.local_cluster import free_ports
from starlingmq.client import Client as MqttClient

pytestmark = [pytest.mark.slow, HAS_NATS_SERVER]

BOTH = {"filter": "both/#", "direction": "both"}
EVERYWHERE = {"filter": "b/#", "direction": "both"}


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Ends]:
    async with ends(tmp_path) as begun:
        yield begun


async def answer(message: Msg) -> None:
    await message.respond(b"answer to " + message.data)


async def test_messages_pass_both_ways_once_with_headers_and_wildcards(here: Ends) -> None:
    server = await here.server()
    broker = await here.bridged(
        server.url,
        BOTH,
        {"filter": "out/+/x", "local_prefix": "plant/", "remote_prefix": "site/"},
        {"filter": "in/#", "direction": "in", "rename": "from/{1}"},
    )
    near, far = await here.client(broker), await here.client(server)
    at_far = await far.subscribe(">")
    at_near = await near.subscribe(">")
    await known(far)
    await known(near)
    async with MqttClient(broker.address("mqtt")) as device:
        await device.publish("both/mqtt", b"1", qos=1)
    assert (await at_near.next_msg(PATIENCE)).subject == "both.mqtt"
    await near.publish("plant.out.a.x", b"2", headers={"K": "v w"})
    await near.publish("plant.out.a.y", b"no")
    await near.publish("other", b"no")
    await near.publish("both", b"3")
    got = [await at_far.next_msg(PATIENCE) for _ in range(3)]
    assert [(each.subject, each.data) for each in got] == [("both.mqtt", b"1"), ("site.out.a.x", b"2"), ("both", b"3")]
    assert (got[1].headers or {})["K"] == "v w"
    assert await payloads(at_near, 4) == [b"2", b"no", b"no", b"3"]
    await far.publish("in.a.b", b"4", headers={"K": "v"})
    await far.publish("both.x", b"5")
    got = [await at_near.next_msg(PATIENCE) for _ in range(2)]
    assert [(each.subject, each.data) for each in got] == [("from.a.b", b"4"), ("both.x", b"5")]
    assert (got[0].headers or {})["K"] == "v"
    assert await payloads(at_far, 2) == [b"4", b"5"]
    await near.publish("both.last", b"6")
    assert await payloads(at_far, 1) == [b"6"] and await payloads(at_near, 1) == [b"6"]
    counts = view(broker)
    assert (counts.messages_out, counts.messages_in, counts.kept_out) == (4, 2, 0)


async def test_requests_pass_both_ways_and_no_responders_contradicts_no_service(here: Ends) -> None:
    server = await here.server()
    broker = await here.bridged(server.url, {"filter": "svc/#", "direction": "both"})
    near, far = await here.client(broker), await here.client(server)
    await far.subscribe("svc.far", cb=answer)
    await near.subscribe("svc.near", cb=answer)
    late: list[Msg] = []

    async def keep(message: Msg) -> None:
        late.append(message)

    await near.subscribe("svc.late", cb=keep)
    await known(far)
    await known(near)
    answers = await asyncio.gather(*[near.request("svc.far", b"%d" % n, PATIENCE) for n in range(50)])
    assert [each.data for each in answers] == [b"answer to %d" % n for n in range(50)]
    answers = await asyncio.gather(*[far.request("svc.near", b"%d" % n, PATIENCE) for n in range(50)])
    assert [each.data for each in answers] == [b"answer to %d" % n for n in range(50)]
    with pytest.raises(NoRespondersError):
        await near.request("svc.nowhere", b"", PATIENCE)
    asked = asyncio.ensure_future(near.request("svc.late", b"?", PATIENCE))
    with pytest.raises(NoRespondersError):  # it was passed after the other request
        await near.request("svc.nowhere", b"", PATIENCE)
    await answer(late[0])
    assert (await asked).data == b"answer to ?"


async def test_a_queue_group_with_members_at_both_sides_gets_each_message_once(here: Ends) -> None:
    server = await here.server()
    broker = await here.bridged(server.url, {"filter": "$share/workers/jobs/+", "direction": "both"})
    near, far = await here.client(broker), await here.client(server)
    done: Counter[bytes] = Counter()
    by = {"near": 0, "far": 0}

    def worker(side: str) -> Any:
        async def work(message: Msg) -> None:
            done[message.data] += 1
            by[side] += 1
            await message.respond(side.encode())

        return work

    await near.subscribe("jobs.*", queue="workers", cb=worker("near"))
    await far.subscribe("jobs.*", queue="workers", cb=worker("far"))
    await known(near)
    await known(far)
    asked = [near.request("jobs.a", b"n%d" % n, PATIENCE) for n in range(100)]
    asked += [far.request("jobs.b", b"f%d" % n, PATIENCE) for n in range(100)]
    replies = Counter(each.data for each in await asyncio.gather(*asked))
    assert len(done) == 200 and set(done.values()) == {1}
    assert dict(replies) == {b"near": by["near"], b"far": by["far"]} and min(by.values()) > 20


async def test_jetstream_of_the_other_side_and_of_a_domain(here: Ends) -> None:
    store = here.directory / "jetstream"
    server = await here.server(f'jetstream {{ store_dir: "{store}", domain: hub }}')
    broker = await here.bridged(
        server.url, {"filter": "$JS/API/#"}, {"filter": "$JS/hub/API/#"}, {"filter": "orders/#"}, {"filter": "$KV/#"}
    )
    near = await here.client(broker)
    for options in ({}, {"domain": "hub"}):
        stream = near.jetstream(timeout=PATIENCE, **options)
        name = f"orders{len(options)}"
        await stream.add_stream(name=name, subjects=[f"orders.{name}.>"])
        acks = [await stream.publish(f"orders.{name}.{n}", b"%d" % n) for n in range(20)]
        assert [each.seq for each in acks] == list(range(1, 21)) and acks[0].stream == name
        pull = await stream.pull_subscribe(f"orders.{name}.>", durable="worker", stream=name)
        for start in (0, 10):
            batch = await pull.fetch(10, timeout=PATIENCE)
            assert [each.data for each in batch] == [b"%d" % n for n in range(start, start + 10)]
            assert (batch[0].headers or {})["Nats-Subject"] == f"orders.{name}.{start}"
            assert batch[0].metadata.sequence.stream == start + 1
            await asyncio.gather(*[each.ack_sync(PATIENCE) for each in batch])
        info = await stream.consumer_info(name, "worker")
        assert info.num_ack_pending == 0 and info.num_pending == 0
    bucket = await near.jetstream(timeout=PATIENCE).create_key_value(bucket="settings")
    await bucket.put("colour", b"blue")
    assert (await bucket.get("colour")).value == b"blue"


ACCOUNTS = """
accounts {
  A { users: [
    { user: bridge, password: secret, permissions: { publish: { deny: "both.denied" }, subscribe: { deny: "no.>" } } },
    { user: a, password: a } ] }
  B { users: [ { user: b, password: b } ] }
}
"""


async def test_a_bridge_is_in_the_account_of_its_user_and_its_missing_rights_are_told(here: Ends) -> None:
    server = await here.server(ACCOUNTS)
    login = {"username": "bridge", "password": "secret"}
    broker = await here.bridged(server.url, BOTH, {"filter": "no/#", "direction": "in"}, credentials=login)
    near = await here.client(broker)
    same, other = [await here.client(server, user=name, password=name) for name in "ab"]
    at_same, at_other = await same.subscribe(">"), await other.subscribe(">")
    await known(same)
    await known(other)
    for name in ("denied", "x"):
        await near.publish(f"both.{name}", name.encode())
    assert await payloads(at_same, 1) == [b"x"]
    await until(lambda: len(view(broker).complaints) == 2, lambda: view(broker))
    assert 'Permissions Violation for Publish to "both.denied"' in view(broker).complaints[1]
    await other.publish("both.b", b"b")
    assert await payloads(at_other, 1) == [b"b"]  # and nothing of the other account
    at_near = await near.subscribe("both.>")
    await known(near)
    await same.publish("both.a", b"a")
    assert await payloads(at_near, 1) == [b"a"]


def text_of(kind: int, raw: bytes, seed: bool = False) -> str:
    body = bytes((18 << 3 | kind >> 5, kind << 3 & 0xFF if kind & 31 else 0)) + raw if seed else bytes((kind,)) + raw
    return b32encode(body + crc_hqx(body, 0).to_bytes(2, "little")).decode().rstrip("=")


OPERATOR, ACCOUNT, USER = 14 << 3, 0, 20 << 3


def jwt(signer: SigningKey, issuer: int, subject: str, name: str, nats: dict[str, Any]) -> str:
    """A token as nsc makes it."""

    def part(value: object) -> str:
        return urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    claims = {"iss": text_of(issuer, bytes(signer.verify_key)), "sub": subject, "name": name, "iat": 1, "nats": nats}
    claims["jti"] = b32encode(sha256(json.dumps(claims).encode()).digest()).decode()
    signed = f"{part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{part(claims)}"
    signature = urlsafe_b64encode(signer.sign(signed.encode()).signature).decode().rstrip("=")
    return f"{signed}.{signature}"


def operator_settings(directory: Path) -> tuple[str, Path]:
    """The settings of a server that trusts an operator, and the credentials of a user of its account."""
    operator, account, user = SigningKey.generate(), SigningKey.generate(), SigningKey.generate()
    account_id = text_of(ACCOUNT, bytes(account.verify_key))
    unlimited = {"subs": -1, "data": -1, "payload": -1}
    limits = {**unlimited, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
    operator_jwt = jwt(
        operator, OPERATOR, text_of(OPERATOR, bytes(operator.verify_key)), "op", {"type": "operator", "version": 2}
    )
    account_jwt = jwt(operator, OPERATOR, account_id, "acc", {"limits": limits, "type": "account", "version": 2})
    user_jwt = jwt(
        account, ACCOUNT, text_of(USER, bytes(user.verify_key)), "usr", {**unlimited, "type": "user", "version": 2}
    )
    creds = directory / "user.creds"
    creds.write_text(
        f"-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\n"
        f"************************* IMPORTANT *************************\n"
        f"-----BEGIN USER NKEY SEED-----\n{text_of(USER, bytes(user), seed=True)}\n------END USER NKEY SEED------\n"
    )
    return f"operator: {operator_jwt}\nresolver: MEMORY\nresolver_preload: {{ {account_id}: {account_jwt} }}", creds


@pytest.mark.parametrize("method", few(["token", "token file", "nkey", "creds"], "token", "creds"))
async def test_logins(here: Ends, method: str) -> None:
    file = here.directory / "secret"
    if method == "creds":
        settings, file = operator_settings(here.directory)
        credentials, options = {"creds_file": str(file)}, {"user_credentials": str(file)}
    elif method == "nkey":
        key = SigningKey.generate()
        file.write_text(f"{text_of(USER, bytes(key), seed=True)}\n")
        settings = f"authorization {{ users: [ {{ nkey: {text_of(USER, bytes(key.verify_key))} }} ] }}"
        credentials, options = {"creds_file": str(file)}, {"nkeys_seed": str(file)}
    else:
        settings = "authorization { token: s3cret }"
        file.write_text("s3cret\n")
        options = {"token": "s3cret"}
        credentials = {"password": "s3cret"} if method == "token" else {"password_file": str(file)}
    server = await here.server(settings)
    broker = await here.bridged(server.url, BOTH, credentials=credentials)
    far, near = await here.client(server, **options), await here.client(broker)
    at_far = await far.subscribe("both.>")
    await known(far)
    await near.publish("both.x", b"x")
    assert await payloads(at_far, 1) == [b"x"]


async def test_a_wrong_login_is_a_problem_that_is_shown(here: Ends) -> None:
    server = await here.server("authorization { token: s3cret }")
    bridges = [{"name": "far", "servers": [server.url], "topics": [BOTH], "credentials": {"password": "wrong"}}]
    broker = await here.broker(bridges=bridges)
    await until(lambda: view(broker).state == "waiting", lambda: view(broker))
    assert view(broker).problem == "the other server: Authorization Violation"


@pytest.mark.parametrize("scheme", few(["tls", "nats"], "tls"))
async def test_tls_after_info(here: Ends, scheme: str) -> None:
    authority = trustme.CA()
    for name in ("server", "client"):
        issued = authority.issue_cert("127.0.0.1", common_name=name)
        issued.cert_chain_pems[0].write_to_path(os.fspath(here.directory / f"{name}.pem"))
        issued.private_key_pem.write_to_path(os.fspath(here.directory / f"{name}.key"))
    ca = here.directory / "ca.pem"
    authority.cert_pem.write_to_path(os.fspath(ca))
    server = await here.server(
        f'tls {{ cert_file: "{here.directory}/server.pem", key_file: "{here.directory}/server.key", '
        f'ca_file: "{ca}", verify: true }}',
        scheme,
    )
    own = {"ca": str(ca), "cert": f"{here.directory}/client.pem", "key": f"{here.directory}/client.key"}
    broker = await here.bridged(server.url, BOTH, tls=own)
    context = ssl.create_default_context(cafile=str(ca))
    context.load_cert_chain(own["cert"], own["key"])
    far, near = await here.client(server, tls=context), await here.client(broker)
    at_far = await far.subscribe("both.>")
    await known(far)
    await near.publish("both.x", bytes(100_000))
    assert await payloads(at_far, 1) == [bytes(100_000)]
    stranger = await here.broker("stranger", [{"name": "far", "servers": [server.url], "topics": [BOTH]}])
    await until(lambda: view(stranger).state == "waiting", lambda: view(stranger))
    assert "is not trusted" in view(stranger).problem


async def test_a_killed_server_comes_back_and_nothing_was_kept(here: Ends) -> None:
    server = await here.server()
    broker = await here.bridged(server.url, BOTH)
    near = await here.client(broker)
    await server.end(signal.SIGKILL)
    await until(lambda: view(broker).state == "waiting", lambda: view(broker))
    await near.publish("both.x", b"lost")
    await known(near)
    await server.start()
    far = await here.client(server)
    at_far = await far.subscribe(">")
    await known(far)
    await until(lambda: view(broker).state == "connected", lambda: view(broker))
    await near.publish("both.x", b"later")
    assert await payloads(at_far, 1) == [b"later"]


def others(broker: Broker) -> tuple[str, ...]:
    """The servers that the far one has named."""
    assert broker._bridges is not None
    bridge = broker._bridges._bridges["far"]
    assert isinstance(bridge, NatsBridge)
    return bridge._others


async def test_another_server_of_the_cluster_takes_over_and_a_leaving_one_is_left(here: Ends) -> None:
    (here.directory / "second").mkdir()
    routes = [f"127.0.0.1:{port}" for port in free_ports(2)]
    leaves = "lame_duck_duration: 30s\nlame_duck_grace_period: 1s"
    first = await here.server(f"cluster {{ name: c, listen: {routes[0]} }}\n{leaves}")
    joined = f"cluster {{ name: c, listen: {routes[1]}, routes: [nats://{routes[0]}] }}"
    second = NatsServer(here.directory / "second", joined)
    here.stack.push_async_callback(second.end)
    await second.start()
    broker = await here.bridged(first.url, BOTH)
    await until(lambda: second.url in others(broker), lambda: others(broker))
    assert first.process is not None
    first.process.send_signal(signal.SIGUSR2)
    await until(lambda: view(broker).server == second.url and view(broker).state == "connected", lambda: view(broker))


async def test_two_starlingmq_with_nats_bridges_to_each_other(here: Ends) -> None:
    ports = free_ports(2)
    brokers = []
    for name, own, other in (("one", 0, 1), ("two", 1, 0)):
        far = {
            "name": "far",
            "servers": [f"nats://127.0.0.1:{ports[other]}"],
            "topics": [{"filter": "b/#"}, {"filter": "s/#"}],
        }
        brokers.append(await here.broker(name, [far], listeners=[f"nats://127.0.0.1:{ports[own]}"]))
    await until(
        lambda: {view(each).state for each in brokers} == {"connected"}, lambda: [view(each) for each in brokers]
    )
    one, two = [await here.client(broker) for broker in brokers]
    readers = [await client.subscribe("b.>") for client in (one, two)]
    await two.subscribe("s.x", cb=answer)
    await known(one)
    await known(two)
    for number in range(20):
        await (one, two)[number % 2].publish("b.x", b"%d" % number)
    for reader in readers:
        assert sorted(await payloads(reader, 20), key=int) == [b"%d" % number for number in range(20)]
    assert (await one.request("s.x", b"?", PATIENCE)).data == b"answer to ?"
    assert [reader.pending_msgs for reader in readers] == [0, 0]


async def test_a_server_that_does_not_read_is_left_and_what_waited_is_counted(here: Ends) -> None:
    stopped = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"headers": true, "server_id": "N", "max_payload": 1048576}\r\n')
        for _ in range(2):
            await reader.readuntil(b"PING\r\n")
            writer.write(b"PONG\r\n")
        await stopped.wait()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 16) as far:
        port = far.sockets[0].getsockname()[1]
        broker = await here.bridged(f"nats://127.0.0.1:{port}", BOTH, sections={"limits": {"queue_bytes": 1 << 20}})
        near = await here.client(broker)
        at_near = await near.subscribe("other")
        await known(near)
        for _ in range(400):
            await near.publish("both.x", bytes(100_000))
            await known(near)
            if view(broker).state != "connected":
                break
        assert "too slowly" in view(broker).problem, view(broker)
        assert broker.state.ctx.counters.dropped["slow_consumer"] == 1
        await near.publish("other", b"on")
        assert await payloads(at_near, 1) == [b"on"]
        stopped.set()
