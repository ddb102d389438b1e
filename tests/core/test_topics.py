"""Topic names, topic filters and shared subscriptions: the examples of MQTT 5.0, chapters 1.5.4, 4.7 and 4.8.2."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.twins import filters, topics

from starlingmq.core.topics.topics import levels, matches, parse_share, valid_filter, valid_topic

# (topic or filter, as a topic, as a filter, why)
WELL_FORMED = [
    (b"sport/tennis/player1", True, True, ""),
    (b"/finance", True, True, "empty levels are levels"),
    (b"finance/", True, True, "and so is the last one"),
    (b"/", True, True, "two empty levels"),
    (b"Accounts payable", True, True, "a space is a character"),
    ("stra\u00dfe/\U0001f600".encode(), True, True, "any character of Unicode"),
    ("\ufeffbom".encode(), True, True, "[MQTT-1.5.4-3] U+FEFF is a character like others"),
    ("\uffff".encode(), True, True, "a noncharacter is still well formed"),
    (b"\x01", True, True, "a control character is discouraged, not forbidden"),
    (b"$SYS/broker", True, True, "$ is a character too"),
    (b"a" * 65535, True, True, "[MQTT-4.7.3-3]"),
    (b"a" * 65536, False, False, "[MQTT-4.7.3-3]"),
    (b"", False, False, "[MQTT-4.7.3-1]"),
    (b"a\0b", False, False, "[MQTT-4.7.3-2] [MQTT-1.5.4-2]"),
    (b"\xff", False, False, "[MQTT-1.5.4-1] not UTF-8"),
    (b"a/\xc3", False, False, "[MQTT-1.5.4-1] cut short"),
    (b"\xc0\xaf", False, False, "[MQTT-1.5.4-1] a longer way to write '/'"),
    (b"\xed\xa0\x80", False, False, "[MQTT-1.5.4-1] a surrogate"),
    (b"\xf4\x90\x80\x80", False, False, "[MQTT-1.5.4-1] beyond U+10FFFF"),
    (b"+/\xff", False, False, "[MQTT-1.5.4-1] beside a wildcard"),
    (b"#", False, True, "[MQTT-4.7.0-1] [MQTT-3.3.2-2] wildcards are for filters"),
    (b"sport/tennis/#", False, True, "[MQTT-4.7.1-1]"),
    (b"sport/tennis#", False, False, "[MQTT-4.7.1-1] not a whole level"),
    (b"sport/tennis/#/ranking", False, False, "[MQTT-4.7.1-1] not the last level"),
    (b"#/", False, False, "[MQTT-4.7.1-1] not the last level"),
    (b"##", False, False, "[MQTT-4.7.1-1]"),
    (b"#+", False, False, "[MQTT-4.7.1-1]"),
    (b"+", False, True, "[MQTT-4.7.1-2]"),
    (b"+/tennis/#", False, True, "[MQTT-4.7.1-2]"),
    (b"sport/+/player1", False, True, "[MQTT-4.7.1-2]"),
    (b"/+", False, True, "[MQTT-4.7.1-2]"),
    (b"+/+", False, True, "[MQTT-4.7.1-2]"),
    (b"sport+", False, False, "[MQTT-4.7.1-2] not a whole level"),
    (b"+sport/x", False, False, "[MQTT-4.7.1-2] not a whole level"),
    (b"++", False, False, "[MQTT-4.7.1-2]"),
    (b"a/+#", False, False, "[MQTT-4.7.1-2]"),
]


@pytest.mark.parametrize(("name", "as_topic", "as_filter", "why"), WELL_FORMED)
def test_well_formed(name: bytes, as_topic: bool, as_filter: bool, why: str) -> None:
    assert valid_topic(name) == as_topic, why
    assert valid_filter(name) == as_filter, why


@given(st.binary(max_size=12) | st.text(max_size=6).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_a_valid_topic_is_a_valid_filter_that_matches_itself(name: bytes) -> None:
    if valid_topic(name):
        assert valid_filter(name)
        assert matches(name, name)


@given(topics, filters)
def test_the_twins_draw_valid_ones(topic: bytes, filter: bytes) -> None:
    assert valid_topic(topic)
    assert valid_filter(filter)


@pytest.mark.parametrize(("name", "count"), [(b"a", 1), (b"/", 2), (b"a/b", 2), (b"/finance", 2), (b"a//#", 3)])
def test_levels(name: bytes, count: int) -> None:
    assert levels(name) == count


# (filter, topics that it matches, topics that it does not, why)
MATCHES = [
    (
        b"sport/tennis/player1/#",
        [b"sport/tennis/player1", b"sport/tennis/player1/ranking", b"sport/tennis/player1/score/wimbledon"],
        [b"sport/tennis/player10", b"sport/tennis", b"sport/tennis/player2"],
        "[MQTT-4.7.1-1]",
    ),
    (b"sport/#", [b"sport", b"sport/", b"sport/x"], [b"sports", b"Sport"], "[MQTT-4.7.1-1] the parent level too"),
    (b"#", [b"a", b"/", b"a/b/c"], [], "[MQTT-4.7.1-1] everything"),
    (
        b"sport/tennis/+",
        [b"sport/tennis/player1", b"sport/tennis/player2", b"sport/tennis/"],
        [b"sport/tennis/player1/ranking", b"sport/tennis"],
        "[MQTT-4.7.1-2] exactly one level",
    ),
    (b"sport/+", [b"sport/"], [b"sport"], "[MQTT-4.7.1-2] an empty level is a level"),
    (b"+/+", [b"/finance"], [b"finance"], "[MQTT-4.7.1-2]"),
    (b"/+", [b"/finance"], [b"finance", b"/a/b"], "[MQTT-4.7.1-2]"),
    (b"+", [b"finance"], [b"/finance"], "[MQTT-4.7.1-2]"),
    (b"+/+/#", [b"a/b", b"a/b/c/d"], [b"a"], "[MQTT-4.7.1-2]"),
    (b"#", [], [b"$SYS", b"$SYS/broker/uptime", b"$"], "[MQTT-4.7.2-1]"),
    (b"+/monitor/Clients", [b"a/monitor/Clients"], [b"$SYS/monitor/Clients"], "[MQTT-4.7.2-1]"),
    (b"$SYS/#", [b"$SYS", b"$SYS/x"], [b"$SYSTEM/x"], "[MQTT-4.7.2-1] named, they match"),
    (b"$SYS/monitor/+", [b"$SYS/monitor/Clients"], [], "[MQTT-4.7.2-1] a wildcard further down is free to"),
    (b"a/+/b", [b"a/$SYS/b"], [], "[MQTT-4.7.2-1] as is a $ further down"),
    (b"ACCOUNTS", [b"ACCOUNTS"], [b"Accounts"], "[MQTT-4.7.3-4] no folding of case"),
    ("\u00e9".encode(), ["\u00e9".encode()], ["e\u0301".encode()], "[MQTT-4.7.3-4] no normalization"),
    (b"/a", [b"/a"], [b"a", b"a/", b"//a"], "[MQTT-4.7.3-4] a leading slash makes a difference"),
]


@pytest.mark.parametrize(("filter", "matching", "others", "why"), MATCHES)
def test_matches(filter: bytes, matching: list[bytes], others: list[bytes], why: str) -> None:
    assert [topic for topic in matching if not matches(filter, topic)] == [], why
    assert [topic for topic in others if matches(filter, topic)] == [], why


@pytest.mark.parametrize(
    ("filter", "share"),
    [
        (b"$share/consumer1/sport/tennis/+", (b"consumer1", b"sport/tennis/+")),
        (b"$share/group//finance", (b"group", b"/finance")),
        (b"$share/g/#", (b"g", b"#")),
        (b"$share/g//", (b"g", b"/")),
        (b"sport/$share/x", None),
        (b"$shared/g/x", None),
        (b"$SHARE/g/x", None),
        (b"$SYS/#", None),
    ],
)
def test_parse_share(filter: bytes, share: tuple[bytes, bytes] | None) -> None:
    assert parse_share(filter) == share


@pytest.mark.parametrize(
    ("filter", "clause"),
    [
        (b"$share", "MQTT-4.8.2-1"),
        (b"$share/", "MQTT-4.8.2-1"),
        (b"$share//a", "MQTT-4.8.2-1"),
        (b"$share/group", "MQTT-4.8.2-2"),
        (b"$share/group/", "MQTT-4.8.2-2"),
        (b"$share/+/a", "MQTT-4.8.2-2"),
        (b"$share/#", "MQTT-4.8.2-2"),
        (b"$share/gro+up/a", "MQTT-4.8.2-2"),
    ],
)
def test_a_malformed_share_says_which_rule_it_breaks(filter: bytes, clause: str) -> None:
    with pytest.raises(ValueError, match=clause):
        parse_share(filter)


@given(filters)
def test_the_inner_filter_of_a_valid_share_is_valid(filter: bytes) -> None:
    share = parse_share(b"$share/g/" + filter)
    assert share is not None
    assert share == (b"g", filter)
    assert valid_filter(share[1])
