"""Subject transforms, and messages that a stream sends again."""

from __future__ import annotations

import pytest
from tests.core.streams.stream_world import StoredStreaming, Streaming, policy_of, subscribe, take
from tests.core.streams.test_stream_readers import rights

from starlingmq.core.jetstream.hub import Adviser
from starlingmq.core.messages.message import Message
from starlingmq.core.streams.subject_transforms import Republishing
from starlingmq.jetstream.transform_config import check_destination, subject_transform
from starlingmq.wire.nats_headers import carried, properties_of
from starlingmq.wire.packets import Publish


@pytest.mark.parametrize(
    ("source", "destination", "topic", "found"),
    [
        ("a.*.*", "b.$2.{{wildcard(1)}}", "a/x/y", "b/y/x"),
        ("a.>", "b.>", "a/x/y", "b/x/y"),
        ("a.>", "b.>", "a", ""),
        ("", "all.>", "a/x", "all/a/x"),
        ("a.b", "c.d", "a/b", "c/d"),
        ("a.b", "c.d", "a/c", ""),
        ("*", "{{splitfromleft(1,2)}}", "12345", "12/345"),
        ("*", "{{splitfromright(1,2)}}", "12345", "123/45"),
        ("*", "{{slicefromleft(1,2)}}", "12345", "12/34/5"),
        ("*", "{{slicefromright(1,2)}}", "12345", "1/23/45"),
        ("*", "{{slicefromright(1,2)}}", "1234", "12/34"),
        ("*", "{{slicefromleft(1,0)}}", "1234", "1234"),
        ("*", "{{split(1,-)}}", "-1--2-3-", "1/2/3"),
        ("*", "x.{{split(1,)}}", "12", "x/1/2"),
        ("*", "{{left(1,2)}}.{{right(1,2)}}", "12345", "12/45"),
        ("*", "{{partition(10)}}", "foo", "3"),
        ("*.*", "{{partition(10,2)}}", "bar/foo", "3"),
        ("*", "{{partition(0)}}", "foo", "0"),
        ("*", "{{left(1,1)}}", "ü", ""),  # half a character
        ("*", "{{split(1,-)}}", "--", ""),
    ],
)
def test_a_topic_is_transformed(source: str, destination: str, topic: str, found: str) -> None:
    assert subject_transform(source, destination).of(topic.encode()).decode() == found


@pytest.mark.parametrize("head", ["$JS", "$SYS", "$events", "$stream", "$queue", "$dead"])
def test_topics_of_the_broker_are_not_made(head: str) -> None:
    assert subject_transform("a.>", head + ".>").of(b"a/x") == b""
    assert subject_transform("a.>", "b.>").of(b"a/x") == b"b/x"


@pytest.mark.parametrize(("size", "made"), [(1000, 64063), (1100, 0)])
def test_a_topic_that_would_be_too_long_is_not_made(size: int, made: int) -> None:
    """No log and no packet has room for it."""
    assert len(subject_transform("*", ".".join(["$1"] * 64)).of(b"x" * size)) == made
    assert len(subject_transform("*.>", ".".join(["$1"] * 63) + ".>").of(b"x" * size + b"/" + b"y" * size)) == made


def test_a_destination_has_an_end() -> None:
    with pytest.raises(ValueError, match="longer than 1024"):
        subject_transform("*", ".".join(["$1"] * 400))


def test_random_spreads_over_all_numbers() -> None:
    transform = subject_transform("*", "{{random(3)}}")
    assert {transform.of(b"x") for _ in range(3)} == {b"0", b"1", b"2"}


@pytest.mark.parametrize(
    ("destination", "filter"),
    [("a.$1.b", "a/+/b"), ("a.{{split(1,-)}}.b", "a/+/#"), ("a.{{partition(2,1)}}", "a/+"), ("a.{{left(1,2)}}", "a/+")],
)
def test_rules_are_asked_about_all_that_a_destination_makes(destination: str, filter: str) -> None:
    assert subject_transform("x.*", destination).made().decode() == filter


@pytest.mark.parametrize("destination", ["a..b", "a.>.b", "a.{{no(1)}}", "a b"])
def test_destinations_that_are_none(destination: str) -> None:
    with pytest.raises(ValueError, match="invalid mapping destination"):
        check_destination(destination)


def republishing(headers_only: bool = False) -> Republishing:
    found = Republishing(b"S")
    found.republish = subject_transform("in.>", "out.>")
    found.headers_only = headers_only
    return found


def message(headers: bytes) -> Message:
    return Message(b"in/a", b"body", 0, False, properties_of(headers, b""), 0.0, "", 1.0)


def test_a_message_that_is_sent_again_says_where_it_is_kept() -> None:
    found = republishing(headers_only=True).again(message(b"NATS/1.0\r\nX: y\r\n\r\n"), 7, 3, b"T")
    assert found is not None and found.topic == b"out/a" and found.payload == b""
    assert carried(found.properties).headers == (
        b"NATS/1.0\r\nX: y\r\nNats-Stream: S\r\nNats-Subject: in.a\r\nNats-Sequence: 7\r\nNats-Time-Stamp: T\r\n"
        b"Nats-Last-Sequence: 3\r\nNats-Msg-Size: 4\r\n\r\n"
    )


def test_a_message_that_other_streams_bring_back_is_not_sent_again() -> None:
    """Else two streams that republish to each other would never end."""
    first = republishing().again(message(b""), 1, 0, b"T")
    assert first is not None and carried(first.properties).headers.startswith(b"NATS/1.0\r\nNats-Stream: S\r\n")
    first.topic = b"in/a"
    assert republishing().again(first, 2, 1, b"T") is None


@pytest.mark.parametrize("filter", ["$share/g/$stream/S", "$queue/S"])
def test_members_need_the_right_for_topics_that_a_transform_makes(filter: str) -> None:
    world = Streaming()
    renaming = Republishing(b"S")
    renaming.transform = subject_transform("t.>", "secret.>")
    world.stream(policy=policy_of("t/#", republishing=renaming))
    client, other = world.connect(), world.connect("other")
    world.state.ctx.give_rights(client.client, rights("t/#", "$stream/#", "$queue/#"))
    world.state.ctx.give_rights(other.client, rights("t/#", "secret/#", "$stream/#", "$queue/#"))
    assert subscribe(client, filter).reasons == [0x87]
    assert subscribe(other, filter).reasons == [1]


def test_without_settings_nothing_is_kept_to_be_sent_again() -> None:
    world = Streaming()
    stream = world.stream()
    world.connect().send(Publish(b"t/1", b"1"))
    assert stream.index.count == 1 and stream.to_republish == []


class Clock(Adviser):
    """Asked once for each message that is sent again."""

    def __init__(self, world: StoredStreaming) -> None:
        self.world = world
        self.stored: list[int] = []  # sequences that the log had then

    def timestamp(self, time: float) -> bytes:
        self.stored.append(self.world.sequenced.end())
        return b"T"


def test_messages_are_sent_again_once_they_are_stored() -> None:
    again = Republishing(b"S")
    again.republish = subject_transform("t.>", "out.>")
    world = StoredStreaming(policy_of("t/#", republishing=again))
    clock = world.state.jetstream.adviser = Clock(world)
    listener, publisher = world.connect("listener"), world.connect("publisher")
    assert subscribe(listener, "out/#", 0).reasons == [0]
    for number in range(5):
        publisher.send(Publish(b"t/%d" % number, b"%d" % number))
    world.advance(0.1)
    assert [each.topic for each in take(listener)] == [b"out/%d" % number for number in range(5)]
    assert len(clock.stored) == 5 and all(stored > at for at, stored in enumerate(clock.stored))
    assert world.sequenced.to_republish == []
