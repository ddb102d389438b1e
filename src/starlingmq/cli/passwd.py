"""``starlingmq passwd``: the file that ``auth.password.file`` names."""

from __future__ import annotations

import getpass
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from starlingmq.config.section_types import ConfigError


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Password file; created if it does not exist.")],
    user: Annotated[str | None, typer.Argument(metavar="USER", help="User whose password is set.")] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the user.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Print all user names.")] = False,
    stdin: Annotated[bool, typer.Option("--stdin", help="Read the password from one line of standard input.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Set or delete a password in the file of auth.password.file. The password is prompted for, never an argument."""
    try:
        from starlingmq.auth.password_file import PasswordFile, read_passwords
    except ImportError as error:
        raise ConfigError(
            f"hashing passwords needs more packages ({error}); run pip install '.[auth]' in the sources"
        ) from None
    users = read_passwords(file) if file.exists() else PasswordFile()
    if list_:
        if as_json:
            print(json.dumps({"users": users.names()}))
        else:
            print(*users.names(), sep="\n")
        return
    if user is None:
        raise ConfigError("no user given; use starlingmq passwd FILE USER (or --list)")
    if delete:
        if not users.delete(user):
            raise ConfigError(f"{file}: there is no user {user!r}")
    else:
        users.set(user, new_password(user, stdin, "--stdin"))
    try:
        users.write(file)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}") from error
    done = "deleted" if delete else "set"
    if as_json:
        print(json.dumps({"user": user, "done": done}))
    else:
        print(f"{user}: {done}; send SIGHUP to a running broker, or use starlingmq ctl reload")


def new_password(user: str, stdin: bool, option: str) -> str:
    """Prompted for twice; or the first line of standard input, for which the command has ``option``. Raises
    ConfigError."""
    if stdin:
        return sys.stdin.readline().rstrip("\r\n")
    if not sys.stdin.isatty():
        raise ConfigError(f"no terminal to prompt for the password; use {option}")
    first = getpass.getpass(f"Password for {user}: ")
    if getpass.getpass("Repeat password: ") != first:
        raise ConfigError("the passwords differ; nothing was changed")
    return first
