"""Floods of wrong log-ins: who is checked when, who is refused, and what it costs everybody else."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from starlingmq.auth import checks as checks_module
from starlingmq.auth import verifier as verifier_module
from starlingmq.auth.automatic_bans import AutomaticBans
from starlingmq.auth.checks import Checks, ChecksBusy
from starlingmq.auth.delays import DELAYED_MAX, Delays
from starlingmq.auth.hashing import threads
from starlingmq.auth.password_file import read_passwords
from starlingmq.auth.verifier import Verifier
from starlingmq.config.auth_section import FailuresConfig, FlappingConfig
from starlingmq.hooks import AuthRequest
from starlingmq.node.assembly import Broker
from starlingmq.wire.mqtt import Connack, Connect
from starlingmq.wire.reasons import Reason
from tests.api.conftest import BEARER, TOKEN
from tests.auth.conftest import Passwd, Serve
from tests.patience import slowness, within
from tests.peer import Peer

STRANGER = "127.0.0.66"
FRIEND = "127.0.0.7"
NO_BANS = {"failures": {"delay": 0, "limit": 0}}
PATIENCE = 20.0


class Hasher:
    """In place of the process: says what is asked, in order, and answers as many as it is let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[bytes] = []
        self.may = asyncio.Semaphore(0)
        self.changed = asyncio.Event()

        async def fits(verifier: Verifier, known: str, password: bytes) -> bool:
            self.asked.append(password)
            self.changed.set()
            await self.may.acquire()
            return password == b"right"

        monkeypatch.setattr(Verifier, "fits", fits)

    async def has_been_asked(self, times: int) -> None:
        async with within(PATIENCE):
            while len(self.asked) < times:
                self.changed.clear()
                await self.changed.wait()


async def until(condition: Callable[[], bool]) -> None:
    async with within(PATIENCE):
        while not condition():
            await asyncio.sleep(0.002)


async def knock_from(broker: Broker, address: str, password: bytes, client: str = "c", user: str = "ann") -> Peer:
    host, _, port = broker.address().rpartition("/")[2].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(address, 0))
    peer = Peer(reader, writer, 5)
    peer.send(Connect(5, client, True, username=user, password=password))
    return peer


async def answer(peer: Peer) -> int:
    reason = (await asyncio.wait_for(peer.expect(Connack), PATIENCE * slowness())).reason
    await peer.close()
    return reason


def checks_of(broker: Broker) -> Checks:
    assert broker._access.hashing is not None
    return broker._access.hashing.checks


async def test_a_flood_from_one_address_delays_a_login_from_another_by_what_is_under_way(
    serve: Serve, passwd: Passwd, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasher = Hasher(monkeypatch)
    broker = await serve(auth={"password": {"file": passwd(ann="right")}, **NO_BANS}, mqtt={"connect_timeout": "10m"})
    flood = [await knock_from(broker, STRANGER, b"wrong", f"c{number}") for number in range(800)]
    checks = checks_of(broker)
    await until(lambda: checks.waiting + len(hasher.asked) + checks.figures.refused == 800)
    assert len(hasher.asked) == threads() and checks.waiting == 100, "the others were refused at once"
    assert (await flood[-1].expect(Connack)).reason == Reason.SERVER_BUSY
    right = await knock_from(broker, FRIEND, b"right", "friend")
    await until(lambda: checks.waiting == 101)
    for _ in range(2):
        hasher.may.release()
    await hasher.has_been_asked(threads() + 2)
    assert b"right" in hasher.asked, "it waits for one of the hundred that came earlier, and for what was under way"
    for _ in range(threads()):
        hasher.may.release()
    assert await answer(right) == 0
    for peer in flood:
        await peer.close()


async def test_the_login_of_a_closed_connection_is_not_checked(
    serve: Serve, passwd: Passwd, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasher = Hasher(monkeypatch)
    broker = await serve(auth={"password": {"file": passwd(ann="right")}, **NO_BANS}, mqtt={"connect_timeout": "10m"})
    under_way = [await knock_from(broker, FRIEND, b"first", f"u{number}") for number in range(threads())]
    await hasher.has_been_asked(threads())
    flood = [await knock_from(broker, STRANGER, b"wrong", f"c{number}") for number in range(50)]
    await until(lambda: checks_of(broker).waiting == 50)
    for peer in flood:
        peer.writer.transport.abort()
    right = await knock_from(broker, STRANGER, b"right", "last")
    await until(lambda: checks_of(broker).waiting == 51)
    for _ in range(threads() + 1):
        hasher.may.release()
    assert await answer(right) == 0
    assert hasher.asked == [b"first"] * threads() + [b"right"]
    assert checks_of(broker).figures.gone == 50
    for peer in under_way:
        await peer.close()


async def test_waiting_logins_of_a_banned_address_are_not_checked(
    serve: Serve, passwd: Passwd, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasher = Hasher(monkeypatch)
    auth = {"password": {"file": passwd(ann="right")}, "failures": {"delay": 0, "limit": 5}}
    broker = await serve(auth=auth)
    flood = [await knock_from(broker, STRANGER, b"wrong", f"c{number}") for number in range(60)]
    await until(lambda: checks_of(broker).waiting == 60 - threads())
    for _ in range(60):
        hasher.may.release()
    said = [await answer(peer) for peer in flood]
    assert said.count(Reason.BAD_USER_NAME_OR_PASSWORD) == len(hasher.asked) <= 5 + threads()
    assert said.count(Reason.SERVER_BUSY) == 60 - len(hasher.asked)


async def test_a_login_that_was_right_before_goes_first(
    serve: Serve, passwd: Passwd, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasher = Hasher(monkeypatch)
    broker = await serve(auth={"password": {"file": passwd(ann="right"), "remember": 0}, **NO_BANS})
    hasher.may.release()
    first = await knock_from(broker, FRIEND, b"right")
    assert await answer(first) == 0
    peers = [await knock_from(broker, f"127.0.0.{number}", b"wrong", f"c{number}") for number in range(100, 150)]
    await until(lambda: checks_of(broker).waiting == 50 - threads())
    again = await knock_from(broker, FRIEND, b"right", "again")
    await until(lambda: checks_of(broker).waiting == 51 - threads())
    hasher.may.release()
    await hasher.has_been_asked(threads() + 2)
    assert hasher.asked[-1] == b"right"
    for _ in range(threads() + 1):
        hasher.may.release()
    assert await answer(again) == 0
    for peer in peers:
        await peer.close()


async def test_a_name_that_nobody_has_waits_and_is_refused_like_one_that_somebody_has(
    serve: Serve, passwd: Passwd, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasher = Hasher(monkeypatch)
    broker = await serve(auth={"password": {"file": passwd(ann="right"), "waiting_per_address": 3}, **NO_BANS})
    for user in ("ann", "nobody"):
        before = len(hasher.asked)
        peers = [await knock_from(broker, STRANGER, b"wrong", f"{user}{n}", user) for n in range(threads() + 3)]
        await until(lambda: checks_of(broker).waiting == 3)
        beyond = await knock_from(broker, STRANGER, b"wrong", "beyond", user)
        assert await answer(beyond) == Reason.SERVER_BUSY
        for _ in range(threads() + 3):
            hasher.may.release()
        assert {await answer(peer) for peer in peers} == {Reason.BAD_USER_NAME_OR_PASSWORD}
        assert len(hasher.asked) == before + threads() + 3


async def test_http_waits_in_the_same_queue_and_is_told_when_it_is_full(
    serve: Serve, passwd: Passwd, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasher = Hasher(monkeypatch)
    broker = await serve(
        listeners=["mqtt://127.0.0.1:0", "http://127.0.0.1:0"],
        auth={
            "password": {"file": passwd(ann="right"), "waiting_per_address": 2},
            "api": {"users": ["ann"]},
            **NO_BANS,
        },
    )
    peers = [await knock_from(broker, "127.0.0.1", b"wrong", f"c{n}") for n in range(threads() + 2)]
    await until(lambda: checks_of(broker).waiting == 2)
    async with httpx.AsyncClient(base_url=broker.address("http"), trust_env=False) as client:
        full = await client.get("/api/v1/overview", auth=("ann", "right"))
        assert full.status_code == 503 and full.headers["retry-after"] == "1"
        for _ in range(threads() + 3):
            hasher.may.release()
        await until(lambda: checks_of(broker).waiting == 0)
        assert (await client.get("/api/v1/overview", auth=("ann", "right"))).status_code == 200
    for peer in peers:
        await peer.close()


async def test_a_nats_client_is_told_to_come_back_when_the_queue_is_full(
    serve: Serve, passwd: Passwd, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasher = Hasher(monkeypatch)
    broker = await serve(
        listeners=["mqtt://127.0.0.1:0", "nats://127.0.0.1:0"],
        auth={"password": {"file": passwd(ann="right"), "waiting_per_address": 1}, **NO_BANS},
    )
    peers = [await knock_from(broker, "127.0.0.1", b"wrong", f"c{n}") for n in range(threads() + 1)]
    await until(lambda: checks_of(broker).waiting == 1)
    host, _, port = broker.address("nats").rpartition("/")[2].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"CONNECT " + json.dumps({"user": "ann", "pass": "right"}).encode() + b"\r\nPING\r\n")
    text = await asyncio.wait_for(reader.read(), PATIENCE * slowness())
    assert b"-ERR 'maximum connections exceeded'" in text and b"Authorization" not in text
    writer.close()
    for _ in range(threads() + 1):
        hasher.may.release()
    for peer in peers:
        await peer.close()


async def test_a_check_that_takes_too_long_counts_as_a_wrong_one_and_leaves_no_traceback(
    serve: Serve, passwd: Passwd, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hasher = Hasher(monkeypatch)
    broker = await serve(
        auth={"password": {"file": passwd(ann="right")}, "failures": {"delay": 0, "limit": 3}},
        limits={"hook_timeout": 0.05, "log_rate": 2},
    )
    with caplog.at_level(logging.INFO, "starlingmq"):
        for number in range(3):
            peer = await knock_from(broker, STRANGER, b"right", f"c{number}")
            assert await answer(peer) == Reason.SERVER_BUSY
        peer = await knock_from(broker, STRANGER, b"right")
        assert await answer(peer) == Reason.BANNED
    assert hasher.asked and not [record for record in caplog.records if record.exc_info]
    slow = [
        record.getMessage()
        for record in caplog.records
        if "the hook for authentication did not return" in record.getMessage()
    ]
    assert slow and "right" not in " ".join(record.getMessage() for record in caplog.records)


async def test_a_hook_that_takes_too_long_is_one_bounded_line_a_second(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    async def never(request: AuthRequest) -> bool:
        await asyncio.Event().wait()
        return True

    broker = await serve(authenticate=never, limits={"hook_timeout": 0.05, "log_rate": 2})
    with caplog.at_level(logging.INFO, "starlingmq"):
        peers = [await knock_from(broker, STRANGER, b"", f"c{number}") for number in range(30)]
        assert {await answer(peer) for peer in peers} == {Reason.SERVER_BUSY}
    assert not [record for record in caplog.records if record.exc_info]
    assert 1 <= len([r for r in caplog.records if "did not return" in r.getMessage()]) < 30


async def test_a_process_that_hangs_is_killed_and_the_next_one_asked(passwd: Passwd) -> None:
    hashes = read_passwords(passwd(ann="right")).hashes
    verifier = Verifier(hang_seconds=0.2)
    try:
        await asyncio.wait_for(verifier.warm(), PATIENCE * slowness())
        first = verifier.process
        assert first is not None
        os.kill(first.pid, signal.SIGSTOP)
        assert await asyncio.wait_for(verifier.fits(hashes["ann"], b"right"), PATIENCE * slowness())
        assert verifier.process is not first and verifier.ended >= 1
    finally:
        await verifier.close()


async def test_a_process_that_ends_at_once_keeps_no_broker_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier_module, "BEGIN", [sys.executable, "-c", ""])
    verifier = Verifier()
    await asyncio.wait_for(verifier.warm(), PATIENCE * slowness())
    with pytest.raises(ConnectionError):
        await asyncio.wait_for(verifier.fits("$argon2id$", b""), PATIENCE * slowness())
    await verifier.close()


async def test_outcomes_of_password_checks_are_counted(
    serve: Serve, passwd: Passwd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasher = Hasher(monkeypatch)
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKEN, encoding="utf-8")
    broker = await serve(
        listeners=["mqtt://127.0.0.1:0", "http://127.0.0.1:0"],
        auth={
            "password": {"file": passwd(ann="right"), "waiting_per_address": 1},
            "api": {"token_file": str(tokens)},
            **NO_BANS,
        },
    )
    peers = [await knock_from(broker, STRANGER, b"wrong", f"c{n}") for n in range(threads() + 3)]
    await until(lambda: checks_of(broker).figures.refused == 2)
    async with httpx.AsyncClient(base_url=broker.address("http"), trust_env=False, headers=BEARER) as client:
        text = (await client.get("/metrics")).text
    assert 'starlingmq_login_checks_total{outcome="refused"} 2.0' in text
    assert f'starlingmq_login_checks_total{{outcome="checked"}} {float(threads())}' in text
    assert "starlingmq_login_checks_waiting 1.0" in text and "starlingmq_hashing_process_ended_total 0.0" in text
    for _ in range(threads() + 1):
        hasher.may.release()
    for peer in peers:
        await peer.close()


async def test_the_process_serves_before_the_first_client_can_connect(serve: Serve, passwd: Passwd) -> None:
    broker = await serve(auth={"password": {"file": passwd(ann="right")}})
    assert broker._access.hashing is not None and broker._access.hashing.verifier._serving.is_set()


def request_from(address: str, gone: Callable[[], bool] = bool) -> AuthRequest:
    return AuthRequest("", "ann", b"", 5, f"{address}:1", "", "", "", None, {}, gone=gone)


def no_bans() -> AutomaticBans:
    return AutomaticBans(FailuresConfig(), FlappingConfig())


async def test_one_address_never_has_all_the_places_of_a_slow_service() -> None:
    checks = Checks(slots=4, key_max=10, bans=no_bans(), slots_of_one=2)
    done = asyncio.Event()
    began: list[str] = []

    def work(name: str) -> Callable[[], Awaitable[Any]]:
        async def begin() -> str:
            began.append(name)
            await done.wait()
            return name

        return begin

    flood = [asyncio.ensure_future(checks.run(request_from(STRANGER), False, work("flood"))) for _ in range(8)]
    await asyncio.sleep(0)
    friend = asyncio.ensure_future(checks.run(request_from(FRIEND), False, work("friend")))
    await until(lambda: "friend" in began)
    assert began == ["flood", "flood", "friend"]
    done.set()
    assert await asyncio.gather(*flood, friend) == ["flood"] * 8 + ["friend"]


async def test_a_login_that_waited_too_long_is_refused_unchecked() -> None:
    now = 0.0
    checks = Checks(slots=1, key_max=10, bans=no_bans(), clock=lambda: now)
    first = asyncio.Event()
    began = 0

    async def work() -> bool:
        nonlocal began
        began += 1
        await first.wait()
        return True

    runs = [asyncio.ensure_future(checks.run(request_from(FRIEND), False, work)) for _ in range(3)]
    await until(lambda: began == 1)
    now = checks_module.PATIENCE + 1
    first.set()
    outcomes = await asyncio.gather(*runs, return_exceptions=True)
    assert outcomes[0] is True and all(isinstance(one, ChecksBusy) for one in outcomes[1:]) and began == 1
    assert checks.figures.expired == 2


async def test_with_too_many_refusals_waiting_the_oldest_goes_out_and_the_new_one_waits() -> None:
    delays = Delays()
    waiting = [asyncio.ensure_future(delays.wait(3600.0)) for _ in range(DELAYED_MAX)]
    await asyncio.sleep(0)
    newest = asyncio.ensure_future(delays.wait(3600.0))
    await asyncio.wait_for(waiting[0], PATIENCE * slowness())
    assert not newest.done() and not any(task.done() for task in waiting[1:])
    for task in [*waiting, newest]:
        task.cancel()
