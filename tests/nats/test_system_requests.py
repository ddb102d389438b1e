"""Requests to $SYS.REQ.>: who may ask, how many, and who hears the answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.auth.test_acl import acl
from tests.harness import World
from tests.nats.talk import Msg, NatsPeer, connect

from starlingmq.core.context.ready import Ready, SystemRequest
from starlingmq.core.nats.system_requests import CLIENT_MAX, NODE_MAX

OPERATOR = "rules: [{allow: publish, topics: ['$SYS/REQ/#']}, {allow: all}]"
REFUSED = "-ERR 'Permissions Violation for Publish to \"%s\"'"


class Asked:
    """A broker whose requests are kept, to be answered by the test."""

    def __init__(self) -> None:
        self.world = World()
        self.requests: list[SystemRequest] = []
        carry_out = self.world.carry_out

        def keep(ready: Ready) -> None:
            self.requests += ready.requests
            carry_out(ready)

        self.world.carry_out = keep  # type: ignore[method-assign]

    def client(self, rules: str = OPERATOR, proved: bool = True, **options: Any) -> NatsPeer:
        peer = connect(self.world, **options)
        peer.client.rights = acl(rules).rights("", "ops", "")
        peer.client.rights.proved = proved
        return peer

    def answer(self, request: SystemRequest, *data: bytes) -> None:
        system, now = self.world.state.nats.system, self.world.now
        for each in data:
            system.answer(request, each, now)
        system.close(request, now)
        self.world.run()


@pytest.mark.parametrize(
    ("subject", "kind", "server"),
    [
        ("$SYS.REQ.SERVER.PING", "STATSZ", ""),
        ("$SYS.REQ.SERVER.PING.VARZ", "VARZ", ""),
        ("$SYS.REQ.SERVER.NABC.HEALTHZ", "HEALTHZ", "NABC"),
        ("$SYS.REQ.ACCOUNT.PING.STATZ", "STATZ", ""),
        ("$SYS.REQ.ACCOUNT.$G.CONNZ", "CONNZ", ""),
        ("$SYS.REQ.USER.INFO", "USER", ""),
    ],
)
def test_a_request_of_an_operator_is_answered_by_each_node(subject: str, kind: str, server: str) -> None:
    asked = Asked()
    peer = asked.client()
    peer.said("SUB _INBOX.> 9")
    peer.pub(subject, b'{"limit":1}', reply="_INBOX.1")
    assert peer.heard() == []
    (request,) = asked.requests
    assert (request.kind, request.server) == (kind, server)
    assert request.options == (b"" if kind == "USER" else b'{"limit":1}')
    asked.answer(request, b"one", b"two")
    assert peer.heard() == [Msg("_INBOX.1", "9", b"one"), Msg("_INBOX.1", "9", b"two")]
    assert asked.world.state.nats.system.open == 0


@pytest.mark.parametrize(
    "rules",
    [
        "rules: [{allow: all}]",
        "default: allow",
        "rules: [{allow: [publish, subscribe], topics: ['#', '$SYS/#', '+/REQ/#']}]",
        "rules: [{allow: publish, topics: ['$SYS/REQ/ACCOUNT/#']}, {allow: all}]",
        "rules: [{deny: publish, topics: ['$SYS/REQ/SERVER/#']}, {allow: publish, topics: ['$SYS/REQ/#']}]",
    ],
)
def test_rules_that_do_not_name_the_requests_allow_them_to_nobody(rules: str) -> None:
    asked = Asked()
    peer = asked.client(rules)
    peer.said("SUB _INBOX.> 9")
    for subject in ("$SYS.REQ.SERVER.PING", "$SYS.REQ.SERVER.PING.CONNZ", "$SYS.REQ.SERVER.NABC.VARZ"):
        peer.pub(subject, reply="_INBOX.1")
        assert peer.heard() == [REFUSED % subject]
    assert asked.requests == []


def test_a_client_that_has_proved_nothing_asks_about_itself_only() -> None:
    asked = Asked()
    peer, free = asked.client(proved=False), connect(asked.world)
    assert free.client.rights is None, "where there are no rules nobody is an operator"
    for each in (peer, free):
        each.said("SUB _INBOX.> 9")
        each.pub("$SYS.REQ.SERVER.PING", reply="_INBOX.1")
        assert each.heard() == [REFUSED % "$SYS.REQ.SERVER.PING"]
        each.pub("$SYS.REQ.USER.INFO", reply="_INBOX.1")
        assert each.heard() == []
    assert [request.client for request in asked.requests] == [peer.client, free.client]


def test_a_user_whom_rules_allow_nothing_may_ask_about_itself() -> None:
    asked = Asked()
    peer = asked.client("rules: [{allow: subscribe, topics: ['_INBOX/#']}]")
    peer.said("SUB _INBOX.> 9")
    peer.pub("$SYS.REQ.USER.INFO", reply="_INBOX.1")
    asked.answer(asked.requests[0], b"you")
    assert peer.heard() == [Msg("_INBOX.1", "9", b"you")]


def test_an_answer_goes_to_the_connection_that_asked_and_no_other() -> None:
    asked = Asked()
    peer, other = asked.client(), connect(asked.world)
    other.said("SUB > 1", "SUB cmd.stop 2")
    peer.said("SUB _INBOX.> 9")
    peer.pub("$SYS.REQ.SERVER.PING", reply="cmd.stop")
    asked.answer(asked.requests[0], b"secret")
    assert peer.heard() == [] and other.heard() == []


def test_a_subscription_for_one_answer_is_over_after_it() -> None:
    asked = Asked()
    peer = asked.client()
    peer.said("SUB _INBOX.1 9", "UNSUB 9 1")
    peer.pub("$SYS.REQ.SERVER.PING", reply="_INBOX.1")
    asked.answer(asked.requests[0], b"one", b"two")
    assert peer.heard() == [Msg("_INBOX.1", "9", b"one")]


def test_requests_that_do_not_exist_and_servers_that_are_not_there_have_no_responders() -> None:
    asked = Asked()
    peer = asked.client()
    peer.said("SUB _INBOX.> 9")
    nobody = [Msg("_INBOX.1", "9", b"", "", " 503")]
    for subject in ("$SYS.REQ.SERVER.PING.RAFTZ", "$SYS.REQ.X", "$SYS.REQ.ACCOUNT.OTHER.CONNZ", "$SYS.REQ.SERVER"):
        peer.pub(subject, reply="_INBOX.1")
        assert peer.heard() == nobody, subject
    peer.pub("$SYS.REQ.SERVER.NABC.VARZ", reply="_INBOX.1")
    asked.answer(asked.requests[0])
    assert peer.heard() == nobody


@pytest.mark.parametrize("no_responders", [True, False])
def test_requests_to_jetstream_are_answered_in_its_own_form_unless_a_client_answers_them(no_responders: bool) -> None:
    world = World()
    peer, other = connect(world, no_responders=no_responders), connect(world)
    peer.said("SUB _INBOX.> 9")
    kinds = {"INFO": "account_info", "STREAM.CREATE.orders": "stream_create", "X" * 99: "unknown", 'A."': "unknown"}
    for subject, kind in kinds.items():
        peer.pub(f"$JS.API.{subject}", reply="_INBOX.1")
        (answer,) = peer.heard()
        assert isinstance(answer, Msg)
        found = json.loads(answer.payload)
        assert found["type"] == f"io.nats.jetstream.api.v1.{kind}_response"
        assert (found["error"]["code"], found["error"]["err_code"]) == (503, 10076)
    for subject in ("CONSUMER.MSG.NEXT.orders.all", "DIRECT.GET.orders"):
        peer.pub(f"$JS.API.{subject}", reply="_INBOX.1")
        assert peer.heard() == [Msg("_INBOX.1", "9", b"", "", " 503")] * no_responders, "its answer is a message"
    other.said("SUB $JS.API.INFO 1")
    peer.pub("$JS.API.INFO", reply="_INBOX.1")
    assert peer.heard() == [] and other.heard() == [Msg("$JS.API.INFO", "1", b"", "_INBOX.1")]


def test_open_requests_are_bounded_for_a_client_and_for_all() -> None:
    asked = Asked()
    peer = asked.client()
    peer.said("SUB _INBOX.> 9")
    for _ in range(CLIENT_MAX + 3):
        peer.pub("$SYS.REQ.SERVER.PING", reply="_INBOX.1")
    assert len(asked.requests) == CLIENT_MAX
    busy = [json.loads(frame.payload)["error"]["code"] for frame in peer.heard() if isinstance(frame, Msg)]
    assert busy == [503] * 3
    others = [asked.client() for _ in range(NODE_MAX // CLIENT_MAX)]
    for other in others:
        for _ in range(CLIENT_MAX):
            other.pub("$SYS.REQ.SERVER.PING", reply="_INBOX.1")
    assert len(asked.requests) == NODE_MAX
    others[0].pub("$SYS.REQ.USER.INFO", reply="_INBOX.1")
    assert len(asked.requests) == NODE_MAX, "its own bound holds for that too"
    for request in list(asked.requests):
        asked.answer(request)
    peer.pub("$SYS.REQ.SERVER.PING", reply="_INBOX.1")
    assert len(asked.requests) == NODE_MAX + 1


def test_a_reply_subject_with_too_many_tokens_gets_nothing() -> None:
    asked = Asked()
    peer = asked.client()
    for subject in ("$SYS.REQ.SERVER.PING", "$SYS.REQ.NOSUCH"):
        peer.pub(subject, reply=".".join("a" * 300))
    asked.answer(asked.requests[0], b"answer")
    assert peer.said("PING") == ["PONG"]


def test_an_answer_for_a_client_that_is_gone_is_dropped_and_its_request_closed() -> None:
    asked = Asked()
    peer = asked.client()
    peer.pub("$SYS.REQ.SERVER.PING", reply="_INBOX.1")
    peer.fake.drop()
    asked.world.run()
    asked.answer(asked.requests[0], b"late")
    assert asked.world.state.nats.system.open == 0


def test_a_request_is_no_message() -> None:
    """It has no receivers, and without a reply it is refused like every message to a topic of the broker's own."""
    asked = Asked()
    peer, other = asked.client(verbose=True), connect(asked.world)
    other.said("SUB $SYS.> 1")
    peer.heard()
    peer.pub("$SYS.REQ.SERVER.PING", reply="_INBOX.1")
    assert peer.heard() == ["+OK"]
    peer.pub("$SYS.REQ.SERVER.PING")
    assert peer.heard() == [REFUSED % "$SYS.REQ.SERVER.PING"]
    assert not [frame for frame in other.heard() if isinstance(frame, Msg) and "REQ" in frame.subject]
