"""The first start in a terminal offers to make an operator: before that, everyone who reaches the broker may do all."""

from __future__ import annotations

import getpass
import os
import select
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlingmq.config.section_types import ConfigError
from starlingmq.config.settings import Config, has_logins

if TYPE_CHECKING:
    from starlingmq.auth.password_file import PasswordFile

TRIES: Final = 3
ANSWER_MAX: Final = 60.0  # seconds until the broker starts without an answer
OFFER: Final = "Nobody has to log in to this broker yet. Name of an operator to make, or Enter to start without: "


def offer_operator(config: Config, seconds: float = ANSWER_MAX) -> None:
    """Ask for name and password in a terminal, and store that user in the new data directory. Raises ConfigError."""
    directory = None if config.node.data_dir is None else Path(config.node.data_dir)
    if directory is None or not _is_asked(config) or not _is_new(directory):
        return
    try:
        from starlingmq.auth.password_file import PasswordFile
    except ImportError:  # without the packages of '.[auth]' there are no passwords
        return
    made = PasswordFile()
    for _ in range(TRIES):
        print(OFFER, end="", file=sys.stderr, flush=True)
        if not select.select([sys.stdin], [], [], seconds)[0] or not (name := sys.stdin.readline().strip()):
            print(file=sys.stderr)
            return
        try:
            made.set(name, _password(name))
        except ConfigError as error:
            print(error, file=sys.stderr)
        else:
            _store(directory, name, made)
            return


def _is_asked(config: Config) -> bool:
    """Whether this is a broker alone, in the foreground of a terminal, in which nothing has a login."""
    api = config.auth.api
    if config.cluster.enabled or has_logins(config) or api.users or api.token_file or api.oidc.operators:
        return False
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()  # else reading would stop the process
    except OSError:
        return False


def _is_new(directory: Path) -> bool:
    try:
        return not [entry for entry in directory.iterdir() if entry.name != "lost+found"]
    except FileNotFoundError:
        return True
    except OSError:  # the start says what is wrong with it
        return False


def _password(name: str) -> str:
    """Raises ConfigError."""
    try:
        first = getpass.getpass(f"Password for {name}: ")
        if not first:
            raise ConfigError("a password must not be empty")
        if getpass.getpass("Repeat password: ") != first:
            raise ConfigError("the passwords differ")
    except EOFError:
        raise ConfigError("no password was given") from None
    return first


def _store(directory: Path, name: str, made: PasswordFile) -> None:
    """Raises ConfigError."""
    from starlingmq.admin.access_table import FILE
    from starlingmq.admin.state_files import replace
    from starlingmq.auth.stored_access import NOTHING_STORED, StoredUser

    user = StoredUser(name, made.hashes[name], made.scram[name].line(), "operator")
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace(directory / FILE, NOTHING_STORED.with_user(user).encoded())
    except OSError as error:
        raise ConfigError(f"{directory / FILE}: cannot be written: {error.strerror}") from error
    print(
        f"{name} is an operator now, and clients have to log in; starlingmq ctl user and ctl rule make more",
        file=sys.stderr,
    )
