"""``starlingmq migrate``: settings and data of mosquitto, EMQX and nats-server.

Exit code 0: everything was carried over. 3: something has no equivalent, and is listed with what to do.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from starlingmq.cli.control import JsonOption
from starlingmq.cli.declare import command_of
from starlingmq.config.section_types import ConfigError

if TYPE_CHECKING:
    from starlingmq.migrate.described import Description

NEEDS_ATTENTION: Final = 3
NAME: Final = "old"  # of the bridge, as in migrate.followed

OUT: Final = Path("starlingmq-migrated")
LOOK_SECONDS: Final = 1.0  # between two questions to the new broker

app = typer.Typer(
    help="Read the settings and data of another broker, and write them as settings and data of StarlingMQ.",
    no_args_is_help=True,
)


@dataclass(kw_only=True)
class MigrateArgs:
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="New or empty directory for what is written.")] = OUT
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and check everything, and write nothing.")] = False
    json_: JsonOption = False
    follow: Annotated[
        bool, typer.Option("--follow", help="Bridge the running old broker, and wait until its last client has moved.")
    ] = False
    old: Annotated[str, typer.Option("--old", metavar="URL", help="Address of the old broker, if not in FILE.")] = ""
    username: Annotated[str, typer.Option("--username", help="User at the old broker who may read and write all.")] = ""
    password_file: Annotated[
        Path | None, typer.Option("--password-file", metavar="FILE", help="Password of that user.")
    ] = None
    listen: Annotated[
        list[str] | None,
        typer.Option("--listen", metavar="URL", help="With --follow: address in place of those in FILE."),
    ] = None


@dataclass(kw_only=True)
class MosquittoArgs(MigrateArgs):
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="mosquitto.conf, and mosquitto.db if apart.")]


@dataclass(kw_only=True)
class EmqxArgs(MigrateArgs):
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Export (tar.gz), cluster.hocon, acl.conf, or users as JSON or CSV."),
    ]


@dataclass(kw_only=True)
class NatsArgs(MigrateArgs):
    file: Annotated[Path, typer.Argument(metavar="FILE", help="nats-server.conf.")]


def mosquitto(args: MosquittoArgs) -> int:
    """Read mosquitto.conf and the files that it names: users, rules, bridges, and mosquitto.db with sessions and
    messages. Stop mosquitto first, so that it writes that file. Exit code 3: some lines need attention."""
    from starlingmq.migrate.mosquitto_conf import read_mosquitto

    return _migrate("mosquitto", lambda: read_mosquitto(args.files, time.time()), args)


def emqx(args: EmqxArgs) -> int:
    """Read what emqx ctl data export has written: listeners, limits, users, rules. Sessions and messages are not in it.
    Exit code 3: some parts need attention."""
    from starlingmq.migrate.emqx_export import read_emqx

    return _migrate("emqx", lambda: read_emqx(args.files), args)


def nats(args: NatsArgs) -> int:
    """Read nats-server.conf and what it includes: listeners, limits, users, NKeys, permissions. Exit code 3: some
    settings need attention."""
    from starlingmq.migrate.nats_conf import read_nats

    return _migrate("nats", lambda: read_nats(args.file, os.environ), args)


app.command("mosquitto")(command_of(MosquittoArgs, mosquitto))
app.command("emqx")(command_of(EmqxArgs, emqx))
app.command("nats")(command_of(NatsArgs, nats))


def _migrate(kind: str, read: Callable[[], Description], args: MigrateArgs) -> int:
    from starlingmq.config.settings import from_tree
    from starlingmq.migrate.followed import Old, follow
    from starlingmq.migrate.written_settings import SETTINGS, rules_tree, settings_tree

    out = args.out.absolute()
    if args.follow and (out / SETTINGS).exists():
        return _wait(out)  # it goes on
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out}: is not an empty directory; give another one with --out")
    found = read()
    if args.follow:
        follow(found, Old(kind, args.old, args.username, args.password_file, tuple(args.listen or ())))
    tree = settings_tree(found, out, _has_ipv6())
    from_tree(tree)
    if found.rules is not None:
        rules_tree(found)
    written: list[str] = []
    warnings: list[str] = []
    if not args.dry_run:
        umask = os.umask(0o077)
        try:
            written, warnings = _write(found, tree, out)
        except BaseException:
            shutil.rmtree(out, ignore_errors=True)  # it was empty, or did not exist
            raise
        finally:
            os.umask(umask)
    if args.json_:
        print(json.dumps(_as_json(found, out, written, warnings)))
    else:
        _report(found, out, written, warnings)
    if args.follow and kind == "mosquitto" and not args.dry_run:
        _wait(out)
    return NEEDS_ATTENTION if found.attention else 0


def _wait(out: Path) -> int:
    """Until the new broker says that the last client has moved. Progress is printed when it changes."""
    from starlingmq.cli.control import ask_broker
    from starlingmq.cli.remote import Unreachable
    from starlingmq.migrate.written_settings import DATA

    said = ""
    while True:
        try:
            answer = ask_broker(out / DATA, "links", {}, lambda *_: None)
        except Unreachable:
            line, done = "waiting for the new broker: start it with the command above", False
        else:
            one = next((link for link in answer["links"] if link["name"] == NAME), None)
            line, done = _progress(one)
        if line != said:
            print(line, flush=True)
            said = line
        if done:
            return 0
        time.sleep(LOOK_SECONDS)


def _progress(link: dict[str, Any] | None) -> tuple[str, bool]:
    """The line to print, and whether it is over."""
    if link is None:
        return f"the settings of the new broker have no bridge {NAME!r} any more", True
    moved = f"{link['moved']} sessions have moved"
    if link["state"] == "done":
        return f"the last client has moved; {moved}; stop the old broker, and remove the bridge from the settings", True
    if link["state"] != "connected":
        return f"no connection to the old broker: {link['problem'] or link['state']}; {moved}", False
    left = "unknown" if link["left"] is None else link["left"]
    return f"clients left at the old broker: {left}; {moved}", False


def _write(found: Description, tree: dict[str, Any], out: Path) -> tuple[list[str], list[str]]:
    """The names of the files, and warnings of the check of settings."""
    from starlingmq.cli.start_check import check_start
    from starlingmq.config.settings import load_config
    from starlingmq.migrate.written_data import write_data
    from starlingmq.migrate.written_settings import DATA, SETTINGS, write_settings

    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    written = write_settings(found, tree, out)
    config = load_config(out / SETTINGS)
    if found.persistent:
        (out / DATA).mkdir(mode=0o700)
        asyncio.run(write_data(config, found))
        written.append(DATA)
    try:
        return written, check_start(config)
    except Exception as error:  # files of the other broker, such as its certificates, may be elsewhere
        if not type(error).__module__.startswith("starlingmq.") and not isinstance(error, OSError):
            raise
        found.needs("settings", str(out / SETTINGS), f"a broker does not start with them yet: {error}")
        return written, []


def _as_json(found: Description, out: Path, written: list[str], warnings: list[str]) -> dict[str, Any]:
    return {
        "out": str(out),
        "written": written,
        "carried": found.carried,
        "not_needed": [asdict(line) for line in found.not_needed],
        "attention": [asdict(line) for line in found.attention],
        "warnings": warnings,
    }


def _report(found: Description, out: Path, written: list[str], warnings: list[str]) -> None:
    print("carried over:", ", ".join(f"{number} {what}" for what, number in found.carried.items()) or "nothing")
    for heading, lines in (("not needed", found.not_needed), ("needs attention", found.attention)):
        if lines:
            print(f"{heading}:")
        for line in lines:
            print(f"  {line.where}: {line.option}: {line.remedy}")
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if not written:
        print("nothing was written (--dry-run)")
        return
    print(f"written to {out}: {', '.join(written)}")
    if os.geteuid() == 0:
        print(
            f"warning: {out} belongs to root; if the broker runs as another user: chown -R USER: {out}", file=sys.stderr
        )
    print(f"start: starlingmq serve -c {out / 'starlingmq.yaml'}")


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as found:
            found.bind(("::1", 0))
    except OSError:
        return False
    return True
