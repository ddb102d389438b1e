"""deploy/docker/compose.yaml, run by podman-compose with the image of its Dockerfile: three nodes, one lost with its
volume, and an upgrade of one after another. Nothing that was acknowledged is lost."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml

from starlingmq.cli.local_cluster import free_port
from tests.packaging.conftest import NEXT_VERSION
from tests.packaging.podman import Container, Engine
from tests.test_deploy_containers import DOCKER

pytestmark = [pytest.mark.long(alone="needs images, and root"), pytest.mark.shipped, pytest.mark.timeout(2400)]

PATIENCE: Final = 120.0
PROJECT: Final = "starlingmq"


class Composed:
    """The nodes n1 to n3. What differs from the file that is shipped: free ports of this machine, and no more open
    files than it allows."""

    def __init__(self, podman: Engine, image: str, directory: Path) -> None:
        self.podman = podman
        self.directory = directory / "docker"
        shutil.copytree(DOCKER, self.directory)
        file = self.directory / "compose.yaml"
        self.content: dict[str, Any] = yaml.safe_load(file.read_text())
        self.ports: dict[str, dict[str, int]] = {}
        for name, service in self.content["services"].items():
            inside = [port.rpartition(":")[2] for port in service["ports"]]
            self.ports[name] = {port: free_port() for port in inside}
            service["ports"] = [f"127.0.0.1:{outside}:{port}" for port, outside in self.ports[name].items()]
            service["ulimits"] = {"nofile": podman.files, "nproc": podman.processes}
        self.run_with(image)

    def run_with(self, image: str) -> None:
        for service in self.content["services"].values():
            service["image"] = image
        (self.directory / "compose.yaml").write_text(yaml.safe_dump(self.content))

    def make_secrets(self, image: str) -> None:
        """As the head of the file says."""
        directory = self.directory / "secrets"
        directory.mkdir(mode=0o711)
        for name in ("cluster_secret", "api_token"):
            (directory / name).write_text(secrets.token_hex(24) + "\n")
        run = ("run", "--rm", "--interactive", "--user", str(os.getuid()), "--volume", f"{directory}:/secrets")
        self.podman(*run, image, "passwd", "/secrets/passwords", "admin", "--stdin", stdin=b"secret\n")
        for path in directory.iterdir():
            path.chmod(0o644)

    def __call__(self, *words: str) -> None:
        program = Path(sys.executable).with_name("podman-compose")
        command: list[str | Path] = [program, "--podman-path", self.podman.program, "--project-name", PROJECT, *words]
        done = subprocess.run(command, cwd=self.directory, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    def node(self, name: str) -> Container:
        return Container(self.podman, f"{PROJECT}_{name}_1")

    def wait_until_ready(self, *names: str) -> None:
        end = time.monotonic() + PATIENCE
        for name in names:
            url = f"http://127.0.0.1:{self.ports[name]['8080']}/health/ready"
            while not _answers(url):
                assert time.monotonic() < end, f"{name} is not ready:\n{self.node(name).log()[-3000:]}"
                time.sleep(0.3)

    def wait_for_status(self, name: str, *words: str) -> None:
        """Until the status that this node shows has all of these words."""
        end = time.monotonic() + PATIENCE
        while True:
            asked = ("starlingmq", "ctl", "cluster", "status", "--data-dir", "/var/lib/starlingmq")
            status = self.node(name).execute(*asked, expect=None)
            if all(word in status for word in words):
                return
            assert time.monotonic() < end, status
            time.sleep(0.5)

    def client(self, name: str, command: str, *words: str) -> str:
        login = ("-h", "127.0.0.1", "-u", "admin", "-P", "secret", "-q", "1")
        return self.node(name).execute("starlingmq", command, *login, *words)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.HTTPError:
        return False


@pytest.fixture
def composed(podman: Engine, built: str, tmp_path: Path) -> Iterator[Composed]:
    made = Composed(podman, built, tmp_path)
    made.make_secrets(built)
    made("up", "--no-build", "--detach")
    try:
        made.wait_until_ready("n1", "n2", "n3")
        yield made
    finally:
        made("down", "--volumes", "--timeout", "5")


def test_a_node_is_lost_with_its_volume_and_all_are_upgraded_and_nothing_acknowledged_is_lost(
    composed: Composed, podman: Engine, built_next: str
) -> None:
    composed.wait_for_status("n1", "3 of 3")
    composed.client("n3", "sub", "-i", "cellar", "-c", "-t", "alarm/#", "-E")
    sent: list[str] = []

    def publish(name: str) -> None:
        sent.append(f"message {len(sent)}")
        composed.client(name, "pub", "-t", "alarm/door", "-m", sent[-1])

    publish("n1")
    podman("rm", "--force", "--time", "0", composed.node("n3").name)
    podman("volume", "rm", f"{PROJECT}_n3")
    publish("n1")
    publish("n2")
    composed("up", "--no-build", "--detach", "n3")
    composed.wait_until_ready("n3")
    composed.wait_for_status("n1", "3 of 3")
    publish("n3")
    composed.run_with(built_next)
    for name in ("n1", "n2", "n3"):
        (other, *_) = {"n1", "n2", "n3"} - {name}
        podman("stop", "--time", "60", composed.node(name).name)
        podman("rm", composed.node(name).name)
        publish(other)
        composed("up", "--no-build", "--no-deps", "--detach", name)
        composed.wait_until_ready(name)
        composed.wait_for_status(other, "3 of 3")
        assert NEXT_VERSION in composed.node(name).execute("starlingmq", "--version")
        publish(name)
    received = composed.client("n2", "sub", "-i", "cellar", "-c", "-t", "alarm/#", "-C", str(len(sent)), "-W", "60")
    assert sorted(received.splitlines()) == sorted(sent)
