"""``starlingmq config``: check a configuration, and show its effective values."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Annotated, Any, Final

import typer
from msgspec import to_builtins

from starlingmq.admin.expirations import expiry_lines
from starlingmq.cli.control import JsonOption
from starlingmq.cli.start_check import check_start
from starlingmq.config.secret_masking import masked
from starlingmq.config.section_types import format_duration, format_size
from starlingmq.config.settings import Config, ListenerConfig, exposed_secrets, load_config
from starlingmq.config.tree_builder import settings

FileOption = Annotated[str | None, typer.Option("--config", "-c", metavar="FILE", help="YAML file with settings.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY.PATH=VALUE", help="Override one setting; repeatable."),
]

app = typer.Typer(help="Check and show settings.", no_args_is_help=True)

_FORMATS: Final = {"duration": format_duration, "seconds": format_duration, "size": format_size}


@app.command()
def check(config: FileOption = None, set_: SetOption = None, json_: JsonOption = False) -> None:
    """Check whether a broker would start with these settings, including those from the environment. Certificates,
    passwords, rules and tokens are read from the files that the settings name; those that end soon are warnings."""
    loaded = load_config(config, set_ or (), os.environ)
    warnings = [*check_start(loaded), *exposed_secrets(set_ or ()), *expiry_lines(loaded, time.time())[0]]
    if json_:
        print(json.dumps({"ok": True, "file": config, "warnings": warnings}))
        return
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"ok: {config or 'the default configuration'}")


@app.command()
def show(config: FileOption = None, set_: SetOption = None, json_: JsonOption = False) -> None:
    """Print every setting with its description and value: a complete configuration file, with *** for secrets.
    With --json only the values, durations in seconds and sizes in bytes."""
    loaded = masked(load_config(config, set_ or (), os.environ))
    print(_json(loaded) if json_ else "\n".join(lines(loaded)))


def lines(config: Config) -> list[str]:
    """Yield the configuration as commented YAML, which ``load_config`` reads back to the same values."""
    output: list[str] = []
    for setting in settings(Config):
        depth = setting.path.count(".")
        value: Any = config
        for key in setting.path.split("."):
            value = getattr(value, key)
        indent = "  " * depth
        output += [""] * (depth == 0) + [f"{indent}# {setting.help}"]
        name = setting.path.rpartition(".")[2]
        text = "" if setting.is_section else _text(value, setting.unit).replace("\n", f"\n{indent}")
        output.append(f"{indent}{name}:{text}")
    return output[1:]


def _text(value: Any, unit: str) -> str:
    """Return the text after the colon."""
    if unit:
        return f" {_FORMATS[unit](value)}"
    if isinstance(value, tuple) and value:
        return "".join(
            f"\n  - {_json(_listener(item) if isinstance(item, ListenerConfig) else item)}" for item in value
        )
    return f" {_json(value)}"


def _json(value: Any) -> str:
    """Return JSON, which is valid YAML and quotes ambiguous values."""
    return json.dumps(to_builtins(value), ensure_ascii=False)


def _listener(listener: ListenerConfig) -> Any:
    """Return a listener in its shortest form: only the URL if nothing else is set."""
    section = {key: value for key, value in to_builtins(listener).items() if value not in (None, 0)}
    return section["url"] if len(section) == 1 else section
