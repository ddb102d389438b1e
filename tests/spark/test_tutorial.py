"""The tutorial, block by block, as it stands there, and the notebook; only ports are others."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from starlingmq.cli.local_cluster import free_port
from tests.spark.brokers import TOKEN, StreamBroker

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long(kept="tests/spark/test_pipeline.py::test_a_pipeline_with_tables_steps_and_dead_letters"),
    pytest.mark.timeout(900),
]

ROOT = Path(__file__).parent.parent.parent
BLOCK = re.compile(r"<!-- (file: (?P<file>\S+)|run|serve) -->\n```\w+\n(?P<text>.*?)```", re.DOTALL)
PNG = b"\x89PNG"


def environment(tmp_path: Path) -> dict[str, str]:
    return os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYSPARK_PYTHON": sys.executable,
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }


def commands(text: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command.replace("starlingmq ", f"{sys.executable} -m starlingmq ", 1), output


def test_every_block_of_the_tutorial(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "TUTORIAL.md").read_text()
    text = text.replace("1883", str(free_port())).replace("7884", str(free_port()))
    url = next(iter(re.findall(r"mqtt://[\d.:]+", text)))
    text = text.replace("devices.py --count", f"devices.py --url {url} --count")
    assert text.count("\n```") == 2 * len(BLOCK.findall(text)), "a block that nobody runs"
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    serving = None
    try:
        for block in BLOCK.finditer(text):
            if block["file"]:
                (tmp_path / block["file"]).write_text(block["text"])
                continue
            for command, wanted in commands(block["text"]):
                if " serve " in command:
                    serving = subprocess.Popen(
                        command.split(), cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, text=True
                    )
                    assert serving.stdout is not None and serving.stdout.readline().startswith("ready ")
                    continue
                done = subprocess.run(
                    command, shell=True, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True,
                    timeout=400, check=False,
                )  # fmt: skip
                assert (done.returncode, done.stdout) == (0, wanted), f"{command}\n{done.stderr}"
    finally:
        if serving is not None:
            serving.terminate()
            serving.communicate(timeout=60)
    assert (tmp_path / "readings.png").read_bytes().startswith(PNG)


def test_the_notebook(broker: StreamBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    where = {"URL": broker.url, "SERVERS": broker.address, "STREAM": "all", "TOKEN": TOKEN}
    for name, value in (environment(tmp_path) | {f"STARLINGMQ_{key}": value for key, value in where.items()}).items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(ROOT / "examples" / "telemetry.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "it is kept without what it prints"
    nbclient.NotebookClient(
        notebook, timeout=400, kernel_name="python3", resources={"metadata": {"path": str(ROOT / "examples")}}
    ).execute()
    shown = json.dumps([cell.get("outputs") for cell in notebook.cells])
    for words in ("1200", "image/png", "warmest", "roof-2"):
        assert words in shown, words
