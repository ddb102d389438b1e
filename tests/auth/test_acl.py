"""Rules of a file: what they mean for one client, and the line that a wrong one gets."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from starlingmq.auth.acl import Acl, AclFile, acl_of, read_acl
from starlingmq.auth.ambiguous_patterns import overlap, warnings_of
from starlingmq.config.section_types import ConfigError
from starlingmq.config.tree_builder import build
from starlingmq.core.limits.access import Rights

PEER = "10.1.2.3:50000"


def acl(text: str) -> Acl:
    return acl_of(build(AclFile, yaml.safe_load(text)))


def rights(text: str, client: str = "c1", user: str = "ann", peer: str = PEER) -> Rights:
    return acl(text).rights(client, user, peer)


def test_the_first_rule_that_fits_decides() -> None:
    found = rights(
        "rules: [{deny: publish, topics: [a/secret]}, {allow: [publish, subscribe], topics: ['a/#']}, {deny: all}]"
    )
    assert not found.may_publish(b"a/secret", 0, False)
    assert found.may_publish(b"a/b", 2, True)
    assert not found.may_publish(b"b", 0, False)
    assert found.may_subscribe(b"a/b/+", b"") and not found.may_subscribe(b"a/#", b"g")


def test_the_default_applies_where_no_rule_matches() -> None:
    assert not rights("rules: []").may_publish(b"a", 0, False)
    assert rights("{default: allow, rules: []}").may_publish(b"a", 0, False)
    assert acl("rules: []").may_connect("c", "u", PEER)


def test_names_in_topics() -> None:
    text = "rules: [{allow: publish, topics: ['dev/%c/x-%u/#']}]"
    assert rights(text).may_publish(b"dev/c1/x-ann/1", 1, False)
    assert not rights(text).may_publish(b"dev/c2/x-ann/1", 1, False)
    assert not rights(text, user="").may_publish(b"dev/c1/x-/1", 1, False)


@pytest.mark.parametrize("name", ["#", "+", "a/b", "+/#", "%u"])
def test_a_name_is_no_wildcard_and_begins_no_level(name: str) -> None:
    for found in (
        rights("rules: [{allow: [publish, subscribe], topics: ['%c/x']}]", client=name),
        rights("rules: [{allow: [publish, subscribe], topics: ['%u/#']}]", user=name),
    ):
        for topic in (b"ann/x", b"a/b/x", b"a/x", b"c1/x"):
            assert not found.may_publish(topic, 0, False)
        for filter in (b"+/x", b"#", b"a/b/x", b"+/#"):
            assert not found.may_subscribe(filter, b"")


def test_a_rule_applies_to_the_clients_that_it_names() -> None:
    text = """rules:
    - {deny: connect, addresses: [10.13.0.0/16, '::1']}
    - {deny: connect, clients: ['bad-*']}
    - {allow: connect, users: [ann]}
    - {deny: connect}"""
    may = acl(text).may_connect
    assert may("c", "ann", PEER) and not may("c", "bob", PEER)
    assert not may("bad-1", "ann", PEER) and may("worse-bad-1", "ann", PEER)
    assert not may("c", "ann", "10.13.200.1:1") and not may("c", "ann", "[::ffff:10.13.0.1]:1")
    assert not may("c", "ann", "[::1]:1") and may("c", "ann", "unix")


def test_qos_retain_groups_and_streams() -> None:
    found = rights("""rules:
    - {allow: publish, qos: [0, 1], retain: false}
    - {allow: group, topics: ['jobs/#'], groups: [workers]}
    - {allow: stream, streams: [orders]}""")
    assert found.may_publish(b"a", 1, False)
    assert not found.may_publish(b"a", 2, False) and not found.may_publish(b"a", 0, True)
    assert found.may_subscribe(b"jobs/+", b"workers") and not found.may_subscribe(b"jobs/+", b"idlers")
    assert found.may_read(b"orders") and not found.may_read(b"others")


def test_replies_are_allowed_by_their_own_rule_and_denied_by_a_rule_before_it_that_denies_publishing() -> None:
    found = rights("""rules:
    - {deny: publish, topics: ['cmd/#']}
    - {allow: reply, topics: ['dev/%u/#', 'cmd/#'], max_replies: 3, reply_expires: 10s}
    - {allow: reply}
    - {deny: all}""")
    named, other = found.reply(b"dev/ann/1"), found.reply(b"_INBOX/1")
    assert named is not None and (named.count, named.seconds) == (3, 10.0)
    assert other is not None and (other.count, other.seconds) == (1, 120.0)
    assert found.reply(b"cmd/stop") is None and found.reply(b"$x/1") is None
    assert not found.may_publish(b"_INBOX/1", 0, False)
    assert not rights("rules: [{allow: all}]").replies


def test_a_denied_subscription_is_denied_in_a_group_too() -> None:
    found = rights("{default: allow, rules: [{deny: subscribe, topics: ['secret/#']}]}")
    for filter in (b"secret/#", b"secret/a", b"#", b"+/a"):
        assert not found.may_subscribe(filter, b"") and not found.may_subscribe(filter, b"workers"), filter
    assert found.may_subscribe(b"open/#", b"workers")
    first = rights("{default: allow, rules: [{allow: group, groups: [workers]}, {deny: subscribe}]}")
    assert first.may_subscribe(b"secret/a", b"workers") and not first.may_subscribe(b"secret/a", b"idlers")
    allowed = rights("rules: [{allow: subscribe, topics: ['jobs/#']}]")
    assert allowed.may_subscribe(b"jobs/1", b"") and not allowed.may_subscribe(b"jobs/1", b"workers")


def test_brackets_in_the_names_of_a_rule_are_brackets() -> None:
    found = acl("rules: [{deny: connect, users: ['[ab]nn'], clients: ['c[1]*']}]")
    assert not found.may_connect("c[1]x", "[ab]nn", "")
    assert found.may_connect("c[1]x", "ann", "") and found.may_connect("c1x", "[ab]nn", "")
    bound = acl("clients: ['[%u]']")
    assert bound.may_be("[ann]", "ann") and not bound.may_be("a", "ann")


@pytest.mark.parametrize("peer", ["10.1.2.3:1", "[::ffff:10.1.2.3]:1"])
@pytest.mark.parametrize("network", ["10.0.0.0/8", "::ffff:10.0.0.0/104", "::ffff:10.1.2.3"])
def test_a_network_of_mapped_addresses_is_the_one_of_ipv4(network: str, peer: str) -> None:
    found = acl(f"rules: [{{deny: connect, addresses: ['{network}']}}]")
    assert not found.may_connect("c", "ann", peer)
    assert found.may_connect("c", "ann", "11.1.2.3:1") and found.may_connect("c", "ann", "[2001:db8::1]:1")


def test_the_brokers_events_are_for_whom_a_rule_names_them() -> None:
    for rules, allowed in (
        ("rules: [{allow: all}]", False),
        ("rules: [{allow: subscribe, topics: ['$events/#']}]", True),
        ("rules: [{deny: subscribe}]\ndefault: allow", False),
    ):
        assert rights(rules).may_subscribe(b"$events/#", b"") == allowed, rules


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        ("{topics: [a]}", "rules[0]: needs exactly one of allow and deny"),
        ("{allow: publish, deny: publish}", "rules[0]: needs exactly one of allow and deny"),
        ("{allow: publsh}", "rules[0].allow: "),
        ("{allow: publish, topics: ['a/#/b']}", "rules[0].topics: 'a/#/b' is not a topic filter"),
        (
            "{allow: publish, addresses: [10.0.0.300]}",
            "rules[0].addresses: '10.0.0.300' is not an address or a network",
        ),
        ("{allow: subscribe, qos: [1]}", "rules[0]: qos and retain only apply to the action publish"),
        ("{allow: publish, qos: [3]}", "rules[0].qos: must be 0, 1 or 2"),
        ("{allow: publish, groups: [a]}", "rules[0].groups: only applies to the action group"),
        ("{allow: publish, streams: [a]}", "rules[0].streams: only applies to the action stream"),
        (
            "{allow: publish, max_replies: 2}",
            "rules[0]: max_replies and reply_expires only apply to allow: reply",
        ),
        (
            "{deny: reply, reply_expires: 1s}",
            "rules[0]: max_replies and reply_expires only apply to allow: reply",
        ),
        ("{allow: reply, max_replies: -1}", "rules[0].max_replies: "),
        ("{allow: connect, clients: ['%u-%u']}", "rules[0].clients: '%u-%u' has more than one %u"),
        ("{allow: publish, topic: [a]}", "rules[0].topic: unknown key; the nearest is rules[0].topics"),
    ],
)
def test_a_wrong_rule_is_one_line(tmp_path: Path, rule: str, line: str) -> None:
    path = tmp_path / "acl.yaml"
    path.write_text(f"rules: [{rule}]\n")
    with pytest.raises(ConfigError) as error:
        read_acl(str(path))
    assert str(error.value).startswith(f"{path}: {line}") and "\n" not in str(error.value)


@pytest.mark.parametrize("topic", ["$SYS/broker", "$JS/API/x", "$events/a", "$other", "plain", "a/b"])
@pytest.mark.parametrize("default", ["allow", "deny"])
def test_a_rule_without_topics_is_about_all_of_them(topic: str, default: str) -> None:
    name = topic.encode()
    denied = rights(f"{{default: {default}, rules: [{{deny: all}}, {{allow: all, topics: ['#', '{topic}']}}]}}")
    allowed = rights(f"{{default: {default}, rules: [{{allow: all}}, {{deny: all}}]}}")
    events = topic.startswith("$events")
    for qos, retain in ((0, False), (2, True)):
        assert not denied.may_publish(name, qos, retain)
        assert allowed.may_publish(name, qos, retain) != events
    for group in (b"", b"g"):
        for filter in (name, name + b"/#", name + b"/+", b"#", b"+/#"):
            assert not denied.may_subscribe(filter, group)
            assert allowed.may_subscribe(filter, group) != (events and filter.startswith(b"$events"))
    assert not denied.may_receive(name) and allowed.may_receive(name) != events
    assert not denied.may_read(b"$orders") and allowed.may_read(b"$orders")


def test_a_rule_with_wildcards_is_about_what_they_match() -> None:
    found = rights("{default: allow, rules: [{deny: all, topics: ['#']}]}")
    assert not found.may_publish(b"a", 0, False) and found.may_publish(b"$x", 0, False)
    assert not found.may_subscribe(b"$events/#", b""), "a default does not name them"


@pytest.mark.parametrize("name", ["+", "#", "a/b", "", "x+", "+/#"])
@pytest.mark.parametrize("letter", ["c", "u"])
def test_a_name_that_is_no_level_is_denied_all_that_it_could_mean(name: str, letter: str) -> None:
    rule = f"[{{deny: all, topics: ['sensors/%{letter}/#']}}, {{allow: all}}]"
    found = rights(f"rules: {rule}", client=name if letter == "c" else "c1", user=name if letter == "u" else "ann")
    for topic in (b"sensors/a/b", b"sensors/ann", b"sensors/c1/x/y", b"sensors/+/#"):
        assert not found.may_publish(topic, 0, False) and not found.may_subscribe(topic, b"")
    assert not found.may_subscribe(b"#", b"g") and found.may_publish(b"other/a", 0, False)


@pytest.mark.parametrize("name", ["+", "#", "a/b"])
def test_such_a_name_in_front_is_denied_every_topic_with_the_rest(name: str) -> None:
    found = rights("rules: [{deny: all, topics: ['%u/secret']}, {allow: all}]", user=name)
    assert not found.may_publish(b"a/secret", 0, False) and not found.may_publish(b"$x/secret", 0, False)


@pytest.mark.parametrize("name", ["*", ">", "a.b", "a*", "?", "[a]", "%c"])
def test_other_signs_are_compared_as_they_are(name: str) -> None:
    allowed = rights("rules: [{allow: all, topics: ['sensors/%u/#']}]", user=name)
    denied = rights("rules: [{deny: all, topics: ['sensors/%u/#']}, {allow: all}]", user=name)
    own = f"sensors/{name}/1".encode()
    assert allowed.may_publish(own, 0, False) and not allowed.may_publish(b"sensors/other/1", 0, False)
    assert not denied.may_publish(own, 0, False) and denied.may_publish(b"sensors/other/1", 0, False)


@pytest.mark.parametrize("name", ["$SYS", "$events", "$JS"])
def test_no_name_makes_a_topic_of_the_broker_of_a_rule(name: str) -> None:
    found = rights("rules: [{allow: all, topics: ['%c/#', '%u/#']}]", client=name, user=name)
    for topic in (f"{name}/#", f"{name}/x"):
        assert not found.may_subscribe(topic.encode(), b"") and not found.may_publish(topic.encode(), 0, False)


def test_client_ids_belong_to_users() -> None:
    found = acl("clients: ['%u', '%u-*', 'guest-?']")
    for client, user, fits in (
        ("ann", "ann", True),
        ("ann-1", "ann", True),
        ("annx", "ann", False),
        ("bob", "ann", False),
        ("bob-ann", "ann", False),
        ("bob-1", "ann", False),
        ("guest-1", "ann", True),
        ("guest-1", "", True),
        ("-1", "", False),
        ("x", "*", False),
        ("*-1", "*", True),
        ("an-1", "a[n]", False),
        ("a-a", "a", True),
        ("ann\n", "ann", False),
    ):
        assert found.may_be(client, user) == fits, (client, user)
    assert acl("rules: []").may_be("bob", "ann")


def test_with_a_colon_between_them_no_user_has_the_client_ids_of_another_one() -> None:
    """With any other separator the name of one user may be the beginning of that of another one."""
    found = acl("clients: ['%u', '%u:*']")
    assert not warnings_of(found)
    names = ["eve", "ann", "eve-ann", "eve:ann", "eve:", ":eve"]
    for client in [*names, *(f"{name}:1" for name in names), "eve:ann:1"]:
        assert [name for name in names if found.may_be(client, name)] in ([], [client.split(":")[0]])
    assert found.may_be("eve:1", "eve") and found.may_be("eve-ann:1", "eve-ann") and found.may_be("eve-ann", "eve-ann")
    dashed = acl("clients: ['%u', '%u-*']")
    assert dashed.may_be("eve-ann", "eve") and dashed.may_be("eve-ann", "eve-ann")
    [line] = warnings_of(dashed)
    assert line.startswith("clients: users 'eve' and 'eve-ann' may both use the client id 'eve-ann'; only a colon")


def test_what_a_name_with_a_colon_could_mean_is_denied() -> None:
    found = acl("rules: [{deny: connect, clients: ['%u:*']}]")
    assert not found.may_connect("eve:ann", "eve:x", PEER) and found.may_connect("eve:ann", "ann", PEER)


@pytest.mark.parametrize(
    ("texts", "ambiguous"),
    [
        (["%u"], False),
        (["%u-*"], True),
        (["*%u"], True),
        (["%u?"], False),
        (["%u", "%u?"], True),
        (["*:%u:*"], True),
        (["dev-%u"], False),
        (["dev-%u", "app-%u"], False),
        (["%u", "dev-%u"], True),
        (["a-%u", "a-b-%u"], True),
        (["%u:*", "dev:%u"], True),
        (["%u", "dev:%u"], False),
        (["%u", "%u:*"], False),
        (["%u", "*:%u"], False),
        (["%u:sensor-*", "%u:app"], False),
        (["fixed-*", "*"], False),
    ],
)
def test_patterns_by_which_two_users_may_have_one_client_id(texts: list[str], ambiguous: bool) -> None:
    found = overlap(texts)
    assert (found is not None) == ambiguous
    if found is not None:
        patterns = acl(f"clients: {texts}")
        assert found[0] != found[1] and all(patterns.may_be(found[2], user) for user in found[:2])


@pytest.mark.parametrize(
    ("rule", "warned"),
    [
        ("{allow: connect, clients: ['%u-*']}", True),
        ("{allow: connect, users: ['gate-*'], clients: ['%u-*']}", True),
        ("{allow: connect, users: [gateway], clients: ['%u-*']}", False),
        ("{deny: connect, clients: ['%u-*']}", False),
    ],
)
def test_only_rules_that_allow_something_to_several_users_are_told_of(rule: str, warned: bool) -> None:
    lines = warnings_of(acl(f"rules: [{{allow: publish}}, {rule}]"))
    assert [line.partition(": ")[0] for line in lines] == (["rules[1].clients"] if warned else [])


def test_client_ids_of_rules_name_the_user_too() -> None:
    found = acl("rules: [{allow: connect, clients: ['%u-*']}, {deny: connect, clients: ['x-%u']}, {deny: connect}]")
    assert found.may_connect("ann-1", "ann", PEER) and not found.may_connect("bob-1", "ann", PEER)
    assert not found.may_connect("-1", "", PEER)
    without = acl("rules: [{deny: connect, clients: ['x-%u']}]")
    assert not without.may_connect("anything", "", PEER), "what a missing name could mean is denied"
    assert without.may_connect("x-bob", "ann", PEER) and not without.may_connect("x-ann", "ann", PEER)


BY_LISTENER = """
rules:
  - {deny: connect, listeners: ["mqtt://*:1884"], users: [guest]}
  - {deny: publish, listeners: ["*:1884"], topics: ["only-local/#"]}
  - {allow: publish, listeners: ["mqtts://*"], topics: ["sealed/#"]}
  - {allow: publish, topics: ["open/#", "only-local/#"]}
"""


@pytest.mark.parametrize(
    ("listener", "allowed"),
    [
        ("mqtt://10.0.0.1:1883", {"only-local/a", "open/a"}),
        ("mqtt://10.0.0.1:1884", {"open/a"}),
        ("mqtts://10.0.0.1:1883", {"only-local/a", "sealed/a", "open/a"}),
        ("mqtts://10.0.0.1:1884", {"sealed/a", "open/a"}),
        ("", {"open/a"}),
    ],
)
def test_a_rule_for_some_listeners_is_for_clients_that_come_by_them(listener: str, allowed: set[str]) -> None:
    rights = acl(BY_LISTENER).rights("c", "u", PEER, listener=listener)
    topics = ("only-local/a", "sealed/a", "open/a", "other")
    assert {topic for topic in topics if rights.may_publish(topic.encode(), 0, False)} == allowed


def test_a_listener_is_closed_to_a_user() -> None:
    found = acl(BY_LISTENER)
    assert not found.may_connect("c", "guest", PEER, listener="mqtt://10.0.0.1:1884")
    assert found.may_connect("c", "guest", PEER, listener="mqtt://10.0.0.1:1883")
    assert not found.may_connect("c", "guest", PEER), "not known"
