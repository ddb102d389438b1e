"""``starlingmq pub`` and ``sub`` as processes, with StarlingMQ and mosquitto, and with mosquitto's own clients."""

from __future__ import annotations

import itertools
import json
import signal
from pathlib import Path

import pytest

from starlingmq.cli.main import main

from ..client.brokers import Broker
from .commands import PATIENCE, Command, foreign, run, start, subscriber

_names = itertools.count()


@pytest.fixture
def topic() -> str:
    """A topic of the test's own: the broker outlives it."""
    return f"cli/{next(_names)}"


def output(command: Command) -> bytes:
    code, printed, errors = command.finish()
    assert code == 0, errors
    return printed


def pub(broker: Broker, *words: str, stdin: bytes | None = None) -> None:
    """Publish; in this process where nothing but the broker has to see it, which is quicker."""
    if stdin is None:
        assert main(["pub", "-L", broker.url, *words]) == 0
    else:
        assert run("pub", "-L", broker.url, *words, stdin=stdin) == (0, b"", "")


@pytest.mark.parametrize(("version", "qos"), [("mqttv31", "0"), ("311", "1"), ("mqttv5", "2")])
def test_pub_to_sub(broker: Broker, topic: str, version: str, qos: str) -> None:
    sub = subscriber(broker.url, "-t", f"{topic}/#", "-q", qos, "-V", version, "-C", "2", "-v")
    pub(broker, "-t", f"{topic}/a", "-m", "one", "-q", qos, "-V", version)
    pub(broker, "-t", f"{topic}/b", "-n", "-q", qos, "-V", version)
    assert output(sub) == f"{topic}/a one\n{topic}/b (null)\n".encode()


def test_payloads_come_from_options_files_and_stdin(broker: Broker, topic: str, tmp_path: Path) -> None:
    payload = bytes(range(256)) * 300
    file = tmp_path / "payload"
    file.write_bytes(payload)
    sub = subscriber(broker.url, "-t", topic, "-N", "-C", "2")
    pub(broker, "-t", topic, "-f", str(file))
    pub(broker, "-t", topic, "-s", stdin=b"all\nof it")
    assert output(sub) == payload + b"all\nof it"


@pytest.mark.parametrize("qos", ["0", "1"])
def test_lines_of_stdin(broker: Broker, topic: str, qos: str) -> None:
    lines = [b"%d" % number for number in range(500)] + [b"", b"x" * 100_000, b"no end"]
    sub = subscriber(broker.url, "-t", topic, "-q", qos, "-C", str(len(lines)))
    pub(broker, "-t", topic, "-l", "-q", qos, stdin=b"\n".join(lines))
    assert output(sub) == b"\n".join(lines) + b"\n"


def test_a_line_typed_by_hand_goes_at_once(broker: Broker, topic: str) -> None:
    sub = subscriber(broker.url, "-t", topic, "-C", "1")
    typing = start("pub", "-L", broker.url, "-t", topic, "-l")
    assert typing.process.stdin is not None
    typing.process.stdin.write(b"now\n")
    typing.process.stdin.flush()
    assert output(sub) == b"now\n"
    typing.interrupt()
    typing.process.wait(PATIENCE)  # ``finish`` closes its input, and the end of that ends it too
    assert typing.finish() == (130, b"", "")


def test_repeat(broker: Broker, topic: str) -> None:
    sub = subscriber(broker.url, "-t", topic, "-C", "3")
    pub(broker, "-t", topic, "-m", "again", "--repeat", "3", "--repeat-delay", "0.01")
    assert output(sub) == b"again\n" * 3


def test_the_topic_of_the_url(broker: Broker, topic: str) -> None:
    command = start("sub", "-L", f"{broker.url}/{topic}/#", "-d", "-C", "1")  # nothing of it is a fragment
    command.wait_for(b"received SUBACK")
    code, _, errors = run("pub", "-L", f"{broker.url}/{topic}", "-m", "x")
    assert (code, errors) == (0, "")
    assert output(command) == b"x\n"


def test_retained(broker: Broker, topic: str) -> None:
    pub(broker, "-t", f"{topic}/kept", "-m", "old", "-r", "-q", "1")
    both = ("-t", f"{topic}/#", "-v")
    every = subscriber(broker.url, *both, "-C", "2")
    live = subscriber(broker.url, *both, "-R", "-C", "1")
    kept = subscriber(broker.url, *both, "--retained-only")
    other = subscriber(broker.url, *both, "-T", f"{topic}/+", "-C", "1")
    pub(broker, "-t", f"{topic}/live", "-m", "new")
    assert output(every) == f"{topic}/kept old\n{topic}/live new\n".encode()
    assert output(live) == f"{topic}/live new\n".encode()
    assert output(kept) == f"{topic}/kept old\n".encode()
    pub(broker, "-t", f"{topic}/too/deep", "-m", "seen")
    assert output(other) == f"{topic}/too/deep seen\n".encode()
    assert output(subscriber(broker.url, *both, "--remove-retained", "-C", "1")) == f"{topic}/kept old\n".encode()
    code, printed, _ = run("sub", "-L", broker.url, *both, "-W", "0.5")
    assert (code, printed) == (27, b"")


def test_a_session_kept_between_two_runs(broker: Broker, topic: str) -> None:
    session = ("sub", "-L", broker.url, "-t", topic, "-q", "1", "-c", "-i", f"kept-{topic[4:]}")
    assert run(*session, "-E")[0] == 0
    pub(broker, "-t", topic, "-m", "meanwhile", "-q", "1")
    assert run(*session, "-C", "1")[:2] == (0, b"meanwhile\n")
    assert run(*session[:-3], "-i", session[-1], "-E")[0] == 0  # clean again


def test_the_will_of_a_killed_subscriber(broker: Broker, topic: str) -> None:
    witness = subscriber(broker.url, "-t", f"{topic}/will", "-C", "1", "-F", "%p %q %C")
    will = ("--will-topic", f"{topic}/will", "--will-payload", "gone", "--will-qos", "1")
    victim = subscriber(broker.url, "-t", topic, *will, "-D", "will", "content-type", "text/x")
    victim.process.kill()
    victim.finish()
    assert output(witness) == b"gone 0 text/x\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_an_orderly_end(broker: Broker, topic: str, number: signal.Signals) -> None:
    sub = subscriber(broker.url, "-t", topic)
    sub.process.send_signal(number)
    code, _, errors = sub.finish()
    assert code == 0
    assert "sending DISCONNECT (rc0)" in errors
    assert "Traceback" not in errors


def test_json_lines(broker: Broker, topic: str) -> None:
    sub = subscriber(broker.url, "-t", topic, "--json", "-C", "2", "-q", "1")
    pairs = ("-D", "publish", "user-property", "k", "1", "-D", "publish", "user-property", "k", "2")
    pub(broker, "-t", topic, "-m", 'tex"t', "-q", "1", *pairs)
    pub(broker, "-t", topic, "-s", stdin=b"\xff\x00")
    text, binary = map(json.loads, output(sub).splitlines())
    assert text.pop("tst")
    assert text == {
        "topic": topic,
        "qos": 1,
        "retain": False,
        "dup": False,
        "mid": 1,
        "payloadlen": 5,
        "payload": 'tex"t',
        "base64": False,
        "properties": {"user-properties": [["k", "1"], ["k", "2"]]},
    }
    assert (binary["payload"], binary["base64"]) == ("/wA=", True)


def test_invalid_json_is_reported_and_skipped(broker: Broker, topic: str) -> None:
    sub = subscriber(broker.url, "-t", topic, "-F", "%J", "-C", "2")
    pub(broker, "-t", topic, "-m", "no json")
    pub(broker, "-t", topic, "-m", "[1]")
    code, printed, errors = sub.finish()
    assert code == 0
    assert json.loads(printed)["payload"] == [1]
    assert f"error: the payload on topic {topic} is not valid JSON" in errors


@pytest.mark.parametrize("scheme", ["ws", "unix", "mqtts", "wss"])
def test_every_carrier(broker: Broker, topic: str, scheme: str) -> None:
    if scheme not in broker.urls:
        pytest.skip(f"{broker.name} has no {scheme} here")
    where = ("-L", broker.urls[scheme], "-t", topic, "--cafile", str(broker.ca))
    assert run("pub", *where, "-m", "x", "-r", "-q", "1") == (0, b"", "")
    assert run("sub", *where, "-C", "1")[1] == b"x\n"


def test_host_port_and_certificate(broker: Broker, topic: str) -> None:
    port = broker.urls["mqtts"].rpartition(":")[2]
    where = ("-h", "127.0.0.1", "-p", port, "-t", topic, "-m", "x")
    assert run("pub", *where, "--cafile", str(broker.ca)) == (0, b"", "")
    assert run("pub", *where, "--insecure") == (0, b"", "")
    code, _, errors = run("pub", *where, "--tls")
    assert code == 2
    assert "not trusted" in errors
    assert run("pub", "--unix", broker.urls["unix"][len("unix://") :], "-t", topic, "-n") == (0, b"", "")


def test_debug_shows_the_packets(broker: Broker, topic: str) -> None:
    code, printed, errors = run("pub", "-L", broker.url, "-t", topic, "-m", "x", "-q", "2", "-d", "-i", "me")
    assert (code, printed) == (0, b"")
    lines = [line.split(" (")[0] for line in errors.splitlines()]
    assert lines == [
        "sending CONNECT",
        "received CONNACK",
        "sending PUBLISH",
        "received PUBREC",
        "sending PUBREL",
        "received PUBCOMP",
        "sending DISCONNECT",
    ]


def test_a_refusal_is_one_line_with_its_name(broker: Broker, topic: str) -> None:
    if "closed" not in broker.urls:
        pytest.skip("needs a listener that refuses")
    code, printed, errors = run("sub", "-L", broker.urls["closed"], "-t", topic, "-u", "me", "-P", "wrong")
    assert (code, printed) == (2, b"")
    assert errors == "error: the server refused the connection: not authorized (0x87)\n"


# With mosquitto's own clients


@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
def test_our_pub_to_mosquitto_sub(broker: Broker, topic: str, version: str) -> None:
    sub = foreign("mosquitto_sub", "-p", broker.port, "-t", topic, "-q", "2", "-V", version, "-C", "3", "-F", "%q %p")
    assert sub.process.stdout is not None
    for line in sub.process.stdout:  # where it prints its debug lines, too
        if line.startswith(b"Subscribed"):
            break
    for qos in "012":
        pub(broker, "-t", topic, "-m", f"at {qos}", "-q", qos, "-V", version)
    code, printed, _ = sub.finish()
    assert code == 0
    messages = [line for line in printed.splitlines() if line[1:4] == b" at"]
    assert messages == [b"0 at 0", b"1 at 1", b"2 at 2"]


@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
def test_mosquitto_pub_to_our_sub(broker: Broker, topic: str, version: str) -> None:
    sub = subscriber(broker.url, "-t", topic, "-q", "2", "-V", version, "-C", "3", "-F", "%q %p")
    for qos in "012":
        words = ("-p", broker.port, "-t", topic, "-m", f"at {qos}", "-q", qos, "-V", version)
        assert foreign("mosquitto_pub", *words).finish()[0] == 0
    assert output(sub) == b"0 at 0\n1 at 1\n2 at 2\n"


FORMATS = [
    "%t|%p|%q|%r|%l|%m|%C|%R|%D|%E|%F|%A|%S|%P|%%",
    r"a\tb\n\\c\0d\e\a",
    "[%20t] [%-20t] [%.2t] [%05l] [%5l] [%20C] [%-9R]",
    "%x %X @@",
    "@Y-@m-@d",
]


def test_formats_print_what_mosquitto_sub_prints(
    broker: Broker, topic: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    properties = [
        ("user-property", "k", "v"),
        ("user-property", "k2", "v 2"),
        ("content-type", "text/x"),
        ("response-topic", "re/sp"),
        ("correlation-data", "cd"),
        ("payload-format-indicator", "1"),
    ]
    words = [word for each in properties for word in ("-D", "publish", *each)]
    pub(broker, "-t", topic, "-m", '{"a": 1}', "-q", "1", "-r", *words)
    for format in FORMATS:
        where = ("-t", topic, "-q", "1", "-V", "5", "-C", "1", "-F", format)
        theirs = foreign("mosquitto_sub", "-p", broker.port, *where).finish()[1]
        assert main(["sub", "-L", broker.url, *where]) == 0
        ours = capfdbinary.readouterr().out
        assert ours in theirs, "theirs has the lines of -d around it"
    for format in ("%j", "%J"):
        where = ("-t", topic, "-q", "1", "-V", "5", "-C", "1", "-F", format)
        theirs = foreign("mosquitto_sub", "-p", broker.port, *where).finish()[1]
        (line,) = [each for each in theirs.splitlines() if each.startswith(b"{")]
        assert main(["sub", "-L", broker.url, *where]) == 0
        expected, printed = json.loads(line), json.loads(capfdbinary.readouterr().out)
        del expected["tst"], printed["tst"]
        assert printed == expected
