"""Streams of JetStream after etcd was rebuilt, or restored from a backup: no data is deleted, and no home changes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cluster.stream_disk import DiskFleet
from tests.cluster.stream_fleet import JetStreamPeer, StreamFleet
from tests.cluster.test_streams_across_nodes import seen_by_all

from starlingmq.cluster.etcd.etcd_requests import Delete, Put, Txn

REGISTRY = b"/starlingmq/test/jetstream"
NAMES = ("n1", "n2", "n3")


def document(fleet: StreamFleet) -> bytes:
    return fleet[0].cluster.streams.registry._value.value


def restore(fleet: StreamFleet, backup: bytes | None) -> None:
    """None: etcd is rebuilt."""
    change = Delete(REGISTRY) if backup is None else Put(REGISTRY, backup)
    fleet.etcd.session("operator").request(Txn("x", (), (change,), ()), fleet.now)
    fleet.advance(0.1)


def restore_stopped(fleet: DiskFleet, backup: bytes | None) -> None:
    for name in NAMES:
        fleet.kill(name)
    restore(fleet, backup)
    for name in NAMES:
        fleet.serve(name)
    fleet.advance(15.0)


def messages_of(fleet: DiskFleet, name: str = "n1") -> list[bytes]:
    node = fleet.named(name)
    assert node is not None
    stream: Any = node.state.jetstream.streams["S"]
    assert not node.state.jetstream.is_aside(stream)
    return [stream.message(seq).payload for seq in range(stream.index.first, stream.index.last + 1)]


def publish(peer: JetStreamPeer, count: int = 3) -> None:
    for number in range(count):
        assert "seq" in peer.ask("s", b"%d" % number)


@pytest.mark.parametrize("stopped", [True, False])
def test_older_settings_are_not_applied_to_a_stream(stopped: bool) -> None:
    fleet = DiskFleet(3)
    home = JetStreamPeer(fleet, 0)
    home.make("S", "s", storage="file", max_msgs=1)
    seen_by_all(fleet, "S")
    backup = document(fleet)
    config = {"name": "S", "subjects": ["s", "t"]}
    assert "error" not in home.api("STREAM.UPDATE.S", config)
    publish(home)
    (restore_stopped if stopped else restore)(fleet, backup)
    fleet.advance(1.0)
    assert messages_of(fleet) == [b"0", b"1", b"2"]
    assert all(node.cluster.streams.registry.entries["S"].subjects == ("s", "t") for node in fleet.nodes)
    assert JetStreamPeer(fleet, 1).ask("t", b"x") == {"stream": "S", "seq": 4}


@pytest.mark.parametrize("stopped", [True, False])
def test_a_deletion_of_before_does_not_delete_a_later_stream(stopped: bool) -> None:
    fleet = DiskFleet(3)
    home = JetStreamPeer(fleet, 0)
    home.make("S", "s", storage="file")
    documents = set()
    request = home.request("$JS.API.STREAM.DELETE.S")
    for _ in range(100):
        documents.add(document(fleet))
        fleet.advance(0.001, 0.001)
    assert home.answer(request) is not None
    (backup,) = [each for each in documents if b"ending" in each]
    fleet.advance(1.0)
    assert "error" not in home.make("S", "s", storage="file")
    publish(home)
    (restore_stopped if stopped else restore)(fleet, backup)
    fleet.advance(1.0)
    assert messages_of(fleet) == [b"0", b"1", b"2"]
    assert not any(node.cluster.streams.registry.entries["S"].ending for node in fleet.nodes)


def test_a_stream_whose_home_is_not_back_keeps_its_name_and_its_subjects() -> None:
    fleet = DiskFleet(3)
    home, other, _ = (JetStreamPeer(fleet, place) for place in range(3))
    other.make("T", "t", storage="file")
    backup = document(fleet)
    home.make("S", "s", storage="file")
    publish(home)
    for lost in (None, backup):
        for name in NAMES:
            fleet.kill(name)
        restore(fleet, lost)
        for name in NAMES[1:]:
            fleet.serve(name)
        fleet.advance(15.0)
        peer = JetStreamPeer(fleet, 0)
        assert sorted(fleet[0].cluster.streams.registry.entries) == ["T"]
        for name, subject in (("S", "other"), ("U", "s")):
            assert peer.make(name, subject)["error"]["err_code"] == 10008
        config = {"name": "T", "subjects": ["t", "s"]}
        assert peer.api("STREAM.UPDATE.T", config)["error"]["err_code"] == 10008
        fleet.serve("n1")
        fleet.advance(15.0)
        assert messages_of(fleet) == [b"0", b"1", b"2"]
        assert peer.make("S", "other")["error"]["err_code"] == 10058
        assert peer.make("U", "s")["error"]["err_code"] == 10065


@pytest.mark.parametrize("rebuilt", [True, False])
def test_nodes_that_run_while_etcd_loses_changes_keep_their_streams(rebuilt: bool) -> None:
    fleet = DiskFleet(3)
    home, other, third = (JetStreamPeer(fleet, place) for place in range(3))
    backup = document(fleet)
    home.make("S", "s", storage="file")
    seen_by_all(fleet, "S")
    publish(home)
    follow = fleet[0].cluster.streams.on_change
    fleet[0].cluster.streams.on_change = lambda: None  # it is slow
    restore(fleet, None if rebuilt else backup)
    refused = (other.make("S", "other"), third.make("U", "s"), third.api("STREAM.INFO.S"))
    assert [each["error"]["err_code"] for each in refused] == [10008] * 3
    fleet[0].cluster.streams.on_change = follow
    follow()
    fleet.advance(1.0)
    assert messages_of(fleet) == [b"0", b"1", b"2"]
    assert other.make("S", "other")["error"]["err_code"] == 10058
    assert any("etcd has lost changes of the registry of streams" in each for each in fleet[1].said)


def test_many_streams_are_registered_by_one_change() -> None:
    fleet = StreamFleet(3)
    home = JetStreamPeer(fleet, 0)
    for number in range(8):
        assert "error" not in home.make(f"S{number}", f"{number}.>", f"more.{number}")
    seen_by_all(fleet, "S7")
    before = fleet[1].cluster.streams.registry.changes
    restore(fleet, None)
    fleet.advance(1.0)
    assert len(fleet[1].cluster.streams.registry.entries) == 8
    assert fleet[1].cluster.streams.registry.changes - before <= 4, "it is empty; three nodes register theirs"
