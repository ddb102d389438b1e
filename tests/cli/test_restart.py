"""A broker that an operator restarts: the same process, the settings as they are then, nothing lost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from starlingmq._version import __version__

from .clusters import BARE, Running, nodes_of, running, said, until
from .commands import run, subscriber

pytestmark = pytest.mark.slow


def test_a_single_broker_restarts_with_its_settings_of_then_and_refuses_those_that_are_invalid(tmp_path: Path) -> None:
    data, settings = tmp_path / "data", tmp_path / "starlingmq.yaml"
    settings.write_text("mqtt: {max_qos: 2}\n")
    with running(tmp_path / "log", "serve", "-c", str(settings), "--data-dir", str(data), "--name", "alone") as command:
        process = psutil.Process(command.process.pid)
        began = process.create_time()
        kept = ("-t", "kept", "-i", "waits", "-c", "-q", "1")
        subscriber(command.urls[0], *kept, "-E").finish()
        assert run("pub", "-L", f"{command.urls[0]}/kept", "-m", "over it", "-q", "1")[0] == 0
        settings.write_text("mqtt: {max_qos: 9}\n")
        code, _, errors = run("ctl", "cluster", "restart", "--data-dir", str(data))
        assert code == 2 and errors.startswith(
            "error: this node was not restarted, its settings are invalid: mqtt.max_qos"
        )
        settings.write_text("listeners: ['mqtt://127.0.0.1:0']\nmqtt: {max_qos: 1}\n")
        code, output, errors = run("ctl", "cluster", "restart", "--data-dir", str(data))
        assert code == 0 and output.startswith(b"alone has restarted in "), errors
        assert process.create_time() == began and process.is_running()
        urls = command.wait_ready()
        until(lambda: run("pub", "-L", f"{urls[0]}/kept", "-m", "after it", "-q", "1")[0] == 0)
        code, output, errors = subscriber(urls[0], *kept, "-C", "2").finish()
        assert output == b"over it\nafter it\n", errors
        assert run("ctl", "settings", "mqtt.max_qos", "--data-dir", str(data))[1].split()[-3:] == [
            b"mqtt.max_qos",
            b"1",
            b"2",
        ]
        assert (tmp_path / "log").read_text().count("told this node to restart") == 1


def test_a_file_of_the_settings_that_cannot_be_read_refuses_the_restart(tmp_path: Path) -> None:
    settings, rules, data = tmp_path / "starlingmq.yaml", tmp_path / "acl.yaml", str(tmp_path / "data")
    settings.write_text(f"auth: {{acl: {{file: {rules}}}, allow_anonymous: true}}\n")
    rules.write_text("default: allow\nrules: []\n")
    with running(
        tmp_path / "log", "serve", "-c", str(settings), "--data-dir", data, "--listen", "mqtt://127.0.0.1:0"
    ) as command:
        rules.write_text("rules: [{allow: nonsense\n")
        code, _, errors = run("ctl", "cluster", "restart", "--data-dir", data)
        assert code == 2 and errors.startswith("error: this node was not restarted, its settings are invalid: "), errors
        assert str(rules) in errors
        assert run("pub", "-L", f"{command.urls[0]}/a", "-m", "it serves", "-q", "1")[0] == 0


def test_a_restart_keeps_the_umask_of_the_start_and_outlives_a_reload_that_comes_meanwhile(tmp_path: Path) -> None:
    path, data = tmp_path / "socket", str(tmp_path / "data")
    earlier = os.umask(0o002)
    try:
        command = Running(tmp_path / "log", "serve", "--data-dir", data, "--listen", f"unix://{path}")
    finally:
        os.umask(earlier)
    with command.process:
        command.wait_ready()
        mode = path.stat().st_mode
        words = [sys.executable, "-m", "starlingmq", "ctl", "cluster", "restart", "--data-dir", data]
        with subprocess.Popen(words) as ctl:
            while ctl.poll() is None and command.process.poll() is None:
                command.process.send_signal(signal.SIGHUP)
                with suppress(subprocess.TimeoutExpired):
                    ctl.wait(0.05)
            if command.process.poll() is not None:
                ctl.kill()
        assert command.process.poll() is None and ctl.returncode == 0
        assert path.stat().st_mode == mode
        assert command.stop() == 0


def test_all_nodes_restart_one_after_the_other_and_keep_their_processes_and_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STARLINGMQ_CLUSTER__COPIES", "1")
    words = ("cluster", "up", "--nodes", "3", "--dir", str(tmp_path), "--base-port", "0", *BARE)
    with running(tmp_path / "log", *words) as command:
        restart_all(tmp_path, command)


def restart_all(directory: Path, command: Running) -> None:
    kept = ("-t", "kept", "-i", "over restarts", "-c", "-q", "1")
    subscriber(command.urls[2], *kept, "-E").finish()
    processes = {key: (each.pid, each.create_time()) for key, each in nodes_of(command).items()}
    code, output, errors = run("ctl", "cluster", "restart", "--rolling", "--data-dir", str(directory / "n2" / "data"))
    assert code == 0, errors
    told = re.findall(r"^(n\d) has restarted in [\d.]+ s, version (.*)$", output.decode(), re.M)
    assert told == [("n1", __version__), ("n3", __version__), ("n2", __version__)], "the one that is asked is the last"
    assert {key: (each.pid, each.create_time()) for key, each in nodes_of(command).items()} == processes
    assert said(directory).count("told this node to restart") == 3
    assert run("pub", "-L", f"{command.urls[0]}/kept", "-m", "afterwards", "-q", "1")[0] == 0
    assert subscriber(command.urls[1], *kept, "-C", "1").finish()[1] == b"afterwards\n"
    code, _, errors = run("ctl", "cluster", "restart", "--rolling", "--node", "n1", "--data-dir", str(directory))
    assert code == 2 and errors == "error: give --rolling for all nodes, or --node for one\n"
