"""Brokers that are told by settings whom to let in, and the files that say it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from argon2 import PasswordHasher

from starlingmq.auth import password_file
from starlingmq.auth.password_file import PasswordFile
from tests.auth.logins import SECRET
from tests.embedding.conftest import Join, Serve, join, serve

__all__ = ["Join", "Serve", "join", "serve"]

Passwd = Callable[..., str]


@pytest.fixture
def passwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Passwd:
    """Write a file with these passwords; its path. Hashes are cheap ones, but hashes."""
    monkeypatch.setattr(password_file, "HASHER", PasswordHasher(1, 1024, 1))

    def write(**passwords: str) -> str:
        users = PasswordFile()
        for name, password in passwords.items():
            users.set(name, password)
        path = tmp_path / "passwords"
        users.write(path)
        return str(path)

    return write


@pytest.fixture
def secret_file(tmp_path: Path) -> str:
    path = tmp_path / "secret"
    path.write_bytes(SECRET + b"\n")
    return str(path)
