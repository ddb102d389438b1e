"""Authentication: user names, and enhanced authentication with AUTH (MQTT 3.1.4, 3.15, 4.12)."""

from __future__ import annotations

import pytest

from starlingmq.wire.mqtt import Auth, Connack, Connect, Pingreq, Pingresp
from starlingmq.wire.properties import AUTHENTICATION_DATA, AUTHENTICATION_METHOD, Properties
from starlingmq.wire.reasons import Reason
from tests.conformance.clauses import clause
from tests.conformance.conftest import MakeWorld
from tests.conformance.kit import BOTH, ended, frame, publish_frame, refused, sole, utf8
from tests.harness import FakeClient, World

METHOD: Properties = {AUTHENTICATION_METHOD: "SCRAM"}


@pytest.fixture
def asking(make_world: MakeWorld) -> World:
    """A broker that asks who may connect."""
    return make_world(ask_authenticate=True)


def begin(w: World, data: bytes = b"first") -> FakeClient:
    """CONNECT with a method; the broker's question about it is left open."""
    c = w.open()
    c.send(Connect(client_id="a", properties={**METHOD, AUTHENTICATION_DATA: data}))
    assert c.receive() == []
    return c


def authenticated(w: World) -> FakeClient:
    c = begin(w)
    w.answer(w.question(), Reason.SUCCESS)
    assert sole(c, Connack).reason == 0
    return c


@pytest.mark.parametrize(
    ("reason", "return_code"),
    [
        (Reason.BAD_USER_NAME_OR_PASSWORD, 4),
        (Reason.NOT_AUTHORIZED, 5),
        (Reason.SERVER_UNAVAILABLE, 3),
        (Reason.BANNED, 5),
    ],
)
@clause(v3="3.2.2-4 3.2.2-5 3.1.4-5", v5="3.1.4-2 3.1.4-6 3.2.2-6 3.2.2-7 3.2.2-8 4.13.2-1")
@pytest.mark.parametrize("version", BOTH)
def test_a_connect_that_fails_authentication_is_refused(
    asking: World, version: int, reason: Reason, return_code: int
) -> None:
    c = asking.open(version=version)
    c.send(Connect(version=version, client_id="a", username="u", password=b"p"))
    c.send(publish_frame("t", version=version))  # sent without waiting for the answer
    question = asking.question()
    assert question.connect is not None
    assert (question.connect.username, question.connect.password) == ("u", b"p")
    asking.answer(question, reason)
    refused(c, reason, return_code=return_code)


@clause(v3="3.1.4-4", v5="3.1.4-5 4.12.0-6")
@pytest.mark.parametrize("version", BOTH)
def test_a_connect_that_passes_is_accepted_and_what_followed_it_is_served(asking: World, version: int) -> None:
    c = asking.open(version=version)
    c.send(Connect(version=version, client_id="a", username="u"))
    c.send(Pingreq())
    assert c.receive() == []
    asking.answer(asking.question(), Reason.SUCCESS)
    connack, pingresp = c.receive()
    assert isinstance(connack, Connack)
    assert connack.reason == 0
    assert AUTHENTICATION_METHOD not in connack.properties
    assert pingresp == Pingresp()


@clause(v5="4.12.0-1 3.2.2-8")
def test_a_method_nobody_knows_is_refused(w: World) -> None:
    c = w.open()
    c.send(Connect(client_id="a", properties=METHOD))
    refused(c, Reason.BAD_AUTHENTICATION_METHOD)


@clause(v5="4.12.0-2 4.12.0-5 3.15.2-1 3.2.0-1 4.12.0-3")
def test_an_exchange_of_three_steps(asking: World) -> None:
    c = begin(asking, b"1")
    for received, sent in ((b"1", b"2"), (b"3", b"4")):
        question = asking.question()
        assert (question.method, question.data) == ("SCRAM", received)
        asking.answer(question, Reason.CONTINUE_AUTHENTICATION, data=sent)
        assert sole(c, Auth) == Auth(Reason.CONTINUE_AUTHENTICATION, {**METHOD, AUTHENTICATION_DATA: sent})
        c.send(Auth(Reason.CONTINUE_AUTHENTICATION, {**METHOD, AUTHENTICATION_DATA: bytes([sent[0] + 1])}))
    asking.answer(asking.question(), Reason.SUCCESS, data=b"end")
    connack = sole(c, Connack)
    assert connack.reason == 0
    assert connack.properties[AUTHENTICATION_METHOD] == "SCRAM"
    assert connack.properties[AUTHENTICATION_DATA] == b"end"


@clause(v5="4.12.0-4 3.2.2-7 4.13.2-1")
@pytest.mark.parametrize("steps", [0, 1])
def test_an_exchange_may_be_refused_at_any_step(asking: World, steps: int) -> None:
    c = begin(asking)
    for _ in range(steps):
        asking.answer(asking.question(), Reason.CONTINUE_AUTHENTICATION)
        assert sole(c, Auth).reason == Reason.CONTINUE_AUTHENTICATION
        c.send(Auth(Reason.CONTINUE_AUTHENTICATION, METHOD))
    asking.answer(asking.question(), Reason.NOT_AUTHORIZED)
    refused(c, Reason.NOT_AUTHORIZED)


@clause(v5="3.1.2-30 3.14.0-1")
@pytest.mark.parametrize("packet", [b"\xc0\x00", publish_frame("t"), frame(0x82, b"\0\1\0" + utf8("t") + b"\0")])
def test_only_auth_may_come_during_the_exchange(asking: World, packet: bytes) -> None:
    c = begin(asking)
    asking.answer(asking.question(), Reason.CONTINUE_AUTHENTICATION)
    assert sole(c, Auth).reason == Reason.CONTINUE_AUTHENTICATION
    c.send(packet)
    refused(c, Reason.PROTOCOL_ERROR)


@clause(v5="3.1.2-30 3.14.0-1")
def test_a_client_may_give_the_exchange_up(asking: World) -> None:
    c = begin(asking)
    asking.answer(asking.question(), Reason.CONTINUE_AUTHENTICATION)
    assert sole(c, Auth).reason == Reason.CONTINUE_AUTHENTICATION
    c.send(b"\xe0\x00")
    assert c.closed
    assert c.receive() == []


@clause(v5="4.12.0-3 4.12.0-5 3.14.0-1")
@pytest.mark.parametrize(
    "auth",
    [
        Auth(Reason.CONTINUE_AUTHENTICATION, {AUTHENTICATION_METHOD: "other"}),
        Auth(Reason.RE_AUTHENTICATE, METHOD),
        Auth(Reason.SUCCESS, METHOD),
    ],
)
def test_a_wrong_step_of_the_exchange_is_refused(asking: World, auth: Auth) -> None:
    c = begin(asking)
    asking.answer(asking.question(), Reason.CONTINUE_AUTHENTICATION)
    assert sole(c, Auth).reason == Reason.CONTINUE_AUTHENTICATION
    c.send(auth)
    refused(c, Reason.PROTOCOL_ERROR, Reason.BAD_AUTHENTICATION_METHOD)


@clause(v5="4.12.0-7 4.12.0-6")
@pytest.mark.parametrize("reason", [Reason.CONTINUE_AUTHENTICATION, Reason.RE_AUTHENTICATE])
def test_auth_from_a_client_without_a_method_is_a_protocol_error(w: World, reason: Reason) -> None:
    c = w.connect(client_id="a")
    c.send(Auth(reason, METHOD))
    ended(c, Reason.PROTOCOL_ERROR)


@clause(v5="4.12.1-1 4.12.0-5 3.15.2-1")
def test_re_authentication_goes_on_beside_everything_else(asking: World) -> None:
    c = authenticated(asking)
    c.send(Auth(Reason.RE_AUTHENTICATE, {**METHOD, AUTHENTICATION_DATA: b"again"}))
    question = asking.question()
    assert (question.method, question.data) == ("SCRAM", b"again")
    asking.answer(question, Reason.CONTINUE_AUTHENTICATION, data=b"prove it")
    assert sole(c, Auth) == Auth(Reason.CONTINUE_AUTHENTICATION, {**METHOD, AUTHENTICATION_DATA: b"prove it"})
    c.send(Pingreq())
    assert sole(c, Pingresp) == Pingresp()
    c.send(Auth(Reason.CONTINUE_AUTHENTICATION, {**METHOD, AUTHENTICATION_DATA: b"proof"}))
    asking.answer(asking.question(), Reason.SUCCESS)
    assert sole(c, Auth) == Auth(Reason.SUCCESS, METHOD)


@clause(v5="4.12.1-1")
def test_re_authentication_by_another_method_is_refused(asking: World) -> None:
    c = authenticated(asking)
    c.send(Auth(Reason.RE_AUTHENTICATE, {AUTHENTICATION_METHOD: "other"}))
    ended(c, Reason.PROTOCOL_ERROR, Reason.BAD_AUTHENTICATION_METHOD)


@clause(v5="4.12.1-2 3.14.2-1")
def test_a_failed_re_authentication_ends_the_connection(asking: World) -> None:
    c = authenticated(asking)
    c.send(Auth(Reason.RE_AUTHENTICATE, METHOD))
    asking.answer(asking.question(), Reason.NOT_AUTHORIZED)
    ended(c, Reason.NOT_AUTHORIZED)


@clause(v5="3.15.1-1 2.1.3-1")
@pytest.mark.parametrize("first", [0xF1, 0xF2, 0xF8])
def test_auth_with_flags_is_malformed(asking: World, first: int) -> None:
    c = authenticated(asking)
    c.send(frame(first, b"\x19\x08\x15" + utf8("SCRAM")))
    ended(c, Reason.MALFORMED_PACKET)
