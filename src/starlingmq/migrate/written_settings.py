"""Writes a description as settings, passwords and rules into a new directory, and checks the settings."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from starlingmq.auth.acl import AclFile, acl_of
from starlingmq.config.tree_builder import build, set_path
from starlingmq.migrate.described import Address, BridgeLink, Description

SETTINGS: Final = "starlingmq.yaml"
PASSWORDS: Final = "passwords"
RULES: Final = "acl.yaml"
DATA: Final = "data"
PRIVATE: Final = 0o600
LOOPBACK: Final = ("127.0.0.1", "::1")
EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 what the other broker does  # nosec B104
Tree = dict[str, Any]


def settings_tree(found: Description, out: Path, ipv6: bool) -> Tree:
    """The settings. ``ipv6``: this machine has it, so a listener for all addresses gets both families."""
    tree: Tree = {}
    if found.persistent:
        tree["node"] = {"data_dir": str(out / DATA)}
    if found.addresses:
        for address in found.addresses:
            tls = address.options.get("tls", {})
            tls.update({key: str(out / value) for key, value in tls.items() if str(value) in found.secrets})
        tree["listeners"] = [entry for address in found.addresses for entry in _listeners(address, ipv6)]
    for path, value in sorted(found.settings.items()):
        set_path(tree, path.split("."), value)
    if found.users:
        set_path(tree, ["auth", "password", "file"], str(out / PASSWORDS))
    if found.rules is not None:
        set_path(tree, ["auth", "acl", "file"], str(out / RULES))
    for path, name in found.secret_settings.items():
        set_path(tree, path.split("."), str(out / name))
    if found.bridges:
        tree["bridges"] = [bridge_entry(link, out) for link in found.bridges]
    return tree


def _listeners(address: Address, ipv6: bool) -> list[Any]:
    hosts: Iterable[str] = [address.host]
    if address.host in ("", "loopback") and address.scheme != "unix":
        both = LOOPBACK if address.host else EVERYWHERE
        hosts = both if ipv6 else both[:1]
    entries: list[Any] = []
    for host in hosts:
        shown = f"[{host}]" if ":" in host else host
        where = address.path if address.scheme == "unix" else f"{shown}:{address.port}{address.path}"
        url = f"{address.scheme}://{where}"
        entries.append({"url": url, **address.options} if address.options else url)
    return entries


def bridge_entry(link: BridgeLink, out: Path) -> Tree:
    """One entry of ``bridges``. Its password is in a file of its own."""
    credentials = {"username": link.username} if link.username else {}
    if link.password:
        credentials["password_file"] = str(out / _password_file(link))
    keys = {"client_id": link.client_id, "credentials": credentials, "tls": link.tls}
    entry = {"name": _safe(link.name), "servers": link.servers, "topics": link.topics, **link.options}
    return entry | {key: value for key, value in keys.items() if value}


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:64] or "bridge"


def _password_file(link: BridgeLink) -> str:
    return f"bridge-{_safe(link.name)}.password"


def write_settings(found: Description, tree: Tree, out: Path) -> list[str]:
    """Write all files, and return their names. Raises OSError and ConfigError."""
    files: dict[str, str] = dict(found.secrets)
    if found.users:
        files[PASSWORDS] = "".join(f"{name}:{secret}\n" for name, secret in sorted(found.users.items()))
    if found.rules is not None:
        files[RULES] = _yaml(rules_tree(found))
    for link in found.bridges:
        if link.password:
            files[_password_file(link)] = f"{link.password}\n"
    files[SETTINGS] = _yaml(tree)
    for name, text in files.items():
        descriptor = os.open(out / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    return sorted(files)


def rules_tree(found: Description) -> Tree:
    """The file of rules, checked. Raises ConfigError."""
    tree: Tree = {"default": found.rule_default}
    if found.client_ids:
        tree["clients"] = found.client_ids
    tree["rules"] = found.rules
    acl_of(build(AclFile, msgspec.to_builtins(tree)))
    return tree


def _yaml(tree: Tree) -> str:
    return str(yaml.dump(tree, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=110))


class _Plain(yaml.SafeDumper):
    """Without anchors: lists that are the same object are written out."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
