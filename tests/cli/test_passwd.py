"""``starlingmq passwd``: as a user at a shell, with the broker that takes what it writes."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from starlingmq.auth.hashing import fits
from starlingmq.auth.password_file import read_passwords

from .commands import run


def passwd(*arguments: str, password: str = "") -> tuple[int, str, str]:
    code, output, errors = run("passwd", *arguments, stdin=password.encode())
    return code, output.decode(), errors


def test_a_user_is_set_changed_listed_and_deleted(tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    code, output, errors = passwd(str(path), "ann", "--stdin", password="right\n")
    assert (code, errors) == (0, "") and output.startswith("ann: set")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    assert passwd(str(path), "bob", "--stdin", "--json", password="other\n")[1] == '{"user": "bob", "done": "set"}\n'
    assert stat.S_IMODE(path.stat().st_mode) == 0o640, "who may read it stays"
    assert json.loads(passwd(str(path), "--list", "--json")[1]) == {"users": ["ann", "bob"]}
    assert "right" not in path.read_text()
    users = read_passwords(path)
    assert fits(users.hashes["ann"], b"right") and not fits(users.hashes["ann"], b"other")
    assert passwd(str(path), "ann", "--delete")[0] == 0
    assert passwd(str(path), "--list")[1] == "bob\n"
    assert [each.name for each in tmp_path.iterdir()] == ["passwords"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root writes files of other users")
@pytest.mark.parametrize("arguments", [("ann", "--stdin"), ("bob", "--delete")])
def test_root_changes_the_file_of_the_brokers_user_and_it_stays_that_users(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    path = tmp_path / "passwords"
    passwd(str(path), "bob", "--stdin", password="other\n")
    os.chown(path, 4321, 4322)
    assert passwd(str(path), *arguments, password="right\n")[0] == 0
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (4321, 4322, 0o600)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root writes files of other users")
def test_a_file_that_root_makes_belongs_to_the_owner_of_its_directory(tmp_path: Path) -> None:
    os.chown(tmp_path, 4321, 4322)
    assert passwd(str(tmp_path / "passwords"), "ann", "--stdin", password="right\n")[0] == 0
    found = (tmp_path / "passwords").stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (4321, 4322, 0o600)


@pytest.mark.parametrize(
    ("arguments", "password", "line"),
    [
        (("ann", "--delete"), "", "there is no user 'ann'"),
        (("a:b", "--stdin"), "x\n", "a user name must not be empty"),
        (("ann", "--stdin"), "\n", "a password must not be empty"),
        (("ann",), "", "no terminal to prompt for the password; use --stdin"),
        ((), "", "no user given; use starlingmq passwd FILE USER (or --list)"),
    ],
)
def test_invalid_input_is_reported_in_one_line(
    tmp_path: Path, arguments: tuple[str, ...], password: str, line: str
) -> None:
    code, _, errors = passwd(str(tmp_path / "passwords"), *arguments, password=password)
    assert code == 2 and line in errors and errors.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("ann", ":1: expected name:hash"),
        ("# users\n\nann:secret", ":3: unknown kind of hash"),
        ("ann:$argon2id$nonsense", ":1: this Argon2 hash is malformed"),
        ("ann:$scram-sha-256$4096$YQ==$YQ==$YQ==", ":1: these SCRAM keys are malformed"),
        ("ann:$scram-sha-256$x", ":1: these SCRAM keys are malformed"),
    ],
)
def test_a_file_that_was_edited_by_hand(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "passwords"
    path.write_text(text)
    code, _, errors = passwd(str(path), "--list")
    assert code == 2 and f"{path}{line}" in errors
    assert "secret" not in errors.replace("$argon2", "")
