"""Commands without a broker: errors in one line, formats, properties, latencies; and bench, which needs one briefly."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starlingmq.cli.bench import BenchArgs
from starlingmq.cli.bench_load import bucket, percentile_ms, width
from starlingmq.cli.declare import CommandError
from starlingmq.cli.local_cluster import free_ports
from starlingmq.cli.main import main
from starlingmq.cli.output import as_json, formatted
from starlingmq.cli.packet_log import describe
from starlingmq.cli.property_args import COMMANDS, PropertyArgs, allowed
from starlingmq.client.events import Message
from starlingmq.wire.mqtt import encode
from starlingmq.wire.packets import Auth, Disconnect, Pingreq
from starlingmq.wire.properties import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    RECEIVE_MAXIMUM,
    SUBSCRIPTION_IDENTIFIER,
    USER_PROPERTY,
)

from ..client.brokers import Broker
from .commands import run

AT = 1_700_000_000_123_456_789


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["pub", "-t", "a"], "nothing to send: give one of"),
        (["pub", "-t", "a", "-m", "x", "-n"], "more than one thing to send"),
        (["pub", "-m", "x"], "no topic"),
        (["pub", "-t", "a/#", "-m", "x"], "must not contain wildcards"),
        (["pub", "-t", "a", "-n", "-q", "3"], "'-q'"),
        (["pub", "-t", "a", "-n", "stray"], "unexpected argument 'stray'"),
        (["pub", "-t", "a", "-f", "/nowhere/at/all"], "/nowhere/at/all: No such file"),
        (["pub", "-t", "a", "-n", "-V", "4"], "mqttv31, mqttv311 or mqttv5"),
        (["pub", "-t", "a", "-n", "-V", "311", "-D", "publish", "content-type", "x"], "need MQTT 5"),
        (["pub", "-t", "a", "-n", "-D", "publish", "server-reference", "x"], "publish has content-type"),
        (["pub", "-t", "a", "-n", "-D", "other", "content-type", "x"], "must be one of connect"),
        (["pub", "-t", "a", "-n", "-D", "publish"], "needs a property and its value"),
        (["pub", "-t", "a", "-n", "-D", "publish", "user-property", "k"], "needs a name and a value"),
        (["pub", "-t", "a", "-n", "-D", "publish", "topic-alias", "0"], "a number from 1 to 65535"),
        (["pub", "-t", "a", "-n", "-i", "x", "-I", "y"], "-i and -I"),
        (["pub", "-t", "a", "-n", "-c"], "needs a client id"),
        (["pub", "-t", "a", "-n", "--will-payload", "x"], "a will needs a topic"),
        (["pub", "-t", "a", "-n", "-L", "http://x"], "the scheme must be"),
        (["pub", "-t", "a", "-n", "-L", "mqtt://x", "--unix", "/y"], "both name a broker"),
        (["pub", "-t", "a", "-n", "--cafile", "/nowhere/ca"], "/nowhere/ca"),
        (["pub", "-t", "a", "-n", "--unix", "/nowhere/s"], "is the broker running?"),
        (["pub", "-t", "a", "-n", "-h", "no-such-host.invalid"], "host 'no-such-host.invalid' not found"),
        (["sub"], "no topic filter given"),
        (["sub", "-t", "a/#/b"], "is not a topic filter"),
        (["sub", "-t", "a", "-F", "%z"], "%z is not one of"),
        (["sub", "-t", "a", "-F", r"\q"], r"\q is not one of"),
        (["sub", "-t", "a", "-F", "x%"], "ends in the middle"),
        (["sub", "-t", "a", "--nonsense"], "--nonsense"),
        (["bench", "--publishers", "0", "--subscribers", "0"], "nothing to do"),
    ],
)
def test_an_error_is_one_line(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert re.fullmatch(r"error: .*\n", output.err), output.err
    assert sentence in output.err


@pytest.mark.parametrize("command", ["pub", "sub", "bench"])
def test_nobody_listening_says_what_to_do(command: str) -> None:
    (port,) = free_ports(1)
    words = {"pub": ["-t", "a", "-n"], "sub": ["-t", "a"], "bench": []}[command]
    code, _, errors = run(command, "-h", "127.0.0.1", "-p", str(port), *words)
    assert code == 2
    assert errors == (
        f"error: no broker listens at mqtt://127.0.0.1:{port}; "
        "start one there (starlingmq serve), or give another address with -h and -p\n"
    )


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sub", "--debug", "-t", "#/#"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["pub", "sub", "bench"])
def test_help_names_the_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    help = capsys.readouterr().out
    assert "--will-topic" in help
    assert "PROPERTY_WORDS" not in help.upper()


def message(**changed: object) -> Message:
    fields: dict[str, object] = {
        "topic": "t/é",
        "payload": b"a\xffz",
        "qos": 1,
        "retain": True,
        "dup": False,
        "packet_id": 7,
        "properties": {
            CONTENT_TYPE: "text",
            CORRELATION_DATA: b"\0\1",
            USER_PROPERTY: [("a", "b"), ("a", "c")],
            SUBSCRIPTION_IDENTIFIER: [3, 4],
        },
        "connection": 1,
    }
    return Message(**(fields | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("format", "printed"),
    [
        ("", b""),
        ("%t %p %q %r %l %m", "t/é ".encode() + b"a\xffz 1 1 3 7"),
        ("%C|%D|%P|%S|%A", b"text|\0\1|a:b a:c|3 4|"),
        ("%x %X", b"61ff7a 61FF7A"),
        ("%05m|%-5m|%5m|%-05m", b"00007|7    |    7|7    "),
        ("%.2C|%6.2C|%08t", b"te|    te|" + "    t/é".encode()),
        ("%U @N", b"1700000000.123456789 123456789"),
        (r"\\ \n@@%%", b"\\ \n@%"),
    ],
)
def test_formats(format: str, printed: bytes) -> None:
    assert formatted(format)(message(), AT) == printed


@given(st.text(alphabet="%@\\tpqj01-.5xJ ", max_size=12))
def test_any_format_prints_or_is_refused_with_a_sentence(format: str) -> None:
    try:
        printer = formatted(format)
    except CommandError as error:
        assert str(error).startswith("-F: ")
        return
    assert isinstance(printer(message(payload=b"1"), AT), bytes)


def test_json_of_a_message_without_properties() -> None:
    line = json.loads(as_json(message(payload=b"x", properties={}, packet_id=0), AT))
    assert line["properties"] == {}
    assert "mid" not in line


def test_properties_are_told_apart_by_their_number_of_words() -> None:
    words = ["user-property", "a", "1", "receive-maximum", "5", "user-property", "a", "2", "content-type", "x"]
    properties = PropertyArgs(["publish", "connect", "publish", "publish"], words)
    assert properties.of("publish") == {USER_PROPERTY: [("a", "1"), ("a", "2")], CONTENT_TYPE: "x"}
    assert properties.of("connect") == {RECEIVE_MAXIMUM: 5}
    assert PropertyArgs(["subscribe"], ["subscription-identifier", "9"]).of("subscribe") == {
        SUBSCRIPTION_IDENTIFIER: [9]
    }


def test_only_the_server_gives_a_message_its_subscription() -> None:
    assert "subscription-identifier" not in allowed("publish")
    assert all("user-property" in allowed(command) for command in COMMANDS)


@pytest.mark.parametrize("packet", [Pingreq(), Disconnect(0x8E), Auth(0x18)])
def test_packets_without_a_line_of_their_own_have_a_name(packet: object) -> None:
    assert describe(packet).split(" ")[0] == type(packet).__name__.upper()  # type: ignore[arg-type]
    assert encode(packet, 5)  # type: ignore[arg-type]


@given(st.integers(0, 10**12))
def test_a_bucket_holds_its_value_within_three_percent(value: int) -> None:
    low = bucket(value)
    assert low <= value < low + width(low)
    assert width(low) <= max(1, low / 32)
    assert bucket(low + width(low)) == low + width(low)  # the next one begins where it ends


def test_percentiles() -> None:
    buckets = Counter(map(bucket, range(1, 10_001)))
    assert percentile_ms(buckets, 0.5) == pytest.approx(5.0, rel=0.04)
    assert percentile_ms(buckets, 0.99) == pytest.approx(9.9, rel=0.04)
    assert percentile_ms({}, 0.5) == 0.0


@pytest.mark.parametrize(
    "words",
    [
        ["--rate", "500"],
        ["-q", "1", "--publishers", "3", "--subscribers", "2", "--processes", "2", "--rate", "900"],
        ["-q", "2", "-V", "311", "--inflight", "5", "--publishers", "2", "--rate", "300"],
    ],
)
def test_bench_counts_every_message(broker: Broker, words: list[str]) -> None:
    code, printed, errors = run("bench", "-L", broker.url, "--duration", "0.3", "--warmup", "0.1", "--json", *words)
    assert code == 0, errors
    result = json.loads(printed)
    assert result["sent"] > 0
    assert result["received"] == result["expected"]
    assert result["missing"] == 0
    assert 0 < result["latency_ms"]["p50"] <= result["latency_ms"]["max"]


def test_bench_sends_a_message_at_its_planned_time_and_not_a_step_later(broker: Broker) -> None:
    code, printed, errors = run("bench", "-L", broker.url, "--duration", "3", "--warmup", "0", "--rate", "2", "--json")
    assert code == 0, errors
    assert 0 < json.loads(printed)["latency_ms"]["p50"] < 250  # half a step: a step late, all have 500 ms and more


def test_bench_gives_its_clients_ids_with_the_prefix() -> None:
    (load,) = BenchArgs(id_prefix="load-").loads()
    assert [name.partition("-")[0] for name in (*load.publishers, *load.subscribers)] == ["load", "load"]


def test_bench_prints_a_summary(broker: Broker) -> None:
    code, printed, _ = run("bench", "-L", broker.url, "--duration", "0.3", "--warmup", "0", "--rate", "100")
    assert code == 0
    assert b"latency   p50" in printed
    assert b"missing              0 of" in printed
