"""A short run of every target with seeds that never change, and what a run does when it finds something."""

from __future__ import annotations

import subprocess
import sys

import pytest

from starlingmq.wire.mqtt import decode
from tests.few import drawn
from tests.fuzz import __main__ as fuzzing
from tests.fuzz import cluster, codec, core, cost, flight, http, nats, process, websocket


@drawn(50, 200)
def test_the_decoder(examples: int) -> None:
    for seed in range(examples):
        codec.run(seed)


@drawn(60, 300)
def test_the_core(examples: int) -> None:
    for seed in range(examples):
        core.run(seed)


@drawn(25, 100)
def test_nats(examples: int) -> None:
    for seed in range(examples):
        nats.run(seed)


@drawn(5, 30)
def test_what_is_the_most_expensive(examples: int) -> None:
    for seed in range(examples):
        cost.run(seed)


@pytest.mark.slow
@drawn(8, 40)
def test_a_broker_process(examples: int) -> None:
    for seed in range(examples):
        process.run(seed)
    process.stop()


@pytest.mark.slow
@drawn(5, 20)
def test_the_http_api_of_a_process(examples: int) -> None:
    for seed in range(examples):
        http.run(seed)
    http.stop()


@pytest.mark.slow
@drawn(5, 20)
def test_a_websocket_of_a_process(examples: int) -> None:
    for seed in range(examples):
        websocket.run(seed)
    websocket.stop()


@drawn(20, 80)
def test_the_cluster_port_before_and_after_the_secret(examples: int) -> None:
    for seed in range(examples):
        cluster.run(seed)


@pytest.mark.slow
@drawn(5, 20)
def test_the_service_that_streams_are_read_from(examples: int) -> None:
    for seed in range(examples):
        flight.run(seed)
    flight.stop()


def test_an_episode_is_the_same_again() -> None:
    def outputs() -> list[bytes]:
        episode = core.Episode(7)
        for _ in range(core.STEPS):
            episode.step()
        return [client.output for client in episode.world.clients]

    assert outputs() == outputs()


def test_a_failure_is_printed_with_the_seed_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def careless(first: int, data: bytes, start: int, end: int, version: int) -> object:
        if first == 0x62 and end - start == 3:
            raise IndexError("as if nobody had checked the length")
        return decode(first, data, start, end, version)

    monkeypatch.setattr(codec, "decode", careless)
    assert not fuzzing.fuzz("codec", 1, 20.0)
    said = capsys.readouterr()
    assert "as if nobody had checked the length" in said.err
    seed = int(said.out.rpartition("codec:")[2])
    with pytest.raises(IndexError):
        codec.run(seed)
    monkeypatch.undo()
    codec.run(seed)


def test_a_disturbed_bystander_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_all(self: core.Episode) -> None:
        self.sane[0].drop()

    monkeypatch.setattr(core.Episode, "begin", cut_all)
    with pytest.raises(AssertionError):
        core.run(1)


def test_the_command() -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--seconds", "0.1", "--seed", "5", "--target", "codec"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    first, second = done.stdout.splitlines()
    assert first.endswith("seed 5")
    assert second.startswith("codec: ")
    assert second.endswith("a second, no failure")
