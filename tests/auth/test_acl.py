"""Rules of a file: what they mean for one client, and the line that a wrong one gets."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from starlingmq.auth.acl import Acl, AclFile, acl_of, read_acl
from starlingmq.config_build import build
from starlingmq.config_types import ConfigError
from starlingmq.core.access import Rights

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


def test_what_no_rule_is_about() -> None:
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


def test_who_a_rule_is_for() -> None:
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
        ("{topics: [a]}", "rules[0]: say either allow or deny, and what"),
        ("{allow: publish, deny: publish}", "rules[0]: say either allow or deny, and what"),
        ("{allow: publsh}", "rules[0].allow: "),
        ("{allow: publish, topics: ['a/#/b']}", "rules[0].topics: 'a/#/b' is no topic filter"),
        ("{allow: publish, addresses: [10.0.0.300]}", "rules[0].addresses: '10.0.0.300' is neither"),
        ("{allow: subscribe, qos: [1]}", "rules[0]: qos and retain are for a rule about publish"),
        ("{allow: publish, qos: [3]}", "rules[0].qos: 0, 1 and 2 there are"),
        ("{allow: publish, groups: [a]}", "rules[0].groups: only a rule about group has some"),
        ("{allow: publish, streams: [a]}", "rules[0].streams: only a rule about stream has some"),
        ("{allow: publish, topic: [a]}", "rules[0].topic: unknown key; the nearest is rules[0].topics"),
    ],
)
def test_a_wrong_rule_is_one_line(tmp_path: Path, rule: str, line: str) -> None:
    path = tmp_path / "acl.yaml"
    path.write_text(f"rules: [{rule}]\n")
    with pytest.raises(ConfigError) as error:
        read_acl(str(path))
    assert str(error.value).startswith(f"{path}: {line}") and "\n" not in str(error.value)
