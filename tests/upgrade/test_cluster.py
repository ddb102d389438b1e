"""A cluster of three nodes of an earlier release is stopped, upgraded and started: nothing is lost."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from starlingmq.cli.local_cluster import free_port
from tests.upgrade.load import Load, missing
from tests.upgrade.releases import NEXT, PATIENCE, Release, current, earlier, next_patch

pytestmark = [
    pytest.mark.long(alone="it runs an earlier release, from its commit"),
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]

NAMES: Final = ("n1", "n2", "n3")
FEW: Final = 100  # messages
SESSION: Final = ("-i", "cellar", "-c", "-q", "1", "-t", "alarm/#")


class Nodes:
    """The settings of three nodes on loopback, each with its own etcd."""

    def __init__(self, directory: Path, more: tuple[str, ...] = ()) -> None:
        self._directory = directory
        self._more = more
        self.mqtt = {name: free_port() for name in NAMES}
        self._nodes = {name: free_port() for name in NAMES}
        self._etcd = {name: (free_port(), free_port()) for name in NAMES}

    def words(self, name: str) -> list[str]:
        client, peer = self._etcd[name]
        members = ", ".join(f'"{each}=127.0.0.1:{self._etcd[each][1]}"' for each in NAMES)
        words = ["--listen", f"mqtt://127.0.0.1:{self.mqtt[name]}", "--data-dir", str(self.data(name)), "--name", name]
        words += ["--cluster", f"127.0.0.1:{self._nodes[name]}"]
        for setting in (f"client_port={client}", f"peer_port={peer}", f"initial_members=[{members}]"):
            words += ["--set", f"cluster.etcd.{setting}"]
        words += ["--set", "mqtt.max_mqueue_len=0", *self._more]
        return words

    def data(self, name: str) -> Path:
        return self._directory / name

    def until_whole(self, release: Release, name: str) -> None:
        """Wait until the health of the cluster, asked at that node, is good."""
        end = time.monotonic() + PATIENCE
        while release.exit_code("ctl", "health", "--cluster", "--data-dir", str(self.data(name))):
            assert time.monotonic() < end, release.run("ctl", "cluster", "status", "--data-dir", str(self.data(name)))

    def start(self, release: Release, stack: ExitStack) -> dict[str, subprocess.Popen[str]]:
        """All three, ready."""
        processes = {name: stack.enter_context(release.starting(*self.words(name))) for name in NAMES}
        for name, process in processes.items():
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready "), name
        return processes


def stop(processes: dict[str, subprocess.Popen[str]]) -> None:
    for process in processes.values():
        process.terminate()
    for name, process in processes.items():
        assert process.wait(PATIENCE) == 0, name


def test_a_cluster_that_is_stopped_and_upgraded_has_lost_nothing(tmp_path: Path) -> None:
    release, nodes = earlier("0.1.0", tmp_path), Nodes(tmp_path)
    ports = [str(port) for port in nodes.mqtt.values()]
    sent = [f"message {number}" for number in range(9)]
    with ExitStack() as stack:
        processes = nodes.start(release, stack)
        release.run("sub", "-p", ports[2], *SESSION, "-E")
        for number, message in enumerate(sent):
            release.run("pub", "-p", ports[number % 3], "-t", "alarm/door", "-m", message, "-q", "1")
        release.run("pub", "-p", ports[0], "-t", "greenhouse", "-m", "21.5", "-r", "-q", "1")
        release.run("pub", "-p", ports[1], "-t", "picture", "-m", "x" * 5000, "-r", "-q", "1")
        stop(processes)
    with ExitStack() as stack:
        processes = nodes.start(current(), stack)
        for port in ports:
            assert current().run("sub", "-p", port, "-t", "greenhouse", "-C", "1", "-W", "60") == "21.5\n"
        assert current().run("sub", "-p", ports[2], "-t", "picture", "-C", "1", "-W", "60") == "x" * 5000 + "\n"
        current().run("pub", "-p", ports[1], "-t", "alarm/door", "-m", "after", "-q", "1")
        got = current().run("sub", "-p", ports[0], *SESSION, "-C", str(len(sent) + 1), "-W", "60")
        assert sorted(got.splitlines()) == sorted([*sent, "after"])
        stop(processes)


def test_clients_that_publish_during_the_upgrade_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    release, nodes = earlier("0.1.0", tmp_path), Nodes(tmp_path)
    ports = list(nodes.mqtt.values())
    with ExitStack() as stack:
        processes = nodes.start(release, stack)
        release.run("sub", "-p", str(ports[2]), *SESSION, "-E")
        load = stack.enter_context(Load(ports, "alarm/load"))
        load.until_more(2000, PATIENCE)
        stop(processes)
        with ExitStack() as upgraded:
            processes = nodes.start(current(), upgraded)
            load.until_more(2000, PATIENCE)
            load.end()
            assert len(set(load.acknowledged)) == len(load.acknowledged) > 4000
            assert asyncio.run(missing(ports[0], "cellar", set(load.acknowledged), PATIENCE)) == set()
            stop(processes)


@pytest.mark.parametrize("copies", [1, 2])
def test_a_cluster_is_upgraded_one_node_after_the_other_under_load_and_loses_nothing(
    copies: int, tmp_path: Path
) -> None:
    """To the next patch version, which has the same protocol between nodes: as docs/UPGRADES.md says, step by step."""
    release, nodes = next_patch(tmp_path), Nodes(tmp_path, ("--set", f"cluster.copies={copies}"))
    ports = list(nodes.mqtt.values())
    with ExitStack() as stack:
        processes = nodes.start(current(), stack)
        current().run("sub", "-p", str(ports[2]), *SESSION, "-E")
        load = stack.enter_context(Load(ports, "alarm/load", at_once=2))
        load.until_more(FEW, PATIENCE)
        for name in NAMES:
            processes[name].terminate()
            assert processes[name].wait(PATIENCE) == 0, name
            load.until_more(FEW, PATIENCE)  # at the two others
            processes[name] = stack.enter_context(release.starting(*nodes.words(name)))
            output = processes[name].stdout
            assert output is not None and output.readline().startswith("ready "), name
            nodes.until_whole(release, name)
            load.until_more(FEW, PATIENCE)
        load.end()
        versions = release.run("ctl", "version", "--data-dir", str(nodes.data("n1")))
        assert [f"node {name}: {NEXT}" in versions for name in NAMES] == [True] * 3, versions
        assert asyncio.run(missing(ports[0], "cellar", set(load.acknowledged), PATIENCE)) == set()
        stop(processes)


def test_a_node_of_0_1_0_is_refused_by_nodes_of_this_version_which_say_why(tmp_path: Path) -> None:
    release, nodes = earlier("0.1.0", tmp_path), Nodes(tmp_path)
    logs = {name: tmp_path / f"{name}.log" for name in NAMES}
    with ExitStack() as stack:
        for name, version in (("n1", current()), ("n2", current()), ("n3", release)):
            stack.enter_context(version.starting(*nodes.words(name), log=logs[name]))
        assert "upgrade it" in _wait_for(logs["n1"], "no connection to node n3 .* older protocol between nodes")
        assert "majority" in _wait_for(logs["n3"], "not serving yet: no connection to n[12], n[12]")


def _wait_for(log: Path, pattern: str) -> str:
    """The first line that matches."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        for line in log.read_text().splitlines():
            if re.search(pattern, line):
                return line
        time.sleep(0.2)
    raise AssertionError(f"{log.name} never said {pattern}:\n{log.read_text()[-3000:]}")
