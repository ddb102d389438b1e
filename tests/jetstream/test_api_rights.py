"""Rules and the API: no client reads by a stream the messages that the rules keep from it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.auth.test_acl import acl
from tests.jetstream.fake_hub import ApiAlone

from starlingmq.jetstream.api_requests import NotAllowedError

RULES = """\
default: allow
rules:
- {deny: subscribe, topics: ["secret/#"], users: [guest]}
- {deny: stream, streams: [HIDDEN], users: [guest]}
- {deny: publish, topics: ["orders/#", "_INBOX/#"], users: [guest]}
"""


def owned() -> ApiAlone:
    """Streams that a client without limits has made; from now on it is the guest who asks."""
    alone = ApiAlone()
    for name, subject in (("OPEN", "open.>"), ("HIDDEN", "hidden.>")):
        assert "error" not in alone.ask(f"STREAM.CREATE.{name}", {"name": name, "subjects": [subject]})
        consumer = {"stream_name": name, "config": {"durable_name": "c", "ack_policy": "explicit"}}
        assert "error" not in alone.ask(f"CONSUMER.DURABLE.CREATE.{name}.c", consumer)
        alone.hub.streams[name].add(f"{name.lower()}/a".encode(), b"text")
    alone.rights = acl(RULES).rights("", "guest", "")
    return alone


@pytest.mark.parametrize("subjects", [["secret.>"], ["secret.a"], [">"], ["open2", "*.a"]])
def test_a_stream_keeps_only_what_its_maker_may_subscribe_to(subjects: list[str]) -> None:
    alone = owned()
    with pytest.raises(NotAllowedError):
        alone.ask("STREAM.CREATE.MINE", {"name": "MINE", "subjects": subjects, "no_ack": True})
    with pytest.raises(NotAllowedError):
        alone.ask("STREAM.UPDATE.OPEN", {"name": "OPEN", "subjects": subjects, "no_ack": True})
    assert list(alone.hub.streams) == ["OPEN", "HIDDEN"]
    assert "error" not in alone.ask("STREAM.CREATE.MINE", {"name": "MINE", "subjects": ["mine.>"]})


READING: list[tuple[str, Any]] = [
    ("STREAM.MSG.GET.{}", {"seq": 1}),
    ("DIRECT.GET.{}", {"seq": 1}),
    ("DIRECT.GET.{}.hidden.a", b""),
    ("CONSUMER.CREATE.{}", {"stream_name": "{}", "config": {"ack_policy": "none"}}),
    ("CONSUMER.CREATE.{}.d", {"stream_name": "{}", "config": {"ack_policy": "none"}}),
    ("CONSUMER.DURABLE.CREATE.{}.d", {"stream_name": "{}", "config": {"durable_name": "d", "ack_policy": "none"}}),
    ("CONSUMER.MSG.NEXT.{}.c", b"1"),
]


@pytest.mark.parametrize(("subject", "payload"), READING)
def test_a_stream_is_read_by_those_who_may(subject: str, payload: Any) -> None:
    alone = owned()

    def asked(stream: str) -> tuple[Any, Any]:
        if isinstance(payload, dict) and "stream_name" in payload:
            return alone.request(subject.format(stream), {**payload, "stream_name": stream})
        return alone.request(subject.format(stream), payload)

    answer, _ = asked("OPEN")
    assert answer is None or "error" not in answer
    with pytest.raises(NotAllowedError):
        asked("HIDDEN")
    assert len(alone.hub.streams["HIDDEN"].consumers) == 1
    assert [pull[0] for pull in alone.hub.pulls] == (["OPEN"] if "NEXT" in subject else [])


@pytest.mark.parametrize(
    ("subject", "allowed"), [("mine.a", True), ("orders.a", False), ("_INBOX.x.1", True), ("_INBOX.x", True)]
)
def test_a_consumer_sends_only_where_its_maker_may(subject: str, allowed: bool) -> None:
    alone = owned()
    asked = {"stream_name": "OPEN", "config": {"ack_policy": "none", "deliver_subject": subject}}
    if allowed:
        assert "error" not in alone.ask("CONSUMER.CREATE.OPEN", asked)
        return
    with pytest.raises(NotAllowedError):
        alone.ask("CONSUMER.CREATE.OPEN", asked)
    assert list(alone.hub.streams["OPEN"].consumers) == ["c"]


@pytest.mark.parametrize(
    ("destination", "allowed"),
    [("mine.>", True), ("orders.>", False), ("orders.new.>", False), ("_INBOX.>", False)],
)
@pytest.mark.parametrize("setting", ["republish", "subject_transform"])
def test_a_stream_sends_again_only_where_its_maker_may_publish(setting: str, destination: str, allowed: bool) -> None:
    alone = owned()
    config = {"name": "MINE", "subjects": ["my.>"], setting: {"src": "my.>", "dest": destination}}
    if allowed:
        assert "error" not in alone.ask("STREAM.CREATE.MINE", config)
        return
    with pytest.raises(NotAllowedError):
        alone.ask("STREAM.CREATE.MINE", config)
    with pytest.raises(NotAllowedError):
        alone.ask("STREAM.UPDATE.OPEN", {**config, "name": "OPEN"})


@pytest.mark.parametrize("name", ["OPEN", "HIDDEN"])
@pytest.mark.parametrize("kind", ["mirror", "sources"])
def test_a_stream_copies_only_streams_that_its_maker_may_read(kind: str, name: str) -> None:
    alone = owned()
    config = {"name": "MINE", kind: {"name": name} if kind == "mirror" else [{"name": name}]}
    if name == "OPEN":
        assert "error" not in alone.ask("STREAM.CREATE.MINE", config)
        return
    with pytest.raises(NotAllowedError):
        alone.ask("STREAM.CREATE.MINE", config)
