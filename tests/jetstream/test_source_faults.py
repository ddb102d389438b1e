"""Faults of copies: messages lost or stored twice, copying in a circle, a turn taken for themselves alone."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.streams.stream_world import CutLog, StoredStreaming, Streaming, policy_of
from tests.core.streams.test_sequenced_stream import Broker
from tests.core.streams.test_sequenced_stream import policy_of as plain
from tests.jetstream.fake_hub import ApiAlone
from tests.jetstream.test_api_rights import owned

from starlingmq.core.jetstream.copying import TURN_BUDGET
from starlingmq.core.jetstream.hub import Adviser
from starlingmq.core.messages.message import Message
from starlingmq.core.streams.policies import DISCARD_NEW
from starlingmq.core.streams.sequenced_stream import GAP_MAX, PLACES_MAX, SequencedStream
from starlingmq.core.streams.source_settings import SourceSettings
from starlingmq.core.streams.sourcing import Sourcing
from starlingmq.core.streams.subject_transforms import Republishing
from starlingmq.jetstream.api_requests import NotAllowedError
from starlingmq.jetstream.stream_config import StreamSourceConfig, SubjectTransformConfig, source_settings
from starlingmq.jetstream.transform_config import subject_transform
from starlingmq.wire.nats_headers import carried, properties_of


def source(name: str, **settings: Any) -> SourceSettings:
    return source_settings(StreamSourceConfig(name=name, **settings), False)


def put(stream: SequencedStream, payload: bytes, headers: str = "", topic: bytes = b"t/1") -> None:
    properties = properties_of(f"NATS/1.0\r\n{headers}\r\n\r\n".encode(), b"") if headers else b""
    stream.take(stream.ctx, Message(topic, payload, 0, False, properties, 0.0, "", stream.ctx.now))


def payloads(stream: SequencedStream) -> list[bytes]:
    found = [stream.message(seq) for seq in range(1, stream.index.last + 1)]
    return [each.payload for each in found if each is not None]


def copying(world: Streaming, *names: str, **limits: Any) -> SequencedStream:
    return copying_as(world, "COPY", *names, **limits)


def copying_as(world: Streaming, own: str, *names: str, **limits: Any) -> SequencedStream:
    policy = policy_of(sources=[source(name) for name in names], duplicate_window=0.0, **limits)
    policy.subjects = []
    return world.stream(own, policy)


def test_messages_with_one_id_are_all_copied() -> None:
    """A stream with sources has no window for duplicates of its own; its origins have looked for them."""
    world = Streaming()
    origins = [world.stream(name, policy_of(name.lower(), duplicate_window=0.0)) for name in "AB"]
    for number, origin in enumerate((*origins, *origins)):
        put(origin, b"%d" % number, "Nats-Msg-Id: 1")
    copy = copying(world, "A", "B")
    world.advance(0.1)
    assert sorted(payloads(copy)) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize(
    "destination", ["x.{{wildcard(1)}}", "x.{{ wildcard( 1 ) }}", "x.{{\twildcard(1)}}", "x.{{\nwildcard(1)}}"]
)
def test_a_copy_goes_on_after_a_start_however_its_functions_are_written(destination: str) -> None:
    settings = source("S", subject_transforms=[SubjectTransformConfig("t.*", destination)])
    origin, target = Broker(plain()), Broker(plain(sources=[settings]))
    for number in range(2):
        origin.publish(b"t/%d" % number, b"%d" % number)
        origin.turn()
        if number == 1:
            target.restart()
        target.stream.apply(target.policy, b"{}")
        copier = Sourcing(settings, target.stream, {})
        copier.attach(origin.stream)
        assert copier.fill(10, 1.0)
        target.stream.released()
        target.turn()
        target.restart()
    found = [each for each in target.log.messages if each is not None]
    assert [(each.topic, each.payload) for each in found] == [(b"x/0", b"0"), (b"x/1", b"1")]


def test_a_place_that_a_publisher_wrote_is_none() -> None:
    """Before the stream had sources."""
    broker = Broker(plain())
    for place in ("A many > > t ffffffff", "A " + "9" * 5000 + " > > t ffffffff"):
        broker.publish(b"t/1", b"x", Stream_Source=place)
    broker.turn()
    broker.restart()
    broker.stream.apply(plain(sources=[source("A")]), b"{}")
    assert broker.stream.index.last == 2 and broker.stream.places == {}


@pytest.mark.parametrize("subject", ["a..b", "a b", "a*b", ">.a"])
def test_a_filter_that_is_none_does_not_copy_everything(subject: str) -> None:
    given: list[dict[str, Any]] = [{"filter_subject": subject}, {"subject_transforms": [{"src": subject, "dest": ""}]}]
    for each in given:
        mirror = ApiAlone().ask("STREAM.CREATE.C", {"name": "C", "mirror": {"name": "A", **each}})
        assert mirror["error"]["err_code"] == 10151
        sources = ApiAlone().ask("STREAM.CREATE.C", {"name": "C", "sources": [{"name": "A", **each}]})
        assert sources["error"]["err_code"] == 10145


def test_the_sources_of_a_stream_have_a_limit() -> None:
    """Transforms are compared in pairs: 20,000 of them would take the broker minutes."""
    mappings = [{"src": f"a.{number}", "dest": "b"} for number in range(201)]
    sources: list[object] = [{"name": f"A{number}"} for number in range(201)]
    for config in (
        {"sources": sources},
        {"sources": [{"name": "A", "subject_transforms": mappings}]},
        {"mirror": {"name": "A", "subject_transforms": mappings}},
    ):
        found = ApiAlone().ask("STREAM.CREATE.C", {"name": "C", **config})["error"]
        assert found["description"] == "a stream has at most 200 sources, and transforms of them"


def test_many_copies_take_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Streaming()
    origin = world.stream("A", policy_of("a"))
    for number in range(300):
        put(origin, b"%d" % number)
    hub = world.state.jetstream
    copies = []
    for number in range(40):
        policy = policy_of(sources=[source("A")])
        policy.subjects = []
        copies.append(world.stream(f"C{number}", policy))
    hub.turn()
    assert 0 < sum(copy.index.count for copy in copies) <= TURN_BUDGET
    assert hub.pending()
    world.advance(0.1)
    for _ in range(10):
        world.advance(0.1)
    assert all(payloads(copy) == payloads(origin) for copy in copies)


def test_a_copy_without_room_does_not_keep_an_isolated_node_busy() -> None:
    world = Streaming()
    origin = world.stream("A", policy_of("a"))
    copying(world, "A", max_messages=1, discard=DISCARD_NEW)
    put(origin, b"1")
    put(origin, b"2")
    world.advance(0.1)
    hub, ctx = world.state.jetstream, world.state.ctx
    assert ctx.now < hub.due_at <= ctx.now + 1.0
    ctx.isolated = True
    world.now = ctx.now = ctx.now + 2.0
    hub.turn()
    assert hub.due_at == 0.0 or hub.due_at > ctx.now
    ctx.isolated = False
    hub.turn()
    assert hub.due_at > ctx.now


def test_headers_that_a_copy_may_not_have_do_not_stop_it() -> None:
    world = Streaming()
    origin = world.stream("A", policy_of("a", allow_ttl=True, allow_rollup=True))
    put(origin, b"1", "Nats-TTL: 1h")
    put(origin, b"2", "Nats-Rollup: sub\r\nX: y", topic=b"t/2")
    put(origin, b"3")
    copy = copying(world, "A")
    world.advance(0.1)
    assert payloads(copy) == [b"1", b"2", b"3"]
    second = copy.message(2)
    assert second is not None and b"Rollup" not in carried(second.properties).headers
    assert b"X: y" in carried(second.properties).headers


@pytest.mark.parametrize(("limit", "topic"), [({"max_message_size": 200}, b"t/1"), ({}, b"t/" + b"x" * 65_530)])
def test_a_message_that_a_copy_can_never_take_is_left_out_and_counted(limit: dict[str, int], topic: bytes) -> None:
    """It is too large, or its place has no room in a header."""
    world = Streaming()
    origin = world.stream("A", policy_of("a"))
    for payload in (b"1", b"2" * 300, b"3"):
        put(origin, payload, topic=topic if len(payload) > 1 else b"t/1")
    copy = copying(world, "A", **limit)
    world.advance(0.1)
    assert payloads(copy) == [b"1", b"3"] and copy.dropped == 1


def test_what_waits_for_room_is_not_counted_each_second() -> None:
    world = Streaming()
    origin = world.stream("A", policy_of("a"))
    copy = copying(world, "A", max_messages=1, discard=DISCARD_NEW)
    put(origin, b"1")
    put(origin, b"2")
    for _ in range(5):
        world.advance(2.0)
    assert payloads(copy) == [b"1"] and copy.dropped == 0


def test_a_stream_that_is_set_aside_copies_nothing_until_it_is_taken_back() -> None:
    world = Streaming()
    origin = world.stream("A", policy_of("a"))
    copy = copying(world, "A")
    hub = world.state.jetstream
    hub.set_aside(copy)
    put(origin, b"1")
    world.advance(0.1)
    assert payloads(copy) == []
    hub.take_back(copy)
    put(origin, b"2")
    world.advance(0.1)
    assert payloads(copy) == [b"1", b"2"]


def test_a_source_that_comes_back_goes_on() -> None:
    world = Streaming()
    first, second = world.stream("A", policy_of("a")), world.stream("B", policy_of("b"))
    copy = copying(world, "A", "B")
    put(first, b"1")
    put(second, b"2")
    world.advance(0.1)
    for names in (["B"], ["A", "B"]):
        policy = policy_of(sources=[source(name) for name in names], duplicate_window=0.0)
        policy.subjects = []
        world.state.jetstream.change(copy, policy, b"{}")
        put(first, b"3")
        world.advance(0.1)
    assert sorted(payloads(copy)) == [b"1", b"2", b"3", b"3"]


def test_a_copy_goes_on_with_an_origin_that_has_lost_more_than_itself() -> None:
    origin, target = Broker(plain()), Broker(plain(sources=[source("S")]))
    for number in range(3):
        origin.publish(b"t", b"%d" % number)
    origin.turn()
    copier = Sourcing(target.policy.sources[0], target.stream, {})
    copier.attach(origin.stream)
    assert copier.fill(10, 1.0)
    target.turn()
    del origin.log.messages[1:]
    for each in (origin, target):
        each.restart()
        each.stream.apply(each.policy, b"{}")
    copier = Sourcing(target.policy.sources[0], target.stream, {})
    copier.attach(origin.stream)
    for payload in (b"new", b"newer"):
        origin.publish(b"t", payload)
    origin.turn()
    copier.fill(10, 1.0)
    target.turn()
    assert [each and each.payload for each in target.log.messages] == [b"0", b"1", b"2", b"new", b"newer"]


def test_what_another_source_brings_does_not_go_round_for_ever() -> None:
    """nats-server looks at subjects only, which neither A nor B has."""
    alone = ApiAlone()
    assert "error" not in alone.ask("STREAM.CREATE.FEED", {"name": "FEED", "subjects": ["x"]})
    other: dict[str, Any] = {"name": "B", "sources": [{"name": "A", "filter_subject": "x"}]}
    assert "error" not in alone.ask("STREAM.CREATE.B", other)
    circle = {"name": "A", "sources": [{"name": "FEED"}, {"name": "B", "filter_subject": "*"}]}
    assert alone.ask("STREAM.CREATE.A", circle)["error"]["description"] == "detected cycle"
    circle["sources"] = [{"name": "FEED"}, {"name": "B", "filter_subject": "y"}]
    assert "error" not in alone.ask("STREAM.CREATE.A", circle)


def test_the_search_for_a_circle_has_a_bound() -> None:
    alone = ApiAlone()
    for number in range(11):
        subjects = [f"{number}.{each}" for each in range(100)]
        sources = [{"name": f"GONE{each}"} for each in range(200)]
        made = alone.ask(f"STREAM.CREATE.S{number}", {"name": f"S{number}", "subjects": subjects, "sources": sources})
        assert "error" not in made
    config = {"name": "X", "sources": [{"name": f"S{number}"} for number in range(11)]}
    assert alone.ask("STREAM.CREATE.X", config)["error"]["err_code"] == 10023
    config["sources"] = [{"name": f"S{number}"} for number in range(9)]
    assert "error" not in alone.ask("STREAM.CREATE.X", config)


def test_streams_may_copy_what_is_each_others_own() -> None:
    alone = ApiAlone()
    for own, other in ("ab", "ba"):
        config = {"name": own, "subjects": [f"{own}.*"], "sources": [{"name": other, "filter_subject": f"{other}.*"}]}
        assert "error" not in alone.ask(f"STREAM.CREATE.{own}", config)


def test_what_two_streams_copy_of_one_is_no_circle() -> None:
    alone = ApiAlone()
    assert "error" not in alone.ask("STREAM.CREATE.D", {"name": "D", "subjects": ["x"]})
    for name, origins in (("B", ["D"]), ("C", ["D"]), ("A", ["B", "C"])):
        sources = [{"name": each, "filter_subject": "x"} for each in origins]
        assert "error" not in alone.ask(f"STREAM.CREATE.{name}", {"name": name, "sources": sources})


@pytest.mark.parametrize(("destination", "allowed"), [("mine.>", True), ("orders.>", False)])
@pytest.mark.parametrize("kind", ["mirror", "sources"])
def test_a_copy_has_only_topics_that_its_maker_may_publish_to(kind: str, destination: str, allowed: bool) -> None:
    alone = owned()
    origin = {"name": "OPEN", "subject_transforms": [{"src": ">", "dest": destination}]}
    config = {"name": "MINE", kind: origin if kind == "mirror" else [origin]}
    if allowed:
        assert "error" not in alone.ask("STREAM.CREATE.MINE", config)
        return
    with pytest.raises(NotAllowedError):
        alone.ask("STREAM.CREATE.MINE", config)


def mirrored(name: str) -> SourceSettings:
    return source_settings(StreamSourceConfig(name=name), True)


def origin_of(world: StoredStreaming, last: int) -> SequencedStream:
    """Its messages are their sequences."""
    origin = SequencedStream(world.state.ctx, "A", -1, policy_of("a"), b"{}", world.now, None, 1)
    for number in range(1, last + 1):
        put(origin, b"%d" % number)
    return origin


def test_a_mirror_waits_for_its_log_without_a_turn_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes a wide gap where its log ends, which may take as long as the disk takes."""
    monkeypatch.setattr(CutLog, "go_on_at", lambda log, offset: log.append([b""] * (offset - log.next)))
    world = StoredStreaming(policy_of(sources=[mirrored("A")]))
    hub, mirror = world.state.jetstream, world.sequenced
    origin = origin_of(world, 1)
    origin.index.skip(last := GAP_MAX + 2)
    for number in (3, 4):
        put(origin, b"%d" % number)
    hub.add(origin)
    hub.turn()
    assert mirror.index.last == 1 and mirror.end() == 0
    assert not hub.pending()
    world.advance(0.1)
    assert mirror.end() == last + 2 and payloads(mirror) == [b"1", b"3", b"4"]


def test_a_start_knows_the_gaps_that_the_log_of_a_mirror_lacks() -> None:
    """The journal is written first, so a crash may leave the log anywhere. ``CutLog`` knows no lost records."""
    for lost in range(1, 8):
        world = StoredStreaming(policy_of(sources=[mirrored("A")]))
        origin = origin_of(world, 7)
        for seq in (1, 3, 4):
            origin.remove(seq)
        world.state.jetstream.add(origin)
        world.advance(0.1)
        assert world.log.next == 7
        del world.log._records[-lost:]
        world.restart()
        assert world.log.read(0, 9, 999)[3] == (3, b"")
        mirror = world.sequenced
        assert {seq: mirror.message(seq) is not None for seq in range(1, 8)} == {
            1: False, 2: True, 3: False, 4: False, 5: True, 6: True, 7: True
        }  # fmt: skip
        assert world.log.next == mirror.index.last == 7


def test_a_stream_that_is_set_aside_is_no_origin() -> None:
    """Its name is that of a stream of another node, whose messages are others."""
    world = Streaming()
    origin = world.stream("A", policy_of("a", duplicate_window=0.0))
    copy = copying(world, "A")
    put(origin, b"1")
    world.advance(0.1)
    world.state.jetstream.set_aside(origin)
    put(origin, b"2")
    world.advance(3.0)
    assert payloads(copy) == [b"1"]
    world.state.jetstream.take_back(origin)
    world.advance(0.1)
    assert payloads(copy) == [b"1", b"2"]


def test_a_stream_that_begins_wakes_no_copies_of_others() -> None:
    """Else a start with many streams takes the square of their number."""
    world = Streaming()
    copying(world, "GONE")
    world.advance(0.1)
    world.stream("OTHER", policy_of("o", duplicate_window=0.0))
    assert not world.state.jetstream.copying.active


def mirroring(world: Streaming, **settings: Any) -> SequencedStream:
    policy = policy_of(sources=[mirrored("A")], duplicate_window=0.0, **settings)
    policy.subjects = []
    return world.stream("M", policy)


def test_a_mirror_without_room_waits_for_some() -> None:
    """With ``discard: new`` it gives up none that it has."""
    world = Streaming()
    origin = world.stream("A", policy_of("a"))
    for number in range(1, 6):
        put(origin, b"%d" % number)
    mirror = mirroring(world, max_messages=3, discard=DISCARD_NEW)
    world.advance(3.0)
    assert payloads(mirror) == [b"1", b"2", b"3"]
    mirror.remove(1)
    world.advance(3.0)
    assert payloads(mirror) == [b"2", b"3", b"4"] and mirror.index.last == 4


class Timing(Adviser):
    def timestamp(self, time: float) -> bytes:
        return b"T"


def test_a_mirror_renames_and_sends_again_as_others_do() -> None:
    world = Streaming()
    origin = world.stream("A", policy_of("a"))
    put(origin, b"1", topic=b"t/1")
    kept = Republishing(b"M")
    kept.transform = subject_transform("t.>", "u.>")
    kept.republish = subject_transform("u.>", "again.>")
    mirror = mirroring(world, republishing=kept)
    again = world.stream("AGAIN", policy_of("again/#"))
    world.state.jetstream.adviser = Timing()
    world.advance(1.0)
    assert list(mirror.index.topics) == [b"u/1"]
    assert list(again.index.topics) == [b"again/1"] and payloads(again) == [b"1"]


def test_a_mirror_that_takes_over_the_sources_of_its_origin_goes_on() -> None:
    world = Streaming()
    first, origin = world.stream("FIRST", policy_of("f")), copying_as(world, "A", "FIRST")
    put(first, b"1")
    put(first, b"2")
    mirror = mirroring(world)
    world.advance(1.0)
    assert payloads(mirror) == payloads(origin) == [b"1", b"2"]
    policy = policy_of(sources=[source("FIRST")], duplicate_window=0.0)
    policy.subjects = []
    world.state.jetstream.change(mirror, policy, b"{}")
    put(first, b"3")
    world.advance(1.0)
    assert payloads(mirror) == [b"1", b"2", b"3"]


def test_places_that_a_mirror_only_passes_on_are_bounded() -> None:
    world = Streaming()
    origin = world.stream("A", policy_of("a"))
    for number in range(PLACES_MAX + 20):
        put(origin, b"x", f"Nats-Stream-Source: F{number} 1 > > t 0a")
    mirror = mirroring(world)
    for _ in range(20):
        world.advance(0.1)
    assert mirror.index.last == origin.index.last
    assert len(mirror.places) == PLACES_MAX and list(mirror.places)[-1] == b"F%d > >" % (PLACES_MAX + 19)


def test_a_start_by_sequence_comes_before_one_by_time() -> None:
    """As at nats-server."""
    world = Streaming()
    origin = world.stream("A", policy_of("a"))
    for number in range(1, 6):
        put(origin, b"%d" % number)
    settings = source("A", opt_start_seq=4, opt_start_time="2000-01-01T00:00:00Z")
    policy = policy_of(sources=[settings], duplicate_window=0.0)
    policy.subjects = []
    copy = world.stream("COPY", policy)
    world.advance(1.0)
    assert payloads(copy) == [b"4", b"5"]


@pytest.mark.parametrize("kind", ["mirror", "sources"])
def test_a_source_whose_place_has_no_room_in_a_header_is_refused(kind: str) -> None:
    """Else it is made, and copies nothing."""
    mappings = [{"src": f"a.{number}", "dest": "b" * 1000} for number in range(60)]
    origin = {"name": "A", "subject_transforms": mappings}
    found = ApiAlone().ask("STREAM.CREATE.C", {"name": "C", kind: origin if kind == "mirror" else [origin]})
    if kind == "mirror":
        assert "error" not in found
    else:
        assert "longer than" in found["error"]["description"]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_stream_that_had_sources_leaves_nothing_in_the_store(restarts: bool) -> None:
    settings = source("A")
    target = Broker(plain(sources=[settings]))
    target.stream.apply(target.policy, b"{}")
    origin = Broker(plain())
    origin.publish(b"t")
    origin.turn()
    copier = Sourcing(settings, target.stream, {})
    copier.attach(origin.stream)
    assert copier.fill(10, 1.0) and target.stream.released() == 0
    target.turn()
    assert target.facts and target.stream.released() == 1
    if restarts:
        target.restart()
    target.stream.apply(plain(), b"{}")
    target.stream.forget()
    target.turn()
    assert target.facts == {}
