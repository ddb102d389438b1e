"""The settings of bridges: each form that is refused, with its sentence, and forms beside them that are not."""

from __future__ import annotations

from typing import Any

import pytest

from starlingmq.config.bridges_section import (
    BridgeConfig,
    BridgeCredentials,
    BridgeTls,
    BridgeTopic,
    check_bridges,
)
from starlingmq.config.section_types import ConfigError


def bridge(*topics: BridgeTopic, **settings: Any) -> BridgeConfig:
    named: dict[str, Any] = {"name": "up", "servers": ("mqtt://host",), "topics": topics or (BridgeTopic(filter="a"),)}
    return BridgeConfig(**named | settings)


def refusal(*bridges: BridgeConfig) -> str:
    with pytest.raises(ConfigError) as caught:
        check_bridges(bridges)
    return str(caught.value)


def of_topic(filter: str, **settings: Any) -> str:
    return refusal(bridge(BridgeTopic(filter=filter, **settings))).removeprefix("bridges[0].topics[0].")


def test_two_bridges_of_one_name_are_refused() -> None:
    assert refusal(bridge(), bridge()) == "bridges[1].name: up is defined twice; rename one of them"
    check_bridges((bridge(), bridge(name="down")))


def test_a_password_is_set_once() -> None:
    both = bridge(credentials=BridgeCredentials(password="p", password_file="f"))
    text = "bridges[0].credentials.password_file: password is set as well; set only one of them"
    assert refusal(both) == text
    check_bridges((bridge(credentials=BridgeCredentials(password_file="f")),))


def test_a_key_needs_its_certificate() -> None:
    text = "bridges[0].tls.key: needs tls.cert, the certificate of this key"
    assert refusal(bridge(tls=BridgeTls(key="k"))) == text
    check_bridges((bridge(tls=BridgeTls(key="k", cert="c")),))


@pytest.mark.parametrize(
    "url", ["host", "http://host", "mqtt://", "mqtt://host:0", "mqtt://host:x", "unix://", "mqtt://["]
)
def test_what_is_no_url_of_a_broker_is_refused(url: str) -> None:
    schemes = "mqtt, mqtts, ws, wss, unix, nats, tls, kafka, kafka+ssl"
    text = f"is not a URL such as mqtt://host:1883 or mqtts://host ({schemes})"
    assert refusal(bridge(servers=("mqtt://host", url))) == f"bridges[0].servers[1]: {url} {text}"


@pytest.mark.parametrize(
    "url", ["mqtt://host", "mqtts://host:8883", "ws://host/mqtt", "wss://[::1]:443", "unix:///run/broker"]
)
def test_urls_of_brokers_are_accepted(url: str) -> None:
    check_bridges((bridge(servers=(url,)),))


def test_a_login_in_a_url_is_refused_and_not_shown() -> None:
    text = refusal(bridge(servers=("mqtt://user:secret@host",)))
    assert text.endswith("has a login; set credentials.username and credentials.password_file")
    assert "secret" not in text


@pytest.mark.parametrize("side", ["local_prefix", "remote_prefix"])
@pytest.mark.parametrize("prefix", ["a/+/", "#", "a\0"])
def test_wildcards_in_a_prefix_are_refused(side: str, prefix: str) -> None:
    assert of_topic("a", **{side: prefix}) == f"{side}: must not contain + and #; put them into the filter"


@pytest.mark.parametrize("filter", ["", "x" * 65_536, "a\0b"])
def test_a_filter_has_a_length_and_no_nul(filter: str) -> None:
    assert of_topic(filter) == "filter: with local_prefix it must have 1 to 65535 bytes, without NUL"


def test_the_length_counts_with_each_prefix() -> None:
    text = "filter: with remote_prefix it must have 1 to 65535 bytes, without NUL"
    assert of_topic("x" * 65_535, remote_prefix="y") == text
    assert of_topic("", local_prefix="a") == text
    check_bridges((bridge(BridgeTopic(filter="", local_prefix="a", remote_prefix="b")),))


@pytest.mark.parametrize("filter", ["a/#/b", "#/a", "a+", "a/b#", "+a/b", "a/++"])
def test_a_wildcard_is_a_whole_level(filter: str) -> None:
    assert of_topic(filter) == "filter: + and # must be whole levels, and # the last one"


def test_a_wildcard_stays_a_whole_level_with_a_prefix() -> None:
    assert of_topic("#", local_prefix="a") == "filter: + and # must be whole levels, and # the last one"
    check_bridges((bridge(BridgeTopic(filter="+/#", local_prefix="a/")),))


@pytest.mark.parametrize("filter", ["$share/g/a", "$SYS/a", "$events/a", "$bridge/in/2/a", "$link/wanted"])
def test_topics_of_a_broker_itself_are_refused(filter: str) -> None:
    text = "filter: topics of a broker itself and shared subscriptions are not carried"
    assert of_topic(filter) == text
    first, _, rest = filter.partition("/")
    assert of_topic(rest, remote_prefix=first + "/") == text


@pytest.mark.parametrize("rename", ["$link/wanted", "$bridge/in/2/a", "$SYS/{1}"])
def test_no_message_is_renamed_to_a_topic_of_a_broker_itself(rename: str) -> None:
    assert of_topic("a/+", direction="in", rename=rename) == "rename: must not be a topic of a broker itself"


def test_a_rename_works_one_way() -> None:
    text = "rename: works one way only; write one entry for in and one for out"
    assert of_topic("a", direction="both", rename="b") == text


@pytest.mark.parametrize("rename", ["{0}", "{3}", "{1", "}", "+/{1}", "{2}/#", "a\0"])
def test_a_rename_names_the_wildcards_of_the_filter(rename: str) -> None:
    text = "rename: is a topic with {1} to {2} for the wildcards of the filter"
    assert of_topic("a/+/#", direction="in", rename=rename) == text


def test_a_rename_without_wildcards_has_no_braces() -> None:
    text = "rename: is a topic without braces, because the filter has no wildcards"
    assert of_topic("a", rename="{1}") == text
    check_bridges((bridge(BridgeTopic(filter="a/+/#", direction="in", rename="{2}/x/{1}/{1}")),))
