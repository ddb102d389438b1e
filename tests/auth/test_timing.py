"""The duration of a refusal, by the clock: it reveals neither which users exist nor which of them are operators."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from argon2 import PasswordHasher
from msgspec.structs import replace
from scramp import ScramClient  # type: ignore[import-untyped]

from starlingmq import Broker
from starlingmq.auth import password_file
from starlingmq.auth.automatic_bans import AutomaticBans
from starlingmq.auth.password_file import PasswordFile, ScramKeys
from starlingmq.auth.scram import Scram
from starlingmq.config.auth_section import AuthConfig
from starlingmq.wire.mqtt import Auth, Connack, Connect
from starlingmq.wire.properties import AUTHENTICATION_DATA, AUTHENTICATION_METHOD
from starlingmq.wire.reasons import Reason
from tests.auth.conftest import Passwd, Serve
from tests.peer import Peer

ROUNDS = 5
ROUNDS_MAX = 80  # on a machine that has much else to do
ALIKE = 2.0  # times: a hash that was not computed would make it a tenth, on whatever machine


@pytest.fixture
def users(passwd: Passwd, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file whose hashes take long enough for the clock."""
    monkeypatch.setattr(password_file, "HASHER", PasswordHasher(1, 16 << 10, 1))
    return passwd(ann="the right one", bob="of bob")


async def fastest(tries: dict[str, Callable[[], Awaitable[Any]]]) -> tuple[dict[str, float], dict[str, Any]]:
    """The least time that each took, one after the other again and again, and what it said last. The more often, the
    nearer these come to what the work takes: what is another amount of it stays apart."""
    times = dict.fromkeys(tries, 1e9)
    said: dict[str, Any] = {}
    for round in range(ROUNDS_MAX):
        for name, one in tries.items():
            start = time.perf_counter()
            said[name] = await one()
            times[name] = min(times[name], time.perf_counter() - start)
        if round >= ROUNDS and alike(times):
            break
    return times, said


def alike(times: dict[str, float]) -> bool:
    return max(times.values()) < ALIKE * min(times.values())


async def test_a_name_that_nobody_has_takes_as_long_as_a_wrong_password(serve: Serve, users: str) -> None:
    broker = await serve(auth={"password": {"file": users}, "failures": {"delay": 0, "limit": 0}})

    def knock(name: str, password: bytes, version: int) -> Callable[[], Awaitable[int]]:
        async def knocked() -> int:
            peer = await Peer.open(broker.address(), version)
            peer.send(Connect(version, "c", True, username=name, password=password))
            reason = (await peer.expect(Connack)).reason
            assert await peer.ended()
            await peer.close()
            return reason

        return knocked

    for version, code in ((4, 4), (5, Reason.BAD_USER_NAME_OR_PASSWORD)):
        times, said = await fastest(
            {
                "wrong": knock("ann", b"wrong", version),
                "nobody": knock("nobody", b"wrong", version),
                "long": knock("n" * 10_000, b"wrong", version),
            }
        )
        assert set(said.values()) == {code} and alike(times), times


async def test_the_time_of_a_refusal_does_not_reveal_administrators(serve: Serve, users: str) -> None:
    broker = await serve(
        listeners=["mqtt://127.0.0.1:0", "http://127.0.0.1:0"],
        auth={
            "password": {"file": users, "remember": 0},
            "api": {"users": ["ann"]},
            "failures": {"delay": 0, "limit": 0},
        },
    )
    async with httpx.AsyncClient(base_url=broker.address("http"), trust_env=False) as client:

        def asked(name: str, password: str) -> Callable[[], Awaitable[tuple[int, str]]]:
            async def ask() -> tuple[int, str]:
                answer = await client.get("/api/v1/overview", auth=(name, password))
                return answer.status_code, answer.text

            return ask

        times, said = await fastest(
            {
                "wrong": asked("ann", "wrong"),
                "nobody": asked("nobody", "wrong"),
                "right, but no administrator": asked("bob", "of bob"),
            }
        )
        assert len(set(said.values())) == 1 and said["wrong"][0] == 401 and alike(times), (said, times)


async def challenge(broker: Broker, name: str) -> tuple[Peer, ScramClient, str]:
    """The first answer in an exchange of SCRAM."""
    client = ScramClient(["SCRAM-SHA-256"], name, "wrong")
    peer = await Peer.open(broker.address(), 5)
    first = {AUTHENTICATION_METHOD: "SCRAM-SHA-256", AUTHENTICATION_DATA: client.get_client_first().encode()}
    peer.send(Connect(5, "c", True, properties=first))
    return peer, client, str((await peer.expect(Auth)).properties[AUTHENTICATION_DATA], "ascii")  # type: ignore[arg-type]


async def test_the_salt_of_a_name_that_nobody_has_stays_when_a_user_changes_the_password(
    serve: Serve, passwd: Passwd
) -> None:
    file = passwd(ann="the right one")
    broker = await serve(auth={"password": {"file": file}, "failures": {"delay": 0, "limit": 0}})
    salts: dict[str, list[str]] = {"ann": [], "nobody": []}
    for round in range(2):
        for name, seen in salts.items():
            peer, _, first = await challenge(broker, name)
            seen.append(first.split(",")[1])
            await peer.close()
        if not round:
            passwd(ann="another one")
            broker.reload(replace(broker.config))
    assert len({*salts["ann"]}) == 2 and len({*salts["nobody"]}) == 1, salts


def test_salts_of_a_cluster_are_those_of_its_secret() -> None:
    bans = AutomaticBans(AuthConfig().failures, AuthConfig().flapping)
    files = [PasswordFile({}, {"ann": ScramKeys(b"s" * 32, bytes([one]) * 32, b"k" * 32, 4096)}) for one in range(2)]
    derived, shared = ({Scram(file, bans, None, secret)._keys("nobody")[0] for file in files} for secret in (b"", b"x"))
    assert len(derived) == 2 and len(shared) == 1


async def test_scram_answers_the_same_to_names_that_nobody_has(serve: Serve, users: str) -> None:
    """The same salt at every attempt, node and start, as long as others, as many iterations, and the same refusal."""
    auth = {"password": {"file": users}, "failures": {"delay": 0, "limit": 0}}
    brokers = [await serve(auth=auth), await serve(auth=auth)]
    firsts: dict[str, set[tuple[str, str]]] = {"ann": set(), "nobody": set(), "another": set()}

    def tried(name: str) -> Callable[[], Awaitable[int]]:
        async def attempt() -> int:
            brokers.reverse()
            peer, client, first = await challenge(brokers[0], name)
            salt, iterations = first.split(",")[1:]
            firsts[name].add((salt, iterations))
            client.set_server_first(first)
            last = {AUTHENTICATION_METHOD: "SCRAM-SHA-256", AUTHENTICATION_DATA: client.get_client_final().encode()}
            peer.send(Auth(Reason.CONTINUE_AUTHENTICATION, last))
            reason = (await peer.expect(Connack)).reason
            await peer.close()
            return reason

        return attempt

    said = {await tried(name)() for name in firsts for _ in range(4)}
    assert len(said) == 1 and said.pop() >= 0x80
    assert all(len(seen) == 1 for seen in firsts.values()), "a salt that changes would say that nobody has the name"
    salts, iterations = zip(*(next(iter(seen)) for seen in firsts.values()), strict=True)
    assert len(set(salts)) == 3 and len(set(iterations)) == 1 and len({len(salt) for salt in salts}) == 1
