"""NATS clients on the core, by themselves and together with MQTT clients."""

from __future__ import annotations

import pytest
from tests.harness import World
from tests.nats.talk import LISTENER, Msg, NatsPeer, connect

from starlingmq.config.nats_section import NatsConfig
from starlingmq.core.messages.message import Message
from starlingmq.core.nats.server_info import PROTOCOL_VERSION
from starlingmq.wire.reasons import Reason

# Getting in


def test_the_server_speaks_first() -> None:
    peer = NatsPeer(World())
    info = peer.info
    assert info["headers"] is True
    assert info["proto"] == 1
    assert info["max_payload"] == 1024 * 1024
    assert info["host"] == "127.0.0.1"
    assert info["port"] == 4222
    assert info["client_id"] == 1
    assert len(info["server_id"]) == 56 and info["server_id"].startswith("N")
    assert "auth_required" not in info
    assert "tls_required" not in info
    assert NatsPeer(World(), "tls://127.0.0.1:4222").info["tls_required"] is True


def test_info_lists_the_urls_to_reconnect_to() -> None:
    world = World()
    world.state.nats.configure(NatsConfig(connect_urls=("a:4222", "b:4222"), max_payload=7))
    info = NatsPeer(world).info
    assert info["connect_urls"] == ["a:4222", "b:4222"]
    assert info["max_payload"] == 7


def test_verbose_or_not() -> None:
    world = World()
    peer = NatsPeer(world)
    assert peer.said("CONNECT {}") == ["+OK"], "verbose unless it says otherwise, as at a NATS server"
    assert peer.said("SUB a 1", "PUB a 1", "x", "UNSUB 1", "PING") == ["+OK", "+OK", Msg("a", "1", b"x"), "+OK", "PONG"]
    assert peer.said('CONNECT {"verbose":false}', "SUB a 1", "UNSUB 1", "PING") == ["PONG"]
    assert peer.said("CONNECT {}", "PING") == ["PONG"], "what a later CONNECT leaves out stays"


def test_info_has_the_fields_that_client_libraries_look_for() -> None:
    world = World()
    info = NatsPeer(world).info
    assert info["version"] == PROTOCOL_VERSION and info["starlingmq"] == world.state.nats.info.version
    assert info["go"] and info["git_commit"] and info["proto"] == 1
    assert "cluster" not in info and "tls_verify" not in info
    world.state.nats.info.cluster = "starling"
    world.state.nats.info.verifying = frozenset([LISTENER])
    info = NatsPeer(world).info
    assert info["cluster"] == "starling" and info["tls_verify"] is True


def test_a_number_below_one_ends_a_subscription_at_once() -> None:
    peer = connect(World())
    assert peer.said("SUB a 1", "UNSUB 1 -1", "PUB a 1", "x", "PING") == ["PONG"]


@pytest.mark.parametrize(
    "block",
    [
        b"NATS/1.0 100 Idle\r\n\r\n",
        b"NATS/1.0   503  No Responders \r\nA:b\r\n\r\n",
        b"NATS/1.0\r\nA:b\r\nB:   c  \r\nA: d\r\n\r\n",
        b"NATS/1.0\r\n\r\n",
    ],
)
def test_header_bytes_are_unchanged_between_nats_clients(block: bytes) -> None:
    peer = connect(World())
    peer.send("SUB a 1")
    peer.send(b"HPUB a %d %d" % (len(block), len(block) + 2), block + b"hi")
    data = peer.fake.output
    assert data.endswith(b"HMSG a 1 %d %d\r\n%bhi\r\n" % (len(block), len(block) + 2, block))


def test_a_client_may_leave_connect_out_and_is_answered_each_time() -> None:
    peer = NatsPeer(World())
    assert peer.said("PING") == ["PONG"]
    assert peer.said("SUB a 1", "PUB a 2", "hi") == ["+OK", "+OK", Msg("a", "1", b"hi")]


def test_anonymous_clients_where_they_are_not_allowed() -> None:
    world = World(allow_anonymous=False)
    peer = NatsPeer(world)
    assert peer.info["auth_required"] is True
    assert peer.said("CONNECT {}", "PING") == ["-ERR 'Authorization Violation'"]
    assert peer.closed
    peer = NatsPeer(world)
    assert peer.said("PUB a 1", "x") == ["-ERR 'Authorization Violation'"]
    assert peer.closed
    peer = NatsPeer(world)
    peer.send_raw(b"PUB a 100000\r\nx")  # not waited for
    assert peer.heard() == ["-ERR 'Authorization Violation'"]


def test_an_unfinished_connect_is_bounded_by_connect_size_too() -> None:
    world = World(connect_size=300, allow_anonymous=False)
    peer = NatsPeer(world)
    peer.send_raw(b"CONNECT {" + b"x" * 290)
    assert not peer.closed
    peer.send_raw(b"x" * 10)
    assert peer.heard() == ["-ERR 'Maximum Control Line Exceeded'"]
    assert peer.closed


@pytest.mark.parametrize(
    ("options", "username", "password"),
    [
        ('{"user":"u","pass":"p"}', "u", b"p"),
        ('{"auth_token":"secret"}', None, b"secret"),
        ('{"user":7}', None, None),
    ],
)
def test_the_hook_that_mqtt_clients_are_asked_by(options: str, username: str | None, password: bytes | None) -> None:
    world = World(ask_authenticate=True)
    peer = NatsPeer(world)
    peer.send(f"CONNECT {options}", "PING")
    question = world.question()
    assert question.connect is not None
    assert (question.connect.username, question.connect.password) == (username, password)
    assert peer.heard() == []
    world.answer(question, 0)
    assert peer.heard() == ["+OK", "PONG"]
    other = NatsPeer(world)
    other.send(f"CONNECT {options}", "PING")
    world.answer(world.question(), Reason.BAD_USER_NAME_OR_PASSWORD)
    assert other.heard() == ["-ERR 'Authorization Violation'"]
    assert other.closed
    assert not peer.closed


def test_connections_past_the_limit_are_told_so() -> None:
    world = World(max_connections=1)
    connect(world)
    peer = NatsPeer(world)
    assert peer.closed
    assert "Maximum Connections Exceeded" in peer.fake.output.decode()


def test_a_silent_connection_is_closed() -> None:
    world = World(connect_timeout=5.0)
    peer = NatsPeer(world)
    world.advance(6.0)
    assert peer.heard() == ["-ERR 'Authentication Timeout'"]
    assert peer.closed


# Subscribing and publishing


def test_every_sid_gets_its_copy() -> None:
    world = World()
    one, other = connect(world), connect(world)
    one.send("SUB a.b 1", "SUB a.b 2", "SUB a.* 3", "SUB a.> 4", "SUB > 5", "SUB a 6", "SUB *.b 7", "SUB b.> 8")
    other.pub("a.b", b"hi")
    assert sorted(one.heard()) == [Msg("a.b", sid, b"hi") for sid in "123457"]
    other.pub("a", b"!")
    assert sorted(one.heard()) == [Msg("a", sid, b"!") for sid in "56"]
    one.send("UNSUB 1", "UNSUB 4", "UNSUB 5", "UNSUB 7", "UNSUB 77")
    other.pub("a.b", b"hi")
    assert sorted(one.heard()) == [Msg("a.b", sid, b"hi") for sid in "23"]
    one.fake.drop()
    other.pub("a.b", b"hi")
    assert len(world.state.router.tree) == 0


def test_a_sid_that_is_taken_keeps_its_subject() -> None:
    world = World()
    peer = connect(world)
    peer.send("SUB a 1", "SUB b 1")
    peer.pub("a", b"")
    peer.pub("b", b"")
    assert peer.heard() == [Msg("a", "1", b"")]


def test_unsub_after_so_many() -> None:
    world = World()
    peer = connect(world)
    peer.send("SUB a 1", "UNSUB 1 2", "SUB b 2", "PUB b 0", "", "UNSUB 2 1", "SUB c 3", "PUB c 0", "")
    assert peer.heard() == [Msg("b", "2", b""), Msg("c", "3", b"")]
    for _ in range(3):
        peer.pub("a", b"x")
        peer.pub("b", b"x")
    assert peer.heard() == [Msg("a", "1", b"x")] * 2
    assert len(world.state.router.tree) == 1


def test_echo() -> None:
    world = World()
    quiet, other = connect(world, echo=False), connect(world)
    for peer in (quiet, other):
        peer.send("SUB a 1", "SUB q work 2")
    quiet.pub("a", b"x")
    assert quiet.heard() == []
    assert other.heard() == [Msg("a", "1", b"x")]
    other.pub("a", b"y")
    assert quiet.heard() == [Msg("a", "1", b"y")]


def test_each_message_of_a_queue_goes_to_one_sid() -> None:
    world = World()
    one, two, publisher = connect(world), connect(world), connect(world)
    one.send("SUB jobs.* workers 1", "SUB jobs.* workers 2", "SUB jobs.* others 3")
    two.send("SUB jobs.* workers 1", "SUB jobs.> 9")
    for number in range(300):
        publisher.pub("jobs.x", b"%d" % number)
    by_member: dict[str, list[bytes]] = {}
    for peer, name in ((one, "one"), (two, "two")):
        for message in peer.heard():
            assert isinstance(message, Msg)
            by_member.setdefault(name + message.sid, []).append(message.payload)
    workers = by_member["one1"] + by_member["one2"] + by_member["two1"]
    assert sorted(workers, key=int) == [b"%d" % number for number in range(300)]
    assert len(by_member["one3"]) == len(by_member["two9"]) == 300
    assert all(60 < len(by_member[name]) < 140 for name in ("one1", "one2", "two1"))
    one.send("UNSUB 1")
    two.fake.drop()
    publisher.pub("jobs.x", b"x")
    assert sorted(one.heard()) == [Msg("jobs.x", "2", b"x"), Msg("jobs.x", "3", b"x")]


def test_replies_and_nobody_to_give_them() -> None:
    world = World()
    asking, answering = connect(world), connect(world)
    asking.send("SUB _INBOX.a.* 1")
    asking.pub("help", b"?", "_INBOX.a.1")
    assert asking.heard() == [Msg("_INBOX.a.1", "1", b"", headers=" 503")]
    answering.send("SUB help 1")
    asking.pub("help", b"?", "_INBOX.a.2")
    assert answering.heard() == [Msg("help", "1", b"?", "_INBOX.a.2")]
    answering.pub("_INBOX.a.2", b"!")
    assert asking.heard() == [Msg("_INBOX.a.2", "1", b"!")]
    plain = connect(world, no_responders=False)
    plain.send("SUB _INBOX.b 1")
    plain.pub("nobody", b"", "_INBOX.b")
    assert plain.heard() == []


def test_a_reply_subject_with_too_many_tokens_harms_nobody() -> None:
    """Nothing is published there, so no client can be told that there is no answer."""
    world = World()
    peer = connect(world)
    deep = ".".join("a" * 300)
    peer.pub("nobody", reply=deep)
    peer.pub("$SYS.REQ.USER.INFO", reply=deep)
    assert peer.said("PING") == ["PONG"]


def test_no_responders_needs_headers() -> None:
    peer = NatsPeer(World())
    assert peer.said('CONNECT {"no_responders":true}') == ["-ERR 'no responders requires headers support'"]
    assert peer.closed


def test_headers() -> None:
    world = World()
    one, old = connect(world), connect(world, headers=False, no_responders=False)
    for peer in (one, old):
        peer.send("SUB a 1")
    one.hpub("a", "A: b\r\nA: c", b"hi", "r")
    assert one.heard() == [Msg("a", "1", b"hi", "r", "A: b\r\nA: c")]
    assert old.heard() == [Msg("a", "1", b"hi", "r")]
    one.send("HPUB a 4 6", b"junkhi")
    assert one.heard() == ["-ERR 'Permissions Violation for Publish to \"a\": Invalid Message Headers'"]
    assert world.dropped == {"bad_headers": 1}
    assert not one.closed
    old.send("HPUB a 12 12", b"NATS/1.0\r\n\r\n")
    assert old.heard() == ["-ERR 'message headers not supported'"]
    assert old.closed


@pytest.mark.parametrize(
    "subject", ["a..b", "a.*", "a.>", ".", "foo*bar", "a\0b", "a\vb", "a.\ud7ff\u2420".encode()[:-1]]
)
def test_publishing_to_invalid_subjects_is_refused(subject: str | bytes) -> None:
    world = World()
    peer, pedant = connect(world), connect(world, pedantic=True)
    words = subject if isinstance(subject, bytes) else subject.encode()
    peer.send(b"PUB " + words + b" 1", "x", "PING")
    shown = words.decode(errors="replace")
    assert peer.heard() == [f"-ERR 'Permissions Violation for Publish to \"{shown}\": Invalid Publish Subject'", "PONG"]
    assert world.dropped == {"no_topic": 1}
    pedant.send(b"PUB " + words + b" 1", "x", "PING")
    assert pedant.heard() == ["-ERR 'Invalid Publish Subject'", "PONG"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        *((words, "Invalid Subject") for words in (b"a..b 1", b"a.>.b 1", b"a* 1", b"\xff 1")),
        (b"$share.g.x 1", 'Permissions Violation for Subscription to "$share.g.x"'),
        *(
            (b"a " + queue + b" 1", f'Permissions Violation for Subscription to "a" using queue "{shown}"')
            for queue, shown in ((b"q/r", "q/r"), (b"q#", "q#"), (b"\xff", "\ufffd"), (b"\0", "\0"))
        ),
    ],
)
def test_subscribing_to_invalid_subjects_is_refused(words: bytes, text: str) -> None:
    world = World()
    peer = connect(world)
    assert peer.said(b"SUB " + words, "PING") == [f"-ERR '{text}'", "PONG"]
    assert len(world.state.router.tree) == 0


def test_limits_of_topics_hold_for_subjects() -> None:
    world = World(topic_levels=2, subscriptions_per_client=1)
    peer = connect(world)
    assert peer.said("SUB a.b.c 1") == ["-ERR 'Permissions Violation for Subscription to \"a.b.c\"'"]
    refused = "-ERR 'Permissions Violation for Publish to \"a.b.c\": Invalid Publish Subject'"
    assert peer.said("PUB a.b.c 1", "x") == [refused]
    assert peer.said("SUB a 1", "SUB b 2") == ["-ERR 'Maximum Subscriptions Exceeded'"]
    assert peer.said("PUB a 1", "x") == [Msg("a", "1", b"x")]


def test_the_topics_of_the_broker_are_its_own() -> None:
    world = World()
    peer = connect(world)
    assert peer.said("PUB $SYS.x 1", "x") == ["-ERR 'Permissions Violation for Publish to \"$SYS.x\"'"]
    assert not peer.closed


def test_the_hooks_that_mqtt_clients_are_asked_by_before_they_publish_and_subscribe() -> None:
    world = World(ask_publish=True, ask_subscribe=True)
    peer = connect(world)
    peer.send("SUB a.* 1", "PUB a.b r 1", "x", "PING")
    question = world.question()
    assert question.requests[0].filter == b"a/+"
    world.allow(question)
    question = world.question()
    assert question.message is not None and question.message.topic == b"a/b"
    assert peer.heard() == []
    world.allow(question)
    assert peer.heard() == [Msg("a.b", "1", b"x", "r"), "PONG"]
    peer.send("SUB b 2", "PUB b 1", "x", "PING")
    world.answer(world.question(), reasons=[Reason.NOT_AUTHORIZED])
    world.answer(world.question(), Reason.NOT_AUTHORIZED)
    assert peer.heard() == [
        "-ERR 'Permissions Violation for Subscription to \"b\"'",
        "-ERR 'Permissions Violation for Publish to \"b\"'",
        "PONG",
    ]
    peer.pub("a.b", b"x")
    changed = Message(b"a/c", b"y", 0, True, b"", 0.0, "", 0.0)
    world.answer(world.question(), message=changed)
    assert peer.heard() == [Msg("a.c", "1", b"y")]
    assert world.state.retained.get(b"a/c") is changed
