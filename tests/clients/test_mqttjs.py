"""mqtt.js in node against a broker, over every transport it has."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import ServedBroker

JS = Path(__file__).parents[1] / "js"
SCENARIO_SECONDS = 50

STEPS = ["every QoS", "order", "large payload", "retained", "will", "kept session", "end"]
STEPS_5 = [*STEPS[:4], "properties", *STEPS[4:]]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed"),
    pytest.mark.skipif(not (JS / "node_modules/mqtt").exists(), reason="mqtt.js is not installed: npm ci in tests/js"),
]


STAY = [("ws", 5), ("wss", 4), ("mqtt", 3), ("mqtts", 5)]
"""Each transport and each version."""
CELLS = [
    pytest.param(scheme, version, marks=[] if (scheme, version) in STAY else pytest.mark.long)
    for scheme in ("ws", "wss", "mqtt", "mqtts")
    for version in (3, 4, 5)
]


@pytest.mark.parametrize(("scheme", "version"), CELLS)
def test_mqttjs_finds_what_it_expects(broker: ServedBroker, scheme: str, version: int) -> None:
    command = ["node", "main.js", broker.address(scheme), str(version), str(broker.ca)]
    done = subprocess.run(command, cwd=JS, capture_output=True, text=True, timeout=SCENARIO_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == (STEPS_5 if version == 5 else STEPS)
