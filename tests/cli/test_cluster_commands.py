"""``cluster up``, ``ctl cluster``, ``serve --workers`` and ``serve --join`` as a user runs them, with real etcd."""

from __future__ import annotations

import contextlib
import json
import re
import selectors
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import trustme
import yaml

from starlingmq.cli import cluster as cluster_command
from starlingmq.cli import local_cluster
from starlingmq.cli.local_cluster import prepare
from tests.patience import slowness

from .commands import run, subscriber

pytestmark = pytest.mark.slow
PATIENCE = 60.0
BARE = ("--no-nats", "--no-http", "--no-streams")
DEGRADED = 3  # exit code


class Running:
    """A command that serves: ``urls`` are those of its ``ready`` line. What it says on stderr goes to a file."""

    def __init__(self, log: Path, *words: str) -> None:
        self.log = log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "starlingmq", *words], stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self.urls: list[str] = []

    def wait_ready(self) -> list[str]:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(PATIENCE * slowness()):
                pytest.fail(f"not ready: {self.log.read_text()}")
        word, *self.urls = self.process.stdout.readline().split() or [""]
        if word != "ready":
            pytest.fail(f"it did not start: {self.log.read_text()}")
        return self.urls

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Its exit code; nothing that it started is left."""
        started = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(number)
        self.process.communicate(timeout=PATIENCE)
        _, left = psutil.wait_procs(started, timeout=5)
        assert left == []
        return self.process.returncode


@contextlib.contextmanager
def running(log: Path, *words: str) -> Iterator[Running]:
    command = Running(log, *words)
    try:
        command.wait_ready()
        yield command
    finally:
        if command.process.poll() is None:
            command.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Running]]:
    """Three nodes, begun by ``cluster up``; the directory, and the command."""
    directory = tmp_path_factory.mktemp("cluster")
    words = ("cluster", "up", "--nodes", "3", "--dir", str(directory), "--base-port", "0", *BARE)
    with running(directory / "log", *words) as command:
        yield directory, command


def control(directory: Path, node: str, *words: str) -> Any:
    code, output, errors = run("ctl", "cluster", *words, "--data-dir", str(directory / node / "data"), "--json")
    assert code in (0, DEGRADED), errors
    return json.loads(output)


def said(directory: Path) -> str:
    return (directory / "log").read_text()


def until(condition: Callable[[], bool]) -> None:
    """Wait for a state that other processes reach in time."""
    deadline = time.monotonic() + PATIENCE * slowness()
    while not condition():
        assert time.monotonic() < deadline, "it does not come to be so"


def test_a_message_published_at_one_node_arrives_at_another(cluster: tuple[Path, Running]) -> None:
    _, command = cluster
    subscription = subscriber(command.urls[1], "-t", "over/#", "-q", "2", "-C", "3", "-v")
    for qos in "012":
        code, _, errors = run("pub", "-L", f"{command.urls[0]}/over/{qos}", "-m", f"at {qos}", "-q", qos)
        assert code == 0, errors
    code, output, errors = subscription.finish()
    assert code == 0, errors
    assert output.splitlines() == [b"over/0 at 0", b"over/1 at 1", b"over/2 at 2"]


def test_status_tells_of_all_members_for_people_and_for_programs(cluster: tuple[Path, Running]) -> None:
    directory, _ = cluster
    found = control(directory, "n1", "status")
    assert found["serving"] and found["node"] == "n1" and found["etcd"]["own"]
    assert [member["name"] for member in found["members"]] == ["n1", "n2", "n3"]
    assert all(member["state"] == "registered" and member["connected"] for member in found["members"])
    code, output, _ = run("ctl", "cluster", "status", "-c", str(directory / "n2" / "starlingmq.yaml"))
    healthy = b"HEALTHY: 3 of 3 nodes reachable; quorum holds.\n"
    assert code == 0 and output.startswith(healthy) and b"this node  n2: serves" in output
    assert run("ctl", "health", "--cluster", "-c", str(directory / "n2" / "starlingmq.yaml"))[:2] == (0, healthy)
    assert control(directory, "n3", "members")["members"][0]["name"] == "n1"


def test_routes_are_the_same_wherever_one_looks(cluster: tuple[Path, Running]) -> None:
    directory, command = cluster
    one = subscriber(command.urls[0], "-t", "routes/a", "-t", "$share/g/routes/b")
    two = subscriber(command.urls[1], "-t", "routes/c/+", "-i", "keeps", "-c", "-q", "1")
    try:
        wanted = [
            [{"filter": "routes/a", "durable": False}],
            [{"filter": "routes/c/+", "durable": True}],
            [],
        ]
        for node in ("n1", "n2", "n3"):  # a SUBACK was the promise that all of them know
            found = control(directory, node, "routes", "routes/")
            assert [each["listed"] for each in found["nodes"]] == wanted
        groups = control(directory, "n3", "routes", "$share/", "--node", "n1")["nodes"]
        assert [each["listed"] for each in groups] == [[{"filter": "$share/g/routes/b", "members": 1}]]
    finally:
        one.interrupt()
        two.interrupt()
        one.finish()
        two.finish()
    code, output, _ = run("ctl", "cluster", "routes", "routes/c", "--data-dir", str(directory / "n3" / "data"))
    assert code == 0 and b"persistent sessions" in output
    code, _, errors = run("ctl", "cluster", "routes", "--node", "n9", "--data-dir", str(directory / "n3" / "data"))
    assert code == 2 and "there is no node n9; the members are n1, n2, n3" in errors


def test_a_connected_node_cannot_be_forgotten(cluster: tuple[Path, Running]) -> None:
    directory, _ = cluster
    code, _, errors = run("ctl", "cluster", "forget", "n3", "--data-dir", str(directory / "n1" / "data"))
    assert (
        code == 2
        and errors == "error: n3 is online; let it leave, or stop it (after a crash: wait until its lease expires)\n"
    )
    code, _, errors = run("ctl", "cluster", "forget", "n7", "--data-dir", str(directory / "n1" / "data"))
    assert code == 2 and errors == "error: there is no member n7\n"


def test_a_node_that_drains_hands_its_sessions_over_and_serves_again_when_told(cluster: tuple[Path, Running]) -> None:
    directory, command = cluster
    data = str(directory / "n3" / "data")
    kept = ("-t", "kept", "-i", "stays", "-c", "-q", "1")
    subscriber(command.urls[2], *kept, "-E").finish()
    watching = subscriber(command.urls[2], "-t", "watched", "-i", "watching", "-c", "-q", "1", "-C", "1")
    code, output, errors = run("ctl", "drain", "--data-dir", data)
    assert code == 0, errors
    assert output.startswith(b"n3 is drained: 1 clients redirected, 0 closed, 1 sessions handed over")
    assert "redirecting clients: " in errors
    assert run("pub", "-L", f"{command.urls[0]}/watched", "-m", "elsewhere", "-q", "1")[0] == 0
    assert watching.finish()[1] == b"elsewhere\n"  # it went where it was told
    assert member_of(control(directory, "n3", "members"), "n3")["draining"]
    until(lambda: member_of(control(directory, "n1", "status"), "n3")["draining"])
    unavailable = b"UNAVAILABLE: 3 of 3 nodes reachable; quorum holds; this node is draining.\n"
    for words in (("cluster", "status"), ("health", "--cluster"), ("status",)):
        code, output, _ = run("ctl", *words, "--data-dir", data)
        assert (code, output[: len(unavailable)]) == (1, unavailable), "1: this node does not serve"
    output = run("ctl", "cluster", "status", "--data-dir", data)[1]
    assert b"does not serve clients, because it is drained" in output and b"registered, draining" in output
    assert run("pub", "-L", f"{command.urls[0]}/kept", "-m", "for it", "-q", "1")[0] == 0
    assert subscriber(command.urls[0], *kept, "-C", "1").finish()[1] == b"for it\n"
    assert run("pub", "-L", f"{command.urls[2]}/kept", "-m", "nobody listens")[0] != 0
    code, output, _ = run("ctl", "drain", "--cancel", "--data-dir", data, "--json")
    assert code == 0 and not json.loads(output)["draining"]
    assert run("pub", "-L", f"{command.urls[2]}/kept", "-m", "again")[0] == 0
    until(lambda: not member_of(control(directory, "n1", "status"), "n3")["draining"])


def test_clients_are_spread_over_the_nodes_again(cluster: tuple[Path, Running]) -> None:
    directory, command = cluster
    crowd = [subscriber(command.urls[0], "-t", "crowd") for _ in range(3)]
    for name, clients in (("n1", 3), ("n2", 0), ("n3", 0)):  # those of earlier tests are gone, too
        until(lambda: member_of(control(directory, "n2", "status"), name)["clients"] == clients)  # noqa: B023
    code, output, errors = run("ctl", "rebalance", "--data-dir", str(directory / "n2" / "data"), "--json")
    assert code == 0, errors
    found = json.loads(output)
    assert found["before"] == {"n1": 3, "n2": 0, "n3": 0}
    for name in ("n1", "n2", "n3"):
        until(lambda: member_of(control(directory, "n2", "status"), name)["clients"] == 1)  # noqa: B023
    for each in crowd:
        each.interrupt()
        each.finish()


def check_that_it_is_told_everywhere(directory: Path) -> None:
    """n2 was killed."""
    data = str(directory / "n1" / "data")
    told = re.compile(
        r"DEGRADED: 2 of 3 nodes reachable; n2 gone since \d\d:\d\d:\d\d \(\d+ s\); [\d,]+ messages wait for it; "
        r"quorum holds. Next: start n2 again, or check the network; .*`starlingmq ctl cluster forget n2`\n"
    )
    for words in (("cluster", "status"), ("health", "--cluster")):
        code, output, errors = run("ctl", *words, "--data-dir", data)
        assert code == DEGRADED, errors
        assert told.match(output.decode()), output
    assert re.search(
        r"^n2 +gone +gone for \d+s", run("ctl", "cluster", "members", "--data-dir", data)[1].decode(), re.M
    )
    assert run("ctl", "health", "--data-dir", data)[:2] == (0, b"ok\n"), "clients are served"


def check_the_log(log: Path) -> None:
    """One line of each other node says that n2 was gone, one that it is back, and none is gRPC's."""
    lines = log.read_text().splitlines()
    for name in ("n1", "n3"):
        own = [line for line in lines if line.startswith(f"{name} |")]
        assert len([line for line in own if "node n2 is gone: " in line]) == 1
        assert len([line for line in own if "node n2 is back after " in line or "n2 was disconnected" in line]) <= 2
    assert not re.search("Internal error from Core|Stream removed|Socket closed|grpc", log.read_text(), re.I)


def test_a_node_that_was_killed_comes_back_and_one_that_is_gone_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STARLINGMQ_CLUSTER__COPIES", "1")  # else another node serves its data after some seconds
    words = ("cluster", "up", "--nodes", "3", "--dir", str(tmp_path), "--base-port", "0", *BARE)
    with running(tmp_path / "log", *words) as command:
        settings = tmp_path / "n2" / "starlingmq.yaml"
        kill_node(command, "n2")
        until(lambda: "n2 was ended by signal 9" in (tmp_path / "log").read_text())
        until(lambda: control(tmp_path, "n1", "status")["health"]["status"] == "degraded")
        until(lambda: "etcd" not in control(tmp_path, "n1", "status")["health"]["summary"])  # n2 may have led it
        check_that_it_is_told_everywhere(tmp_path)
        told = re.search(r"restart it with: starlingmq (.*)", said(tmp_path))
        assert told is not None and told[1].split() == ["serve", "-c", str(settings)]
        with running(tmp_path / "log2", *told[1].split()):
            assert control(tmp_path, "n1", "status")["serving"]
            until(lambda: "node n2 is back after " in (tmp_path / "log").read_text())
        check_the_log(tmp_path / "log")
        until(lambda: not member_of(control(tmp_path, "n1", "status"), "n2")["online"])
        assert control(tmp_path, "n1", "forget", "n2") == {"forgot": "n2"}
        assert [each["name"] for each in control(tmp_path, "n3", "members")["members"]] == ["n1", "n3"]
        kept = ("-t", "kept", "-i", "stays", "-c", "-q", "1")
        subscriber(command.urls[2], *kept, "-E").finish()
        assert control(tmp_path, "n3", "leave") == {"left": "n3"}
        until(lambda: "n3 ended with exit status 0" in (tmp_path / "log").read_text())
        alone = control(tmp_path, "n1", "status")
        assert alone["serving"] and [each["name"] for each in alone["members"]] == ["n1"]
        assert run("pub", "-L", f"{command.urls[0]}/kept", "-m", "found", "-q", "1")[0] == 0
        assert subscriber(command.urls[0], *kept, "-C", "1").finish()[1] == b"found\n"
    code, _, errors = run("serve", "-c", str(tmp_path / "n3" / "starlingmq.yaml"))
    assert code == 2 and "has left: delete it, so that the node joins again as a new member" in errors


def test_a_node_joins_a_cluster_that_runs(tmp_path: Path) -> None:
    alone = ("cluster", "up", "--nodes", "1", "--dir", str(tmp_path), "--base-port", "0", *BARE)
    with running(tmp_path / "log", *alone) as one:
        endpoint = control(tmp_path, "n1", "status")["etcd"]["endpoints"][0]
        words = ["serve", "--name", "later", "--data-dir", str(tmp_path / "later" / "data")]
        words += ["--cluster", "127.0.0.1:0", "--join", endpoint, "--listen", "mqtt://127.0.0.1:0"]
        words += ["--set", "cluster.etcd.client_port=0", "--set", "cluster.etcd.peer_port=0"]
        words += ["--set", f"cluster.secret_file={tmp_path / 'secret'}"]
        with running(tmp_path / "log2", *words) as two:
            subscription = subscriber(two.urls[0], "-t", "hello", "-C", "1")
            assert run("pub", "-L", f"{one.urls[0]}/hello", "-m", "there")[0] == 0
            assert subscription.finish()[1] == b"there\n"
            assert two.stop() == 0


def test_nodes_and_their_etcds_speak_tls_where_the_cluster_has_certificates(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    mine = authority.issue_cert("127.0.0.1")
    mine.private_key_pem.write_to_path(tmp_path / "node.key")
    (tmp_path / "node.pem").write_bytes(b"".join(each.bytes() for each in mine.cert_chain_pems))
    names = {"cert": "node.pem", "key": "node.key", "ca": "ca.pem"}
    listening = []
    for path in prepare(tmp_path / "nodes", 3, 0):
        settings = yaml.safe_load(path.read_text())
        settings["cluster"]["tls"] = {what: str(tmp_path / name) for what, name in names.items()}
        path.write_text(yaml.safe_dump(settings))
        etcd = settings["cluster"]["etcd"]
        listening += [int(settings["cluster"]["listen"].rpartition(":")[2]), etcd["client_port"], etcd["peer_port"]]
    words = ("cluster", "up", "--nodes", "3", "--dir", str(tmp_path / "nodes"))
    with running(tmp_path / "log", *words) as command:
        subscription = subscriber(command.urls[2], "-t", "secret", "-C", "1")
        assert run("pub", "-L", f"{command.urls[0]}/secret", "-m", "kept", "-q", "2")[0] == 0
        assert subscription.finish()[1] == b"kept\n"
        trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        trusting.load_cert_chain(tmp_path / "node.pem", tmp_path / "node.key")
        for port in listening:
            with socket.create_connection(("127.0.0.1", port)) as plain:
                trusting.wrap_socket(plain, server_hostname="127.0.0.1").close()


def test_a_second_start_finds_what_the_first_one_kept(tmp_path: Path) -> None:
    words = ("cluster", "up", "--nodes", "2", "--dir", str(tmp_path), "--base-port", "0", *BARE)
    with running(tmp_path / "log", *words) as first:
        urls = first.urls
        subscriber(urls[0], "-t", "kept", "-i", "stays", "-c", "-q", "1", "-E").finish()
        assert run("pub", "-L", f"{urls[1]}/kept", "-m", "over night", "-q", "1")[0] == 0
        assert first.stop(signal.SIGINT) == 0
    with running(tmp_path / "log", *words[: -len(BARE)]) as second:
        assert second.urls == urls, "listeners are added to a cluster that exists only by name"
        subscription = subscriber(urls[0], "-t", "kept", "-i", "stays", "-c", "-q", "1", "-C", "1")
        assert subscription.finish()[1] == b"over night\n"
    code, _, errors = run("cluster", "up", "--nodes", "3", "--dir", str(tmp_path))
    assert code == 2 and "holds a cluster of 2 nodes; give --nodes 2, or another directory" in errors


def test_a_new_cluster_has_a_dashboard_nats_and_streams_and_says_at_last_where(tmp_path: Path) -> None:
    words = ("cluster", "up", "--nodes", "1", "--dir", str(tmp_path), "--base-port", "0")
    with running(tmp_path / "log", *words) as command:
        assert [url.partition("://")[0] for url in command.urls] == ["mqtt", "nats", "http"]
        dashboard = f"dashboard: {command.urls[2]}  (no login: only this machine can reach it)\n"
        until(lambda: dashboard in said(tmp_path))
        assert f"(token in {tmp_path}/streams-token)" in said(tmp_path).partition("streams: 127.0.0.1:")[2]
        assert said(tmp_path).endswith(dashboard), "what one opens next is the last line"
        with urllib.request.urlopen(command.urls[2]) as answer:
            assert b"<title>" in answer.read()
    settings = tmp_path / "n1" / "starlingmq.yaml"
    (tmp_path / "tokens").write_text("a-token-that-nobody-guesses\n")
    settings.write_text(settings.read_text() + f"auth: {{api: {{token_file: {tmp_path / 'tokens'}}}}}\n")
    with running(tmp_path / "log", *words):
        until(lambda: f"(log in with a token of {tmp_path / 'tokens'})" in said(tmp_path))


def test_a_new_cluster_leaves_out_services_whose_packages_are_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[list[str]] = []

    async def run_nothing(paths: list[Path], log_level: str, notes: list[str]) -> int:
        told.append(notes)
        return 0

    monkeypatch.setitem(local_cluster.PACKAGES, "streams", ("a_package_of_nobody",))
    monkeypatch.setattr(cluster_command, "_run", run_nothing)
    cluster_command.up(tmp_path, 1, 0)
    assert told == [["no streams: install a_package_of_nobody (pip install '.[streams]' in the sources)"]]
    settings = yaml.safe_load((tmp_path / "n1" / "starlingmq.yaml").read_text())
    assert "streams" not in settings
    assert [url.partition("://")[0] for url in settings["listeners"]] == ["mqtt", "nats", "http"]


@pytest.mark.parametrize(("nodes", "copies"), [(1, 1), (2, 2), (3, 2)])
def test_the_nodes_of_a_new_cluster_have_copies_of_each_other(tmp_path: Path, nodes: int, copies: int) -> None:
    for path in prepare(tmp_path / "nodes", nodes, 0):
        assert yaml.safe_load(path.read_text())["cluster"]["copies"] == copies


def test_nats_the_api_and_streams_are_added_to_a_cluster_without_editing_files(tmp_path: Path) -> None:
    words = ("cluster", "up", "--nodes", "2", "--dir", str(tmp_path), "--base-port", "0")
    bare = {path: path.read_text() for path in prepare(tmp_path, 2, 0)}
    with running(tmp_path / "log", *words, "--nats", "--http", "--streams") as command:
        schemes = [url.partition("://")[0] for url in command.urls]
        assert schemes == ["mqtt", "nats", "http"] * 2
        with urllib.request.urlopen(f"{command.urls[2]}/health/live") as answer:
            assert answer.status == 200
        until(lambda: f"dashboard: {command.urls[2]}  (no login: only this machine can reach it)\n" in said(tmp_path))
        assert "streams: 127.0.0.1:" in said(tmp_path) and f"(token in {tmp_path}/streams-token)" in said(tmp_path)
    written = {path: path.read_text() for path in bare}
    assert all("streams:" in written[path] and "streams:" not in bare[path] for path in bare)
    assert (tmp_path / "streams-token").stat().st_mode & 0o777 == 0o600
    assert {path: path.read_text() for path in prepare(tmp_path, 2, 0, ["http", "nats", "streams"])} == written


def test_workers_share_one_port_and_one_that_dies_is_replaced(tmp_path: Path) -> None:
    words = ("serve", "--workers", "3", "--listen", "mqtt://127.0.0.1:0", "--data-dir", str(tmp_path / "data"))
    with running(tmp_path / "log", *words, "--listen", "http://127.0.0.1:0") as command:
        url, http = command.urls
        for _ in range(6):  # whichever worker answers
            samples = urllib.request.urlopen(f"{http}/metrics").read().decode()
            assert len(set(re.findall(r'^process_start_time_seconds\{worker="(.*)"\} ', samples, re.MULTILINE))) == 3
        subscribers = [subscriber(url, "-t", "all/#", "-q", "1", "-C", "1") for _ in range(6)]
        spread = [worker_clients(url, child) for child in nodes_of(command).values()]
        assert sum(spread) == 6
        assert run("pub", "-L", f"{url}/all/of/you", "-m", "hello", "-q", "1")[0] == 0
        assert [each.finish()[1] for each in subscribers] == [b"hello\n"] * 6
        code, _, errors = run(*words[:-1], str(tmp_path / "other"), "--listen", url)
        assert code == 2 and "Address already in use" in errors
        before = nodes_of(command)
        victim = sorted(before)[0]
        sockets = next(word.partition("=")[2] for word in before[victim].cmdline() if "socket_dir=" in word)
        shutil.rmtree(json.loads(sockets))  # as a cleaner of /tmp does
        before[victim].kill()
        until(lambda: victim in (now := nodes_of(command)) and now[victim].pid != before[victim].pid)
        until(lambda: all_connected(tmp_path / "data" / "worker-2"))
        assert command.stop() == 0
    assert "was ended by signal 9; it is restarted" in (tmp_path / "log").read_text()


def test_one_of_two_workers_serves_while_the_other_is_down(tmp_path: Path) -> None:
    data = tmp_path / "data"
    words = ("serve", "--workers", "2", "--listen", "mqtt://127.0.0.1:0", "--data-dir", str(data))
    without_etcd = ("--set", "cluster.etcd.binary=no-such-etcd")
    with running(tmp_path / "log", *words, *without_etcd) as command:
        (url,) = command.urls
        until(lambda: all_connected(data / "worker-1"))
        (data / "worker-2").rename(data / "away")
        (data / "worker-2").touch()  # so that it cannot be started again
        (victim,) = [process for name, process in nodes_of(command).items() if name.endswith('-2"')]
        victim.kill()
        until(lambda: run("pub", "-L", f"{url}/one/serves", "-m", "kept", "-q", "1", "-r")[0] == 0)
        subscription = subscriber(url, "-t", "one/#", "-q", "1", "-C", "1")
        assert subscription.finish()[1] == b"kept\n"
        assert "isolated" not in (tmp_path / "log").read_text()
        (data / "worker-2").unlink()
        (data / "away").rename(data / "worker-2")
        until(lambda: all_connected(data / "worker-1") and all_connected(data / "worker-2"))
        assert command.stop() == 0


def test_invalid_numbers_of_workers_are_refused(tmp_path: Path) -> None:
    code, _, errors = run("serve", "--workers", "2", "--listen", f"unix://{tmp_path}/socket")
    assert code == 2 and "workers cannot share a Unix socket" in errors
    code, _, errors = run("serve", "--workers", "0")
    assert code == 2 and "--workers 0: must be 1 to 256" in errors


def test_without_etcd_one_line_says_what_to_install(tmp_path: Path) -> None:
    words = ("serve", "--cluster", "127.0.0.1:0", "--name", "n1", "--data-dir", str(tmp_path))
    code, _, errors = run(*words, "--set", "cluster.etcd.binary=no-such-etcd", "--listen", "mqtt://127.0.0.1:0")
    assert code == 2 and "apt-get install etcd-server" in errors.splitlines()[-1]


def test_a_node_that_cannot_listen_does_not_join(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"mqtt://127.0.0.1:{taken.getsockname()[1]}"
        words = ("serve", "--cluster", "127.0.0.1:0", "--data-dir", str(tmp_path), "--listen", url)
        code, _, errors = run(*words)
    assert code == 2 and errors.splitlines()[-1] == f"error: {url}: cannot listen: Address already in use"
    assert list(tmp_path.iterdir()) == []


def test_cluster_commands_need_a_running_broker(tmp_path: Path) -> None:
    code, _, errors = run("ctl", "cluster", "status", "--data-dir", str(tmp_path))
    assert code == 2 and "no broker is running there" in errors
    with running(tmp_path / "log", "serve", "--listen", "mqtt://127.0.0.1:0", "--data-dir", str(tmp_path / "data")):
        code, _, errors = run("ctl", "cluster", "status", "--data-dir", str(tmp_path / "data"))
        assert (
            code == 2 and errors == "error: this broker is not a member of a cluster; set cluster.enabled to join one\n"
        )


def member_of(status: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [member for member in status["members"] if member["name"] == name]
    return dict(found)


def nodes_of(command: Running) -> dict[str, psutil.Process]:
    """The brokers below a command, by the settings that tell them apart."""
    found = {}
    for process in psutil.Process(command.process.pid).children():
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            which = [word for word in line if word.startswith("node.name=") or word.endswith(".yaml")]
            if "serve" in line and which:
                found[which[-1]] = process
    return found


def kill_node(command: Running, name: str) -> None:
    next(each for key, each in nodes_of(command).items() if f"/{name}/" in key).kill()


def worker_clients(url: str, process: psutil.Process) -> int:
    port = int(url.rpartition(":")[2])
    return sum(each.status == "ESTABLISHED" and each.laddr.port == port for each in process.net_connections("tcp"))


def all_connected(data: Path) -> bool:
    code, output, _ = run("ctl", "cluster", "status", "--data-dir", str(data), "--json")
    return code == 0 and all(member["connected"] for member in json.loads(output)["members"])


def test_reuse_port_is_asked_for(tmp_path: Path) -> None:
    """A port is not shared in secret: only who says reuse_port gets into it, and only beside others who said so."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"mqtt://127.0.0.1:{taken.getsockname()[1]}"
        code, _, errors = run("serve", "--set", f"listeners=[{{url: '{url}', reuse_port: true}}]")
    assert code == 2 and "Address already in use" in errors
