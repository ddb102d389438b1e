"""mosquitto_pub, mosquitto_sub and mosquitto_rr, as people use them in a shell."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from selectors import EVENT_READ, DefaultSelector

import pytest

from .conftest import ServedBroker

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("mosquitto_sub") is None, reason="mosquitto's clients are not installed"),
]

VERSIONS = pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
SECONDS = 20

numbers = count(1)


class Shell:
    """Runs the clients against one broker in one version."""

    def __init__(self, broker: ServedBroker, version: str) -> None:
        self.server = ["-h", "127.0.0.1", "-p", str(broker.port("mqtt")), "-V", version]

    def pub(self, *args: str, data: bytes | None = None, server: list[str] | None = None) -> None:
        command = ["mosquitto_pub", *(server or self.server), *args]
        subprocess.run(command, input=data, timeout=SECONDS, check=True)

    @contextmanager
    def sub(self, *args: str, server: list[str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """A running mosquitto_sub that has its SUBACK."""
        command = ["stdbuf", "-oL", "mosquitto_sub", "-d", *(server or self.server), *args]
        # Unbuffered: ``communicate`` does not see what ``readline`` has read ahead.
        with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0) as process:
            assert process.stdout is not None
            try:
                line = b" "
                while line and not line.startswith(b"Subscribed"):
                    line = process.stdout.readline()
                assert line, "no SUBACK"
                yield process
            finally:
                process.kill()

    def lines(self, process: subprocess.Popen[bytes]) -> list[str]:
        """The output of a mosquitto_sub that ends by itself, without its debug lines."""
        out, _ = process.communicate(timeout=SECONDS)
        debug = ("Client ", "Subscribed ")
        return [line for line in out.decode().splitlines() if not line.startswith(debug)]


@pytest.fixture
def shell(broker: ServedBroker, request: pytest.FixtureRequest) -> Shell:
    return Shell(broker, request.getfixturevalue("version") if "version" in request.fixturenames else "mqttv5")


def fresh(name: str) -> str:
    return f"{name}/{next(numbers)}"


@VERSIONS
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_every_qos(shell: Shell, version: str, qos: str) -> None:
    topic = fresh("qos")
    with shell.sub("-t", f"{topic}/+", "-q", qos, "-C", "3", "-F", "%t %p %q") as sub:
        for sent in "012":
            shell.pub("-t", f"{topic}/{sent}", "-m", f"sent at {sent}", "-q", sent)
        want = [f"{topic}/{sent} sent at {sent} {min(sent, qos)}" for sent in "012"]
        assert shell.lines(sub) == want


@VERSIONS
def test_a_thousand_lines_in_order(shell: Shell, version: str) -> None:
    topic = fresh("lines")
    lines = [f"line {number}" for number in range(1000)]
    with shell.sub("-t", topic, "-q", "2", "-C", "1000") as sub:
        shell.pub("-t", topic, "-q", "2", "-l", data="\n".join(lines).encode() + b"\n")
        assert shell.lines(sub) == lines


@VERSIONS
def test_a_large_payload(shell: Shell, version: str) -> None:
    topic = fresh("large")
    payload = b"0123456789abcdef" * 32_000
    with shell.sub("-t", topic, "-q", "1", "-C", "1", "-F", "%l") as sub:
        shell.pub("-t", topic, "-q", "1", "-s", data=payload)
        assert shell.lines(sub) == [str(len(payload))]


@VERSIONS
def test_retained(shell: Shell, version: str) -> None:
    topic = fresh("retained")
    shell.pub("-t", topic, "-m", "kept", "-r", "-q", "1")
    with shell.sub("-t", topic, "-C", "1", "-F", "%r %p") as sub:
        assert shell.lines(sub) == ["1 kept"]
    shell.pub("-t", topic, "-n", "-r", "-q", "1")
    with shell.sub("-t", topic, "-C", "1", "-F", "%r %p") as sub:
        shell.pub("-t", topic, "-m", "live")
        assert shell.lines(sub) == ["0 live"]


@VERSIONS
def test_a_will(shell: Shell, version: str) -> None:
    topic = fresh("will")
    will = ["--will-topic", topic, "--will-payload", "crashed", "--will-qos", "1"]
    with shell.sub("-t", topic, "-C", "1") as watcher:
        with shell.sub("-t", "nothing", *will) as doomed:
            doomed.kill()
        assert shell.lines(watcher) == ["crashed"]


@VERSIONS
def test_a_kept_session(shell: Shell, version: str) -> None:
    topic, name = fresh("kept"), f"sub{next(numbers)}"
    command = ["mosquitto_sub", *shell.server, "-t", topic, "-q", "1", "-c", "-i", name]
    command += ["-x", "3600"] if version == "mqttv5" else []
    subprocess.run([*command, "-E"], timeout=SECONDS, check=True)  # subscribes and leaves
    for number in range(3):
        shell.pub("-t", topic, "-q", "1", "-m", str(number))
    assert subprocess.check_output([*command, "-C", "3"], timeout=SECONDS).split() == [b"0", b"1", b"2"]


def test_properties(shell: Shell) -> None:
    topic = fresh("properties")
    properties = ["content-type text/plain", "user-property b 2", "user-property a 1", "correlation-data c"]
    with shell.sub("-t", topic, "-C", "1", "-F", "%C %P %D %E %p") as sub:
        args = [word for entry in properties for word in ("-D", "publish", *entry.split())]
        shell.pub("-t", topic, "-m", "x", *args, "-D", "publish", "message-expiry-interval", "60")
        assert shell.lines(sub) == ["text/plain b:2 a:1 c 60 x"]


def test_request_and_response(shell: Shell) -> None:
    requests, answers = fresh("requests"), fresh("answers")
    with shell.sub("-t", requests, "-C", "1", "-F", "%R %D %p") as service:
        command = ["mosquitto_rr", *shell.server, "-t", requests, "-e", answers, "-m", "how?"]
        command += ["-D", "publish", "correlation-data", "42"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as caller:
            response_topic, correlation, payload = shell.lines(service)[0].split()
            assert (response_topic, correlation, payload) == (answers, "42", "how?")
            shell.pub("-t", response_topic, "-m", "so", "-D", "publish", "correlation-data", correlation)
            assert caller.communicate(timeout=SECONDS)[0].strip() == "so"


def test_shared_subscriptions(shell: Shell) -> None:
    topic = fresh("shared")
    with shell.sub("-t", f"$share/g/{topic}") as one, shell.sub("-t", f"$share/g/{topic}") as two:
        shell.pub("-t", topic, "-q", "1", "-l", data=b"".join(b"%d\n" % number for number in range(40)))
        got: dict[int, list[int]] = {1: [], 2: []}
        with DefaultSelector() as readable:
            for name, process in ((1, one), (2, two)):
                assert process.stdout is not None
                readable.register(process.stdout, EVENT_READ, name)
            while len(got[1]) + len(got[2]) < 40:
                ready = readable.select(SECONDS)
                assert ready, got
                for key, _ in ready:
                    line = key.fileobj.readline()  # type: ignore[union-attr]
                    got[key.data] += [int(line)] if line.strip().isdigit() else []
    assert sorted(got[1] + got[2]) == list(range(40))
    assert got[1]
    assert got[2]


def test_tls_and_certificates(shell: Shell, broker: ServedBroker) -> None:
    topic = fresh("tls")
    tls = ["-h", "localhost", "-p", str(broker.port("mqtts")), "--cafile", str(broker.ca)]
    certificate = ["--cert", str(broker.directory / "client.pem"), "--key", str(broker.directory / "client.key")]
    strict = ["-h", "localhost", "-p", str(broker.port_for_certificates), "--cafile", str(broker.ca)]
    with shell.sub("-t", topic, "-C", "1", server=tls) as sub:
        shell.pub("-t", topic, "-m", "secret", "-q", "1", server=[*strict, *certificate])
        assert shell.lines(sub) == ["secret"]
    with pytest.raises(subprocess.CalledProcessError):
        shell.pub("-t", topic, "-m", "secret", "-q", "1", server=strict)


def test_unix_socket(shell: Shell, broker: ServedBroker) -> None:
    topic = fresh("unix")
    server = ["--unix", str(broker.directory / "broker.sock")]
    with shell.sub("-t", topic, "-C", "1", server=server) as sub:
        shell.pub("-t", topic, "-m", "near", "-q", "2", server=server)
        assert shell.lines(sub) == ["near"]
