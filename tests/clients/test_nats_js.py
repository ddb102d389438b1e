"""nats.js in node against a broker."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import ServedBroker

JS = Path(__file__).parents[1] / "js"
SCENARIO_SECONDS = 50
STEPS = ["headers and max", "large payload", "requests to a queue", "many answers", "no responders", "drain"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed"),
    pytest.mark.skipif(not (JS / "node_modules/nats").exists(), reason="nats.js is not installed: npm ci in tests/js"),
]


@pytest.mark.parametrize("scheme", ["nats", "tls"])
def test_natsjs_finds_what_it_expects(broker: ServedBroker, scheme: str) -> None:
    command = ["node", "nats.js", f"localhost:{broker.port(scheme)}"]
    if scheme == "tls":
        command.append(str(broker.ca))
    done = subprocess.run(command, cwd=JS, capture_output=True, text=True, timeout=SCENARIO_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == STEPS
