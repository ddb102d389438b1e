"""A broker without a password file makes its first user, and shows the password once."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest

from starlingmq.auth.password_file import read_passwords
from starlingmq.config.section_types import ConfigError
from starlingmq.config.settings import from_tree
from tests.cli.commands import run, start

SHOWN = re.compile(r"first user: admin, password: (\w{24}) \(shown only once; (\S+) stores its hash;")


def serve(data: Path) -> tuple[str, str]:
    """Start it and stop it; where it listened, and what it said beside that."""
    command = start(*words(data))
    assert command.process.stdout is not None
    ready = command.process.stdout.readline().decode()
    command.process.terminate()
    code, _, errors = command.finish()
    assert code == 0 and ready.startswith("ready mqtt://"), errors
    return ready.split()[1], errors


def words(data: Path) -> list[str]:
    return [
        *("serve", "--listen", "mqtt://127.0.0.1:0", "--data-dir", str(data)),
        *("--set", f"auth.password.file={data}/passwords", "--set", "auth.password.first_user=admin"),
    ]


def test_the_first_start_makes_the_user_and_shows_the_password_and_later_ones_do_not(tmp_path: Path) -> None:
    data = tmp_path / "data"
    command = start(*words(data))
    assert command.process.stdout is not None
    url = command.process.stdout.readline().decode().split()[1]
    command.wait_for(b"first user")
    shown = SHOWN.search(command.errors.decode())
    assert shown is not None and shown[2] == f"{data}/passwords"
    address = url.removeprefix("mqtt://").split(":")
    publish = ["pub", "-h", address[0], "-p", address[1], "-t", "a", "-m", "b", "-q", "1"]
    assert run(*publish, "-u", "admin", "-P", shown[1])[0] == 0
    assert run(*publish, "-u", "admin", "-P", "guess")[0] != 0
    assert run(*publish)[0] != 0, "nobody comes in without a name"
    command.process.terminate()
    assert command.finish()[0] == 0
    before = (data / "passwords").read_bytes()
    assert stat.S_IMODE((data / "passwords").stat().st_mode) == 0o600 and shown[1].encode() not in before
    assert read_passwords(data / "passwords").names() == ["admin"]
    _, errors = serve(data)
    assert "first user" not in errors and (data / "passwords").read_bytes() == before


def test_a_password_file_that_is_there_is_left_alone_even_if_it_is_empty(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "passwords").touch()
    _, errors = serve(data)
    assert "first user" not in errors and (data / "passwords").read_bytes() == b""


def test_a_file_that_can_not_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, _, errors = run(*words(tmp_path / "file"))
    assert code == 2 and "auth.password.first_user: " in errors and "Traceback" not in errors


def test_a_first_user_needs_a_file() -> None:
    with pytest.raises(ConfigError, match=r"auth.password.first_user: needs auth.password.file"):
        from_tree({"auth": {"password": {"first_user": "admin"}}})


HOW = "starlingmq ctl user add NAME --api operator"


def test_a_start_without_any_login_says_in_the_log_how_to_make_an_operator(tmp_path: Path) -> None:
    data = tmp_path / "data"
    open_to_all = ["serve", "--listen", "mqtt://127.0.0.1:0", "--data-dir", str(data)]
    command = start(*open_to_all)
    command.wait_for(HOW.encode())
    words = ("--api", "operator", "--password-file", "-", "--data-dir", str(data))
    code, _, errors = run("ctl", "user", "add", "boss", *words, stdin=b"long-enough-1\n")
    assert code == 0, errors
    command.process.terminate()
    assert command.finish()[0] == 0
    again = start(*open_to_all)
    assert again.process.stdout is not None and again.process.stdout.readline().startswith(b"ready")
    again.process.terminate()
    code, _, errors = again.finish()
    assert code == 0 and HOW not in errors, "somebody has to log in now"
