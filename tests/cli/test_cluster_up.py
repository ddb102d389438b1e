"""``cluster up``, ``serve --workers`` and ``serve --join`` as a user starts them, with real etcd."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import ssl
import urllib.request
from pathlib import Path

import psutil
import pytest
import trustme
import yaml

from starlingmq.cli import cluster as cluster_command
from starlingmq.cli import local_cluster
from starlingmq.cli.local_cluster import prepare

from .clusters import BARE, all_connected, control, nodes_of, running, said, until
from .commands import run, subscriber

pytestmark = pytest.mark.slow


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
    for path in prepare(tmp_path / "nodes", 2, 0):
        settings = yaml.safe_load(path.read_text())
        settings["cluster"]["tls"] = {what: str(tmp_path / name) for what, name in names.items()}
        path.write_text(yaml.safe_dump(settings))
        etcd = settings["cluster"]["etcd"]
        listening += [int(settings["cluster"]["listen"].rpartition(":")[2]), etcd["client_port"], etcd["peer_port"]]
    words = ("cluster", "up", "--nodes", "2", "--dir", str(tmp_path / "nodes"))
    with running(tmp_path / "log", *words) as command:
        subscription = subscriber(command.urls[1], "-t", "secret", "-C", "1")
        assert run("pub", "-L", f"{command.urls[0]}/secret", "-m", "kept", "-q", "2")[0] == 0
        assert subscription.finish()[1] == b"kept\n"
        trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        trusting.load_cert_chain(tmp_path / "node.pem", tmp_path / "node.key")
        for port in listening:
            with socket.create_connection(("127.0.0.1", port)) as plain:
                trusting.wrap_socket(plain, server_hostname="127.0.0.1").close()


@pytest.mark.long(
    kept="tests/cli/test_cluster_up.py::test_a_new_cluster_says_at_last_where_its_services_are_and_keeps_its_data"
)
def test_a_second_start_of_two_nodes_finds_what_the_first_one_kept(tmp_path: Path) -> None:
    words = ("cluster", "up", "--nodes", "2", "--dir", str(tmp_path), "--base-port", "0", *BARE)
    with running(tmp_path / "log", *words) as first:
        urls = first.urls
        subscriber(urls[0], "-t", "kept", "-i", "stays", "-c", "-q", "1", "-E").finish()
        assert run("pub", "-L", f"{urls[-1]}/kept", "-m", "over night", "-q", "1")[0] == 0
        assert first.stop(signal.SIGINT) == 0
    with running(tmp_path / "log", *words[: -len(BARE)]) as second:
        assert second.urls == urls, "listeners are added to a cluster that exists only by name"
        subscription = subscriber(urls[0], "-t", "kept", "-i", "stays", "-c", "-q", "1", "-C", "1")
        assert subscription.finish()[1] == b"over night\n"
    code, _, errors = run("cluster", "up", "--nodes", "3", "--dir", str(tmp_path))
    assert code == 2 and "holds a cluster of 2 nodes; give --nodes 2, or another directory" in errors


def test_a_new_cluster_says_at_last_where_its_services_are_and_keeps_its_data(tmp_path: Path) -> None:
    words = ("cluster", "up", "--nodes", "1", "--dir", str(tmp_path), "--base-port", "0")
    with running(tmp_path / "log", *words) as command:
        assert [url.partition("://")[0] for url in command.urls] == ["mqtt", "nats", "http"]
        dashboard = f"dashboard: {command.urls[2]}  (no login: only this machine can reach it)\n"
        until(lambda: dashboard in said(tmp_path))
        assert f"(token in {tmp_path}/streams-token)" in said(tmp_path).partition("streams: 127.0.0.1:")[2]
        assert said(tmp_path).endswith(dashboard), "what one opens next is the last line"
        with urllib.request.urlopen(command.urls[2]) as answer:
            assert b"<title>" in answer.read()
        urls = command.urls
        kept = ("-t", "kept", "-i", "stays", "-c", "-q", "1")
        subscriber(urls[0], *kept, "-E").finish()
        assert run("pub", "-L", f"{urls[0]}/kept", "-m", "over night", "-q", "1")[0] == 0
        assert command.stop(signal.SIGINT) == 0
    settings = tmp_path / "n1" / "starlingmq.yaml"
    (tmp_path / "tokens").write_text("a-token-that-nobody-guesses\n")
    settings.write_text(settings.read_text() + f"auth: {{api: {{token_file: {tmp_path / 'tokens'}}}}}\n")
    with running(tmp_path / "log", *words) as second:
        assert second.urls == urls
        assert subscriber(urls[0], *kept, "-C", "1").finish()[1] == b"over night\n"
        until(lambda: f"(log in with a token of {tmp_path / 'tokens'})" in said(tmp_path))
    code, _, errors = run("cluster", "up", "--nodes", "3", "--dir", str(tmp_path))
    assert code == 2 and "holds a cluster of 1 nodes; give --nodes 1, or another directory" in errors


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


def test_services_are_added_to_a_cluster_without_editing_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run_nothing(paths: list[Path], log_level: str, notes: list[str]) -> int:
        return 0

    monkeypatch.setattr(cluster_command, "_run", run_nothing)
    words = ("cluster", "up", "--nodes", "2", "--dir", str(tmp_path), "--base-port", "0")
    bare = {path: path.read_text() for path in prepare(tmp_path, 2, 0)}
    assert run(*words)[0] == 0
    assert {path: path.read_text() for path in bare} == bare, "they are added only by name"
    assert run(*words, "--nats", "--http", "--streams")[0] == 0
    written = {path: path.read_text() for path in bare}
    for path in bare:
        assert [url.partition("://")[0] for url in yaml.safe_load(written[path])["listeners"]] == [
            "mqtt",
            "nats",
            "http",
        ]
    assert all("streams:" in written[path] and "streams:" not in bare[path] for path in bare)
    assert (tmp_path / "streams-token").stat().st_mode & 0o777 == 0o600
    assert {path: path.read_text() for path in prepare(tmp_path, 2, 0, ["http", "nats", "streams"])} == written


@pytest.mark.long(kept="tests/cli/test_cluster_up.py::test_services_are_added_to_a_cluster_without_editing_files")
def test_services_that_were_added_are_served(tmp_path: Path) -> None:
    words = ("cluster", "up", "--nodes", "2", "--dir", str(tmp_path), "--base-port", "0")
    prepare(tmp_path, 2, 0)
    with running(tmp_path / "log", *words, "--nats", "--http", "--streams") as command:
        schemes = [url.partition("://")[0] for url in command.urls]
        assert schemes == ["mqtt", "nats", "http"] * 2
        with urllib.request.urlopen(f"{command.urls[2]}/health/live") as answer:
            assert answer.status == 200
        until(lambda: f"dashboard: {command.urls[2]}  (no login: only this machine can reach it)\n" in said(tmp_path))
        assert "streams: 127.0.0.1:" in said(tmp_path) and f"(token in {tmp_path}/streams-token)" in said(tmp_path)


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.long)])
def test_workers_share_one_port_and_serve_while_one_of_them_is_down_until_it_is_replaced(
    tmp_path: Path, workers: int
) -> None:
    data = tmp_path / "data"
    words = ("serve", "--workers", str(workers), "--listen", "mqtt://127.0.0.1:0", "--data-dir", str(data))
    without_etcd = ("--set", "cluster.etcd.binary=no-such-etcd")
    with running(tmp_path / "log", *words, "--listen", "http://127.0.0.1:0", *without_etcd) as command:
        url, http = command.urls
        for _ in range(6):  # whichever worker answers
            samples = urllib.request.urlopen(f"{http}/metrics").read().decode()
            started = re.findall(r'^process_start_time_seconds\{worker="(.*)"\} ', samples, re.MULTILINE)
            assert len(set(started)) == workers
        subscribers = [subscriber(url, "-t", "all/#", "-q", "1", "-C", "1") for _ in range(2 * workers)]
        assert sum(worker_clients(url, child) for child in nodes_of(command).values()) == len(subscribers)
        assert run("pub", "-L", f"{url}/all/of/you", "-m", "hello", "-q", "1")[0] == 0
        assert [each.finish()[1] for each in subscribers] == [b"hello\n"] * len(subscribers)
        code, _, errors = run(*words[:-1], str(tmp_path / "other"), "--listen", url)
        assert code == 2 and "Address already in use" in errors
        before = nodes_of(command)
        (victim,) = [name for name in before if name.endswith('-2"')]
        sockets = next(word.partition("=")[2] for word in before[victim].cmdline() if "socket_dir=" in word)
        shutil.rmtree(json.loads(sockets))  # as a cleaner of /tmp does
        (data / "worker-2").rename(data / "away")
        (data / "worker-2").touch()  # so that it cannot be started again
        before[victim].kill()
        until(lambda: run("pub", "-L", f"{url}/one/serves", "-m", "kept", "-q", "1", "-r")[0] == 0)
        assert subscriber(url, "-t", "one/#", "-q", "1", "-C", "1").finish()[1] == b"kept\n"
        assert "isolated" not in said(tmp_path)
        (data / "worker-2").unlink()
        (data / "away").rename(data / "worker-2")
        until(lambda: victim in (now := nodes_of(command)) and now[victim].pid != before[victim].pid)
        until(lambda: all_connected(data / "worker-1") and all_connected(data / "worker-2"))
        for change in (("reload",), ("set", "mqtt.max_qos", "2", "--check")):  # workers are one broker
            code, told, errors = run("ctl", *change, "--data-dir", str(data / "worker-1"))
            assert (code, told.count(b": "), errors) == (0, workers, ""), told
        assert command.stop() == 0
    assert "was ended by signal 9; it is restarted" in said(tmp_path)


def test_a_backup_of_workers_has_retained_messages_too(tmp_path: Path) -> None:
    words = ("serve", "--workers", "2", "--listen", "mqtt://127.0.0.1:0", "--data-dir")
    saved = tmp_path / "saved"
    with running(tmp_path / "log", *words, str(tmp_path / "data")) as command:
        assert run("pub", "-L", f"{command.urls[0]}/is/kept", "-m", "kept", "-q", "1", "-r")[0] == 0
        code, _, errors = run("ctl", "status", "--data-dir", str(tmp_path / "data"))
        assert code == 2 and "such as" in errors and "worker-1" in errors
        assert run("backup", str(saved), "--data-dir", str(tmp_path / "data"))[0] == 0
        code, _, errors = run("backup", str(saved), "--data-dir", str(tmp_path / "data"))
        assert code == 2 and "is not empty" in errors
    assert all(each.stat().st_mode & 0o077 == 0 for each in saved.rglob("*"))
    assert run("restore", str(saved), "--data-dir", str(tmp_path / "again"))[0] == 0
    with running(tmp_path / "log2", *words, str(tmp_path / "again")) as command:
        assert subscriber(command.urls[0], "-t", "is/#", "-q", "1", "-C", "1").finish()[1] == b"kept\n"
    (saved / "LAYOUT").touch()
    code, _, errors = run("restore", str(saved), "--data-dir", str(tmp_path / "half"))
    assert code == 2 and "of one broker and that of workers" in errors
    (saved / "LAYOUT").unlink()
    (saved / "local-etcd" / "keys.sqlite").unlink()
    code, _, errors = run("restore", str(saved), "--data-dir", str(tmp_path / "half"))
    assert code == 2 and "not whole" in errors


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


def test_reuse_port_is_asked_for(tmp_path: Path) -> None:
    """A port is not shared in secret: only who says reuse_port gets into it, and only beside others who said so."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"mqtt://127.0.0.1:{taken.getsockname()[1]}"
        code, _, errors = run("serve", "--set", f"listeners=[{{url: '{url}', reuse_port: true}}]")
    assert code == 2 and "Address already in use" in errors


def worker_clients(url: str, process: psutil.Process) -> int:
    port = int(url.rpartition(":")[2])
    return sum(each.status == "ESTABLISHED" and each.laddr.port == port for each in process.net_connections("tcp"))
