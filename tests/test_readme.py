"""What the README shows is run as it stands there; only the port is a free one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()
BIN = Path(sys.executable).parent
ENVIRONMENT = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}


def block(name: str) -> str:
    """The code block that follows ``<!-- run: name -->``."""
    found = re.search(rf"<!-- run: {name} -->\n```\w+\n(.*?)```", README, re.DOTALL)
    assert found, f"no block {name}"
    return found[1]


def commands(text: str) -> list[tuple[str, str]]:
    """Each ``$ command`` with what it prints."""
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    return [(part.partition("\n")[0], part.partition("\n")[2]) for part in parts]


@pytest.fixture
def port() -> Iterator[int]:
    command = [sys.executable, "-m", "starlingmq", "serve", "--listen", "mqtt://127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        address = broker.stdout.readline().split()[1]
        yield urlsplit(address).port or 0
        broker.terminate()


def run(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, shell=True, capture_output=True, text=True, timeout=30, env=ENVIRONMENT, check=False)


def test_the_tour_prints_what_it_says(port: int) -> None:
    shown = commands(block("tour"))
    assert len(shown) >= 4
    for command, output in shown:
        done = run(re.sub(r"\b(starlingmq (?:pub|sub)|mosquitto_sub)\b", rf"\1 -p {port}", command))
        assert done.returncode == 0, done.stderr
        assert done.stdout == output


@pytest.mark.slow
def test_what_a_cluster_prints_is_what_it_says(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "starlingmq", "cluster", "up", "--nodes", "3", "--base-port", "0"]
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(
            [*command, "--dir", str(tmp_path / "starling")], stdout=subprocess.PIPE, stderr=log, text=True
        ) as cluster,
    ):
        assert cluster.stdout is not None
        urls = cluster.stdout.readline().split()[1:]
        try:
            for shown, output in commands(block("cluster")):
                for number, url in enumerate(urls):
                    shown = shown.replace(f"-p {1883 + number}", f"-p {urlsplit(url).port}")
                done = run(shown.replace(" starling/", f" {tmp_path}/starling/"))
                assert done.returncode == 0, done.stderr
                assert done.stdout == output
        finally:
            cluster.terminate()
    assert len(urls) == 3 and cluster.returncode == 0, (tmp_path / "log").read_text()


@pytest.mark.parametrize("name", ["python", "nats"])
def test_a_program_prints_what_it_says(name: str) -> None:
    program = block(name)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    said = re.search(r"^prints `(.*?)`", README[README.index(program) :], re.MULTILINE)
    assert said
    assert done.stdout.strip() == said[1], done.stderr


def test_an_open_listener_is_refused_in_the_words_shown() -> None:
    (command, output), *_ = commands(block("refusal"))
    done = run(command)
    assert done.returncode == 2
    assert done.stderr == output
