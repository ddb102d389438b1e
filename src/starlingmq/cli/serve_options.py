"""The options of ``starlingmq serve``, and a parser for plain command lines.

typer and pydantic would remain in the memory of the broker: 12 MB. A command line that consists of the options below,
each with its value, is therefore parsed here. ``read`` leaves all others, such as help and errors, to typer, which has
the same table (``starlingmq.cli.serve_command``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple


class Option(NamedTuple):
    """``name`` is the field of ServeOptions; ``metavar`` is "" for a switch."""

    name: str
    spellings: tuple[str, ...]
    kind: Any
    metavar: str
    help: str


OVERRIDES: Final = "STARLINGMQ_OVERRIDES"
"""Variable with further overrides (JSON): those of a worker, if they contain secrets (cli/workers.py)."""
TEXT: Final = str | None
TEXTS: Final = list[str] | None  # may be given several times

OPTIONS: Final = (
    Option("config", ("--config", "-c"), TEXT, "FILE", "YAML file with settings."),
    Option("listen", ("--listen",), TEXTS, "URL", "URL to listen on, instead of those in the settings; repeatable."),
    Option("data_dir", ("--data-dir",), TEXT, "DIR", "Directory for persistent data."),
    Option("name", ("--name",), TEXT, "NAME", "Unique name of this node."),
    Option("cluster", ("--cluster",), TEXT, "HOST:PORT", "Run as a cluster node; the address for other nodes."),
    Option("join", ("--join",), TEXTS, "HOST:PORT", "Join the cluster whose etcd answers at this address; repeatable."),
    Option("etcd", ("--etcd",), TEXTS, "HOST:PORT", "Use this running etcd instead of starting one; repeatable."),
    Option("workers", ("--workers",), int | None, "N", "Run N brokers that share the ports, one per core."),
    Option("set_", ("--set",), TEXTS, "KEY.PATH=VALUE", "Override one setting; repeatable."),
    Option("log_level", ("--log-level",), TEXT, "LEVEL", "Log level: debug, info, warning or error."),
    Option("debug", ("--debug",), bool, "", "Log at level debug and show tracebacks."),
)


class ServeOptions(NamedTuple):
    config: str | None = None
    listen: list[str] | None = None
    data_dir: str | None = None
    name: str | None = None
    cluster: str | None = None
    join: list[str] | None = None
    etcd: list[str] | None = None
    workers: int | None = None
    set_: list[str] | None = None
    log_level: str | None = None
    debug: bool = False


BY_SPELLING: Final = {spelling: option for option in OPTIONS for spelling in option.spellings}


def read(words: Sequence[str]) -> ServeOptions | None:
    """Parse the words after ``serve``; None: typer must parse them."""
    given: dict[str, Any] = {}
    rest = iter(words)
    for word in rest:
        spelling, equals, value = word.partition("=")
        option = BY_SPELLING.get(spelling)
        if option is None or (equals and not spelling.startswith("--")):
            return None
        if option.kind is bool:
            if equals:
                return None
            given[option.name] = True
            continue
        text = value if equals else next(rest, "-")
        if text.startswith("-") or (option.kind == int | None and not (text.isascii() and text.isdigit())):
            return None
        if option.kind == TEXTS:
            given.setdefault(option.name, []).append(text)
        else:
            given[option.name] = int(text) if option.kind == int | None else text
    return ServeOptions(**given)
