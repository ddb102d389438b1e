"""The topics at both sides of a bridge, and the mark of the sites that a message has been at."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from starlingmq.bridges import topic_maps
from starlingmq.bridges.site_mark import marked
from starlingmq.bridges.topic_maps import CACHE_MAX, TopicMap
from starlingmq.config.bridges_section import BridgeConfig, BridgeTopic, check_bridges
from starlingmq.core.publish.bridges import MARK, sites_of
from starlingmq.core.topics.topics import matches, valid_topic
from starlingmq.wire.properties import (
    CONTENT_TYPE,
    USER_PROPERTY,
    Properties,
    decode_property_bytes,
    encode_property_bytes,
)

LEVELS = st.sampled_from(["a", "b", "", "é", "$x", "{1}", "\\1"])
PREFIXES = st.lists(LEVELS, max_size=2).map(lambda levels: "".join(level + "/" for level in levels))
TOPICS = st.lists(LEVELS, min_size=1, max_size=4).map("/".join)
FILTERS = st.tuples(st.lists(st.one_of(LEVELS, st.just("+")), max_size=3), st.booleans()).map(
    lambda drawn: "/".join([*drawn[0], *["#"] * drawn[1]])
)
WORDS = st.text("abcXYZ 09-é", max_size=5)
SITES = st.text("abcdef0123456789", min_size=1, max_size=8)


def maps(*topics: BridgeTopic) -> tuple[TopicMap, TopicMap]:
    """Outwards and inwards, of settings that are accepted."""
    check_bridges((BridgeConfig(name="b", servers=("mqtt://host",), topics=topics),))
    return TopicMap(topics, outwards=True), TopicMap(topics, outwards=False)


@given(FILTERS, PREFIXES, PREFIXES, TOPICS)
def test_in_and_out_are_inverse(filter: str, local: str, remote: str, rest: str) -> None:
    if not (local + filter) or not (remote + filter):
        return
    out, back = maps(BridgeTopic(filter=filter, direction="both", local_prefix=local, remote_prefix=remote))
    here, there = (local + rest).encode(), (remote + rest).encode()
    for one, other, first, second in ((out, back, here, there), (back, out, there, here)):
        name = one.other_name(first)
        carried = valid_topic(first) and valid_topic(second) and matches(one.entries[0].filter, first)
        assert name == (second if carried else b"")
        if name and matches(other.entries[0].filter, name):
            assert other.other_name(name) == first


@given(st.lists(st.sampled_from(["a", "+"]), min_size=1, max_size=4), st.booleans(), TOPICS)
def test_a_rename_gets_what_the_wildcards_matched(levels: list[str], rest: bool, topic: str) -> None:
    filter = "/".join([*levels, *["#"] * rest])
    count = filter.count("+") + rest
    rename = "/".join(["x", *[f"{{{number}}}" for number in range(count, 0, -1)]])
    _, back = maps(BridgeTopic(filter=filter, direction="in", rename=rename))
    name = back.other_name(topic.encode())
    found = topic.split("/")
    if not topic or not matches(filter.encode(), topic.encode()):
        assert name == b""
        return
    captures = [found[depth] for depth, level in enumerate(levels) if level == "+"]
    captures += ["/".join(found[len(levels) :])] * rest
    assert name == "/".join(["x", *reversed(captures)]).encode()


def test_the_first_entry_that_matches_decides() -> None:
    out, _ = maps(
        BridgeTopic(filter="a/b", remote_prefix="one/"),
        BridgeTopic(filter="a/#", remote_prefix="two/"),
        BridgeTopic(filter="a/b", remote_prefix="three/", direction="in"),
    )
    assert out.other_name(b"a/b") == b"one/a/b"
    assert out.other_name(b"a/c") == b"two/a/c"
    assert out.other_name(b"b") == b""


def test_the_highest_qos_of_a_filter_counts() -> None:
    out, back = maps(
        BridgeTopic(filter="a", qos=1, remote_prefix="x/"),
        BridgeTopic(filter="a", qos=2),
        BridgeTopic(filter="b", qos=0),
    )
    assert out.filters() == {b"a": 2, b"b": 0}
    assert back.filters() == {}


def test_topics_of_the_broker_itself_are_not_carried() -> None:
    _, back = maps(BridgeTopic(filter="#", direction="in", remote_prefix="x/"))
    assert back.other_name(b"x/$SYS/uptime") == b""
    assert back.other_name(b"x/a") == b"a"


def test_names_are_remembered_up_to_a_limit() -> None:
    out, _ = maps(BridgeTopic(filter="#", remote_prefix="x/"))
    for number in range(CACHE_MAX + 10):
        assert out.other_name(b"%d" % number) == b"x/%d" % number
    assert len(out.known) <= topic_maps.CACHE_MAX
    assert out.other_name(b"y" * 60_000) == b"x/" + b"y" * 60_000
    assert b"y" * 60_000 not in out.known


@given(st.lists(SITES, max_size=5), st.lists(st.tuples(WORDS, WORDS), max_size=3))
def test_the_mark_has_the_sites_in_order_and_leaves_other_properties(
    sites: list[str], users: list[tuple[str, str]]
) -> None:
    properties: Properties = {CONTENT_TYPE: "text"}
    if users:
        properties[USER_PROPERTY] = list(users)
    encoded = encode_property_bytes(properties)
    assert sites_of(encoded) == []
    for site in sites:
        encoded = marked(encoded, site)
    assert sites_of(encoded) == sites
    decoded = decode_property_bytes(encoded)
    assert decoded[CONTENT_TYPE] == "text"
    found = decoded.get(USER_PROPERTY, [])
    assert isinstance(found, list)
    marks = [pair for pair in found if isinstance(pair, tuple) and pair[0] == MARK]
    assert len(marks) == bool(sites), "one mark, however many sites"
    assert [pair for pair in found if pair not in marks] == users


def test_a_mark_in_a_value_is_none() -> None:
    assert sites_of(encode_property_bytes({USER_PROPERTY: [("a", MARK)]})) == []
    encoded = marked(encode_property_bytes({USER_PROPERTY: [("a", MARK)]}), "s")
    assert sites_of(encoded) == ["s"]


def test_what_a_wildcard_matched_makes_no_topic_of_a_broker_itself() -> None:
    _, back = maps(BridgeTopic(filter="a/+/#", direction="in", rename="{1}/{2}"))
    assert back.other_name(b"a/$link/wanted") == back.other_name(b"a/$SYS/x") == b""
    assert back.other_name(b"a/link/wanted") == b"link/wanted"
