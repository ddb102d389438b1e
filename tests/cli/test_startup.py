"""The cost of starting: no command loads modules that it does not use. Modules are counted; seconds depend on the
machine.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from typer.main import get_command

from starlingmq.cli.app import COMMANDS, build_app
from starlingmq.wire.mqtt import Connect, encode
from tests.cli.test_storage_commands import serving_in_a_process
from tests.net.conftest import Certificates

OF_OPTIONS: Final = {
    "argon2", "bcrypt", "email", "google", "grpc", "h11", "http", "httpx", "jwt", "litestar", "nacl", "nats",
    "opentelemetry", "prometheus_client", "pyarrow", "pydantic", "pyspark", "rich", "rocksdict", "scramp", "typer",
    "uvicorn", "wsproto", "yaml", "zlib_ng",
}  # fmt: skip
"""Packages that only a setting, a listener or another command needs."""

OF_NAMES: Final = {"encodings.idna", "stringprep", "unicodedata"}
"""Tables of international host names, which a listener at a numeric address or an ASCII name does not need."""

OF_A_CLUSTER: Final = "starlingmq.cluster."

OF_A_BROKER: Final = OF_OPTIONS - {"rich", "typer"} | {"asyncio", "msgspec", "uvloop"}

HELP_MODULES_MAX: Final = 400  # 305, of which rich and typer have most
SERVE_MODULES_MAX: Final = 530  # interpreted 487, compiled 345
MEMBER_MODULES_MAX: Final = 764  # of a node of a cluster: interpreted 758
MEGABYTES_MAX: Final = 33  # of an empty broker: compiled 31, interpreted 27
OURS_FOR_HELP_MAX: Final = 12  # 7
STATUS_MODULES_MAX: Final = 210  # 182, of which typer and what it imports have most
OURS_FOR_STATUS_MAX: Final = 27  # 23

LATE: Final = """
import sys, threading, types
from starlingmq.cli.late_imports import load_when_used

load_when_used("ssl", "asyncio.sslproto")
import asyncio, ssl
assert "_ssl" not in sys.modules and "_hashlib" not in sys.modules and sys.modules["ssl"] is ssl
assert not hasattr(ssl, "__path__") and "_ssl" not in sys.modules
start, made = threading.Barrier(8), []
def use():
    start.wait()
    made.append((ssl.SSLContext, ssl.PROTOCOL_TLS_CLIENT, asyncio.sslproto.SSLProtocol))
threads = [threading.Thread(target=use) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(set(made)) == 1 and type(ssl) is types.ModuleType
assert ssl.__spec__.loader is ssl.__loader__ and ssl.create_default_context().verify_mode == ssl.CERT_REQUIRED
try:
    ssl.no_such_name
except AttributeError:
    print(len(made))
"""


def environment() -> dict[str, str]:
    """That of a user: without coverage, which loads a hundred modules of its own, and without settings of tests.

    The free room of the machine's disk decides about no test all the same.
    """
    left_out = ("STARLINGMQ_", "_STARLINGMQ", "COVERAGE_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    needed = ("STARLINGMQ_PURE", "STARLINGMQ_ALARMS__DISK_FREE")
    return {**kept, **{name: value for name, value in os.environ.items() if name in needed}}


def reporting() -> dict[str, str]:
    """With which Python says on stderr what it imports."""
    return {**environment(), "PYTHONPROFILEIMPORTTIME": "1"}


def imported(report: str) -> list[str]:
    """The modules that a process has loaded, by what PYTHONPROFILEIMPORTTIME makes it say."""
    lines = (line.split("|") for line in report.splitlines() if line.startswith("import time:"))
    return [fields[2].strip() for fields in lines if len(fields) == 3][1:]


def packages(modules: Sequence[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_the_list_of_commands_loads_no_command() -> None:
    command = [sys.executable, "-m", "starlingmq", "--help"]
    done = subprocess.run(command, env=reporting(), capture_output=True, text=True, check=True, timeout=60)
    loaded = imported(done.stderr)
    assert all(name in done.stdout for name in COMMANDS)
    assert packages(loaded) & OF_A_BROKER == set()
    assert not {command.module for command in COMMANDS.values()}.intersection(loaded)
    ours = [name for name in loaded if name.startswith("starlingmq")]
    assert 1 < len(ours) <= OURS_FOR_HELP_MAX, ours
    assert len(loaded) <= HELP_MODULES_MAX


def test_a_command_that_is_not_declared_loads_no_declarations() -> None:
    words = [sys.executable, "-m", "starlingmq", "ctl"]
    for command, loads in (("status", False), ("drain", False), ("kick", True)):
        done = subprocess.run([*words, command, "--help"], env=reporting(), capture_output=True, text=True, check=True)
        assert ("starlingmq.admin.all_actions" in imported(done.stderr)) == loads, command


def test_the_status_of_a_broker_loads_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    with serving_in_a_process(tmp_path):
        command = [sys.executable, "-m", "starlingmq", "ctl", "status", "--data-dir", str(tmp_path)]
        done = subprocess.run(command, env=reporting(), capture_output=True, text=True, check=True, timeout=60)
    loaded = imported(done.stderr)
    assert done.stdout.startswith("HEALTHY")
    assert packages(loaded) & (OF_A_BROKER | {"http", "yaml"}) == set()
    assert len(loaded) <= STATUS_MODULES_MAX
    ours = [name for name in loaded if name.startswith("starlingmq")]
    assert len(ours) <= OURS_FOR_STATUS_MAX, ours


def test_the_help_of_ctl_lists_declared_commands_whatever_follows() -> None:
    words = [sys.executable, "-m", "starlingmq", "ctl", "--help", "status"]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=True, timeout=60)
    assert " kick " in done.stdout


def test_a_broker_with_its_defaults_loads_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "starlingmq", "serve", "--listen", "mqtt://127.0.0.1:0"]
    with open(tmp_path / "report", "w+", encoding="utf-8") as report:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=report, env=reporting()) as process:
            assert process.stdout is not None
            said = process.stdout.readline()
            process.terminate()
        report.seek(0)
        loaded = imported(report.read())
    assert said.startswith(b"ready mqtt://127.0.0.1:")
    assert "starlingmq.node.assembly" in loaded
    assert packages(loaded) & OF_OPTIONS == set()
    assert [name for name in loaded if name.startswith(OF_A_CLUSTER)] == []
    assert OF_NAMES.intersection(loaded) == set()
    assert len(loaded) <= SERVE_MODULES_MAX


OF_A_START: Final = """
from starlingmq.cli import serve
from starlingmq.cli.early_etcd import MODULES
from starlingmq.cli.main import main

serve.run = lambda options: [__import__(name) for name in ("starlingmq.net.etcd.etcd_access", *MODULES)]
main(["serve"])
"""


def test_a_node_of_a_cluster_loads_nothing_that_it_does_not_use() -> None:
    """Half of the time from its start until it has joined is the time of its imports."""
    command = [sys.executable, "-c", OF_A_START]
    done = subprocess.run(command, env=reporting(), capture_output=True, text=True, check=True, timeout=60)
    loaded = imported(done.stderr)
    assert packages(loaded) & (OF_OPTIONS - {"google", "grpc"}) == set()
    assert "starlingmq.cluster.cluster_state" in loaded
    assert len(loaded) <= MEMBER_MODULES_MAX


@pytest.mark.skipif(sys.platform != "linux", reason="the loaded libraries are read from /proc")
def test_openssl_is_loaded_for_a_tls_listener_only(tmp_path: Path) -> None:
    def loaded(*more: str) -> bool:
        """Whether OpenSSL is there once an MQTT and a NATS client have been served."""
        listeners = ", ".join(["{url: 'mqtt://127.0.0.1:0'}", "{url: 'nats://127.0.0.1:0'}", *more])
        command = [sys.executable, "-m", "starlingmq", "serve", "--set", f"listeners=[{listeners}]"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(), text=True) as process:
            assert process.stdout is not None
            try:
                mqtt, nats = [int(url.rsplit(":", 1)[1]) for url in process.stdout.readline().split()[1:3]]
                with socket.create_connection(("127.0.0.1", mqtt), 10) as client:
                    client.sendall(encode(Connect(4, "", True, 0), 4))
                    assert client.recv(4) == b"\x20\x02\x00\x00"
                with socket.create_connection(("127.0.0.1", nats), 10) as client:
                    assert client.recv(5) == b"INFO "
                return "/libcrypto" in Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8")
            finally:
                process.terminate()

    assert not loaded()
    cert, key = Certificates(tmp_path).issue("localhost")
    assert loaded(f"{{url: 'mqtts://127.0.0.1:0', tls: {{cert: {cert}, key: {key}}}}}")


WITH_HTTP: Final = """
import ast, asyncio, sys
from starlingmq import Broker
from starlingmq.config.settings import from_tree

async def main():
    auth = {"api": {"oidc": ast.literal_eval(sys.argv[1])}}
    async with Broker(from_tree({"listeners": ["http://127.0.0.1:0"], "auth": auth})):
        print(*sys.modules)

asyncio.run(main())
"""

LOADED_LATE: Final = """
import asyncio, sys
from starlingmq import Broker
from starlingmq.config.settings import from_tree

async def noted(broker, admin):
    before = set(sys.modules)
    await open_http(broker, admin)
    print(*set(sys.modules) - before)

async def main():
    async with Broker(from_tree({"listeners": ["http://127.0.0.1:0"]})):
        pass

open_http, Broker._open_http = Broker._open_http, noted
asyncio.run(main())
"""


def test_an_http_listener_is_loaded_before_clients_wait() -> None:
    command = [sys.executable, "-c", LOADED_LATE]
    done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    assert len(done.stdout.split()) <= 5, done.stdout  # 2, of uvicorn


def test_an_http_listener_without_a_provider_loads_nothing_for_openid_connect() -> None:
    command = [sys.executable, "-c", WITH_HTTP]
    for oidc, loads in (
        ("{}", False),
        ("{'issuer': 'https://a', 'client_id': 'a', 'url': 'https://b', 'viewers': ['x']}", True),
    ):
        done = subprocess.run(
            [*command, oidc], env=environment(), capture_output=True, text=True, check=True, timeout=60
        )
        names = {"starlingmq.api.oidc_login", "starlingmq.auth.oidc_provider", "jwt", "httpx"}
        assert names & {*done.stdout.split()} == (names if loads else set()), done.stdout


WITHOUT_COLLECTIONS: Final = """
import builtins, gc, os

def begun(phase, info):
    if phase == "start" and len(gc.get_objects()) > 15_000:
        begins.append(info["generation"])

def ready(*words, **how):
    say(words[0], begins, flush=True)
    os._exit(0)

begins, say, builtins.print = [], print, ready
gc.callbacks.append(begun)
from starlingmq.cli.main import main
main(["serve", "--listen", "mqtt://127.0.0.1:0"])
"""


def test_a_start_looks_for_no_reference_cycles() -> None:
    """In what the imports have made, some 40,000 objects."""
    command = [sys.executable, "-c", WITHOUT_COLLECTIONS]
    done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, text=True, check=False, timeout=60)
    assert done.stdout == "ready []\n"


def test_a_late_module_is_loaded_once_by_whoever_uses_it_first() -> None:
    command = [sys.executable, "-c", LATE]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "8\n", "")


OF_MEMBERS: Final = """
import sys
from starlingmq.cli import serve
from starlingmq.cli.main import main

def load(options):
    from starlingmq.net.proto.etcd_pb2 import Member, StatusResponse

    assert Member.FromString(Member(id=3, name="n").SerializeToString()).name == "n"
    print(StatusResponse(leader=7).leader, "google.protobuf.internal.decoder" in sys.modules)

serve.run = load
main(["serve"])
"""


def test_a_node_does_not_load_the_messages_of_protobuf_in_python() -> None:
    command = [sys.executable, "-c", OF_MEMBERS]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("7 False\n", "")


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_an_empty_broker_takes_little_memory() -> None:
    command = [sys.executable, "-m", "starlingmq", "serve", "--listen", "mqtt://127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"ready mqtt://127.0.0.1:")
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
        process.terminate()
    kilobytes = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
    assert 10 < kilobytes / 1024 < MEGABYTES_MAX


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_of_a_command_what_its_own_help_says_first(name: str) -> None:
    command = get_command(build_app([name]))
    help_text = command.commands[name].help if hasattr(command, "commands") else command.help
    assert help_text is not None
    assert " ".join(help_text.partition("\n\n")[0].split()) == COMMANDS[name].summary
