"""The test of rules for operators: the same answer as clients get, and the rule that decides."""

from __future__ import annotations

import random
from typing import Final, Literal

import pytest

from starlingmq.auth.acl import Acl, AclFile, AclRule, acl_of, rules_of
from starlingmq.auth.rule_check import CheckedAction, RuleQuestion, check_rules

FILE = "acl.yaml"
ACTIONS: Final[tuple[Literal["publish", "subscribe"], ...]] = ("publish", "subscribe")
RULES = (
    AclRule(deny="connect", addresses=("10.13.0.0/16",)),
    AclRule(allow=("publish", "subscribe"), users=("ops",), topics=("#",)),
    AclRule(deny="publish", topics=("plant/secret/#",)),
    AclRule(allow="publish", topics=("plant/#",), qos=(0,)),
    AclRule(deny="subscribe", topics=("plant/secret/#",)),
    AclRule(allow="subscribe", topics=("plant/#",)),
    AclRule(allow="group", topics=("jobs/#",), groups=("workers",)),
)


def question(action: CheckedAction, topic: str = "", **fields: object) -> RuleQuestion:
    given = {"client_id": "c", "username": "u", "peer": "127.0.0.1:1", "qos": 0, "retain": False, "group": b""}
    return RuleQuestion(action=action, topic=topic.encode(), **{"granted": None, **given, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "allowed", "said"),
    [
        (question("connect"), True, "no rule is about connecting"),
        (question("connect", peer="10.13.1.1:5"), False, "rule 1 in acl.yaml"),
        (question("publish", "plant/x", peer="10.13.1.1:5"), False, "rule 1 in acl.yaml"),
        (question("publish", "any/thing", username="ops"), True, "rule 2 in acl.yaml"),
        (question("publish", "plant/secret/x"), False, "rule 3 in acl.yaml"),
        (question("publish", "plant/x"), True, "rule 4 in acl.yaml"),
        (question("publish", "plant/x", qos=1), False, "no rule matches; the default is to deny"),
        (question("subscribe", "plant/+/x"), False, "rule 5 in acl.yaml"),
        (question("subscribe", "plant/open/x"), True, "rule 6 in acl.yaml"),
        (question("group", "jobs/a", group=b"workers"), True, "rule 7 in acl.yaml"),
        (question("group", "jobs/a", group=b"others"), False, "no rule matches"),
        (question("publish", "other"), False, "no rule matches"),
    ],
)
def test_the_rule_that_decides_is_named(asked: RuleQuestion, allowed: bool, said: str) -> None:
    found = check_rules(acl_of(AclFile(rules=RULES)), FILE, asked)
    assert (found.allowed, found.reason[: len(said)]) == (allowed, said)


def test_a_filter_that_is_denied_in_part_is_granted_where_messages_are_filtered() -> None:
    acl = acl_of(AclFile(rules=RULES))
    for topic, allowed in (("plant/+/x", True), ("#", True), ("plant/secret/#", False), ("other/#", False)):
        found = check_rules(acl, FILE, question("subscribe", topic), filters=True)
        assert found.allowed == allowed and ("auth.acl.filter" in found.reason) == allowed
        assert not check_rules(acl, FILE, question("subscribe", topic)).allowed


def test_rules_of_a_token_come_first_and_are_named_as_such() -> None:
    granted = rules_of((AclRule(allow="publish", topics=("own/#",)),))
    assert check_rules(acl_of(AclFile(rules=RULES)), FILE, question("publish", "own/x", granted=granted)) == (
        True,
        "rule 1 of its token decides",
    )
    found = check_rules(None, "", question("publish", "plant/x", granted=granted))
    assert not found.allowed, "without a file, a token allows what it names and nothing else"


def test_without_a_file_everything_is_allowed_but_client_ids_may_be_bound() -> None:
    assert check_rules(None, "", question("publish", "x")).allowed
    acl = acl_of(AclFile(default="allow", clients=("%u-*",)))
    assert not check_rules(acl, FILE, question("publish", "x")).allowed
    assert check_rules(acl, FILE, question("publish", "x", client_id="u-1")).allowed
    found = check_rules(acl, FILE, question("subscribe", "$events/x", client_id="u-1"))
    assert (found.allowed, found.reason) == (False, "only a rule that names $events allows this")


def a_rule(chance: random.Random, topic: str) -> AclRule:
    action = chance.choice(ACTIONS)
    return AclRule(allow=action, topics=(topic,)) if chance.random() < 0.5 else AclRule(deny=action, topics=(topic,))


@pytest.mark.parametrize("seed", range(20))
def test_the_answer_is_that_of_the_broker(seed: int) -> None:
    """For random rules: the decision of ``Rights``, and without the rule that decides it may differ."""
    chance = random.Random(seed)
    filters = ["#", "a/#", "a/b", "+/b", "a/+", "b/#"]
    rules = rules_of(tuple(a_rule(chance, topic) for topic in chance.choices(filters, k=chance.randrange(8))))
    acl = Acl(rules, chance.random() < 0.5)
    for topic in ("a/b", "a", "b/c", "c/b"):
        rights = acl.rights("c", "u", "127.0.0.1:1")
        found = check_rules(acl, FILE, question("publish", topic))
        assert found.allowed == rights.may_publish(topic.encode(), 0, False)
        found = check_rules(acl, FILE, question("subscribe", topic))
        assert found.allowed == rights.may_subscribe(topic.encode(), b"")
