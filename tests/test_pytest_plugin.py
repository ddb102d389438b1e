"""The fixture ``mqtt_broker`` as other projects use it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from pathlib import Path
from statistics import median

import paho.mqtt.publish as publish
import pytest

from starlingmq.config.settings import ConfigError
from starlingmq.hooks import Publication
from starlingmq.pytest_plugin import MqttBroker
from tests.descriptors import left_open, open_descriptors
from tests.patience import slowness

pytest_plugins = "pytester"

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
PLUGIN = ("-p", "starlingmq", "-p", "no:cacheprovider")


def send(broker: MqttBroker, topic: str, payload: str = "x") -> None:
    publish.single(topic, payload, qos=1, hostname=broker.host, port=broker.port)


def refused(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) != 0


def test_the_example_passes(pytester: pytest.Pytester) -> None:
    pytester.copy_example(str(EXAMPLES / "test_with_mqtt_broker.py"))
    pytester.runpytest_subprocess(*PLUGIN, "-W", "error::ResourceWarning").assert_outcomes(passed=3)


def test_options_come_from_the_module_and_the_nearest_marker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture
        def mqtt_broker_options():
            return {"limits": {"max_packet_size": "2KiB"}, "mqtt": {"max_qos": 0}}

        def test_the_module(mqtt_broker):
            assert mqtt_broker.broker.config.limits.max_packet_size == 2048
            assert mqtt_broker.broker.config.mqtt.max_qos == 0

        @pytest.mark.mqtt_broker(mqtt={"max_qos": 1})
        class TestMarked:
            def test_the_class(self, mqtt_broker):
                assert mqtt_broker.broker.config.limits.max_packet_size == 2048
                assert mqtt_broker.broker.config.mqtt.max_qos == 1

            @pytest.mark.mqtt_broker(mqtt={"max_qos": 2}, listeners=["mqtt://127.0.0.1:0", "ws://127.0.0.1:0/m"])
            def test_the_function(self, mqtt_broker):
                assert mqtt_broker.broker.config.mqtt.max_qos == 2
                assert [url.partition(":")[0] for url in mqtt_broker.addresses] == ["mqtt", "ws"]

        @pytest.mark.mqtt_broker(mqtt={"max_qso": 1})
        def test_a_wrong_option(mqtt_broker):
            pass
        """
    )
    result = pytester.runpytest_subprocess(*PLUGIN, "--strict-markers")
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(["*ConfigError: mqtt.max_qso: *"])


def test_messages_are_waited_for_and_returned_once() -> None:
    with MqttBroker() as broker:
        for number in range(3):
            send(broker, f"a/{number}", str(number))
        assert [broker.wait_for("a/+").payload for _ in range(3)] == [b"0", b"1", b"2"]
        with pytest.raises(TimeoutError, match=r"no message on a/\+ within 0\.01 s, only on \['a/0', "):
            broker.wait_for("a/+", timeout=0.01)
        assert [message.topic for message in broker.messages] == ["a/0", "a/1", "a/2"]


def test_events_are_waited_for() -> None:
    with MqttBroker() as broker:
        send(broker, "t")
        assert broker.wait_for_event("connected").client_id
        assert broker.wait_for_event("disconnected").detail == "disconnect"
        with pytest.raises(TimeoutError, match="no event connected of nobody within"):
            broker.wait_for_event("connected", "nobody", timeout=0.01)


def test_hooks_of_the_test_are_called_too() -> None:
    seen: list[str] = []

    async def keep(message: Publication) -> bool:
        await asyncio.sleep(0)
        message.payload = message.payload.upper()
        return message.topic != "dropped"

    with MqttBroker(on_publish=keep, on_event=lambda event: seen.append(event.kind)) as broker:
        send(broker, "dropped")
        send(broker, "kept")
        assert broker.wait_for("#").payload == b"X"
        assert [message.topic for message in broker.messages] == ["kept"]
    assert seen[:3] == ["connected", "dropped", "disconnected"]


Held = tuple[set[str], set[threading.Thread]]


def held() -> Held:
    """Open files and threads of this process."""
    return open_descriptors(), set(threading.enumerate())  # paho's clients are cycles with sockets in them


def left(before: Held) -> set[object]:
    return left_open(before[0]) | (set(threading.enumerate()) - before[1])


def test_nothing_is_left_of_it() -> None:
    before = held()
    with MqttBroker() as broker, socket.create_connection((broker.host, broker.port)) as idle:
        send(broker, "t")
        idle.settimeout(5)
        assert not refused(broker.host, broker.port)
    assert refused(broker.host, broker.port)
    assert left(before) == set()


def test_it_is_gone_when_it_cannot_start() -> None:
    before = held()
    with pytest.raises(ConfigError, match="is not a listener URL"), MqttBroker(listeners=["mqtt:/nowhere"]):
        raise AssertionError("it started")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        urls = ["mqtt://127.0.0.1:0", f"mqtt://127.0.0.1:{taken.getsockname()[1]}"]
        with pytest.raises(Exception, match="in use"), MqttBroker(listeners=urls):
            raise AssertionError("it started")
    assert left(before) == set()


def test_it_starts_and_stops_in_milliseconds() -> None:
    taken: list[float] = []
    for _ in range(20):
        began = time.perf_counter()
        with MqttBroker():
            pass
        taken.append(time.perf_counter() - began)
    print(f"start and stop: median {median(taken) * 1000:.1f} ms, longest {max(taken) * 1000:.1f} ms")
    assert median(taken) < 0.1 * slowness()
