"""Every way of saying who one is: right, wrong, expired, and meant to harm; against brokers as a user sets them up."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import signal
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from argon2 import extract_parameters
from scramp import ScramClient  # type: ignore[import-untyped]

from starlingmq.auth.automatic_bans import AutomaticBans
from starlingmq.auth.password_file import read_passwords
from starlingmq.auth.scram import OPEN_OF_ONE_MAX, Scram
from starlingmq.auth.verifier import Verifier
from starlingmq.config.auth_section import FailuresConfig, FlappingConfig
from starlingmq.config.section_types import ConfigError
from starlingmq.config.settings import from_tree
from starlingmq.hooks import AuthRequest
from starlingmq.log import SparingLog
from starlingmq.wire.mqtt import Connack, Connect
from starlingmq.wire.properties import AUTHENTICATION_DATA, AUTHENTICATION_METHOD, Properties
from starlingmq.wire.reasons import Reason
from tests.auth.conftest import Join, Passwd, Serve
from tests.auth.logins import FAST, knock, scram, token
from tests.patience import slowness
from tests.peer import Peer

# Passwords


@pytest.mark.parametrize(("version", "refusal"), [(4, 4), (5, Reason.BAD_USER_NAME_OR_PASSWORD)])
async def test_passwords(serve: Serve, passwd: Passwd, version: int, refusal: int) -> None:
    broker = await serve(auth={"password": {"file": passwd(ann="right", bob="other")}, **FAST})
    address = broker.address()
    assert await knock(address, "ann", b"right", version) == 0
    assert await knock(address, "ann", b"right", version) == 0, "and what is remembered"
    for name, password in (("ann", b"wrong"), ("ann", b"other"), ("nobody", b"right"), ("ann", b""), ("ann", b"\xff")):
        assert await knock(address, name, password, version) == refusal
    assert await knock(address, "x" * 60_000, b"y" * 60_000, version) == refusal


async def test_a_password_file_without_users_is_warned_of(
    serve: Serve, passwd: Passwd, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await serve(auth={"password": {"file": passwd()}, **FAST})
    assert "passwords has no users: nobody can log in by password" in caplog.text
    assert await knock(broker.address(), "ann", b"right") == Reason.BAD_USER_NAME_OR_PASSWORD


async def test_a_reload_keeps_remembered_logins_of_users_whose_password_stays(
    serve: Serve, passwd: Passwd, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await serve(auth={"password": {"file": passwd(ann="right", bob="other")}, **FAST})
    hashing = broker._access.hashing
    assert hashing is not None
    for name, password in (("ann", b"right"), ("bob", b"other")):
        assert await knock(broker.address(), name, password) == 0
    users = Path(broker.config.auth.password.file)
    ann = next(line for line in users.read_text().splitlines() if line.startswith("ann:$argon2"))
    passwd(bob="changed")
    users.write_text(users.read_text() + ann + "\n")
    broker.reload(broker.config)

    async def never_fits(known: str, password: bytes) -> bool:
        return False

    monkeypatch.setattr(hashing.verifier, "fits", never_fits)
    assert await knock(broker.address(), "ann", b"right") == 0, "nothing is hashed"
    assert await knock(broker.address(), "bob", b"other") == Reason.BAD_USER_NAME_OR_PASSWORD


async def test_nobody_without_a_name_where_names_are_asked_for(serve: Serve, passwd: Passwd) -> None:
    file = passwd(ann="right")
    broker = await serve(auth={"password": {"file": file}, **FAST})
    assert await knock(broker.address(), None, None) == Reason.NOT_AUTHORIZED
    both = await serve(auth={"password": {"file": file}, "allow_anonymous": True, **FAST})
    assert await knock(both.address(), None, None) == 0
    assert await knock(both.address(), "ann", b"wrong") == Reason.BAD_USER_NAME_OR_PASSWORD


async def test_a_name_that_nobody_has_takes_as_long(
    serve: Serve, passwd: Passwd, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = passwd(ann="right")
    verified: list[str] = []
    broker = await serve(auth={"password": {"file": file, "remember": 0}, **FAST})

    async def counted(verifier: Verifier, known: str, password: bytes) -> bool:
        verified.append(known)
        return await real_fits(verifier, known, password)

    real_fits = Verifier.fits
    monkeypatch.setattr(Verifier, "fits", counted)
    for name in ("ann", "nobody"):
        assert await knock(broker.address(), name, b"wrong") == Reason.BAD_USER_NAME_OR_PASSWORD
    assert len(verified) == 2 and verified[0] != verified[1]
    assert extract_parameters(verified[0]) == extract_parameters(verified[1]), "what nobody has costs as much"


async def test_the_loop_does_not_stall_while_passwords_are_hashed(serve: Serve, passwd: Passwd) -> None:
    broker = await serve(auth={"password": {"file": passwd(ann="right"), "remember": 0}, **FAST})
    gaps: list[float] = []
    done = asyncio.Event()

    async def watch() -> None:
        before = time.perf_counter()
        while not done.is_set():
            await asyncio.sleep(0)
            now = time.perf_counter()
            gaps.append(now - before)
            before = now

    watcher = asyncio.create_task(watch())
    assert set(
        await asyncio.gather(*(knock(broker.address(), "ann", b"right", client=f"c{n}") for n in range(40)))
    ) == {0}
    done.set()
    await watcher
    assert statistics.quantiles(gaps, n=100)[98] < 0.02 * slowness()


async def test_the_process_that_hashes_may_die_and_is_begun_again(passwd: Passwd) -> None:
    hashes = read_passwords(passwd(ann="right")).hashes
    verifier = Verifier()
    try:
        assert await verifier.fits(hashes["ann"], b"right") and not await verifier.fits(hashes["ann"], b"wrong")
        assert not await verifier.fits("$argon2id$no hash at all", b"right")
        first = verifier.process
        assert first is not None
        os.kill(first.pid, signal.SIGSTOP)
        under_way = [asyncio.ensure_future(verifier.fits(hashes["ann"], b"right")) for _ in range(3)]
        await asyncio.sleep(0)
        first.kill()
        assert await asyncio.gather(*under_way) == [True] * 3, "the next process is asked the same"
        assert await asyncio.gather(*(verifier.fits(hashes["ann"], b"right") for _ in range(9))) == [True] * 9
    finally:
        await verifier.close()
    with pytest.raises(ConnectionError):
        await verifier.fits(hashes["ann"], b"right")
    assert verifier.process is not None and verifier.process is not first
    assert verifier.process.poll() is not None


async def test_a_changed_file_is_taken_with_a_reload(serve: Serve, passwd: Passwd) -> None:
    file = passwd(ann="old")
    broker = await serve(auth={"password": {"file": file}, **FAST})
    assert await knock(broker.address(), "ann", b"old") == 0
    passwd(ann="new")
    broker.reload(broker.config)
    assert await knock(broker.address(), "ann", b"new") == 0
    assert await knock(broker.address(), "ann", b"old") == Reason.BAD_USER_NAME_OR_PASSWORD, "not from memory either"
    Path(file).write_text("ann\n")
    with pytest.raises(ConfigError, match=":1: expected name:hash"):
        broker.reload(broker.config)
    assert await knock(broker.address(), "ann", b"new") == 0, "a file that can not be read changes nothing"


# Wrong logins


async def test_too_many_wrong_logins_and_the_address_is_banned(serve: Serve, passwd: Passwd) -> None:
    broker = await serve(auth={"password": {"file": passwd(ann="right")}, "failures": {"delay": 0, "limit": 3}})
    said = [await knock(broker.address(), "ann", b"wrong") for _ in range(3)]
    assert said == [Reason.BAD_USER_NAME_OR_PASSWORD] * 3
    assert await knock(broker.address(), "ann", b"right") == Reason.BANNED


async def test_a_wrong_login_is_answered_late(serve: Serve, passwd: Passwd) -> None:
    broker = await serve(auth={"password": {"file": passwd(ann="right")}, "failures": {"delay": "150ms"}})
    began = time.monotonic()
    assert await knock(broker.address(), "ann", b"wrong") == Reason.BAD_USER_NAME_OR_PASSWORD
    assert time.monotonic() - began >= 0.15


async def test_a_client_that_flaps_is_banned_for_a_while(serve: Serve) -> None:
    broker = await serve(auth={"flapping": {"limit": 4, "ban": "1h"}})
    said = [await knock(broker.address(), None, None, client="f") for _ in range(6)]
    assert said == [0, 0, 0, 0, Reason.BANNED, Reason.BANNED]
    assert await knock(broker.address(), None, None, client="g") == 0


# SCRAM


async def test_scram(serve: Serve, passwd: Passwd) -> None:
    broker = await serve(auth={"password": {"file": passwd(ann="right")}, **FAST})
    assert await scram(broker.address(), "ann", "right") == 0
    refusal = Reason.BAD_USER_NAME_OR_PASSWORD
    assert await scram(broker.address(), "ann", "wrong") == refusal
    assert await scram(broker.address(), "nobody", "right") == refusal
    assert await scram(broker.address(), "ann", "right", lambda final: final[:-6] + "AAAAA=") == refusal
    assert await scram(broker.address(), "ann", "right", lambda final: "c=biws,r=x,p=AAAA") == refusal


async def test_scram_that_makes_no_sense(serve: Serve, passwd: Passwd) -> None:
    broker = await serve(auth={"password": {"file": passwd(ann="right")}, **FAST})
    for data in (
        b"",
        b"n,,",
        b"n,,n=ann",
        b"\xff\xfe",
        b"c=biws,r=x,p=y",
        b"p=tls-unique,,n=ann,r=x",
        b"n,," + b"x" * 50_000,
    ):
        peer = await Peer.open(broker.address())
        properties: Properties = {AUTHENTICATION_METHOD: "SCRAM-SHA-256", AUTHENTICATION_DATA: data}
        peer.send(Connect(5, "s", True, properties=properties))
        assert (await peer.expect(Connack)).reason == Reason.BAD_USER_NAME_OR_PASSWORD, data
        await peer.close()
    peer = await Peer.open(broker.address())
    peer.send(Connect(5, "s", True, properties={AUTHENTICATION_METHOD: "PLAIN"}))
    assert (await peer.expect(Connack)).reason == Reason.BAD_AUTHENTICATION_METHOD
    await peer.close()


# A service that is asked


@asynccontextmanager
async def service(answer: Callable[[dict[str, Any]], bytes | None]) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """An HTTP service in a few lines; ``answer`` gives the whole response, None: none ever comes."""
    asked: list[dict[str, Any]] = []

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
            )
            question = json.loads(await reader.readexactly(length))
            question["authorization"] = b"authorization: us" in head.lower()
            asked.append(question)
            response = answer(question)
            if response is None:
                await reader.read()
            else:
                writer.write(response)
                await writer.drain()
        finally:
            writer.close()

    server = await asyncio.start_server(serve_one, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/auth", asked
    finally:
        server.close()


def response(body: object, status: int = 200) -> bytes:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"HTTP/1.1 %d x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (status, len(text), text)


async def test_a_service_decides(serve: Serve, join: Join) -> None:
    def answer(question: dict[str, Any]) -> bytes:
        if question["username"] == "ann":
            return response(
                {
                    "result": "allow",
                    "username": "Ann",
                    "rules": [{"allow": "publish", "topics": ["%u/#"]}],
                }
            )
        return response({"result": "deny" if question["username"] == "bob" else "ignore"})

    async with service(answer) as (url, asked):
        broker = await serve(auth={"http": {"url": url, "headers": ["Authorization: us"]}, **FAST})
        peer = await join(broker, "c", username="ann", password=b"p")
        assert await peer.publish("Ann/1") == Reason.NO_MATCHING_SUBSCRIBERS
        assert await peer.publish("ann/1") == Reason.NOT_AUTHORIZED
        assert await knock(broker.address(), "bob", b"p") == Reason.BAD_USER_NAME_OR_PASSWORD
        assert await knock(broker.address(), "eve", b"p") == Reason.BAD_USER_NAME_OR_PASSWORD
        assert asked[0]["client_id"] == "c" and asked[0]["password"] == "p" and asked[0]["authorization"]
        before = len(asked)
        assert await knock(broker.address(), "ann", b"p") == 0
        assert len(asked) == before, "the answer is remembered"
        assert await knock(broker.address(), "ann", b"q") == 0
        assert len(asked) == before + 1, "for this password only"


@pytest.mark.parametrize(
    "answer",
    [
        response({"result": "allow"}, 500),
        response({"result": "allow"}, 302),
        response(b"allow"),
        response({"result": "perhaps"}),
        response({"result": "allow", "rules": [{"allow": "fly"}]}),
        response(b'{"result": "allow", "x": "' + b"x" * 100_000 + b'"}'),
        b"not HTTP\r\n\r\n",
        b"",
        None,
    ],
)
async def test_a_service_that_says_nothing_sensible_lets_nobody_in(serve: Serve, answer: bytes | None) -> None:
    async with service(lambda question: answer) as (url, _):
        broker = await serve(auth={"http": {"url": url, "timeout": "200ms"}, **FAST})
        assert await knock(broker.address(), "ann", b"p") == Reason.SERVER_UNAVAILABLE
        assert await knock(broker.address(), "ann", b"p", 4) == 3


async def test_a_service_that_is_not_there(serve: Serve) -> None:
    async with service(lambda question: None) as (url, _):
        pass
    broker = await serve(auth={"http": {"url": url}, **FAST})
    assert await knock(broker.address(), "ann", b"p") == Reason.SERVER_UNAVAILABLE


# Several


async def test_one_method_after_the_other(serve: Serve, passwd: Passwd, secret_file: str) -> None:
    async with service(
        lambda question: response({"result": "allow" if question["username"] == "eve" else "ignore"})
    ) as (url, _):
        broker = await serve(
            auth={
                "password": {"file": passwd(ann="right")},
                "jwt": {"secret_file": secret_file},
                "http": {"url": url},
                **FAST,
            }
        )
        assert await knock(broker.address(), "ann", b"right") == 0
        assert await knock(broker.address(), None, token()) == 0
        assert await knock(broker.address(), "eve", b"x") == 0
        assert await knock(broker.address(), "ann", b"x") == Reason.BAD_USER_NAME_OR_PASSWORD
        assert await knock(broker.address(), "mallory", b"x") == Reason.BAD_USER_NAME_OR_PASSWORD
        assert await scram(broker.address(), "ann", "right") == 0


@pytest.mark.parametrize(
    ("auth", "line"),
    [
        ({"methods": ["jwt"]}, "auth.methods: jwt needs auth.jwt.secret_file"),
        ({"methods": ["passwords"]}, "auth.methods[0]: "),
        ({"http": {"url": "ftp://x"}}, "auth.http.url: expected http://... or https://..."),
        ({"http": {"url": "http://x", "headers": ["a"]}}, "auth.http.headers[0]: expected name: value"),
    ],
)
def test_settings_that_can_not_be(auth: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as error:
        from_tree({"auth": auth})
    assert str(error.value).startswith(line)


async def test_files_that_can_not_be(serve: Serve, tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_text("secret")
    for auth, line in (
        ({"password": {"file": str(tmp_path / "none")}}, "none: cannot be read: No such file"),
        ({"jwt": {"secret_file": str(short)}}, "the secret must have at least 32 bytes"),
        ({"jwt": {"public_key_file": str(short)}}, "is not a public key in PEM"),
        ({"jwt": {"jwks_file": str(short)}}, "is not a JSON Web Key Set"),
        ({"acl": {"file": str(tmp_path / "none")}}, "none: cannot be read: No such file"),
    ):
        with pytest.raises(ConfigError, match=line):
            await serve(auth=auth)


# Harmful input


async def test_a_token_of_brackets_is_refused_like_any_other_and_leaves_no_traceback(
    serve: Serve, secret_file: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await serve(auth={"jwt": {"secret_file": secret_file}, **FAST})
    header = base64.urlsafe_b64encode(b"[" * 9000).rstrip(b"=")
    deep = base64.urlsafe_b64encode(b'{"alg":' + b"[" * 9000 + b"]" * 9000 + b"}").rstrip(b"=")[:12_000]
    for head in (header, deep):
        assert await knock(broker.address(), None, head + b".e30.AAAA") == Reason.BAD_USER_NAME_OR_PASSWORD
    assert not [record for record in caplog.records if record.exc_info]


def scram_request(address: str, client: str, data: bytes) -> AuthRequest:
    return AuthRequest(client, None, None, 5, f"{address}:1", "", "", "SCRAM-SHA-256", data, {})


async def test_exchanges_of_one_address_push_out_none_of_another_and_are_small(passwd: Passwd) -> None:
    scram = Scram(read_passwords(passwd(ann="right")), AutomaticBans(FailuresConfig(), FlappingConfig()))
    client = ScramClient(["SCRAM-SHA-256"], "ann", "right")
    first = await scram.check(scram_request("192.0.2.1", "c", client.get_client_first().encode()))
    assert first is not None and first.data is not None and first.reason == Reason.CONTINUE_AUTHENTICATION
    for number in range(OPEN_OF_ONE_MAX * 3):
        await scram.check(scram_request("10.0.0.1", f"c{number}", b"n,,n=ann,r=nonce"))
    assert len(scram._open) == OPEN_OF_ONE_MAX + 1
    client.set_server_first(first.data.decode())
    last = await scram.check(scram_request("192.0.2.1", "c", client.get_client_final().encode()))
    assert last is not None and last.reason == Reason.SUCCESS
    long = await scram.check(scram_request("10.0.0.1", "c", b"n,,n=" + b"a" * 5000 + b",r=nonce"))
    assert long is not None and long.reason == Reason.BAD_USER_NAME_OR_PASSWORD
    await scram.close()
    assert not scram._open and not scram._of_one


async def test_an_exchange_is_forgotten_after_a_minute(passwd: Passwd, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("starlingmq.auth.scram.monotonic", lambda: now)
    scram = Scram(read_passwords(passwd(ann="right")), AutomaticBans(FailuresConfig(), FlappingConfig()))
    for number in range(100):
        await scram.check(scram_request(f"10.0.0.{number}", "c", b"n,,n=ann,r=nonce"))
    now = 61.0
    await scram.check(scram_request("192.0.2.1", "c", b"n,,n=ann,r=nonce"))
    assert len(scram._open) == len(scram._of_one) == 1


async def test_a_slow_service_is_not_filled_by_one_address(serve: Serve) -> None:
    async with service(lambda question: None if question["username"] == "flood" else response({"result": "allow"})) as (
        url,
        asked,
    ):
        http = {"url": url, "timeout": "5s", "connections": 4, "waiting_per_address": 10}
        broker = await serve(auth={"http": http, **FAST}, limits={"log_rate": 3})
        host, _, port = broker.address().rpartition("/")[2].rpartition(":")
        flood = []
        for number in range(30):
            reader, writer = await asyncio.open_connection(host, int(port), local_addr=("127.0.0.66", 0))
            flood.append(Peer(reader, writer, 5))
            flood[-1].send(Connect(5, f"c{number}", True, username="flood", password=b""))
        assert (await flood[-1].expect(Connack)).reason == Reason.SERVER_BUSY
        assert await knock(broker.address(), "ann", b"p") == 0
        assert sum(question["username"] == "flood" for question in asked) <= 2
        for peer in flood:
            await peer.close()


def test_lines_that_strangers_cause_are_bounded_and_what_was_left_out_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    lines = SparingLog(logging.getLogger("starlingmq.test"), 3, lambda: now)
    for number in range(10):
        lines.warning("line %d", number)
    now = 1.0
    lines.warning("later")
    said = [record.getMessage() for record in caplog.records]
    assert said == ["line 0", "line 1", "line 2", "7 more lines like the next one were suppressed", "later"]
