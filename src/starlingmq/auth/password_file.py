"""The password file: one line per name and kind, ``name:$argon2id$...`` or ``name:$scram-sha-256$...``.

A line ends with a line feed only, and what ``PasswordFile.set`` accepts reads back the same. In place of an Argon2 hash
are accepted: a bcrypt hash (``$2a$``, ``$2b$``, ``$2y$``), as from nats-server or htpasswd, and ``$7$`` of mosquitto.

A reader of the file can only try passwords one by one. The second kind is for MQTT 5 clients that prove their password
without sending it (RFC 7677).
"""

from __future__ import annotations

import os
import re
import tempfile
from base64 import b64decode, b64encode
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

from argon2 import PasswordHasher, extract_parameters
from argon2.exceptions import InvalidHash
from scramp import ScramException, ScramMechanism  # type: ignore[import-untyped]
from scramp.utils import saslprep  # type: ignore[import-untyped]

from starlingmq.auth.hashing import BCRYPT, PBKDF2, PBKDF2_HASH
from starlingmq.auth.text_lines import read_lines
from starlingmq.config.section_types import ConfigError

ARGON2: Final = "$argon2"
BCRYPT_HASH: Final = re.compile(r"\$2[aby]\$(0[4-9]|1[0-9])\$[./A-Za-z0-9]{53}")
"""A cost above 19 would take minutes per login, so it is refused as a mistake."""
SCRAM: Final = "$scram-sha-256$"
SCRAM_ITERATIONS: Final = 10_000  # RFC 7677 requires at least 4096
NAME_MAX: Final = 65535  # bytes, as an MQTT string
REMEMBERED_MAX: Final = 4096  # hashes that were checked: each change of the users that operators made checks all again

HASHER: Final = PasswordHasher()
"""The defaults of the library: those of RFC 9106 for little memory, 64 MiB and some 50 ms."""


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """Named as in RFC 5802."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def line(self) -> str:
        parts = (b64encode(part).decode() for part in (self.salt, self.stored_key, self.server_key))
        return f"{SCRAM}{self.iterations}${'$'.join(parts)}"


@dataclass(slots=True)
class PasswordFile:
    hashes: dict[str, str] = field(default_factory=dict)
    scram: dict[str, ScramKeys] = field(default_factory=dict)

    def set(self, name: str, password: str) -> None:
        """Raises ConfigError for a name that does not fit into a line, and for an invalid password."""
        if not _fits(name):
            raise ConfigError(
                "a user name must not be empty, start with # or white space, or contain a colon or line break; "
                "it must be UTF-8 text"
            )
        try:
            empty = not saslprep(password)
            salt, stored, server, iterations = ScramMechanism().make_auth_info(password, SCRAM_ITERATIONS)
        except ScramException as error:
            raise ConfigError(f"the password is not valid by RFC 4013: {error.args[0]}") from None
        if empty:
            raise ConfigError("a password must not be empty")
        self.hashes[name] = HASHER.hash(password)
        self.scram[name] = ScramKeys(salt, stored, server, iterations)

    def delete(self, name: str) -> bool:
        """Returns whether it existed."""
        known = [found.pop(name, None) is not None for found in (self.hashes, self.scram)]
        return any(known)

    def names(self) -> list[str]:
        return sorted({*self.hashes, *self.scram})

    def write(self, path: Path) -> None:
        """Write atomically, readable by the owner only. Raises OSError."""
        lines = [f"{name}:{found}\n" for name, found in sorted(self.hashes.items())]
        lines += [f"{name}:{keys.line()}\n" for name, keys in sorted(self.scram.items())]
        handle, written = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.writelines(lines)
                file.flush()
                _take_over_owner(file.fileno(), path)
                os.fsync(file.fileno())
            os.replace(written, path)
        except BaseException:
            os.unlink(written)
            raise


def _take_over_owner(descriptor: int, path: Path) -> None:
    """Owner, group and mode of the file that is replaced; root gives a new file to the owner of its directory."""
    if path.exists():
        before = path.stat()
        os.fchmod(descriptor, before.st_mode & 0o640)  # a group that could read the file still can, others never
    elif os.geteuid() == 0:
        before = path.parent.stat()
    else:
        return
    for owner, group in ((-1, before.st_gid), (before.st_uid, -1)):
        with suppress(PermissionError):
            os.fchown(descriptor, owner, group)


def read_passwords(path: str | Path) -> PasswordFile:
    """Raises ConfigError with one line that names the file, the line and the problem, but no secret."""
    try:
        lines = read_lines(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: cannot be read: it is not UTF-8 text") from None
    found = PasswordFile()
    for number, line in lines:
        name, colon, secret = line.partition(":")
        secret = secret.rstrip()
        if not name or not colon:
            raise ConfigError(f"{path}:{number}: expected name:hash; set the password with starlingmq passwd")
        if not _fits(name):
            raise ConfigError(f"{path}:{number}: remove the white space before the user name")
        if secret.startswith((ARGON2, *BCRYPT, PBKDF2)):
            check_hash(secret, f"{path}:{number}")
            kind: dict[str, str] | dict[str, ScramKeys] = found.hashes
            known = name in kind
            found.hashes[name] = secret
        elif secret.startswith(SCRAM):
            known = name in found.scram
            found.scram[name] = scram_keys(secret, f"{path}:{number}")
        else:
            raise ConfigError(f"{path}:{number}: unknown kind of hash; set a new password with starlingmq passwd")
        if known:
            raise ConfigError(f"{path}:{number}: user {name!r} is listed twice; remove one of the lines")
    return found


def _fits(name: str) -> bool:
    """Whether a line of the file can have this name."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:  # half of a surrogate pair, or bytes of a command line that are not UTF-8
        return False
    special = any(sign in name for sign in ":\n\r\0")
    return 0 < size <= NAME_MAX and not special and name[0] != "#" and not name[0].isspace()


@lru_cache(REMEMBERED_MAX)
def check_hash(secret: str, where: str) -> None:
    """Raises ConfigError."""
    if secret.startswith(BCRYPT):
        if BCRYPT_HASH.fullmatch(secret) is None:
            raise ConfigError(f"{where}: this bcrypt hash is damaged; set a new password with starlingmq passwd")
        return
    if secret.startswith(PBKDF2):
        if PBKDF2_HASH.fullmatch(secret) is None:
            raise ConfigError(f"{where}: this hash of mosquitto is damaged; set a new password with starlingmq passwd")
        return
    try:
        extract_parameters(secret)
    except InvalidHash:
        raise ConfigError(
            f"{where}: this Argon2 hash is malformed; set a new password with starlingmq passwd"
        ) from None


@lru_cache(REMEMBERED_MAX)
def scram_keys(secret: str, where: str) -> ScramKeys:
    """Raises ConfigError."""
    try:
        iterations, *texts = secret.removeprefix(SCRAM).split("$")
        salt, stored, server = (b64decode(text, validate=True) for text in texts)
        keys = ScramKeys(salt, stored, server, int(iterations))
    except ValueError:
        raise ConfigError(
            f"{where}: these SCRAM keys are malformed; set a new password with starlingmq passwd"
        ) from None
    if not keys.salt or len(keys.stored_key) != 32 or len(keys.server_key) != 32 or keys.iterations < 4096:
        raise ConfigError(f"{where}: these SCRAM keys are malformed; set a new password with starlingmq passwd")
    return keys
