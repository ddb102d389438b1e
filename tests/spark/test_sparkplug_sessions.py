"""The sessions of a Sparkplug B edge node: names, gaps, who is online. Without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starlingmq.spark.sparkplug_sessions import NODE, EdgeMessage, EdgeNode, MetricKey, in_order

TEMPERATURE = MetricKey("temperature", 1, 9)
SPEED = MetricKey("speed", 2, 3)


def message(
    kind: str,
    seq: int | None,
    *metrics: MetricKey,
    device: str = "",
    node: str = "n1",
    at: int = 0,
    bd: int | None = None,
) -> EdgeMessage:
    return EdgeMessage(kind, device, node, at, seq, bd, metrics)


def birth(seq: int = 0, *metrics: MetricKey, node: str = "n1", at: int = 0, bd: int = 0) -> EdgeMessage:
    return message("NBIRTH", seq, *(metrics or (TEMPERATURE,)), node=node, at=at, bd=bd)


def names(edge: EdgeNode, one: EdgeMessage) -> list[str]:
    return [metric.name for metric in edge.apply(one).metrics]


def test_an_alias_has_the_name_and_datatype_of_its_birth() -> None:
    edge = EdgeNode()
    edge.apply(birth())
    edge.apply(message("DBIRTH", 1, SPEED, device="press"))
    (found,) = edge.apply(message("NDATA", 2, MetricKey(alias=1))).metrics
    assert (found.name, found.datatype, found.reason) == ("temperature", 9, "")
    (found,) = edge.apply(message("DDATA", 3, MetricKey(alias=2), device="press")).metrics
    assert (found.name, found.datatype) == ("speed", 3)
    (found,) = edge.apply(message("DDATA", 4, MetricKey("speed"), device="press")).metrics
    assert (found.name, found.datatype) == ("speed", 3)


def test_an_unknown_alias_has_a_reason_and_is_counted() -> None:
    edge = EdgeNode()
    (early,) = edge.apply(message("NDATA", 7, MetricKey(alias=1))).metrics
    assert (
        early.reason == "alias 1 is unknown: no birth of the edge node was read before it on this node of the cluster"
    )
    edge.apply(birth())
    (strange,) = edge.apply(message("NDATA", 1, MetricKey(alias=5))).metrics
    assert strange.reason == "alias 5 is unknown: it is not in the last birth of the edge node"
    (of_device,) = edge.apply(message("DDATA", 2, MetricKey(alias=1), device="press")).metrics
    assert "no birth of the device" in of_device.reason
    (nameless,) = edge.apply(message("NDATA", 3, MetricKey())).metrics
    assert nameless.reason == "the metric has no name and no alias"
    assert (edge.states[NODE].unresolved, edge.states["press"].unresolved) == (3, 1)


def test_a_new_birth_of_the_node_forgets_the_aliases_of_its_devices() -> None:
    edge = EdgeNode()
    edge.apply(birth())
    edge.apply(message("DBIRTH", 1, SPEED, device="press"))
    edge.apply(birth(0, MetricKey("pressure", 1, 9), bd=1))
    assert names(edge, message("NDATA", 1, MetricKey(alias=1))) == ["pressure"]
    (found,) = edge.apply(message("DDATA", 2, MetricKey(alias=2), device="press")).metrics
    assert found.reason
    assert not edge.states["press"].online


@pytest.mark.parametrize(
    ("numbers", "gaps"),
    [
        ((1, 2, 3), [0, 0, 0]),
        ((1, 3), [0, 1]),
        ((254, 255, 0, 1), [253, 0, 0, 0]),
        ((255, 1), [254, 1]),
        ((1, 1), [0, 255]),
    ],
)
def test_gaps_of_the_sequence_are_counted_modulo_256(numbers: Sequence[int], gaps: list[int]) -> None:
    edge = EdgeNode()
    assert edge.apply(birth()).gap is None
    assert [edge.apply(message("NDATA", seq)).gap for seq in numbers] == gaps
    assert (edge.gaps, edge.missing) == (sum(bool(gap) for gap in gaps), sum(gaps))


def test_a_birth_begins_the_sequence_and_a_death_is_not_part_of_it() -> None:
    edge = EdgeNode()
    assert edge.apply(message("NDATA", 77)).gap is None, "its predecessor was not read"
    assert edge.apply(message("NDATA", 79)).gap == 1
    assert edge.apply(message("NDEATH", None, bd=0)).gap is None
    assert edge.apply(birth(bd=1)).gap is None
    assert edge.apply(message("DBIRTH", 1, SPEED, device="press")).gap == 0
    assert edge.apply(message("NCMD", None, MetricKey(alias=9))).metrics[0].reason == ""
    assert edge.gaps == 1


def test_a_death_ends_its_own_session_only() -> None:
    edge = EdgeNode()
    edge.apply(birth(at=10, bd=4))
    edge.apply(message("DBIRTH", 1, SPEED, device="press", at=11))
    assert edge.states["press"].online
    edge.apply(message("NDEATH", None, at=12, bd=3))
    assert edge.states[NODE].online and edge.states["press"].online
    applied = edge.apply(message("NDEATH", None, at=13, bd=4))
    assert applied.changed == {NODE, "press"}
    assert [(state.online, state.since) for state in edge.states.values()] == [(False, 13), (False, 13)]


def test_a_device_is_online_from_its_birth_to_its_death() -> None:
    edge = EdgeNode()
    edge.apply(birth(at=10))
    edge.apply(message("DBIRTH", 1, SPEED, device="press", at=11))
    edge.apply(message("DBIRTH", 2, SPEED, device="press", at=12))
    state = edge.states["press"]
    assert (state.online, state.since, state.born, state.metrics) == (True, 11, 12, 1)
    edge.apply(message("DDEATH", 3, device="press", at=13))
    assert (state.online, state.since) == (False, 13)
    assert edge.states[NODE].online


def test_late_rows_of_another_cluster_node_have_the_names_of_their_own_session() -> None:
    edge = EdgeNode()
    edge.apply(birth(0, MetricKey("new", 1, 9), node="n2", at=20, bd=1))
    edge.apply(birth(0, MetricKey("old", 1, 9), node="n1", at=10, bd=0))
    assert names(edge, message("NDATA", 1, MetricKey(alias=1), node="n1", at=11)) == ["old"]
    edge.apply(message("NDEATH", None, node="n1", at=12, bd=0))
    assert names(edge, message("NDATA", 1, MetricKey(alias=1), node="n2", at=21)) == ["new"]
    assert (edge.states[NODE].online, edge.states[NODE].born, edge.gaps) == (True, 20, 0)


def test_a_death_that_arrives_before_its_birth_counts() -> None:
    edge = EdgeNode()
    edge.apply(birth(node="n1", at=10, bd=0))
    edge.apply(message("NDEATH", None, node="n3", at=30, bd=1))  # a will, published by another cluster node
    assert edge.states[NODE].online
    edge.apply(birth(node="n2", at=20, bd=1))
    assert (edge.states[NODE].online, edge.states[NODE].since) == (False, 30)


@dataclass(frozen=True)
class Stored:
    node: str
    offset: int
    at: int


@given(
    st.lists(st.tuples(st.sampled_from(["n1", "n2"]), st.integers(0, 9), st.integers(0, 9)), unique_by=lambda x: x[:2])
)
def test_rows_of_a_cluster_node_are_in_the_order_of_its_offsets(rows: list[tuple[str, int, int]]) -> None:
    found = in_order([Stored(*row) for row in rows])
    assert len(found) == len(rows)
    for node in ("n1", "n2"):
        offsets = [row.offset for row in found if row.node == node]
        assert offsets == sorted(offsets)


@given(st.lists(st.tuples(st.sampled_from(["NBIRTH", "NDATA", "DBIRTH", "DDATA"]), st.integers(0, 3)), max_size=12))
def test_names_and_gaps_do_not_depend_on_when_rows_of_other_nodes_arrive(events: list[tuple[str, int]]) -> None:
    def of(node: str) -> list[EdgeMessage]:
        return [
            message(kind, seq, MetricKey(f"{node}-{index}" if "BIRTH" in kind else "", 1, 9), node=node, at=index,
                    device="press" if kind.startswith("D") else "")
            for index, (kind, seq) in enumerate(events)
        ]  # fmt: skip

    alone, together = EdgeNode(), EdgeNode()
    expected = [alone.apply(one) for one in of("n1")]
    for one in of("n2"):
        together.apply(one)
    found = [together.apply(one) for one in of("n1")]
    assert [(each.gap, each.metrics) for each in found] == [(each.gap, each.metrics) for each in expected]
