"""Retained messages of linked sites: stamps, deletions, and what a bridge gets that may have missed some."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.kit import acknowledge, deliver, messages, payloads, subscribe, subscriber
from tests.harness import FakeClient
from tests.storage.world import StoredWorld

from starlingmq.core.context.context import DONE, OWED, REPLAYING
from starlingmq.core.publish.bridges import MARK, SITE, sites_of
from starlingmq.core.retained import deletions
from starlingmq.core.retained.deletions import DELETION_SECONDS
from starlingmq.core.retained.stamps import (
    NUMBER_MAX,
    STAMP,
    Stamp,
    message_stamp,
    next_stamp,
    stamp_of,
    stamp_text,
    stamped,
    text_of,
)
from starlingmq.wire.properties import SESSION_EXPIRY_INTERVAL, USER_PROPERTY, encode_property_bytes

NOW = 1_000_000_000  # milliseconds, when worlds begin


def world() -> StoredWorld:
    w = StoredWorld()
    w.state.ctx.bridge("here", {})
    return w


def link(w: StoredWorld, clean: bool = False) -> FakeClient:
    """The bridge of the site ``there``."""
    return w.connect(
        "there",
        clean_start=clean,
        properties={USER_PROPERTY: [(SITE, "there")], SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF},
    )


def with_stamp(text: str) -> bytes:
    return encode_property_bytes({USER_PROPERTY: [(STAMP, text)]})


def write(c: FakeClient, payload: bytes, stamp: str = "", topic: str = "t") -> None:
    deliver(c, topic, payload, qos=1, retain=True, properties=with_stamp(stamp) if stamp else b"")


def kept(w: StoredWorld, topic: bytes = b"t") -> tuple[bytes, str]:
    """Payload and stamp of what is retained, or those of the deletion."""
    message = w.state.retained.get(topic)
    if message is not None:
        return message.payload, text_of(message_stamp(message, "here"))
    stamp = w.state.publishing.retained.deletions.stamp(topic)
    return b"", "" if stamp is None else text_of(stamp)


def taken(c: FakeClient) -> list[tuple[bytes, bytes, str]]:
    """Topic, payload and stamp of the retained messages that a bridge has got, and acknowledges."""
    found = messages(c)
    for message in found:
        acknowledge(c, message)
    return [(each.topic, each.payload, stamp_text(each.properties)) for each in found if each.retain]


sites = st.text("abc.-0 ", max_size=9).map(lambda text: text + "a")
stamps = st.tuples(st.integers(0, 10**15 - 1), st.integers(0, NUMBER_MAX), sites)


@given(stamps)
def test_a_stamp_is_read_back(stamp: Stamp) -> None:
    assert stamp_of(text_of(stamp)) == stamp == stamp_of(stamp_text(stamped(b"", stamp, again=True)))


@pytest.mark.parametrize(
    "text", ["", "1", "1.2", "1.2.", "x.2.a", "1.-2.a", "1.²2.a", f"{10**15}.0.a", f"1.{10**9}.a", "1.2." + "a" * 65]
)
def test_a_malformed_stamp_is_none(text: str) -> None:
    assert stamp_of(text) is None


@given(st.floats(0.0, 4e9), stamps)
def test_the_next_stamp_is_later_than_all(now: float, known: Stamp) -> None:
    assert next_stamp(now, known, "a") > known
    assert next_stamp(now, known, "a") >= (int(now * 1000), 0, "a")


def test_a_broker_without_bridges_gives_no_stamps() -> None:
    w = world()
    c = w.connect("c")
    write(c, b"1")
    write(c, b"")
    assert kept(w) == (b"", "")
    assert not w.state.ctx.stamping


def test_the_larger_stamp_wins() -> None:
    w = world()
    reader, bridge = subscriber(w, "t"), link(w)
    write(bridge, b"new", f"{NOW + 5}.0.there")
    write(bridge, b"old", f"{NOW}.0.there")
    write(bridge, b"new", f"{NOW + 5}.0.there")
    assert kept(w) == (b"new", f"{NOW + 5}.0.there")
    assert payloads(reader) == [b"new", b"old"], "the overtaken one is an ordinary message; a repeated one is none"
    write(bridge, b"newer", f"{NOW + 5}.1.a")
    assert kept(w) == (b"newer", f"{NOW + 5}.1.a")


def test_an_overtaken_message_is_delivered_without_retain() -> None:
    w = world()
    bridge, reader = link(w), w.connect("reader")
    subscribe(reader, "#", retain_as_published=True)
    write(bridge, b"new", f"{NOW + 5}.0.there")
    write(bridge, b"old", f"{NOW}.0.there")
    assert [(each.payload, each.retain) for each in messages(reader)] == [(b"new", True), (b"old", False)]


def test_qos_2_is_judged_at_its_release() -> None:
    w = world()
    bridge = link(w)
    deliver(bridge, "t", b"new", qos=2, retain=True, properties=with_stamp(f"{NOW + 5}.0.there"))
    deliver(bridge, "t", b"old", qos=2, retain=True, properties=with_stamp(f"{NOW}.0.there"))
    assert kept(w) == (b"new", f"{NOW + 5}.0.there")


def test_a_later_local_write_wins_whatever_the_clocks_say() -> None:
    w = world()
    bridge, c = link(w), w.connect("c")
    write(bridge, b"ahead", f"{NOW + 30_000}.0.there")
    write(c, b"local")
    assert kept(w) == (b"local", f"{NOW + 30_000}.1.here")
    write(c, b"")
    assert kept(w) == (b"", f"{NOW + 30_000}.2.here")


def test_a_stamp_of_an_ordinary_client_does_not_count() -> None:
    w = world()
    link(w)
    c = w.connect("c")
    write(c, b"1", f"{NOW + 99_000}.0.x")
    assert kept(w) == (b"1", f"{NOW}.0.here")


def test_a_deletion_holds_against_an_older_message_and_over_a_restart() -> None:
    w = world()
    bridge, c = link(w), w.connect("c")
    write(bridge, b"1", f"{NOW - 9}.0.there")
    write(c, b"")
    w.restart()
    w.state.ctx.bridge("here", {})
    bridge = link(w)
    write(bridge, b"older", f"{NOW - 5}.0.there")
    assert kept(w) == (b"", f"{NOW}.0.here")
    w.checkpoint()
    w.restart()
    w.state.ctx.bridge("here", {})
    assert kept(w) == (b"", f"{NOW}.0.here")
    write(link(w), b"newer", f"{NOW + 1}.0.there")
    assert kept(w) == (b"newer", f"{NOW + 1}.0.there")
    w.restart()
    assert len(w.state.publishing.retained.deletions) == 0


@pytest.mark.interpreted_only("what is compiled cannot be patched")
def test_deletions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletions, "DELETIONS_MAX", 3)
    w = world()
    link(w)
    c = w.connect("c")
    for number in range(5):
        write(c, b"", topic=str(number))
    assert len(w.state.publishing.retained.deletions) == 3
    assert kept(w, b"1") == (b"", "")
    w.advance(DELETION_SECONDS + 1)
    write(c, b"", topic="4")
    assert len(w.state.publishing.retained.deletions) == 1


def test_a_new_subscription_of_a_link_gets_messages_and_deletions_again() -> None:
    w = world()
    c, ordinary = w.connect("c"), w.connect("ordinary")
    write(c, b"before", topic="a/0")
    w.advance(1.0)
    bridge = link(w)
    write(c, b"1", topic="a/1")
    write(c, b"", topic="a/2")
    write(c, b"", topic="b")
    assert subscribe(bridge, "a/#", qos=1, retain_as_published=True) == [1]
    stamp = f"{NOW + 1000}.0.here again"
    assert taken(bridge) == [
        (b"a/0", b"before", f"{NOW}.0.here again"),
        (b"a/1", b"1", stamp),
        (b"a/2", b"", stamp),
    ]
    subscribe(ordinary, "a/#")
    assert payloads(ordinary) == [b"before", b"1"]


def test_what_is_sent_again_may_go_back_to_where_it_was() -> None:
    w = world()
    bridge = link(w)
    mark = encode_property_bytes({USER_PROPERTY: [(STAMP, f"{NOW}.0.there"), (MARK, "there"), ("other", "x")]})
    deliver(bridge, "t", b"1", qos=1, retain=True, properties=mark)
    subscribe(bridge, "#", qos=1, retain_as_published=True)
    (message,) = messages(bridge)
    assert sites_of(message.properties) == []
    assert encode_property_bytes({USER_PROPERTY: [("other", "x")]}) in message.properties


def test_what_is_sent_again_is_dropped_if_it_is_known() -> None:
    w = world()
    reader, bridge = subscriber(w, "t"), link(w)
    write(bridge, b"1", f"{NOW}.0.there")
    write(bridge, b"0", f"{NOW - 5}.0.there again")
    write(bridge, b"1", f"{NOW}.0.there again")
    assert payloads(reader) == [b"1"]
    write(bridge, b"2", f"{NOW + 5}.0.there again")
    assert payloads(reader) == [b"2"]
    write(bridge, b"", f"{NOW + 6}.0.there again")
    assert kept(w) == (b"", f"{NOW + 6}.0.there")


def test_retained_messages_of_qos_0_wait_for_a_link() -> None:
    w = StoredWorld(mqueue_store_qos0=False)
    w.state.ctx.bridge("here", {})
    bridge, c = link(w), w.connect("c")
    subscribe(bridge, "#", qos=2, retain_as_published=True)
    bridge.drop()
    deliver(c, "t", b"1", retain=True)
    deliver(c, "t", b"2")
    bridge = link(w)
    (message,) = messages(bridge)
    assert (message.payload, message.qos, message.retain) == (b"1", 2, True)


def test_a_replay_that_was_interrupted_begins_again_also_after_a_restart() -> None:
    w = world()
    c = w.connect("c")
    bridge = link(w)
    for number in range(40):
        write(c, b"1", topic=f"t/{number:02}")
    bridge.block()
    subscribe(bridge, "#", qos=1, retain_as_published=True)
    assert w.state.ctx.linked["there"] == REPLAYING
    w.restart()
    w.state.ctx.bridge("here", {})
    assert w.state.ctx.linked["there"] == REPLAYING
    bridge = link(w)
    found: set[bytes] = set()
    while batch := taken(bridge):
        found |= {topic for topic, _, _ in batch}
    assert len(found) == 40
    assert w.state.ctx.linked["there"] == DONE


def test_a_link_whose_queue_overflowed_gets_all_again() -> None:
    w = StoredWorld(max_mqueue_len=2)
    w.state.ctx.bridge("here", {})
    bridge, c = link(w), w.connect("c")
    subscribe(bridge, "#", qos=1, retain_as_published=True)
    bridge.drop()
    for number in range(4):
        write(c, b"1", topic=str(number))
    write(c, b"", topic="1")
    assert w.state.ctx.linked["there"] == OWED
    bridge = link(w)
    found: dict[bytes, bytes] = {}
    while batch := taken(bridge):
        found |= {topic: payload for topic, payload, _ in batch}
    assert found == {b"0": b"1", b"1": b"", b"2": b"1", b"3": b"1"}
    assert w.state.ctx.linked["there"] == DONE


def test_a_bridge_that_names_no_site_any_more_is_no_link() -> None:
    w = world()
    link(w).drop()
    assert w.state.ctx.stamping
    w.connect("there", clean_start=False)
    assert not w.state.ctx.stamping
    w.restart()
    assert not w.state.ctx.stamping


def test_a_replay_goes_on_when_its_subscription_is_made_again() -> None:
    w = world()
    c, bridge = w.connect("c"), link(w)
    write(c, b"1")
    bridge.block()
    subscribe(bridge, "#", qos=1, retain_as_published=True)
    subscribe(bridge, "#", qos=1, retain_as_published=True, retain_handling=1)
    bridge.unblock()
    assert taken(bridge) == [(b"t", b"1", f"{NOW}.0.here again")]
