"""``authenticate``: who gets in, in one step or in many."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from starlingmq.hooks import Access, AuthRequest, AuthResult
from starlingmq.wire.mqtt import Auth, Connack, Connect, Disconnect, Publish, Subscribe, SubscribeRequest
from starlingmq.wire.properties import AUTHENTICATION_DATA, AUTHENTICATION_METHOD, Properties
from starlingmq.wire.reasons import Reason
from tests.peer import Peer

from .conftest import Join, Serve


def check(request: AuthRequest) -> bool | AuthResult:
    if request.username is None:
        return False
    if (request.username, request.password) == ("ann", b"secret"):
        return True
    return AuthResult(Reason.BAD_USER_NAME_OR_PASSWORD)


async def check_later(request: AuthRequest) -> bool | AuthResult:
    await asyncio.sleep(0)
    return check(request)


async def knock(address: str, version: int, username: str | None = None, password: bytes | None = None) -> Connack:
    """Send CONNECT; the CONNACK, after which a refused connection is closed."""
    peer = await Peer.open(address, version)
    peer.send(Connect(version, "c", True, username=username, password=password))
    connack = await peer.expect(Connack)
    if connack.reason:
        await peer.ended()
    await peer.close()
    return connack


@pytest.mark.parametrize("hook", [check, check_later])
@pytest.mark.parametrize("version", [3, 4, 5])
async def test_the_hook_decides_which_clients_are_admitted(serve: Serve, hook: object, version: int) -> None:
    broker = await serve(authenticate=hook)
    address = broker.address()
    assert (await knock(address, version, "ann", b"secret")).reason == 0
    wrong = Reason.BAD_USER_NAME_OR_PASSWORD if version == 5 else 4
    assert (await knock(address, version, "ann", b"guess")).reason == wrong
    nobody = Reason.NOT_AUTHORIZED if version == 5 else 5
    assert (await knock(address, version)).reason == nobody
    assert broker.state.ctx.counters.errors == {"bad_user_name_or_password": 1, "not_authorized": 1}


async def test_the_hook_is_told_what_the_client_said(serve: Serve, join: Join) -> None:
    requests: list[AuthRequest] = []

    def remember(request: AuthRequest) -> bool:
        requests.append(request)
        return True

    broker = await serve(authenticate=remember)
    await join(broker, "thing", 4, username="ann", password=b"\0\xff")
    request = requests[0]
    assert (request.client_id, request.username, request.password, request.version) == ("thing", "ann", b"\0\xff", 4)
    assert request.listener == broker.address()
    assert request.peer.startswith("127.0.0.1:")
    assert (request.certificate_name, request.method, request.data, request.properties) == ("", "", None, {})


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("late", [False, True])
async def test_a_hook_that_raises_refuses(
    serve: Serve, version: int, late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(request: AuthRequest) -> bool:
        raise LookupError("no such database")

    async def fail_later(request: AuthRequest) -> bool:
        return fail(request)

    broker = await serve(authenticate=fail_later if late else fail)
    if version == 5:
        assert (await knock(broker.address(), 5)).reason == Reason.UNSPECIFIED_ERROR
    else:
        peer = await Peer.open(broker.address(), 4)
        peer.send(Connect(4, "c", True))
        await peer.ended()  # 3.1.1 has no code for that
        await peer.close()
    assert "no such database" in caplog.text


async def test_a_hook_whose_work_is_cancelled_refuses(serve: Serve) -> None:
    async def cancelled(request: AuthRequest) -> bool:
        raise asyncio.CancelledError

    broker = await serve(authenticate=cancelled)
    assert (await knock(broker.address(), 5)).reason == Reason.UNSPECIFIED_ERROR


async def test_one_who_waits_keeps_nobody_else_waiting(serve: Serve, join: Join) -> None:
    decided: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def slow_for_bob(request: AuthRequest) -> bool | Awaitable[bool]:
        return decided if request.username == "bob" else True

    broker = await serve(authenticate=slow_for_bob)
    bob = await Peer.open(broker.address())
    # A client may send packets after CONNECT without waiting for CONNACK; they are handled after it.
    bob.send(Connect(client_id="bob", username="bob"), Subscribe(1, [SubscribeRequest(b"t", 0)]))
    ann = await join(broker, "ann", username="ann")
    assert await ann.publish("t") == Reason.NO_MATCHING_SUBSCRIBERS
    decided.set_result(True)
    assert (await bob.expect(Connack)).reason == 0
    assert (await bob.receive()) is not None
    assert await ann.publish("t") == 0
    await bob.close()


async def test_no_answer_in_time_closes(serve: Serve) -> None:
    async def never(request: AuthRequest) -> bool:
        await asyncio.Event().wait()
        return True

    broker = await serve(authenticate=never, mqtt={"connect_timeout": 0.05})
    peer = await Peer.open(broker.address())
    peer.send(Connect(client_id="c"))
    await peer.ended()
    await peer.close()
    assert broker.state.ctx.counters.errors == {"connect_timeout": 1}


async def test_a_client_may_be_renamed(serve: Serve, join: Join) -> None:
    names: list[str] = []

    def authorize(access: Access) -> bool:
        names.append(access.username)
        return True

    broker = await serve(authenticate=lambda request: AuthResult(username="tenant/ann"), authorize=authorize)
    peer = await join(broker, username="ann")
    await peer.publish("t")
    assert names == ["tenant/ann"]


# Enhanced authentication: each side adds its word until the hook has heard "please".


def polite(request: AuthRequest) -> AuthResult:
    if request.method != "polite":
        return AuthResult(Reason.BAD_AUTHENTICATION_METHOD)
    if request.data == b"let me in":
        return AuthResult(Reason.CONTINUE_AUTHENTICATION, b"what is the magic word?")
    if request.data == b"please":
        return AuthResult(Reason.SUCCESS, b"welcome", username="polite one")
    if request.data == b"hm":
        return AuthResult(Reason.CONTINUE_AUTHENTICATION)
    return AuthResult(Reason.NOT_AUTHORIZED)


async def polite_later(request: AuthRequest) -> AuthResult:
    await asyncio.sleep(0)
    return polite(request)


def says(data: bytes | None, method: str = "polite") -> Properties:
    properties: Properties = {AUTHENTICATION_METHOD: method}
    if data is not None:
        properties[AUTHENTICATION_DATA] = data
    return properties


def answer(data: bytes | None, reason: int = Reason.CONTINUE_AUTHENTICATION) -> Auth:
    return Auth(reason, says(data))


async def begin(address: str, data: bytes, method: str = "polite") -> Peer:
    peer = await Peer.open(address)
    peer.send(Connect(client_id="c", properties=says(data, method)))
    return peer


async def let_in(address: str) -> Peer:
    peer = await begin(address, b"let me in")
    assert await peer.expect(Auth) == answer(b"what is the magic word?")
    peer.send(answer(b"hm"))
    assert await peer.expect(Auth) == answer(None)
    peer.send(answer(b"please"))
    connack = await peer.expect(Connack)
    assert connack.reason == 0
    assert connack.properties[AUTHENTICATION_METHOD] == "polite"
    assert connack.properties[AUTHENTICATION_DATA] == b"welcome"
    return peer


@pytest.mark.parametrize("hook", [polite, polite_later])
async def test_an_exchange_of_several_steps(serve: Serve, hook: object) -> None:
    names: list[str] = []

    def note(access: Access) -> bool:
        names.append(access.username)
        return True

    broker = await serve(authenticate=hook, authorize=note)
    peer = await let_in(broker.address())
    assert await peer.publish("t") == Reason.NO_MATCHING_SUBSCRIBERS
    assert names == ["polite one"]
    await peer.close()


@pytest.mark.parametrize("hook", [polite, polite_later])
async def test_an_exchange_that_ends_in_a_refusal(serve: Serve, hook: object) -> None:
    broker = await serve(authenticate=hook)
    peer = await begin(broker.address(), b"let me in")
    await peer.expect(Auth)
    peer.send(answer(b"now!"))
    assert (await peer.expect(Connack)).reason == Reason.NOT_AUTHORIZED
    await peer.ended()
    await peer.close()
    other = await begin(broker.address(), b"let me in", method="rude")
    assert (await other.expect(Connack)).reason == Reason.BAD_AUTHENTICATION_METHOD
    await other.ended()
    await other.close()


@pytest.mark.parametrize("hook", [polite, polite_later])
async def test_authentication_anew_on_an_open_connection(serve: Serve, hook: object) -> None:
    broker = await serve(authenticate=hook)
    peer = await let_in(broker.address())
    peer.send(answer(b"let me in", Reason.RE_AUTHENTICATE))
    assert await peer.expect(Auth) == answer(b"what is the magic word?")
    assert await peer.publish("t") == Reason.NO_MATCHING_SUBSCRIBERS  # beside everything else
    peer.send(answer(b"please"))
    assert await peer.expect(Auth) == answer(b"welcome", Reason.SUCCESS)
    peer.send(answer(b"let me stay", Reason.RE_AUTHENTICATE))
    assert (await peer.expect(Disconnect)).reason == Reason.NOT_AUTHORIZED
    await peer.ended()
    await peer.close()


@pytest.mark.parametrize("version", [4, 5])
async def test_a_hook_may_not_ask_on_who_cannot_answer(
    serve: Serve, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    broker = await serve(authenticate=lambda request: AuthResult(Reason.CONTINUE_AUTHENTICATION, b"?"))
    peer = await Peer.open(broker.address(), version)
    peer.send(Connect(version, "c", True))
    if version == 5:
        assert (await peer.expect(Connack)).reason == Reason.UNSPECIFIED_ERROR
    await peer.ended()
    await peer.close()
    assert "AUTH is only for clients that named an authentication method" in caplog.text


async def test_data_for_who_named_no_method_stays_here(serve: Serve) -> None:
    broker = await serve(authenticate=lambda request: AuthResult(data=b"welcome"))
    assert AUTHENTICATION_DATA not in (await knock(broker.address(), 5)).properties


async def test_packets_wait_in_order_while_a_hook_decides(serve: Serve, join: Join) -> None:
    broker = await serve(authenticate=polite_later)
    peer = await let_in(broker.address())
    await peer.subscribe("t")
    peer.send(answer(b"please", Reason.RE_AUTHENTICATE), Publish(b"t", b"1"), Publish(b"t", b"2"))
    assert await peer.expect(Auth) == answer(b"welcome", Reason.SUCCESS)
    assert [(await peer.message()).payload for _ in range(2)] == [b"1", b"2"]
    await peer.close()
