"""The command line from outside: what it prints, how it exits, how it takes signals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

import starlingmq
from starlingmq.auth.password_file import HASHER
from starlingmq.cli.app import COMMANDS
from starlingmq.cli.command_errors import explain
from tests.cli import commands


def environment(**more: str) -> dict[str, str]:
    """The environment of the tests, without the user's settings for the broker, and without colours."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("STARLINGMQ_") or name.endswith("PURE")
    }
    return {**kept, "NO_COLOR": "1", "COLUMNS": "120", **more}


def run(*args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    with mock.patch.dict(os.environ, environment(**variables), clear=True):
        code, output, errors = commands.run(*args)
    return subprocess.CompletedProcess(args, code, output.decode(), errors)


def process(*args: str, **variables: str) -> str:
    """Stdout of a process of its own, for what is done before a command is known."""
    command = [sys.executable, "-m", "starlingmq", *args]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(**variables), check=True)
    assert done.stderr == ""
    return done.stdout


@contextmanager
def serving(
    *args: str, urls: Sequence[str] = ("mqtt://127.0.0.1:0",)
) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A broker in a process of its own and the addresses that it printed."""
    listen = [word for url in urls for word in ("--listen", url)]
    command = [sys.executable, "-m", "starlingmq", "serve", *listen, *args]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment()) as process:
        assert process.stdout is not None
        try:
            ready = process.stdout.readline().split()
            assert ready[:1] == ["ready"], process.communicate(timeout=10)
            yield process, ready[1:]
        finally:
            process.kill()


def test_version_says_how_it_runs() -> None:
    how = "compiled" if starlingmq.compiled() else "interpreted"
    assert process("--version") == f"starlingmq {starlingmq.__version__} ({how})\n"
    assert run("--debug", "--version").stdout == run("--version").stdout == process("--version")


def test_pure_wins_over_compiled_modules() -> None:
    assert "(interpreted)" in process("--version", STARLINGMQ_PURE="1")


def test_version_loads_next_to_nothing() -> None:
    code = "import sys; from starlingmq.cli.main import main; main(['--version']); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"typer", "rich", "yaml", "msgspec", "asyncio"} & set(loaded)


def test_help_names_every_command() -> None:
    result = run("--help")
    assert result.returncode == 0
    for name in COMMANDS:
        assert re.search(rf"\b{name}\b", result.stdout), name


@pytest.mark.parametrize("command", [*COMMANDS, "config check", "config show"])
def test_every_command_explains_itself(command: str) -> None:
    result = run(*command.split(), "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert "Usage:" in result.stdout


def test_completion_offers_the_commands() -> None:
    answer = run(_STARLINGMQ_COMPLETE="complete_bash", COMP_WORDS="starlingmq co", COMP_CWORD="1")
    assert answer.stdout.split() == ["completion", "config"]
    options = run(_STARLINGMQ_COMPLETE="complete_bash", COMP_WORDS="starlingmq serve --li", COMP_CWORD="2")
    assert options.stdout.split() == ["--listen"]


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["cofnig"], "No such command 'cofnig'"),
        (["start"], "No such command 'start'; the commands are serve, pub, sub, "),
        (["serve", "--lissten", "mqtt://127.0.0.1:0"], "No such option: --lissten"),
        (["serve", "--threads"], "No such option: --threads; starlingmq serve --help lists all options"),
        (["serve", "broker.yaml"], "(broker.yaml); starlingmq serve --help lists the arguments"),
        (["ctl", "--data-dir", "d", "log"], "options follow the command: starlingmq ctl COMMAND --data-dir"),
        (["serve", "-c", "none.yaml"], "none.yaml: cannot be read: No such file or directory"),
        (["serve", "--log-level", "loud"], "log.level: 'loud' is not one of"),
        (["serve", "--listen", "mqtt://0.0.0.0:0"], "set auth.allow_anonymous: true if this is intended"),
        (
            ["config", "check", "--set", "listeners=[{url: 'mqtts://[::1]:1', tls: {cert: none.pem}}]"],
            "none.pem: No such file",
        ),
        (["cluster", "up", "--dir", __file__], "test_cli_basics.py: is no directory, or is below a file"),
        (["config", "check", "--set", "mqtt.max_qso=1"], "mqtt.max_qso: unknown key; the nearest is mqtt.max_qos"),
        (["config", "check", "--set", "listeners=mqtt://0.0.0.0:0"], "would accept anyone who can reach it"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(args: list[str], complaint: str) -> None:
    result = run(*args)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("args", [[], ["config"]])
def test_no_command_gets_the_help(args: list[str]) -> None:
    result = run(*args)
    assert result.returncode == 2
    assert "Usage:" in result.stdout + result.stderr
    assert "error:" not in result.stderr


def test_a_module_that_is_missing_from_a_checkout_is_named_with_what_to_do() -> None:
    missing = ModuleNotFoundError("No module named 'starlingmq.gone'", name="starlingmq.gone")
    assert explain(missing) == (
        "starlingmq.gone is missing: compiled modules are older than the sources; run make setup",
        2,
    )
    assert explain(ModuleNotFoundError("No module named 'gone'", name="gone"))[1] == 1


def test_debug_adds_the_traceback() -> None:
    result = run("--debug", "config", "check", "--set", "mqtt.max_qos=9")
    assert result.returncode == 2
    assert result.stderr.startswith("Traceback")
    assert result.stderr.splitlines()[-1] == "error: mqtt.max_qos: expected int <= 2"


def test_config_check_and_show(tmp_path: Path) -> None:
    shown = run("config", "show", STARLINGMQ_MQTT__RETRY_INTERVAL="7s")
    assert "  retry_interval: 7s\n" in shown.stdout
    path = tmp_path / "broker.yaml"
    path.write_text(shown.stdout, encoding="utf-8")
    assert run("config", "check", "-c", str(path)).stdout == f"ok: {path}\n"
    assert json.loads(run("config", "check", "--json", "-c", str(path)).stdout) == {
        "ok": True,
        "file": str(path),
        "warnings": [],
    }
    assert json.loads(run("config", "show", "--json", "-c", str(path)).stdout)["mqtt"]["retry_interval"] == 7.0


def test_serve_prints_one_ready_line_and_stops_on_sigterm() -> None:
    with serving() as (process, addresses):
        (address,) = addresses
        assert re.fullmatch(r"mqtt://127\.0\.0\.1:[1-9]\d*", address)
        process.send_signal(signal.SIGTERM)
        stdout, _ = process.communicate(timeout=20)
        assert (process.returncode, stdout) == (0, "")


def test_serve_names_every_listener() -> None:
    with serving(urls=("mqtt://127.0.0.1:0", "ws://127.0.0.1:0/mqtt")) as (_, addresses):
        assert [address.partition("://")[0] for address in addresses] == ["mqtt", "ws"]


def test_files_of_a_broker_are_private_and_its_unix_listener_is_as_open_as_its_umask_says(tmp_path: Path) -> None:
    data, socket = tmp_path / "data", tmp_path / "mqtt.sock"
    before = os.umask(0)
    try:
        with serving("--data-dir", str(data), urls=(f"unix://{socket}",)):
            open_ones = [path for path in (data, *data.rglob("*")) if path.stat().st_mode & 0o077]
            assert open_ones == [] and len(list(data.rglob("*"))) > 5
            assert socket.stat().st_mode & 0o777 == 0o777
    finally:
        os.umask(before)


def test_an_address_in_use_is_an_error_in_one_line() -> None:
    with serving() as (_, addresses):
        result = run("serve", "--listen", addresses[0])
        assert result.returncode == 2
        assert result.stderr.splitlines()[-1].startswith("error: ")
        assert "address already in use" in result.stderr.splitlines()[-1].lower()


def test_sighup_says_what_has_to_wait_for_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "broker.yaml"
    path.write_text("node: {name: n1}\n", encoding="utf-8")
    with serving("-c", str(path)) as (process, _):
        path.write_text("node: {name: n2}\nlimits: {topic_levels: 3}\n", encoding="utf-8")
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None
        messages = (json.loads(line)["message"] for line in process.stderr)
        assert any(message == "settings reloaded; these need a restart: node.name" for message in messages)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        assert process.returncode == 0


def test_each_sighup_names_the_settings_that_differ_from_those_in_force(tmp_path: Path) -> None:
    path = tmp_path / "broker.yaml"
    path.write_text("node: {name: n1}\n", encoding="utf-8")
    waiting = "settings reloaded; these need a restart: node.name"
    with serving("-c", str(path)) as (process, _):
        assert process.stderr is not None
        messages = (json.loads(line)["message"] for line in process.stderr)
        reloads = (message for message in messages if message.startswith("settings reloaded"))
        for name, told in (("n2", waiting), ("n2", waiting), ("n1", "settings reloaded")):
            path.write_text(f"node: {{name: {name}}}\n", encoding="utf-8")
            process.send_signal(signal.SIGHUP)
            assert next(reloads) == told
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        assert process.returncode == 0


def test_sighup_while_a_broker_starts_is_heeded_once_it_serves(tmp_path: Path) -> None:
    words = ("--cluster", "127.0.0.1:0", "--etcd", "127.0.0.1:1")  # it waits for etcd
    command = [sys.executable, "-m", "starlingmq", "serve", "--listen", "mqtt://127.0.0.1:0", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stderr is not None
        assert " starts: node " in process.stderr.readline()
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        assert process.returncode == 0
    path = tmp_path / "broker.yaml"
    path.write_text("node: {name: n1}\n", encoding="utf-8")
    command = [sys.executable, "-m", "starlingmq", "serve", "--listen", "mqtt://127.0.0.1:0", "-c", str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stderr is not None
        messages = (json.loads(line)["message"] for line in process.stderr)
        assert " starts: node " in next(messages)
        process.send_signal(signal.SIGHUP)
        assert any(message.startswith("settings reloaded") for message in messages)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        assert process.returncode == 0


def test_no_reload_ends_authentication_by_accident(tmp_path: Path) -> None:
    """A file that is cut, as by a full disk, would ask for no login."""
    path, users = tmp_path / "broker.yaml", tmp_path / "users"
    users.write_text(f"ann:{HASHER.hash('right')}\n", encoding="utf-8")
    with_login = f"auth: {{password: {{file: {users}}}}}\n"
    path.write_text(with_login, encoding="utf-8")
    for url, told in (
        ("mqtt://127.1:0", "the settings were not changed: listeners[0]: mqtt://127.1:0 would accept anyone"),
        ("mqtt://127.0.0.1:0", "the settings were not changed: auth: the settings have no authentication any more"),
    ):
        with serving("-c", str(path), urls=(url,)) as (process, _):
            path.write_text("", encoding="utf-8")
            process.send_signal(signal.SIGHUP)
            assert process.stderr is not None
            messages = (json.loads(line)["message"] for line in process.stderr)
            assert any(message.startswith(told) for message in messages)
            path.write_text(with_login, encoding="utf-8")


def test_sighup_with_a_broken_file_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "broker.yaml"
    path.write_text("log: {level: warning}\n", encoding="utf-8")
    with serving("-c", str(path)) as (process, _):
        path.write_text("log: {level: loud}\n", encoding="utf-8")
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None
        complaint = json.loads(process.stderr.readline())
        assert complaint["level"] == "error"
        assert complaint["message"].startswith("the settings were not changed: log.level: 'loud' is not one of")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        assert process.returncode == 0
