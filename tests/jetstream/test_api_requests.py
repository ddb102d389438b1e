"""The API by itself: its bounds, its pages, and requests for messages."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.jetstream.api_program import consumer, stream
from tests.jetstream.fake_hub import NOW, ApiAlone

from starlingmq.core.streams.message_index import MessageIndex
from starlingmq.jetstream import consumer_api, message_api, stream_api
from starlingmq.jetstream.message_api import last_up_to
from starlingmq.wire.nats_headers import properties_of

HEADERS = b"NATS/1.0\r\nA: b\r\n\r\n"
TIME = b"2027-01-15T08:00:00Z"  # NOW
PLACE = b"Nats-Stream: S\r\nNats-Subject: %b\r\nNats-Sequence: %d\r\nNats-Time-Stamp: " + TIME + b"\r\n"


def filled(count: int = 6, **config: Any) -> ApiAlone:
    """A stream S with messages s.0 and s.1 in turn."""
    api = ApiAlone()
    assert api.error(*stream("S", subjects=["s.>"], allow_direct=True, **config)) is None
    for number in range(count):
        api.hub.streams["S"].add(b"s/%d" % (number % 2), b"%d" % number)
    return api


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "NONSENSE",
        "STREAM",
        "STREAM.CREATE",
        "STREAM.CREATE.A.B",
        "STREAM.MSG.GET",
        "CONSUMER.DURABLE.CREATE.S",
        "CONSUMER.MSG.NEXT.S",
        "INFO.X",
    ],
)
def test_an_unknown_request_is_answered(subject: str) -> None:
    """nats-server says nothing."""
    assert ApiAlone().error(subject) == (400, 10003, "bad request")


@pytest.mark.parametrize(
    "subject",
    [
        "STREAM.LEADER.STEPDOWN.S",
        "STREAM.PEER.REMOVE.S",
        "STREAM.CANCEL_MOVE.S",
        "CONSUMER.LEADER.STEPDOWN.S.C",
        "META.LEADER.STEPDOWN",
        "SERVER.REMOVE",
        "ACCOUNT.PURGE.A",
        "ACCOUNT.STREAM.MOVE.A.S",
    ],
)
def test_requests_of_nats_servers_own_cluster_get_its_error(subject: str) -> None:
    assert filled().error(subject) == (503, 10010, "JetStream clustering support required")


def test_what_is_not_implemented_is_refused() -> None:
    api = filled()
    assert api.error("STREAM.SNAPSHOT.S", {"deliver_subject": "x"}) == (500, 10064, "snapshot failed: not supported")
    assert api.error("STREAM.RESTORE.S", {}) == (500, 10062, "restore failed: not supported")
    assert api.error("CONSUMER.RESET.S.C", {}) == (400, 10204, "invalid reset: not supported")


def test_a_higher_api_level_is_refused() -> None:
    api = filled()
    wants = b"NATS/1.0\r\nNats-Required-Api-Level: %b\r\n\r\n"
    assert api.error("INFO", b"", wants % b"1") is None
    assert api.error("INFO", b"", wants % b"2") == (412, 10185, "JetStream minimum api level required")
    assert api.error("INFO", b"", wants % b"x") == (412, 10185, "JetStream minimum api level required")
    _, request = api.request("DIRECT.GET.S", {"seq": 1}, wants % b"2")
    assert request.sent == [(b"NATS/1.0 412 Required Api Level\r\n\r\n", b"")]


def test_requests_and_errors_are_counted() -> None:
    api = filled()
    api.ask("NONSENSE")
    api.ask("STREAM.MSG.GET.S", {"seq": 1})
    assert api.ask("INFO")["api"] == {"level": 1, "total": 2, "errors": 1}


def test_the_number_of_streams_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_api, "STREAMS_MAX", 2)
    api = filled()
    assert api.error(*stream("T")) is None
    assert api.error(*stream("U")) == (400, 10027, "maximum number of streams reached")
    assert api.error(*stream("T")) is None  # exists already


def test_the_number_of_consumers_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_api, "CONSUMERS_MAX", 2)
    api = filled()
    assert api.error(*stream("T")) is None
    assert api.error(*consumer("a")) is None
    assert api.error(*consumer("b", on="T")) is None
    assert api.error(*consumer("c")) == (400, 10026, "maximum consumers limit reached")


def test_the_work_for_a_new_stream_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_api, "COMPARED_MAX", 3)
    api = filled()
    assert api.error(*stream("T", subjects=["a", "b", "c"])) is None
    assert api.error(*stream("U", subjects=["d"])) == (503, 10023, "insufficient resources")


def test_lists_have_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (stream_api, consumer_api):
        monkeypatch.setattr(module, "NAMES_PAGE", 2)
        monkeypatch.setattr(module, "LIST_PAGE", 2)
    api = filled()
    for name in "abc":
        assert api.error(*stream(name)) is None
        assert api.error(*consumer(name)) is None
    found = api.ask("STREAM.NAMES", {"offset": 1})
    assert (found["total"], found["offset"], found["limit"], found["streams"]) == (4, 1, 2, ["a", "b"])
    found = api.ask("STREAM.LIST", {"offset": 3})
    assert [each["config"]["name"] for each in found["streams"]] == ["c"]
    assert api.ask("CONSUMER.NAMES.S", {"offset": 2})["consumers"] == ["c"]
    assert [each["name"] for each in api.ask("CONSUMER.LIST.S")["consumers"]] == ["a", "b"]


def test_subjects_and_removed_sequences_have_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_api, "SUBJECTS_PAGE", 2)
    monkeypatch.setattr(stream_api, "DELETED_MAX", 1)
    api = filled()
    api.hub.streams["S"].add(b"s/2")
    for seq in (3, 4):
        api.ask("STREAM.MSG.DELETE.S", {"seq": seq})
    found = api.ask("STREAM.INFO.S", {"subjects_filter": "s.*", "offset": 1, "deleted_details": True})
    assert (found["total"], found["offset"], found["limit"]) == (3, 1, 2)
    assert found["state"]["subjects"] == {"s.1": 2, "s.2": 1}
    assert (found["state"]["num_deleted"], found["state"]["deleted"]) == (2, [3])


def test_a_message_is_answered_as_json() -> None:
    api = filled()
    api.hub.streams["S"].add(b"s/h", b"x", properties=properties_of(HEADERS, b""))
    assert api.ask("STREAM.MSG.GET.S", {"seq": 7})["message"] == {
        "subject": "s.h",
        "seq": 7,
        "hdrs": base64.b64encode(HEADERS).decode(),
        "data": "eA==",
        "time": TIME.decode(),
    }
    assert api.ask("STREAM.MSG.GET.S", {"last_by_subj": "s.*"})["message"]["seq"] == 7
    assert api.ask("STREAM.MSG.GET.S", {"next_by_subj": "s.1", "seq": 3})["message"]["seq"] == 4
    assert api.ask("STREAM.MSG.GET.S", {"start_time": "2001-01-01T00:00:00Z"})["message"]["seq"] == 1
    assert "hdrs" not in api.ask("STREAM.MSG.GET.S", {"seq": 7, "no_hdr": True})["message"]


def test_direct_get_answers_with_the_message_itself() -> None:
    api = filled()
    api.hub.streams["S"].add(b"s/h", b"x", properties=properties_of(HEADERS, b""))
    assert api.messages("DIRECT.GET.S", {"seq": 2}) == [(b"NATS/1.0\r\n%b\r\n" % (PLACE % (b"s.1", 2)), b"1")]
    with_headers = (b"%b%b\r\n" % (HEADERS[:-2], PLACE % (b"s.h", 7)), b"x")
    assert api.messages("DIRECT.GET.S.s.h") == [with_headers]
    assert api.messages("DIRECT.GET.S", {"seq": 7, "no_hdr": True}) == [(b"", b"x")]


@pytest.mark.parametrize(
    ("payload", "status"),
    [
        (b"", b"408 Empty Request"),
        (b"{}", b"408 Empty Request"),
        (b"{", b"408 Malformed Request"),
        (b'{"start_time": "now"}', b"408 Malformed Request"),
        ({"seq": 1, "last_by_subj": "s.1"}, b"408 Bad Request"),
        ({"last_by_subj": "s.1", "batch": 2}, b"408 Bad Request"),
        ({"multi_last": ["s.1"], "up_to_seq": 1, "up_to_time": "2001-01-01T00:00:00Z"}, b"408 Bad Request"),
        ({"seq": 99}, b"404 Message Not Found"),
        ({"seq": 99, "batch": 2}, b"404 Message Not Found"),
        ({"last_by_subj": "s..1"}, b"404 Message Not Found"),
        ({"multi_last": ["none"]}, b"404 No Results"),
    ],
)
def test_direct_get_says_why_there_is_no_message(payload: Any, status: bytes) -> None:
    assert filled().messages("DIRECT.GET.S", payload) == [(b"NATS/1.0 %b\r\n\r\n" % status, b"")]


def test_direct_get_is_not_heard_by_a_stream_that_does_not_allow_it() -> None:
    api = filled()
    assert api.error(*stream("T")) is None
    for subject in ("DIRECT.GET.T", "DIRECT.GET.NONE", "DIRECT.GET.T.x", "CONSUMER.MSG.NEXT.S.none"):
        found, request = api.request(subject, {"seq": 1})
        assert (found, request.sent, request.unheard) == (None, [], True)


def test_a_batch_tells_how_many_are_left() -> None:
    api = filled()
    api.hub.streams["S"].remove(2)
    *found, end = api.messages("DIRECT.GET.S", {"seq": 1, "batch": 3})
    assert [payload for _, payload in found] == [b"0", b"2", b"3"]
    assert end == (b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 2\r\nNats-Last-Sequence: 4\r\n\r\n", b"")
    assert found[1][0].endswith(b"Nats-Num-Pending: 3\r\nNats-Last-Sequence: 1\r\n\r\n")


def test_a_batch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_api, "BATCH_MAX", 2)
    api = filled()
    assert len(api.messages("DIRECT.GET.S", {"seq": 1, "batch": 1000})) == 2 + 1
    assert len(api.messages("DIRECT.GET.S", {"seq": 1, "batch": 2, "max_bytes": 1})) == 1 + 1
    monkeypatch.setattr(message_api, "BATCH_BYTES", 1)
    assert len(api.messages("DIRECT.GET.S", {"seq": 1, "batch": 2, "max_bytes": 1000})) == 1 + 1
    api.hub.streams["S"].add(b"s/2")
    assert api.messages("DIRECT.GET.S", {"multi_last": ["s.*"]}) == [(b"NATS/1.0 413 Too Many Results\r\n\r\n", b"")]


def test_the_last_messages_of_subjects_as_of_a_sequence() -> None:
    api = filled()
    *found, end = api.messages("DIRECT.GET.S", {"multi_last": ["s.>"], "up_to_seq": 3})
    assert [payload for _, payload in found] == [b"1", b"2"]
    assert b"Nats-UpTo-Sequence: 3\r\n" in end[0]


@given(st.lists(st.tuples(st.sampled_from((b"a", b"b")), st.booleans()), max_size=40), st.integers(0, 45))
def test_the_last_sequence_up_to_another_is_found(added: list[tuple[bytes, bool]], up_to: int) -> None:
    index = MessageIndex(True)
    for topic, _ in added:
        index.add(topic, 1, NOW, None)
    for seq, (_, is_kept) in enumerate(added, 1):
        if not is_kept:
            index.remove(seq)
    for topic in index.topics:
        kept = [seq for seq, each in enumerate(added, 1) if each == (topic, True) and seq <= up_to]
        assert last_up_to(index, topic, up_to) == max(kept, default=0)


def test_a_pull_request_is_handed_to_the_consumer_as_it_is() -> None:
    api = filled()
    assert api.error(*consumer("C", ack_policy="explicit")) is None
    assert api.ask("CONSUMER.MSG.NEXT.S.C", b"12") is None
    assert api.hub.pulls == [("S", "C", b"_INBOX/x", b"12")]


def test_advisories_tell_what_happened() -> None:
    api = filled()
    api.ask(*consumer("C", ack_policy="explicit"))
    api.ask("CONSUMER.PAUSE.S.C", {"pause_until": "2200-01-01T00:00:00Z"})
    api.ask("CONSUMER.DELETE.S.C")
    api.ask("STREAM.DELETE.S")
    assert [(subject.removeprefix("$JS.EVENT.ADVISORY."), told.get("action")) for subject, told in api.told] == [
        ("STREAM.CREATED.S", "create"),
        ("CONSUMER.CREATED.S.C", "create"),
        ("CONSUMER.PAUSE.S.C", None),
        ("CONSUMER.DELETED.S.C", "delete"),
        ("STREAM.DELETED.S", "delete"),
    ]
    assert api.told[2][1] == {
        "type": "io.nats.jetstream.advisory.v1.consumer_pause",
        "id": "name2",
        "timestamp": TIME.decode(),
        "stream": "S",
        "consumer": "C",
        "paused": True,
        "pause_until": "2200-01-01T00:00:00Z",
    }
