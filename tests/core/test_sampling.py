"""A traced message is traced on every node, by its id; its own trace context or the configured share decides."""

from __future__ import annotations

import pytest
from tests.cluster.fleet import Fleet
from tests.cluster.test_takeover import subscribe
from tests.harness import FakeClient, World

from starlingmq.core.observe.sampling import Sampler, parent_in, parent_of, parse, traced
from starlingmq.wire.mqtt import Publish
from starlingmq.wire.properties import CONTENT_TYPE, USER_PROPERTY, Properties, encode_property_bytes

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
WHOLE = f"00-{TRACE}-{SPAN}-01"
NOT_SAMPLED = f"00-{TRACE}-{SPAN}-00"


def publish(client: FakeClient, topic: bytes = b"a", traceparent: str = "", name: str = "traceparent") -> None:
    properties: Properties = {USER_PROPERTY: [("first", "x"), (name, traceparent)]} if traceparent else {}
    client.send(Publish(topic, b"x", 0, properties=encode_property_bytes(properties)))


def sampling(world: World, ratio: float, parents: bool = True, rate: int = 1000, name: str = "n1") -> Sampler:
    sampler = Sampler(ratio, parents, rate)
    world.state.audit.node = name
    world.state.audit.sample(sampler)
    world.run()
    return sampler


def ids(sampler: Sampler) -> list[str]:
    return [str(event["id"]) for event in sampler.seen()[0] if event["kind"] == "accepted"]


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("text", [WHOLE, f"cc-{TRACE}-{SPAN}-01", f"cc-{TRACE}-{SPAN}-09-what-comes-later"])
def test_a_traceparent_is_read(text: str) -> None:
    found = parse(text)
    assert found is not None
    assert (found.trace.hex(), found.span.hex(), found.sampled) == (TRACE, SPAN, True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        WHOLE[:-1],
        WHOLE + "-more",  # version 00 has nothing after its flags
        WHOLE + "0",
        f"cc-{TRACE}-{SPAN}-01more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-0x",
        f"00_{TRACE}-{SPAN}-01",
        f"00-{TRACE[:-1]}é-{SPAN}-01",
        "\u0660" * 55,
    ],
)
def test_an_invalid_traceparent_is_ignored(world: World, text: str) -> None:
    assert parse(text) is None
    author = world.connect("author")
    sampler = sampling(world, 1.0)
    publish(author, traceparent=text or "-")
    (id,) = ids(sampler)
    assert traced(id) and parent_in(id) is None, "it is the first of a trace of its own"


def test_the_trace_of_an_application_goes_on(world: World) -> None:
    author = world.connect("author")
    sampler = sampling(world, 0.0, name="a~node:" + "n" * 90)
    publish(author, traceparent=WHOLE)
    publish(author, traceparent=WHOLE, name="Traceparent")  # as a header of NATS may be written
    publish(author, traceparent=NOT_SAMPLED)
    publish(author)
    found = ids(sampler)
    assert len(found) == 2 and sampler.chosen == 2
    for id in found:
        parent = parent_in(id)
        assert parent is not None and (parent.trace.hex(), parent.span.hex()) == (TRACE, SPAN)
        assert len(id.encode()) < 128, "as the journal and the links have room for"


def test_without_parents_the_share_decides_and_the_trace_is_gone_on_with(world: World) -> None:
    author = world.connect("author")
    sampler = sampling(world, 1.0, parents=False)
    publish(author, traceparent=NOT_SAMPLED)
    (id,) = ids(sampler)
    parent = parent_in(id)
    assert parent is not None and parent.trace.hex() == TRACE
    sampler.ratio = 0.0
    publish(author, traceparent=WHOLE)
    assert ids(sampler) == []


@pytest.mark.parametrize("every", [1, 2, 3])
def test_the_share_holds_for_every_second_message_too(world: World, every: int) -> None:
    author = world.connect("author")
    sampler = sampling(world, 0.1, rate=100_000)
    chosen = 0
    for number in range(3000):
        publish(author, b"mine" if number % every == 0 else b"other")
        chosen += len([event for event in sampler.seen()[0] if event["topic"] == "mine"])
    assert 0.07 * 3000 / every <= chosen <= 0.13 * 3000 / every


def test_more_than_the_rate_is_counted(world: World) -> None:
    author = world.connect("author")
    sampler = sampling(world, 0.0, rate=3)
    for _ in range(10):
        publish(author, traceparent=WHOLE)
    seen, lost = sampler.seen()
    assert (len(seen), lost, sampler.chosen) == (3, 7, 3)


def test_off_again_nothing_is_named_and_looked_at(world: World) -> None:
    author = world.connect("author")
    sampler = sampling(world, 1.0)
    assert world.state.ctx.audit is not None
    world.state.audit.sample(None)
    world.run()
    assert world.state.ctx.audit is None and world.state.audit.watches == []
    publish(author, traceparent=WHOLE)
    assert sampler.seen() == ([], 0)


def test_another_node_knows_it_by_its_id() -> None:
    fleet = Fleet(2)
    reader = fleet.connect(1, "reader")
    subscribe(reader, b"a", 0)
    author = fleet.connect(0, "author")
    here = sampling(fleet[0], 0.0, name=fleet[0].name)
    there = sampling(fleet[1], 0.0, name=fleet[1].name)
    fleet.run()
    publish(author, traceparent=WHOLE)
    publish(author)
    fleet.advance(0.1)
    assert [event["kind"] for event in here.seen()[0]] == ["accepted", "due"]
    seen = there.seen()[0]
    assert sorted(str(event["kind"]) for event in seen) == ["delivered", "delivered", "due"]
    (id,) = {str(event["id"]) for event in seen}
    parent = parent_in(id)
    assert parent is not None and parent.trace.hex() == TRACE


def test_only_what_is_named_so_is_looked_for() -> None:
    properties: Properties = {CONTENT_TYPE: "traceparent", USER_PROPERTY: [("x", WHOLE)]}
    assert parent_of(encode_property_bytes(properties)) is None
    assert parent_of(encode_property_bytes({CONTENT_TYPE: f"traceparent {WHOLE}"})) is None
    assert parent_of(b"") is None
