"""The relay of a NATS bridge by its bytes, and its small parts beside dumb twins."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starlingmq.bridges.bridge_relay import BridgeCounts
from starlingmq.bridges.nats_relay import (
    BEGIN_SECONDS,
    ENDED,
    EVENTS,
    JOINING,
    LOGGING_IN,
    NATS_TABLE,
    PHASES,
    RUNNING,
    SECURING,
    NatsLeg,
    NatsRelay,
)
from starlingmq.bridges.passed_requests import ANSWERED_MAX, ANSWERED_SECONDS, OPEN_MAX, OPEN_SECONDS, PassedRequests
from starlingmq.bridges.site_mark import headed, sites_in
from starlingmq.bridges.subject_maps import SubjectMap, subjects_of
from starlingmq.config.bridges_section import BridgeTopic
from starlingmq.wire.nats import NatsError
from starlingmq.wire.nats_server_frames import ERR, INFO, LINE_MAX, MSG, OK, PING, PONG, ServerFrames

TOPICS = (BridgeTopic(filter="a/#", direction="both"), BridgeTopic(filter="$share/g/q", direction="both"))


class Talk:
    """A relay between two servers that the test speaks for."""

    def __init__(self, *topics: BridgeTopic, secure: bool = False) -> None:
        self.now = 0.0
        chosen = topics or TOPICS
        self.relay = NatsRelay(
            NatsLeg(SubjectMap(chosen, outwards=False), b"_INBOX.t.", "server"),
            NatsLeg(SubjectMap(chosen, outwards=True), b"_INBOX.t.", "here"),
            lambda info: {"user": "me"},
            lambda subject: subject == b"a.only",
            secure,
            60.0,
            BridgeCounts(),
            self.now,
        )

    def far(self, data: bytes) -> bytes:
        """The bytes that the far server gets when it has said ``data``."""
        self.relay.received(self.relay.far, data, self.now)
        return self.relay.take(self.relay.far)

    def near(self, data: bytes) -> bytes:
        self.relay.received(self.relay.near, data, self.now)
        return self.relay.take(self.relay.near)

    def begin(self, **info: object) -> Talk:
        info = {"server_id": "NX", "headers": True, "max_payload": 100, **info}
        self.far(b"INFO %b\r\n" % json.dumps(info).encode())
        self.far(b"PONG\r\n")
        self.near(b'INFO {"max_payload": 100}\r\n')
        self.far(b"PONG\r\n")
        self.near(b"PONG\r\n")
        assert self.relay.phase == RUNNING
        return self

    def to_far(self, data: bytes) -> bytes:
        self.near(data)
        return self.relay.take(self.relay.far)

    def to_near(self, data: bytes) -> bytes:
        self.far(data)
        return self.relay.take(self.relay.near)


def test_the_table_has_every_phase_and_event() -> None:
    assert set(NATS_TABLE) == {(phase, event) for phase in range(len(PHASES)) for event in range(len(EVENTS))}


def test_the_messages_of_the_beginning() -> None:
    talk = Talk()
    hello = talk.far(b'INFO {"headers": true, "server_id": "NX", "connect_urls": ["other:4222"]}\r\n')
    connect, ping = hello.removesuffix(b"\r\n").split(b"\r\n")
    assert ping == b"PING" and talk.relay.phase == LOGGING_IN and talk.relay.urls == ["other:4222"]
    options = json.loads(connect.removeprefix(b"CONNECT "))
    assert (
        options["user"] == "me" and options["echo"] is False and options["headers"] is options["no_responders"] is True
    )
    assert talk.far(b"PONG\r\n") == b"" and talk.relay.phase == JOINING and talk.relay.joins()
    near = talk.near(b"INFO {}\r\n")
    wanted = b"SUB a  0\r\nSUB a.>  1\r\nSUB q g 2\r\nPING\r\n"
    assert near.split(b"\r\n", 1)[1] == b"SUB _INBOX.t.* r\r\n" + wanted
    assert talk.relay.take(talk.relay.far) == wanted
    talk.near(b"PONG\r\n")
    assert talk.relay.phase == JOINING
    talk.far(b"PONG\r\n")
    assert talk.relay.phase == RUNNING


@pytest.mark.parametrize(
    ("secure", "info", "phase"),
    [
        (True, {"headers": True, "tls_required": True}, SECURING),
        (True, {"headers": True, "tls_available": True}, SECURING),
        (True, {"headers": True}, ENDED),
        (False, {"headers": True, "tls_required": True}, SECURING),
        (False, {"headers": True, "tls_available": True}, LOGGING_IN),
        (False, {}, ENDED),
        (False, {"headers": True, "ldm": True}, ENDED),
    ],
)
def test_info_decides_how_it_goes_on(secure: bool, info: dict[str, object], phase: int) -> None:
    talk = Talk(secure=secure)
    said = talk.far(b"INFO %b\r\n" % json.dumps(info).encode())
    assert talk.relay.phase == phase and (phase != ENDED or talk.relay.problem)
    if phase == SECURING:
        assert said == b"", "a login in plain text"
        talk.relay.secured(0.0)
        assert talk.relay.take(talk.relay.far).startswith(b"CONNECT ")


@pytest.mark.parametrize(
    "data", [b"PONG\r\n", b"MSG a 0 1\r\nx\r\n", b"NONSENSE\r\n", b"INFO {\r\n", b"-ERR 'Authorization Violation'\r\n"]
)
def test_what_must_not_come_first_ends_it(data: bytes) -> None:
    talk = Talk()
    talk.far(data)
    assert talk.relay.ended() and talk.relay.problem


def test_a_missing_permission_is_a_complaint_and_every_other_error_the_end() -> None:
    talk = Talk().begin()
    for _ in range(3):
        talk.far(b"-ERR 'Permissions Violation for Subscription to \"a.>\"'\r\n")
    assert talk.relay.complaints == ['the other server: Permissions Violation for Subscription to "a.>"']
    assert talk.relay.phase == RUNNING and talk.relay.counts.refused == 3
    talk.far(b"-ERR 'User Authentication Expired'\r\n")
    assert talk.relay.problem == "the other server: User Authentication Expired"


def test_a_silent_server_is_left() -> None:
    talk = Talk().begin()
    for _ in range(2):
        talk.now = talk.relay.wake_at()
        talk.relay.tick(talk.now)
        assert talk.relay.take(talk.relay.far) == b"PING\r\n"
    talk.far(b"PONG\r\n")
    for _ in range(3):
        assert not talk.relay.ended()
        talk.now = talk.relay.wake_at()
        talk.relay.tick(talk.now)
    assert talk.relay.problem == "the other server does not answer PING"
    late = Talk()
    late.relay.tick(BEGIN_SECONDS)
    assert late.relay.ended()


def test_each_server_gets_its_pong() -> None:
    talk = Talk().begin()
    assert talk.far(b"PING\r\n") == b"PONG\r\n" == talk.near(b"PING\r\n")


def test_a_message_is_marked_and_does_not_return() -> None:
    talk = Talk().begin()
    block = b"NATS/1.0\r\nK: v\r\nstarlingmq-sites: here\r\n\r\n"
    out = talk.to_far(b"HMSG a.b 1 18 20\r\nNATS/1.0\r\nK: v\r\n\r\nhi\r\n")
    assert out == b"HPUB a.b  %d %d\r\n%bhi\r\n" % (len(block), len(block) + 2, block)
    assert talk.to_near(b"HMSG a.b 1 %d %d\r\n%bhi\r\n" % (len(block), len(block) + 2, block)) == b""
    server = block.replace(b"here", b"NX")
    assert talk.to_far(b"HMSG a.b 1 %d %d\r\n%bhi\r\n" % (len(server), len(server) + 2, server)) == b""
    assert talk.relay.counts.kept_out == 2 and talk.relay.counts.messages_out == 1


def test_a_message_that_the_other_server_does_not_accept_is_kept_out() -> None:
    talk = Talk().begin()
    assert talk.to_far(b"MSG a 0 100\r\n%b\r\n" % bytes(100)) == b""  # with the mark it is larger
    assert talk.to_far(b"MSG a 0 50\r\n%b\r\n" % bytes(50)).startswith(b"HPUB a ")
    assert talk.relay.counts.kept_out == 1


def test_a_reply_subject_is_never_subscribed_to_under_its_own_name() -> None:
    talk = Talk().begin()
    out = talk.to_near(b"MSG a.b 1 secret.plan 0\r\n\r\n")
    assert b"secret.plan" not in out and out.startswith(b"HPUB a.b _INBOX.t.1 ")
    assert talk.to_far(b"MSG _INBOX.t.1 r 3\r\nyes\r\n") == b"PUB secret.plan  3\r\nyes\r\n"
    assert talk.to_far(b"MSG _INBOX.t.2 r 3\r\nyes\r\n") == b""


def test_a_request_outwards_has_a_subscription_that_ends() -> None:
    talk = Talk().begin()
    out = talk.to_far(b"MSG a.b 1 _INBOX.c.1 0\r\n\r\n")
    assert out.startswith(b"SUB _INBOX.t.1 r1\r\nHPUB a.b _INBOX.t.1 ")
    assert talk.to_near(b"MSG _INBOX.t.1 r1 2\r\nok\r\n") == b"PUB _INBOX.c.1  2\r\nok\r\n"
    talk.now = ANSWERED_SECONDS
    talk.relay.tick(talk.now)
    assert talk.relay.take(talk.relay.far) == b"UNSUB r1\r\n"


STATUS = b"HMSG _INBOX.t.1 r1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"


@pytest.mark.parametrize(("subject", "passes"), [(b"a.only 1", True), (b"a.other 1", False), (b"q 2", True)])
def test_no_responders_passes_if_no_other_service_can_answer(subject: bytes, passes: bool) -> None:
    talk = Talk().begin()
    talk.to_far(b"MSG %b _INBOX.c.1 0\r\n\r\n" % subject)
    back = talk.to_near(STATUS)
    assert back == (b"HPUB _INBOX.c.1  16 16\r\nNATS/1.0 503\r\n\r\n\r\n" if passes else b"")


@pytest.mark.parametrize(("subject", "passes"), [(b"a.only 1", False), (b"q 2", True)])
def test_no_responders_of_this_broker_passes_for_a_queue_group_only(subject: bytes, passes: bool) -> None:
    talk = Talk().begin()
    talk.to_near(b"MSG %b _INBOX.c.1 0\r\n\r\n" % subject)
    assert (talk.to_far(STATUS.replace(b" r1 ", b" r ")) != b"") is passes


def test_messages_of_a_pull_consumer_keep_their_request_open_and_their_acknowledgement() -> None:
    talk = Talk(BridgeTopic(filter="$JS/API/#")).begin()
    assert [subject for subject, _, _ in talk.relay.near.subjects.wanted][2:] == [
        b"$JS.ACK", b"$JS.ACK.>", b"$JS.FC", b"$JS.FC.>"
    ]  # fmt: skip
    talk.to_far(b"MSG $JS.API.CONSUMER.MSG.NEXT.S.C 1 _INBOX.c.1 0\r\n\r\n")
    for number in range(ANSWERED_MAX + 2):
        talk.now += ANSWERED_SECONDS
        talk.relay.tick(talk.now)
        out = talk.to_near(b"MSG orders.1 r1 $JS.ACK.S.C.%d 2\r\nhi\r\n" % number)
        block = b"NATS/1.0\r\nNats-Subject: orders.1\r\n\r\n"
        assert out == b"HPUB _INBOX.c.1 $JS.ACK.S.C.%d %d %d\r\n%bhi\r\n" % (number, len(block), len(block) + 2, block)
    assert talk.to_far(b"MSG $JS.ACK.S.C.1 3 4\r\n+ACK\r\n").startswith(b"HPUB $JS.ACK.S.C.1 ")


# PassedRequests


def test_requests_are_bounded_in_number_and_time() -> None:
    replies = PassedRequests(b"_INBOX.t.", b"")
    numbers = [replies.ask(b"c", False, 0.0) for _ in range(OPEN_MAX + 5)]
    assert replies.ended == numbers[:5] and replies.find(numbers[0]) is None
    replies.ended.clear()
    replies.replied(numbers[9], False, 0.0)
    replies.tick(ANSWERED_SECONDS)
    assert replies.ended == [numbers[9]]
    replies.tick(OPEN_SECONDS)
    assert len(replies.ended) == OPEN_MAX and replies.due_at() == float("inf")


# Subjects


@pytest.mark.parametrize(
    ("filter", "subjects"),
    [
        (b"a/b", [b"a.b"]),
        (b"a/+/b", [b"a.*.b"]),
        (b"a/#", [b"a", b"a.>"]),
        (b"#", [b">"]),
        (b"+/#", [b"*", b"*.>"]),
        (b"a.b/c d", [b"a/b.c\xe2\x90\xa0d"]),
    ],
)
def test_the_subjects_of_a_filter(filter: bytes, subjects: list[bytes]) -> None:
    assert subjects_of(filter) == subjects


def test_prefixes_and_renames_are_those_of_topics() -> None:
    topics = [
        BridgeTopic(filter="t/#", local_prefix="here/", remote_prefix="there/", direction="both"),
        BridgeTopic(filter="n/+/x", rename="m/{1}"),
        BridgeTopic(filter="$share/g/w/+", direction="in", local_prefix="from/"),
    ]
    out, back = SubjectMap(topics, outwards=True), SubjectMap(topics, outwards=False)
    assert out.find(b"here.t.a") == (0, b"there.t.a") and back.find(b"there.t.a") == (0, b"here.t.a")
    assert out.find(b"n.one.x") == (1, b"m.one") and back.find(b"m.one") == (-1, b"")
    assert back.find(b"w.1") == (1, b"from.w.1") and back.groups == [b"", b"g"]
    assert out.find(b"$SYS.x") == (-1, b"") and SubjectMap([BridgeTopic(filter="#")], True).find(b"$x") == (-1, b"")


# Headers


@given(st.lists(st.text("abc", min_size=1), max_size=5), st.booleans(), st.text("xyz:- ", max_size=9))
def test_a_block_of_headers_keeps_its_lines_and_gains_a_site(sites: list[str], status: bool, value: str) -> None:
    block = b"NATS/1.0%b\r\nK: %b\r\n\r\n" % (b" 100 Idle" if status else b"", value.encode())
    marked = block
    for site in sites:
        marked = headed(marked, site)
    assert sites_in(marked) == sites and sites_in(block) == []
    rest = [line for line in marked.split(b"\r\n") if not line.startswith(b"starlingmq-sites:")]
    assert b"\r\n".join(rest) == block
    assert headed(b"", "s") == b"NATS/1.0\r\nstarlingmq-sites: s\r\n\r\n"


# The reader

CASES = [
    (b'INFO {"a": 1}\r\n', (INFO, b"", b"", b"", b"", b'{"a": 1}')),
    (b"info  {}\n", (INFO, b"", b"", b"", b"", b"{}")),
    (b"PING\r\n", (PING, b"", b"", b"", b"", b"")),
    (b"pong\r\n", (PONG, b"", b"", b"", b"", b"")),
    (b"+OK\r\n", (OK, b"", b"", b"", b"", b"")),
    (b"-ERR 'No'\r\n", (ERR, b"", b"", b"", b"", b"No")),
    (b"MSG a 1 0\r\n\r\n", (MSG, b"a", b"1", b"", b"", b"")),
    (b"MSG a.b 12 r.s 4\r\n\r\n\r\n\r\n", (MSG, b"a.b", b"12", b"r.s", b"", b"\r\n\r\n")),
    (b"HMSG a 1 12 14\r\nNATS/1.0\r\n\r\nhi\r\n", (MSG, b"a", b"1", b"", b"NATS/1.0\r\n\r\n", b"hi")),
    (b"HMSG a 1 r 16 16\r\nNATS/1.0 503\r\n\r\n\r\n", (MSG, b"a", b"1", b"r", b"NATS/1.0 503\r\n\r\n", b"")),
]


def read(frames: ServerFrames, *pieces: bytes) -> list[tuple[object, ...]]:
    return [
        (each.kind, each.subject, each.sid, each.reply, each.headers, each.payload)
        for piece in pieces
        for each in frames.read(piece)
    ]


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 5, 8, 13])
def test_frames_come_in_any_pieces(cut: int) -> None:
    data = b"".join(data for data, _ in CASES)
    size = cut or len(data)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert read(ServerFrames(), *pieces) == [wanted for _, wanted in CASES]


@pytest.mark.parametrize(
    "data",
    [b"MSG a 1\r\n", b"MSG a 1 2 3 4\r\n", b"MSG a 1 x\r\n", b"HMSG a 1 5 4\r\n", b"HMSG a 1 0 4\r\n", b"PUB a 1\r\n",
     b"MSG a 1 99999999\r\n", b"x" * LINE_MAX],
)  # fmt: skip
def test_what_no_server_sends_is_an_error(data: bytes) -> None:
    with pytest.raises(NatsError):
        ServerFrames().read(data)
