"""The table of users and rules that operators make: its changes, and what it means beside the files."""

from __future__ import annotations

import pytest

from starlingmq.auth import stored_access
from starlingmq.auth.acl import AclRule
from starlingmq.auth.password_file import PasswordFile
from starlingmq.auth.stored_access import (
    NOTHING_STORED,
    ApiRole,
    StoredAccess,
    StoredRule,
    StoredUser,
    TableRefused,
    decoded,
)
from starlingmq.config.auth_section import AuthConfig, JwtConfig, PasswordConfig
from starlingmq.config.section_types import ConfigError


def user(name: str, api: ApiRole = "none") -> StoredUser:
    made = PasswordFile()
    made.set(name, "secret")
    return StoredUser(name, made.hashes[name], made.scram[name].line(), api)


def rule(name: str, topic: str = "a") -> StoredRule:
    return StoredRule(name, AclRule(allow="publish", topics=(topic,)))


def names(table: StoredAccess) -> list[str]:
    return [one.name for one in table.rules]


def test_a_table_reads_back_the_same_and_counts_its_changes() -> None:
    table = NOTHING_STORED.with_user(user("ann")).with_rule(rule("r"), "").with_user(user("bob", "operator"))
    assert decoded(table.encoded()) == table and table.revision == 3
    assert decoded(b"") == NOTHING_STORED


def test_a_user_is_shown_without_its_hashes() -> None:
    ann = user("ann")
    assert ann.password not in repr(NOTHING_STORED.with_user(ann)) and "ann" in repr(ann)


def test_rules_keep_their_order() -> None:
    table = NOTHING_STORED.with_rule(rule("a"), "").with_rule(rule("b"), "").with_rule(rule("c"), "a")
    assert names(table) == ["c", "a", "b"]
    assert names(table.with_rule(rule("a", "other"), "")) == ["c", "a", "b"], "a changed rule stays where it is"
    assert names(table.with_rule(rule("b"), "a")) == ["c", "b", "a"]
    assert names(table.without_rule("a")) == ["c", "b"]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda table: table.without_user("eve"), 404),
        (lambda table: table.without_rule("eve"), 404),
        (lambda table: table.with_rule(rule("r"), "eve"), 404),
        (lambda table: table.with_rule(rule("r"), "r"), 404),
        (lambda table: table.with_rule(rule("r", "a/#/b"), ""), 400),
        (lambda table: table.with_rule(StoredRule("r", AclRule()), ""), 400),
    ],
)
def test_a_change_is_refused(change: object, status: int) -> None:
    assert callable(change)
    with pytest.raises(TableRefused) as refused:
        change(NOTHING_STORED)
    assert refused.value.status == status


def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_access, "USERS_MAX", 1)
    monkeypatch.setattr(stored_access, "RULES_MAX", 1)
    monkeypatch.setattr(stored_access, "BYTES_MAX", 10)
    table = NOTHING_STORED.with_user(StoredUser("ann", "", "")).with_rule(rule("r"), "")
    for change in (
        lambda: table.with_user(StoredUser("bob", "", "")),
        lambda: table.with_rule(rule("s"), ""),
        table.encoded,
    ):
        with pytest.raises(TableRefused) as refused:
            change()
        assert refused.value.status == 507
    assert table.with_user(StoredUser("ann", "x", "")).user("ann").password == "x"
    assert names(table.with_rule(rule("r", "b"), "")) == ["r"]


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b'{"revision":1,"groups":[]}',
        b'{"users":[{"name":"ann","password":"plain","scram":"x"}]}',
        b'{"rules":[{"name":"r","rule":{"allow":"publish","until":5}}]}',
        b'{"rules":[{"name":"r","rule":{}}]}',
    ],
)
def test_a_damaged_or_later_table_is_refused_as_a_whole(data: bytes) -> None:
    with pytest.raises(ConfigError):
        decoded(data)


def test_the_password_file_precedes() -> None:
    file = PasswordFile()
    file.set("ann", "of the file")
    table = NOTHING_STORED.with_user(user("ann", "operator")).with_user(user("bob", "viewer"))
    users = table.joined(file)
    assert users.hashes["ann"] == file.hashes["ann"] and users.hashes["bob"] == table.user("bob").password
    assert table.roles(file) == {"bob": "viewer"}, "a role is not that of another user of the same name"


def test_the_first_user_brings_the_methods_unless_the_settings_name_some() -> None:
    table = NOTHING_STORED.with_user(user("ann"))
    assert table.effective(AuthConfig()).methods == ("scram", "password")
    assert table.effective(AuthConfig(jwt=JwtConfig(jwks_file="x"))).methods == ("scram", "jwt", "password")
    assert table.effective(AuthConfig(methods=("jwt",))).methods == ("jwt",)
    unset = AuthConfig(password=PasswordConfig(file="x"))
    assert NOTHING_STORED.effective(unset) is unset
