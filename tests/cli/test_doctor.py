"""``starlingmq doctor`` finds what is wrong on a machine, and says what to do about it."""

from __future__ import annotations

import json
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import trustme

from starlingmq.cli.doctor import findings
from starlingmq.cli.doctor_checks import CheckResult, Level
from starlingmq.cli.local_cluster import free_port
from starlingmq.cli.start_check import check_start
from starlingmq.config.settings import ConfigError, load_config
from starlingmq.net.listeners.der import DerError
from starlingmq.net.listeners.validity import certificates
from tests.cli.commands import run


def about(found: list[CheckResult], subject: str) -> list[CheckResult]:
    return [each for each in found if each.subject == subject]


def issued(directory: Path, days: int) -> Path:
    """A certificate with its key, for ``days`` from now."""
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", not_after=datetime.now(UTC) + timedelta(days=days, minutes=5))
    path = directory / "node.pem"
    certificate.private_key_and_cert_chain_pem.write_to_path(path)
    path.chmod(0o600)
    return path


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_port_that_another_program_has_is_a_problem() -> None:
    with taken_port() as port:
        (found,) = about(findings(None, [f"listeners=[mqtt://127.0.0.1:{port}]"]), "ports")
    assert found.level is Level.problem and str(port) in found.text and "ss -ltnp" in found.advice
    (found,) = about(findings(None, [f"listeners=[mqtt://127.0.0.1:{port}]"]), "ports")
    assert found.level is Level.ok


@pytest.mark.parametrize(
    ("days", "level", "words"),
    [(-1, Level.problem, "ended on"), (10, Level.warning, "in 10 days"), (90, Level.ok, "in 90 days")],
)
def test_a_certificate_that_ends_soon_is_named_with_its_date(
    tmp_path: Path, days: int, level: Level, words: str
) -> None:
    path = issued(tmp_path, days)
    listener = f'listeners=[{{url: "mqtts://127.0.0.1:{free_port()}", tls: {{cert: "{path}"}}}}]'
    (found,) = about(findings(None, [listener]), "certificate")
    date = (datetime.now(UTC) + timedelta(days=days, minutes=5)).strftime("%Y-%m-%d")
    assert found.level is level and words in found.text and date in found.text and str(path) in found.text


def test_a_private_key_that_all_users_may_read_is_named(tmp_path: Path) -> None:
    path = issued(tmp_path, 90)
    listener = f'listeners=[{{url: "mqtts://127.0.0.1:{free_port()}", tls: {{cert: "{path}", key: "{path}"}}}}]'
    assert about(findings(None, [listener]), "private key") == []
    path.chmod(0o644)
    (found,) = about(findings(None, [listener]), "private key")
    assert found.level is Level.warning and found.advice == f"chmod o= {path}"


@pytest.mark.parametrize(
    "setting",
    [
        "auth.password.file",
        "auth.api.token_file",
        "auth.jwt.secret_file",
        "cluster.secret_file",
        "nats.token_file",
        "streams.token_file",
        "tracing.headers_file",
    ],
)
def test_a_file_of_secrets_that_all_users_may_read_is_named(tmp_path: Path, setting: str) -> None:
    path = tmp_path / "secret"
    path.write_text("0123456789abcdef01234567\n")
    chosen = [f"{setting}={path}", f"node.data_dir={tmp_path / 'data'}", "tracing.endpoint=http://127.0.0.1:4318"]
    path.chmod(0o640)
    assert about(findings(None, chosen), "secret") == []
    path.chmod(0o644)
    (found,) = about(findings(None, chosen), "secret")
    assert (found.level, found.text) == (Level.warning, f"all users may read {path}")
    assert found.advice == f"chmod o= {path}"


def test_the_end_of_a_certificate_is_that_of_another_parser(tmp_path: Path) -> None:
    x509 = pytest.importorskip("cryptography.x509")
    for days in (1, 20_000):  # a UTCTime and a GeneralizedTime
        pem = issued(tmp_path, days).read_bytes()
        (tmp_path / "node.pem").unlink()
        end = x509.load_pem_x509_certificate(pem[pem.index(b"-----BEGIN CERT") :]).not_valid_after_utc
        assert certificates(pem)[0].ends == end.timestamp()


def test_damaged_certificates_are_refused_without_a_traceback(tmp_path: Path) -> None:
    path = issued(tmp_path, 1)
    whole = path.read_bytes()
    for damaged in (
        b"",
        b"-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n",
        whole.replace(b"MII", b"MAA"),
    ):
        with pytest.raises(DerError):
            certificates(damaged)


def test_a_full_disk_is_a_problem_and_a_directory_in_memory_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = [f"node.data_dir={tmp_path / 'data'}"]
    monkeypatch.setattr("shutil.disk_usage", lambda path: _Usage(100 << 30, 1 << 20))
    (found,) = [each for each in about(findings(None, chosen), "disk") if "are free" in each.text]
    assert found.level is Level.problem and "1.0 MiB" in found.text
    monkeypatch.setattr("shutil.disk_usage", lambda path: _Usage(100 << 30, 90 << 30))
    (found,) = [each for each in about(findings(None, chosen), "disk") if "are free" in each.text]
    assert found.level is Level.ok
    found = about(findings(None, ["node.data_dir=/dev/shm/starlingmq"]), "disk")[0]
    assert found.level is Level.warning and "a reboot loses it" in found.text


class _Usage:
    def __init__(self, total: int, free: int) -> None:
        self.total = total
        self.free = free


def test_few_descriptors_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 1024))
    (found,) = about(findings(None, []), "open files")
    assert found.level is Level.warning and "1,024" in found.text and "LimitNOFILE" in found.advice


def test_a_memory_limit_that_the_machine_does_not_have_is_a_problem() -> None:
    (found,) = about(findings(None, ["limits.memory=4000GiB"]), "memory")
    assert found.level is Level.problem and "kernel" in found.text
    (found,) = about(findings(None, ["limits.memory=64MiB"]), "memory")
    assert found.level is Level.ok


def test_the_clock_says_what_the_kernel_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for synchronized, level in ((False, Level.warning), (True, Level.ok)):
        monkeypatch.setattr("starlingmq.cli.doctor_system.clock_is_synchronized", lambda said=synchronized: said)
        (found,) = about(findings(None, []), "clock")
        assert found.level is level


def test_an_etcd_that_does_not_answer_is_a_problem_and_one_that_is_healthy_is_not() -> None:
    cluster = ["cluster.enabled=true", "node.name=n1"]
    (found,) = about(findings(None, [*cluster, f"cluster.etcd.endpoints=[127.0.0.1:{free_port()}]"]), "etcd")
    assert found.level is Level.problem and "cluster.etcd.endpoints" in found.advice
    for answer, level in (
        (b'{"health":"true"}', Level.ok),
        (b'{"health":"false"}', Level.problem),
        (b"?", Level.problem),
    ):
        with _answering(b"HTTP/1.0 200 OK\r\n\r\n" + answer) as port:
            (found,) = about(findings(None, [*cluster, f"cluster.etcd.endpoints=[127.0.0.1:{port}]"]), "etcd")
            assert found.level is level, answer
    (found,) = about(findings(None, [*cluster, "cluster.etcd.binary=/nonexistent/etcd"]), "etcd")
    assert found.level is Level.problem and "etcd-server" in found.advice


@contextmanager
def _answering(answer: bytes) -> Iterator[int]:
    """A server in a thread that gives one answer."""
    import threading

    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join(10)


def test_a_listener_that_lets_everybody_in_is_a_problem_and_one_without_tls_a_warning(tmp_path: Path) -> None:
    listener = f"listeners=[mqtt://0.0.0.0:{free_port()}]"
    found = about(findings(None, [listener]), "settings")
    assert found[0].level is Level.problem and "anonymous" in found[0].text
    found = about(findings(None, [listener, f"auth.password.file={tmp_path / 'passwords'}"]), "settings")
    assert any("without TLS" in each.text and each.level is Level.warning for each in found)


def test_the_command_prints_each_advice_and_exits_with_1_for_a_problem() -> None:
    with taken_port() as port:
        arguments = ("--set", f"listeners=[mqtt://127.0.0.1:{port}]")
        code, output, errors = run("doctor", *arguments)
        as_json: dict[str, Any] = json.loads(run("doctor", "--json", *arguments)[1])
    text = output.decode()
    assert code == 1 and errors == "" and text.splitlines()[-1].startswith("1 problem, ")
    assert f"127.0.0.1:{port}" in text and "-> stop the other program" in text
    assert "problem" in [each["level"] for each in as_json["findings"]]
    code, output, errors = run("doctor", "--set", "limits.memry=1")
    assert code == 1 and b"limits.memry" in output and errors == ""


@pytest.mark.parametrize(
    "setting",
    [
        "listeners=[{{url: 'mqtts://127.0.0.1:0', tls: {{cert: '{missing}', key: '{missing}'}}}}]",
        "auth.acl.file={missing}",
        "auth.password.file={missing}",
        "auth.api.token_file={missing}",
        "auth.jwt.public_key_file={missing}",
        "nats.token_file={missing}",
    ],
)
def test_a_file_that_the_broker_would_miss_is_a_problem_here_and_for_config_check(tmp_path: Path, setting: str) -> None:
    missing = str(tmp_path / "missing")
    chosen = [setting.format(missing=missing), f"node.data_dir={tmp_path}"]
    found = about(findings(None, chosen), "settings")[0]
    assert found.level is Level.problem and missing in found.text, found
    assert about(findings(None, chosen), "disk"), "the other checks are made"
    code, _, errors = run("config", "check", *(word for one in chosen for word in ("--set", one)))
    assert code == 2 and missing in errors and len(errors.splitlines()) == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["streams.listen=127.0.0.1:0"], "streams.listen: needs pyarrow, which Debian packages and images do not"),
        (["streams.listen=0.0.0.0:4000"], "streams.listen: 0.0.0.0:4000 is reachable from other machines"),
        (["streams.listen=0.0.0.0:4000", "cluster.allow_insecure=true"], "streams.token: readers need a token"),
    ],
)
def test_streams_that_the_broker_could_not_serve_are_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: list[str], words: str
) -> None:
    settings = [*settings, f"node.data_dir={tmp_path}"]
    real = find_spec
    lacks = "pyarrow" in words
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if lacks else real(name))
    found = about(findings(None, settings), "settings")[0]
    assert found.level is Level.problem and words in found.text
    with pytest.raises(ConfigError, match=words.split(":")[0]):
        check_start(load_config(None, settings))


def test_the_password_file_of_the_first_user_may_be_missing(tmp_path: Path) -> None:
    chosen = [f"auth.password.file={tmp_path / 'passwords'}", "auth.password.first_user=admin"]
    assert about(findings(None, chosen), "settings")[0].level is Level.ok
    assert not (tmp_path / "passwords").exists(), "a check writes nothing"


@pytest.mark.parametrize("setting", ["cluster.listen", "cluster.etcd.client_port", "cluster.etcd.peer_port"])
def test_ports_between_nodes_and_of_etcd_that_another_program_has_are_problems(setting: str) -> None:
    with taken_port() as port:
        ports = {"cluster.etcd.client_port": "0", "cluster.etcd.peer_port": "0", "cluster.listen": "127.0.0.1:0"}
        ports[setting] = f"127.0.0.1:{port}" if setting == "cluster.listen" else str(port)
        chosen = ["cluster.enabled=true", "listeners=[]", *(f"{name}={value}" for name, value in ports.items())]
        (found,) = about(findings(None, chosen), "ports")
        assert found.level is Level.problem and found.text.startswith(f"{setting}: 127.0.0.1:{port}: Address already")
        assert ("systemctl disable --now etcd" in found.advice) == setting.startswith("cluster.etcd")
    (found,) = about(findings(None, chosen), "ports")
    assert found.level is Level.ok


@pytest.mark.parametrize("host", ["n1.invalid", "192.0.2.1"])
def test_a_host_that_is_not_of_this_machine_is_no_port_of_another_program(host: str) -> None:
    chosen = ["cluster.enabled=true", "listeners=[]", "cluster.allow_insecure=true", f"cluster.etcd.host={host}"]
    found = [each for each in about(findings(None, chosen), "ports") if host in each.text]
    assert len(found) == 2
    for each in found:
        assert each.level is Level.problem
        assert each.advice == "correct cluster.etcd.host, the name in DNS, or /etc/hosts"


def test_a_data_directory_that_is_a_file_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = about(findings(None, [f"node.data_dir={tmp_path / 'file'}"]), "disk")[0]
    assert found.level is Level.problem and "is not a directory" in found.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_root_is_told_as_which_user_to_run_it(tmp_path: Path) -> None:
    os.chown(tmp_path, 4321, 4321)
    found = about(findings(None, [f"node.data_dir={tmp_path}"]), "disk")[0]
    assert found.level is Level.warning and "belongs to user 4321, and this is root" in found.text
    assert found.advice == "run it as that user: setpriv --reuid=4321 --clear-groups starlingmq doctor"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_file_of_another_user_in_the_data_directory_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "passwords").touch()
    assert about(findings(None, [f"node.data_dir={tmp_path}"]), "disk")[0].level is not Level.problem
    os.chown(tmp_path / "passwords", 4321, 4321)
    found = about(findings(None, [f"node.data_dir={tmp_path}"]), "disk")[0]
    assert found.level is Level.problem and f"{tmp_path}/passwords belongs to user 4321" in found.text


def test_a_data_directory_of_a_newer_layout_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "LAYOUT").write_text("starlingmq data layout 99\n")
    found = about(findings(None, [f"node.data_dir={tmp_path}"]), "disk")[0]
    assert found.level is Level.problem and "has data layout 99, but this version" in found.text
    assert found.advice == "use the version that wrote it, or another directory"


def test_a_variable_with_one_underscore_in_place_of_two_is_named_and_those_of_a_platform_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STARLINGMQ_LIMITS_MEMORY", "1GiB")
    monkeypatch.setenv("STARLINGMQ_NATS_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("STARLINGMQ_NODE_PORT", "tcp://10.0.0.1:1883")
    found = [each for each in about(findings(None, []), "settings") if "variable" in each.text]
    assert [(each.text, each.advice) for each in found] == [
        (
            "the variable STARLINGMQ_LIMITS_MEMORY is ignored",
            "rename it to STARLINGMQ_LIMITS__MEMORY, if it was meant",
        )
    ]
