"""The habits of widespread programs with their client libraries: Zigbee2MQTT and Node-RED (mqtt.js), Telegraf
(paho.mqtt.golang). The programs themselves are not run; tests/js and tests/go use the libraries as they do.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import ServedBroker

JS = Path(__file__).parents[1] / "js"
GO = Path(__file__).parents[1] / "go"
SECONDS = 120

pytestmark = pytest.mark.slow

STEPS = {
    "zigbee2mqtt": ["online", "offline", "online again"],
    "nodered4": ["subscribed", "kept session", "close"],
    "nodered5": ["subscribed", "kept session", "close"],
}


def held(command: list[str], directory: Path | None = None) -> list[str]:
    """The steps that a program found to hold."""
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    steps: list[str] = json.loads(done.stdout)
    return steps


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.skipif(not (JS / "node_modules/mqtt").exists(), reason="mqtt.js is not installed: npm ci in tests/js")
@pytest.mark.parametrize("who", STEPS)
def test_typical_programs_with_mqttjs_work(broker: ServedBroker, who: str) -> None:
    assert held(["node", "habits.js", broker.address("mqtt"), who], JS) == STEPS[who]


@pytest.fixture(scope="module")
def telegraf(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program of tests/go, built; skips where Go or its modules are not to be had."""
    if shutil.which("go") is None:
        pytest.skip("go is not installed")
    path = tmp_path_factory.mktemp("go") / "telegraf"
    build = ["go", "build", "-o", os.fspath(path), "."]
    done = subprocess.run(build, cwd=GO, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode != 0 and "dial tcp" in done.stderr:
        pytest.skip("the modules can not be had: go mod download in tests/go")
    assert done.returncode == 0, done.stderr
    return os.fspath(path)


@pytest.mark.long(kept="tests/clients/test_habits.py::test_typical_programs_with_mqttjs_work")
@pytest.mark.parametrize("version", [0, 3, 4])
def test_telegraf_works_as_it_uses_paho(broker: ServedBroker, telegraf: str, version: int) -> None:
    address = broker.address("mqtt").replace("mqtt://", "tcp://")
    steps = held([telegraf, address, str(version)])
    assert steps == ["subscribed", "every QoS", "persistent_session", "retained"]
