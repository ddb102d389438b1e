"""The first user of a broker without a password file: created with a random password, which is shown once."""

from __future__ import annotations

import secrets
import string
from pathlib import Path
from typing import Final

from starlingmq.auth.password_file import PasswordFile
from starlingmq.config.auth_section import PasswordConfig
from starlingmq.config.section_types import ConfigError

ALPHABET: Final = string.ascii_letters + string.digits
LENGTH: Final = 24  # characters, 142 bits


def make_first_user(config: PasswordConfig) -> str | None:
    """The password of the new user; None if there is a password file, or no user to create. Raises ConfigError."""
    path = Path(config.file)
    if not config.first_user or path.is_symlink() or path.exists():
        return None
    password = "".join(secrets.choice(ALPHABET) for _ in range(LENGTH))
    users = PasswordFile()
    try:
        users.set(config.first_user, password)
    except ConfigError as error:
        raise ConfigError(f"auth.password.first_user: {error}") from None
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        users.write(path)
    except OSError as error:
        raise ConfigError(f"auth.password.first_user: {path}: cannot be written: {error.strerror}") from error
    return password
