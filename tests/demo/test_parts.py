"""The parts of the demo: its counters, its requirements, and how it recognizes its processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from starlingmq.cli.declare import CommandError
from starlingmq.config.settings import load_config
from starlingmq.demo import callers, leftovers, stage, tally
from starlingmq.demo.device import Device
from starlingmq.demo.figures import Figures, verdict
from starlingmq.demo.outcome import positions
from starlingmq.demo.stage import PIPELINES, Equipment, build, equipment
from starlingmq.demo.tally import Tally, share
from starlingmq.demo.told import DemoOutcome, Tick
from starlingmq.pipeline import packages
from starlingmq.pipeline.config import read_pipeline

KEY = (7, 1)


def test_a_reading_is_missing_between_its_acknowledgement_and_its_arrival() -> None:
    counts = Tally()
    counts.sent(KEY, 1, 10.0)
    assert counts.open == {KEY: 10.0} and counts.missing == {}
    counts.acknowledged(KEY, 10.5)
    assert counts.open == {} and counts.missing == {KEY: (10.0, 10.5)}
    counts.arrived(KEY, 1, 12.0, True)
    assert counts.missing == {} and counts.take_delays() == [2.0] and counts.take_delays() == []
    assert counts.counts == {tally.SENT: 1, tally.ACKNOWLEDGED: 1, tally.ARRIVED: 1}


def test_a_message_that_arrives_before_its_acknowledgement_is_not_missing() -> None:
    counts = Tally()
    counts.sent(KEY, 2, 0.0)
    counts.arrived(KEY, 2, 0.1, False)
    counts.acknowledged(KEY, 0.2)
    assert counts.missing == {} and counts.take_delays() == []


@pytest.mark.parametrize(
    ("qos", "anew", "name"), [(1, False, tally.AGAIN), (2, False, tally.DOUBLED), (2, True, tally.AGAIN)]
)
def test_duplicates_count_only_where_they_are_not_allowed(qos: int, anew: bool, name: str) -> None:
    counts = Tally()
    counts.sent(KEY, qos, 0.0)
    if anew:
        counts.restarted(KEY[0])
    counts.acknowledged(KEY, 1.0)
    counts.arrived(KEY, qos, 1.0, True)
    counts.arrived(KEY, qos, 2.0, True)
    assert counts.counts[name] == 1


def test_refused_messages_and_those_without_receivers_are_not_lost() -> None:
    counts = Tally()
    counts.sent(KEY, 1, 0.0)
    counts.refused(KEY)
    counts.sent((7, 2), 1, 0.0)
    counts.acknowledged((7, 2), 1.0)
    counts.unheard((7, 2))
    assert not counts.open and not counts.missing
    assert counts.counts[tally.REFUSED] == counts.counts[tally.UNHEARD] == 1


def test_shares() -> None:
    assert share([], 0.5) == 0.0
    assert share([3, 1, 2], 0.5) == 2
    assert share(range(100), 0.99) == 99


def tick(**more: int) -> Tick:
    return Tick(3, 3, 0, more, 0, delays=[4, 1500], absences=[2000, 800] if more else [], answers=[])


def test_a_scene_is_told_by_what_changed_in_it() -> None:
    figures = Figures()
    figures.update(tick())
    figures.begin()
    assert figures.noticed()[0] == "no client lost its connection"
    figures.update(tick(**{"came back": 2}))
    lost, arrived = figures.noticed()
    assert lost == "2 clients lost their connection; half of them reconnected within 2.0 s, the last one after 2.0 s"
    assert arrived == "2 readings arrived: half within 1.5 s, 99 % within 1.5 s, the slowest after 1.5 s"
    assert figures.status() == "3 of 3 devices connected, 2 readings/s, 0 in flight, 2 reconnects"


def outcome(**more: int) -> DemoOutcome:
    fields = dict.fromkeys(
        ("lost", "open", "alerts_due", "alerts_lost", "alerts_doubled", "alerts_early", "unanswered", "states_wrong"), 0
    )
    return DemoOutcome(counts={}, lost_names=["d0007/1"], settled_after=0.0, states_online=3, **{**fields, **more})


def test_a_verdict_is_bad_where_something_is_not_as_promised() -> None:
    assert all(good for _, good in verdict(outcome(), True, True))
    for what in ("lost", "open", "alerts_lost", "alerts_doubled", "states_wrong"):
        assert not all(good for _, good in verdict(outcome(**{what: 1}), True, True)), what


def test_missing_programs_are_one_line_each_and_the_rest_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    there = stage._there
    monkeypatch.setattr(stage, "_there", lambda name: name not in ("nats", "litestar", "pyspark") and there(name))
    found = equipment(True)
    assert (found.dashboard, found.nats, found.spark) == (False, False, False)
    assert [line.partition(":")[0] for line in found.missing] == [
        "no dashboard",
        "no NATS workers",
        "no Spark, so no pipelines and no audit",
    ]
    assert "pip install '.[spark]' in the sources" in found.missing[-1]
    monkeypatch.setattr(stage, "_there", lambda name: name != "grpc" and there(name))
    with pytest.raises(CommandError, match="the demo needs grpc; run pip install"):
        equipment(True)


def test_without_java_there_is_no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "_there", lambda name: True)
    monkeypatch.setattr("shutil.which", lambda name: None if name == "java" else f"/usr/bin/{name}")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert not equipment(True).spark
    assert equipment(True).missing == (
        "no Spark, so no pipelines and no audit: Java 17 (apt-get install openjdk-17-jre-headless)",
    )


def test_the_files_that_are_written_are_settings_and_pipelines(tmp_path: Path) -> None:
    asked = []

    def reached_at(name: str, port: int) -> str:
        asked.append((name, port))
        return f"127.0.0.1:{port + 1}"

    built = build(tmp_path, Equipment(True, True, True, ()), reached_at)
    assert list(built.settings) == ["n1", "n2", "n3"] == [name for name, _ in asked]
    for index, path in enumerate(built.settings.values()):
        config = load_config(str(path), (), {})
        assert [each.url for each in config.listeners] == [built.mqtt[index], built.nats[index], built.http[index]]
        assert config.streams.listen == built.streams[index]
        assert config.cluster.advertise == f"127.0.0.1:{asked[index][1] + 1}"
    for name in PIPELINES:
        assert read_pipeline(tmp_path / f"{name}.yaml").name == name
    with pytest.raises(CommandError, match="contains a cluster already"):
        build(tmp_path, Equipment(True, True, True, ()), reached_at)


def test_positions_go_into_a_delta_table_by_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path, Equipment(True, True, True, (), delta=True), lambda name, port: f"127.0.0.1:{port}")
    positions, alerts = (read_pipeline(tmp_path / f"{name}.yaml") for name in PIPELINES)
    assert (positions.sink.format, positions.packages) == ("delta", ("delta",))
    assert positions.sink.path == str(tmp_path / "positions.delta")
    assert (alerts.sink.format, alerts.packages) == ("topic", ())
    pytest.importorskip("pyspark")
    monkeypatch.setattr(packages, "DELTA", {})
    with pytest.raises(CommandError, match=r"--delta: packages: delta: with Spark .* have a short name"):
        equipment(True, delta_wanted=True)


def test_rows_of_a_delta_table_are_those_of_its_log(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    log = tmp_path / "positions.delta" / "_delta_log"
    log.mkdir(parents=True)
    assert positions(tmp_path) == (0, 0)
    for number in range(3):
        file = tmp_path / "positions.delta" / "region=a b" / f"{number}.parquet"
        file.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"id": ["d", "d", "e"], "n": [1, 1, number], "qos": [1, 2, 0]}), file)
    (log / "0.json").write_text('{"metaData":{}}\n{"add":{"path":"region=a%20b/0.parquet"}}\n')
    (log / "1.json").write_text(
        '{"remove":{"path":"region=a%20b/0.parquet"}}\n{"add":{"path":"region=a%20b/1.parquet"}}\n'
    )
    assert positions(tmp_path) == (2, 1), "one file of three counts, and QoS 0 does not"


def test_devices_are_of_all_kinds() -> None:
    urls = ["mqtt://a", "mqtt://b", "mqtt://c"]
    devices = [Device(number, urls, 1.0, True, Tally(), Counter()) for number in range(60)]
    assert {device.qos for device in devices} == {0, 1, 2}
    assert {device.state.options.version for device in devices} == {4, 5}
    assert {(device.region, str(device.endpoint)) for device in devices if device.number < 9} == {
        (region, f"mqtt://{host}:1883") for region in ("north", "middle", "south") for host in "abc"
    }
    for trait in ("flaky", "hot", "asks"):
        assert 0 < sum(getattr(device, trait) for device in devices) < 10, trait
    assert all(device.state.options.will is not None for device in devices)
    assert all(device.state.options.version == 5 for device in devices if device.asks)


@pytest.mark.skipif(not callers.SUPPORTED, reason="only Linux tells")
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_connections_are_attributed_to_their_clients(family: socket.AddressFamily) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(family) as caller:
        port = server.getsockname()[1]
        caller.connect(("127.0.0.1", port) if family == socket.AF_INET else ("::ffff:127.0.0.1", port))
        assert callers.owner(caller.getsockname()[1], [1 << 22, os.getpid()]) == os.getpid()
        assert callers.owner(caller.getsockname()[1], [os.getppid()]) == 0


@pytest.mark.skipif(not callers.SUPPORTED, reason="only Linux tells")
def test_leftover_processes_are_found_and_ended() -> None:
    script = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'input()'], stdin=sys.stdin).pid)"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        left = int(parent.stdout.readline())
        parent.wait()
        assert leftovers.members([parent.pid, 0]) == [left]
        assert leftovers.end([parent.pid], 0.0) == [left]
        assert leftovers.end([parent.pid], 10.0) == []
