"""Learned filters of a link: what a far broker may tell, and how much is remembered; messages that would end a link."""

from __future__ import annotations

import pytest
from tests.bridges.test_bridge_relay import message, relay_of, running

from starlingmq.bridges.bridge_relay import MARKER, RUNNING, SETTLING, WAITING_MAX
from starlingmq.bridges.learned_filters import SHAPES_MAX, LearnedFilters
from starlingmq.bridges.topic_maps import TopicMap
from starlingmq.client.events import Completed
from starlingmq.client.options import Subscription
from starlingmq.config.bridges_section import BridgeTopic
from starlingmq.core.publish.bridges import MARK
from starlingmq.core.session.overlaps import OVERLAPS_MAX
from starlingmq.core.subscribe.wanted_filters import WANTED
from starlingmq.wire.frames import publish_frame
from starlingmq.wire.properties import PROPERTIES_MAX, USER_PROPERTY, encode_property_bytes
from starlingmq.wire.reasons import Reason


def learned(filter: str = "#") -> LearnedFilters:
    return LearnedFilters(TopicMap((BridgeTopic(filter=filter, direction="both"),), outwards=True), "here")


@pytest.mark.parametrize("answer", [b"+\0there\0", b"+a/\xff\0there\0", b"+a\0\xff\0", b"+a/#/b\0there\0"])
def test_filters_that_are_none_end_the_connection(answer: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        learned().hear(answer)
    relay = running()
    relay.far.learned, relay.near.learned = learned(), learned()
    relay.received(relay.far, publish_frame(WANTED, answer, 0, False, False, 0, 5, b""), 0.0)
    assert relay.ended() and relay.problem.startswith("the other broker tells filters that are none: ")


def test_nothing_is_remembered_of_filters_that_have_gone() -> None:
    filters = learned()
    for number in range(100):
        filters.hear(b"+reply/%d\0there\0" % number)
        assert filters.take() == ({"there": [(f"reply/{number}", 2, True)]}, [])
        filters.hear(b"-reply/%d\0\0" % number)
        assert filters.take() == ({}, [f"reply/{number}"])
    assert not (filters._made or filters._paths or filters._qos or filters._wanted or len(filters._overlaps))


def test_the_filters_of_the_entries_replace_more_shapes_than_a_broker_takes() -> None:
    assert SHAPES_MAX < OVERLAPS_MAX
    filters = learned("t/#")
    made: set[str] = set()
    for number in range(SHAPES_MAX + 1):
        levels = ["+" if number >> bit & 1 else "x" for bit in range(10)]
        filters.hear(f"+t/{'/'.join(levels)}/#\0there\0".encode())
        make, end = filters.take()
        made = made.union(name for each in make.values() for name, _, _ in each).difference(end)
    assert made == {"t/#"}


def test_paths_fit_into_a_property() -> None:
    filters = learned()
    filters.hear(b"+a\0" + b";".join(b"s%d" % number for number in range(20_000)) + b"\0")
    (paths,) = filters.take()[0]
    assert len(paths) < 100


@pytest.mark.parametrize(
    "pairs", [[(MARK, "x" * 65_534)], [("", "")] * PROPERTIES_MAX, [("", "")] * (PROPERTIES_MAX - 4)]
)
def test_a_message_that_the_other_broker_could_not_take_is_kept_out(pairs: list[tuple[str, str]]) -> None:
    relay = running()
    properties = encode_property_bytes({USER_PROPERTY: pairs})
    relay.received(relay.near, publish_frame(b"a", b"x", 1, False, False, 1, 5, properties), 0.0)
    assert (relay.phase, relay.counts.kept_out, relay.far.out) == (RUNNING, 1, [])
    relay.received(relay.near, message(1, 2), 0.0)
    assert len(relay.far.out) == 1


def test_an_answer_about_filters_is_not_dropped_behind_many_messages() -> None:
    relay = relay_of()
    relay.phase = SETTLING
    relay.far.learned = learned()
    answer = publish_frame(WANTED, b".\0\0", 0, False, False, 0, 5, b"")
    relay.received(relay.far, message(2, 1) * WAITING_MAX + answer, 0.0)
    assert relay.far.waiting[-1] == answer


def test_a_subscription_from_before_filters_were_learned_ends_with_complete_only() -> None:
    relay = relay_of()
    relay.learns = True
    before = dict.fromkeys((MARKER, "$bridge/in/2/old/#"), (0, False, False))
    relay.far_present = True
    relay._plan(before)
    ends = [(leg, filters) for leg, on, _, filters in relay._steps if not on]
    assert ends == [(relay.near, ["$bridge/in/2/old/#"])]


def test_a_subscription_that_a_cluster_could_not_make_in_time_is_made_again() -> None:
    for reason, ends in ((Reason.IMPLEMENTATION_SPECIFIC_ERROR, True), (Reason.NOT_AUTHORIZED, False)):
        relay = running()
        relay.near.asked[1] = [Subscription(filter="a")]
        relay._learned(relay.near, Completed(1, [reason], {}))
        assert relay.ended() is ends and (ends or len(relay.complaints) == 1)
