"""``starlingmq passwd``: as a user at a shell, with the broker that takes what it writes."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from starlingmq.auth.hashing import fits
from starlingmq.auth.password_file import read_passwords


def passwd(*arguments: str, password: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "starlingmq", "passwd", *arguments],
        input=password,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_user_is_set_changed_listed_and_deleted(tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    done = passwd(str(path), "ann", "--stdin", password="right\n")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("ann: set")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    assert (
        passwd(str(path), "bob", "--stdin", "--json", password="other\n").stdout == '{"user": "bob", "done": "set"}\n'
    )
    assert stat.S_IMODE(path.stat().st_mode) == 0o640, "who may read it stays"
    assert json.loads(passwd(str(path), "--list", "--json").stdout) == {"users": ["ann", "bob"]}
    assert "right" not in path.read_text()
    users = read_passwords(path)
    assert fits(users.hashes["ann"], b"right") and not fits(users.hashes["ann"], b"other")
    assert passwd(str(path), "ann", "--delete").returncode == 0
    assert passwd(str(path), "--list").stdout == "bob\n"
    assert [each.name for each in tmp_path.iterdir()] == ["passwords"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root writes files of other users")
@pytest.mark.parametrize("arguments", [("ann", "--stdin"), ("bob", "--delete")])
def test_root_changes_the_file_of_the_brokers_user_and_it_stays_that_users(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    path = tmp_path / "passwords"
    passwd(str(path), "bob", "--stdin", password="other\n")
    os.chown(path, 4321, 4322)
    assert passwd(str(path), *arguments, password="right\n").returncode == 0
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (4321, 4322, 0o600)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root writes files of other users")
def test_a_file_that_root_makes_belongs_to_the_owner_of_its_directory(tmp_path: Path) -> None:
    os.chown(tmp_path, 4321, 4322)
    assert passwd(str(tmp_path / "passwords"), "ann", "--stdin", password="right\n").returncode == 0
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
    done = passwd(str(tmp_path / "passwords"), *arguments, password=password)
    assert done.returncode == 2 and line in done.stderr and done.stderr.count("\n") == 1
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
    done = passwd(str(path), "--list")
    assert done.returncode == 2 and f"{path}{line}" in done.stderr
    assert "secret" not in done.stderr.replace("$argon2", "")
