"""The registry of JetStream's streams: one home for a name, whatever nodes propose at the same time."""

from __future__ import annotations

import json
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest
from tests.sim.etcd_model import EtcdModel, Session

from starlingmq.cluster.etcd.etcd_requests import EtcdState, TxnAnswer
from starlingmq.cluster.etcd.shared_value import AWAY, UNKNOWN
from starlingmq.cluster.streams.cluster_streams import ClusterStreams, FarPort
from starlingmq.cluster.streams.stream_registry import (
    BYTES_MAX,
    FULL,
    OLDER,
    Entries,
    RegistryChange,
    StreamEntry,
    StreamRegistry,
    decode_document,
    encode_document,
)


class Creation(RegistryChange):
    """A home takes a name that is free."""

    def __init__(self, home: str, name: str, size: int = 0) -> None:
        self.home, self.name, self.size = home, name, size
        self.outcome: str | None = None
        self.decided = 0

    def decide(self, entries: Entries) -> Entries | None:
        self.decided += 1
        if self.name in entries:
            self.outcome = f"it is at {entries[self.name].home}"
            return None
        return {**entries, self.name: StreamEntry(self.home, (self.name,), "x" * self.size)}

    def done(self) -> None:
        self.outcome = "done"

    def failed(self, why: str) -> None:
        self.outcome = why


class Nodes:
    """Nodes with one etcd, in virtual time."""

    def __init__(self, *names: str) -> None:
        self.etcd = EtcdModel(Random(1))
        self.now = 1000.0
        self.sessions: dict[str, Session] = {name: self.etcd.session(name) for name in names}
        self.registries = {name: StreamRegistry("test") for name in names}
        self.lost = ""  # answers to writes of this node are lost
        for registry in self.registries.values():
            registry.start(self.now)
        self.rest()

    def __getitem__(self, name: str) -> StreamRegistry:
        return self.registries[name]

    def rest(self, seconds: float = 3.0) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 0.01
            for name, registry in self.registries.items():
                registry.tick(self.now)
                for request in registry.take_requests():
                    self.sessions[name].request(request, self.now)
            for name, answer in self.etcd.advance(self.now):
                if name == self.lost and isinstance(answer, TxnAnswer):
                    answer = TxnAnswer(answer.tag, False, 0, (), "timed out")
                self.registries[name].answered(answer, self.now)


def test_a_name_gets_one_home_when_all_nodes_want_it_at_once() -> None:
    nodes = Nodes("a", "b", "c")
    asked = [Creation(name, "S") for name in ("a", "b", "c")]
    for change in asked:
        nodes[change.home].ask(change)
    nodes.rest()
    assert [change.outcome for change in asked].count("done") == 1
    home = next(change.home for change in asked if change.outcome == "done")
    assert all(change.outcome == f"it is at {home}" for change in asked if change.home != home)
    assert [registry.entries["S"].home for registry in nodes.registries.values()] == [home] * 3


def test_changes_of_different_streams_are_all_made() -> None:
    nodes = Nodes("a", "b", "c")
    asked = [Creation(name, f"{name}{number}") for number in range(5) for name in ("a", "b", "c")]
    for change in asked:
        nodes[change.home].ask(change)
    nodes.rest(20.0)
    assert {change.outcome for change in asked} == {"done"}
    assert any(change.decided > 1 for change in asked), "some were overtaken, and decided again"
    assert sorted(nodes["b"].entries) == sorted(change.name for change in asked)
    assert all(registry.is_idle() for registry in nodes.registries.values())


def test_without_etcd_nothing_changes_and_what_is_known_stays() -> None:
    nodes = Nodes("a", "b")
    nodes["a"].ask(Creation("a", "S"))
    nodes.rest()
    nodes["a"].answered(EtcdState(False), nodes.now)
    refused = Creation("a", "T")
    nodes["a"].ask(refused)
    assert refused.outcome == AWAY and list(nodes["a"].entries) == ["S"]
    unread = StreamRegistry("test")
    refused = Creation("a", "S")
    unread.ask(refused)
    assert refused.outcome == AWAY and refused.decided == 0


def test_a_change_whose_answer_is_lost_is_seen_later() -> None:
    nodes = Nodes("a", "b")
    change = Creation("a", "S")
    nodes["a"].ask(change)
    nodes.lost = "a"
    nodes.rest(0.2)
    assert change.outcome == UNKNOWN
    nodes.lost = ""
    nodes.rest()
    assert nodes["a"].entries["S"].home == nodes["b"].entries["S"].home == "a"


def test_a_read_after_an_error_of_etcd_waits_for_the_one_that_is_sent_later() -> None:
    nodes = Nodes("a")
    value, called = nodes["a"]._value, list[int]()
    nodes.lost = "a"
    nodes["a"].look_again(nodes.now, lambda: called.append(value.reads))
    while not called:
        nodes.rest(0.01)
    nodes.lost = ""
    nodes["a"].look_again(nodes.now, lambda: called.append(value.reads))
    nodes["a"].answered(EtcdState(True), nodes.now)
    assert len(called) == 1, "etcd is asked a little later"
    nodes.rest()
    assert called == [called[0], called[0] + 1]


def test_the_registry_is_bounded() -> None:
    nodes = Nodes("a")
    large = Creation("a", "S", BYTES_MAX)
    small = Creation("a", "T")
    nodes["a"].ask(large)
    nodes["a"].ask(small)
    nodes.rest()
    assert (large.outcome, small.outcome) == (FULL, "done")


def test_a_document_of_a_later_version_changes_nothing() -> None:
    nodes = Nodes("a")
    nodes["a"].ask(Creation("a", "S"))
    nodes.rest()
    changes = nodes["a"].changes
    for later in (
        b'{"streams": 7}',
        b'{"streams":{},"more":1}',  # it would be gone with the next change of this node
        b'{"streams":{"T":{"home":"a","subjects":[],"config":"","more":1}}}',
    ):
        nodes["a"].known = True
        nodes["a"]._read(later)
        assert not nodes["a"].known, later
    assert not nodes["a"].known and list(nodes["a"].entries) == ["S"] and nodes["a"].changes == changes


def test_entries_are_read_as_they_were_written() -> None:
    entries = {"B": StreamEntry("n1", ("b/#", "ü"), '{"name":"B"}', 1234567890.1234567), "A": StreamEntry("n2", (), "")}
    found = decode_document(encode_document(entries, {"n1": 7}, 5))
    assert (found.streams, found.nodes, found.number) == (entries, {"n1": 7}, 5)
    assert decode_document(b"").streams == {}
    assert entries["B"].filters() == [b"b/#", "ü".encode()]


def test_a_document_of_before_counts_as_empty() -> None:
    """As etcd has it that was rebuilt, or restored from a backup."""
    nodes = Nodes("a")
    nodes["a"].ask(Creation("a", "S"))
    nodes.rest()
    backup = nodes["a"]._value.value
    nodes["a"].ask(Creation("a", "T"))
    nodes.rest()
    for older in (backup, b""):
        nodes["a"].problem = ""
        nodes["a"]._read(older)
        assert (nodes["a"].known, nodes["a"].entries, nodes["a"].problem) == (True, {}, OLDER)
    nodes["a"].ask(Creation("a", "U"))
    nodes.rest()
    assert (list(nodes["a"].entries), decode_document(nodes["a"]._value.value).number) == (["U"], 3)


def test_reads_that_requests_cause_are_at_most_ten_in_a_second() -> None:
    nodes = Nodes("a")
    value, asked, called = nodes["a"]._value, 0, list[int]()
    begun, end = value._begun, nodes.now + 1.0
    while nodes.now < end:
        asked += 1
        nodes["a"].look_again(nodes.now, lambda: called.append(1))
        nodes.rest(0.01)
    nodes.rest()
    assert (value._begun - begun) in range(5, 12) and len(called) == asked


@pytest.mark.interpreted_only("what is compiled takes no stand-in")
@pytest.mark.parametrize(
    ("config", "filters"),
    [
        ({"subjects": ["a.>"]}, [b"a/#"]),
        ({"subjects": ["a.>"], "republish": {"src": ">", "dest": "b.>"}}, [b"a/#"]),
        ({"subject_transform": {"src": "a.>", "dest": "b.>"}}, [b"#"]),
        ({"sources": [{"name": "OTHER"}]}, [b"#"]),
        ({"mirror": {"name": "OTHER"}}, [b"#"]),
        (None, [b"#"]),
    ],
)
def test_members_at_other_nodes_need_the_right_for_all_that_a_stream_may_have(
    config: object, filters: list[bytes]
) -> None:
    """Not only for its subjects, under which a transform or a source keeps nothing."""
    entry = StreamEntry("n1", ("a/#",), json.dumps(config))
    streams = SimpleNamespace(registry=SimpleNamespace(entries={"S": entry}))
    assert FarPort(cast(ClusterStreams, streams)).subjects("S") == filters
