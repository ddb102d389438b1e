"""``starlingmq ctl user`` and ``ctl rule``: users and rules of access, while the broker serves."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from starlingmq.cli.ctl_ask import AskedBroker, asks
from starlingmq.cli.declare import CommandError
from starlingmq.cli.passwd import new_password

user = typer.Typer(help="Create, change and delete users, on all nodes.", no_args_is_help=True)
rule = typer.Typer(help="Create, replace and delete rules of access, on all nodes.", no_args_is_help=True)

PASSWORD_MAX: Final = 2000  # characters that are read; the broker refuses fewer

UserArgument = Annotated[str, typer.Argument(metavar="NAME", help="User name.")]
PasswordOption = Annotated[
    str, typer.Option("--password-file", metavar="FILE", help="First line: the password; - reads standard input.")
]
RevisionOption = Annotated[
    str, typer.Option("--revision", metavar="N", help="Refuse if users and rules have another revision.")
]


@user.command()
@asks
def add(
    broker: AskedBroker,
    name: UserArgument,
    api: Annotated[str, typer.Option("--api", help="Rights at the HTTP API: none, viewer or operator.")] = "none",
    force: Annotated[
        bool, typer.Option("--force", help="Create the first user although connected clients must log in then.")
    ] = False,
    password_file: PasswordOption = "",
    revision: RevisionOption = "",
) -> None:
    """Create a user. The password is prompted for, or read from a file, never an argument."""
    found = broker.ask("user.add", name=name, password=_password(name, password_file), api=api,
        force="yes" if force else "", revision=revision,
    )  # fmt: skip
    broker.done(found, f"created the user {name}")


@user.command()
@asks
def change(
    broker: AskedBroker,
    name: UserArgument,
    api: Annotated[str, typer.Option("--api", help="Only the rights at the HTTP API: none, viewer, operator.")] = "",
    password_file: PasswordOption = "",
    revision: RevisionOption = "",
) -> None:
    """Change the password of a user, whose clients are disconnected; or the rights at the HTTP API."""
    password = "" if api and not password_file else _password(name, password_file)
    found = broker.ask("user.change", name=name, password=password, api=api, revision=revision)
    broker.done(found, f"changed the user {name}")


@rule.command("set")
@asks
def set_rule(
    broker: AskedBroker,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the rule.")],
    text: Annotated[
        str,
        typer.Argument(
            metavar="RULE", help="As in the ACL file, such as '{allow: publish, topics: [a/#]}'; - reads it."
        ),
    ],
    before: Annotated[str, typer.Option("--before", metavar="NAME", help="Put it before this rule.")] = "",
    revision: RevisionOption = "",
) -> None:
    """Create or replace a rule of access."""
    from starlingmq.admin.typed_actions import as_text
    from starlingmq.auth.acl import AclRule
    from starlingmq.config.tree_builder import build, yaml_value

    tree = yaml_value(sys.stdin.read() if text == "-" else text, "RULE")
    if not isinstance(tree, dict):
        raise CommandError("RULE: must be a mapping, such as '{allow: publish, topics: [a/#]}'")
    given = as_text(build(AclRule, tree))
    found = broker.ask("rule.set", name=name, rule=given, before=before, revision=revision)
    broker.done(found, f"set the rule {name}")


def _password(name: str, file: str) -> str:
    """Raises CommandError, ConfigError."""
    password = new_password(name, file == "-", "--password-file -") if file in ("", "-") else _first_line(file)
    if not password:
        raise CommandError("a password must not be empty")
    return password


def _first_line(file: str) -> str:
    """Raises CommandError."""
    try:
        with Path(file).open(encoding="utf-8") as lines:
            return lines.readline(PASSWORD_MAX).rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"--password-file: {file}: cannot be read: {error}") from None
