"""``serve_options.read`` reads what typer reads, or leaves the command line to it."""

from __future__ import annotations

from typing import Any, Final

import pytest
from typer.main import get_command

from starlingmq.cli import serve_command
from starlingmq.cli.app import build_app
from starlingmq.cli.serve_options import OPTIONS, ServeOptions, read

PLAIN: Final = [
    [],
    ["--listen", "mqtt://127.0.0.1:0"],
    ["--listen", "a", "--listen=b", "--debug"],
    ["-c", "starling.yaml", "--set", "node.name=a=b", "--set", "log.level=info"],
    ["--workers", "4", "--data-dir", "data", "--data-dir=other"],
    ["--name=", "--cluster", "127.0.0.1:1", "--join", "127.0.0.1:2", "--etcd", "x", "--log-level", "warning"],
]
FOR_TYPER: Final = [
    ["--help"],
    ["--wrong"],
    ["word"],
    ["--listen"],
    ["--listen", "--debug"],
    ["--name", "-x"],
    ["--workers", "four"],
    ["--workers", "-1"],
    ["--debug=yes"],
    ["-cstarling.yaml"],
    ["-c=starling.yaml"],
    ["--", "word"],
]


def by_typer(words: list[str], monkeypatch: pytest.MonkeyPatch) -> ServeOptions:
    found: list[ServeOptions] = []

    def note(**given: Any) -> None:
        found.append(ServeOptions(**given))

    for name in ("__signature__", "__annotations__", "__doc__"):
        setattr(note, name, getattr(serve_command.command, name))
    monkeypatch.setattr(serve_command, "command", note)
    get_command(build_app(["serve"])).main(args=["serve", *words], prog_name="starlingmq", standalone_mode=False)
    return found[0]


@pytest.mark.parametrize("words", PLAIN, ids=" ".join)
def test_a_plain_command_line_is_read_as_typer_reads_it(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    options = read(words)
    assert options is not None
    assert options == by_typer(words, monkeypatch)


@pytest.mark.parametrize("words", FOR_TYPER, ids=" ".join)
def test_every_other_command_line_is_left_to_typer(words: list[str]) -> None:
    assert read(words) is None


def test_each_option_has_a_field_with_a_default() -> None:
    assert [option.name for option in OPTIONS] == list(ServeOptions._fields) == list(ServeOptions._field_defaults)
