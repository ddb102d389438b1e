"""A broker that an operator restarts: the same process, the settings as they are then, nothing lost."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from .clusters import running, until
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
