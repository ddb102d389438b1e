"""Bridges to NATS servers beside hostile servers and clients: no word of one of them ends a bridge for others."""

from __future__ import annotations

import json

import pytest
from tests.bridges.test_nats_relay import Talk

from starlingmq.bridges.nats_relay import CONTROL_LINE, ENDED, RUNNING, SAID_MAX
from starlingmq.bridges.passed_requests import PassedRequests
from starlingmq.wire.nats import NatsError
from starlingmq.wire.nats_server_frames import ServerFrames

LONG = b"a." + b"x" * CONTROL_LINE


def test_a_blank_in_a_subject_does_not_choose_the_subscription() -> None:
    """nats-server passes vertical tabs and form feeds, so any far client could name the inbox of a request."""
    for blank in (b"\x0b", b"\x0c"):
        (frame,) = ServerFrames().read(b"MSG a.x%br1 0 2\r\nhi\r\n" % blank)
        assert frame.sid == b"0" and frame.reply == b""
        (frame,) = ServerFrames().read(b"MSG a.x%bb%bc 0 2\r\nhi\r\n" % (blank, blank))
        assert frame.sid == b"0"
    with pytest.raises(NatsError):
        ServerFrames().read(b"MSG a 0 r extra 2\r\nhi\r\n")


@pytest.mark.parametrize("line", [b"MSG %b 1 2\r\nhi\r\n" % LONG, b"MSG a.x 1 %b 2\r\nhi\r\n" % LONG])
def test_a_line_longer_than_a_server_accepts_is_kept_out(line: bytes) -> None:
    talk = Talk().begin()
    assert talk.to_far(line) == b"" and talk.to_near(line) == b""
    assert talk.relay.counts.kept_out == 2 and talk.relay.phase == RUNNING


def test_a_reply_with_its_subject_as_header_fits_or_is_kept_out() -> None:
    talk = Talk().begin()
    assert b"_INBOX.t.1" in talk.to_far(b"MSG a.x 1 me 2\r\nhi\r\n")
    assert talk.to_near(b"MSG %b r1 60\r\n%b\r\n" % (b"o" * 30, b"p" * 60)) == b""
    assert talk.relay.counts.kept_out == 1


@pytest.mark.parametrize("reply", [b"$SYS.REQ.SERVER.PING", b"$JS.API.STREAM.DELETE.s", b"$JS.ACK.a\x0cb"])
def test_a_reply_subject_of_the_servers_is_left_out(reply: bytes) -> None:
    talk = Talk().begin()
    assert talk.to_far(b"MSG a.x 1 %b 2\r\nhi\r\n" % reply).startswith(b"HPUB a.x  ")
    assert talk.to_near(b"MSG a.x 1 %b 2\r\nhi\r\n" % reply).startswith(b"HPUB a.x  ")


def test_info_with_too_many_brackets_is_an_error_of_the_protocol() -> None:
    talk = Talk()
    talk.far(b'INFO {"a": %b\r\n' % (b"[" * 100_000))
    assert talk.relay.phase == ENDED and "INFO is not JSON" in talk.relay.problem


def test_what_an_error_says_is_shown_shortened_and_without_control_characters() -> None:
    talk = Talk().begin()
    talk.far(b"-ERR 'Permissions Violation \x1b[2J%b'\r\n" % (b"x" * 10_000))
    talk.far(b"-ERR '\x1b[2J%b'\r\n" % (b"x" * 10_000))
    for said in (*talk.relay.complaints, talk.relay.problem):
        assert "?[2J" in said and said.isprintable() and len(said) < SAID_MAX + 40


@pytest.mark.parametrize("site", ["s" * 65, "a b", "a\r\nX: y"])
def test_the_name_of_a_site_is_one_short_word(site: str) -> None:
    talk = Talk().begin(server_id=site, starlingmq_site=site)
    assert talk.relay.far.site == "server"
    assert talk.to_near(b"MSG a.x 1 2\r\nhi\r\n").count(b"\r\n") == 5


def test_urls_of_other_servers_are_short() -> None:
    talk = Talk().begin(connect_urls=["x" * 256, "b:4222"])
    assert talk.relay.urls == ["b:4222"]


def test_plain_text_behind_info_does_not_become_part_of_what_tls_protects() -> None:
    talk = Talk(secure=True)
    talk.far(b"INFO %b\r\nMSG a.x 1 9" % json.dumps({"headers": True, "tls_required": True}).encode())
    talk.relay.secured(0.0)
    assert talk.relay.phase == ENDED and "before TLS" in talk.relay.problem


def test_the_inbox_of_one_request_does_not_tell_that_of_another() -> None:
    requests = PassedRequests(b"_INBOX.t.", b"salt")
    first, second = requests.ask(b"a", False, 0.0), requests.ask(b"b", False, 0.0)
    assert first.startswith(b"1-") and second.startswith(b"2-") and first[1:] != second[1:] and len(first) == 18
    assert PassedRequests(b"_INBOX.t.", b"other").ask(b"a", False, 0.0) != first
    assert requests.find(b"2") is None and requests.find(second) is not None
