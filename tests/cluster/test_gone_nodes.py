"""Nodes that are gone, and the nodes that serve their data, as operators see them."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from starlingmq.admin.alarm_conditions import Conditions
from starlingmq.admin.cluster_health import cluster_health
from starlingmq.admin.remedies import Condition
from starlingmq.cli.ctl import whole_app
from starlingmq.cli.ctl_ask import AskedBroker
from starlingmq.cli.ctl_status import gone_nodes, node_rows
from starlingmq.net.peers.cluster_shell import Cluster

NOW = 1_000_000.0


def seen_by_n1(connected: dict[str, bool], servers: dict[str, str]) -> Cluster:
    """``servers``: by the node whose data they serve, as etcd has it. Each node was lost ten seconds times its number
    ago."""
    numbers = {"n2": 2, "n3": 3}
    others = [
        SimpleNamespace(
            member=SimpleNamespace(name=name, number=numbers[name], registered=True),
            connected=there,
            through=0,
            queued=7,
        )
        for name, there in connected.items()
    ]
    state = SimpleNamespace(
        status=lambda: others,
        reports=SimpleNamespace(last_lost_at=lambda number: NOW - 10 * number, has_stopped=lambda number: number == 2),
        members=SimpleNamespace(membership=SimpleNamespace(members=[None] * 3), available=True),
        quorum=SimpleNamespace(enough=lambda: True),
        serving=True,
    )
    registry = SimpleNamespace(served_elsewhere=lambda: list(servers.items()), origins_at_risk=list)
    copies = SimpleNamespace(roles=SimpleNamespace(registry=registry))
    return cast(Cluster, SimpleNamespace(state=state, copies=copies, name="n1"))


@pytest.mark.parametrize(
    ("connected", "servers", "gone"),
    [
        ({"n2": True, "n3": True}, {}, []),
        ({"n2": True, "n3": False}, {}, [("n3", 30.0, "")]),
        ({"n2": True, "n3": True}, {"n3": "n2"}, [("n3", 30.0, "n2")]),
        ({"n2": False, "n3": False}, {"n3": "n2"}, [("n2", 20.0, ""), ("n3", 30.0, "")]),
        ({"n2": True, "n3": False}, {"n2": "n1", "n3": "n2"}, [("n2", 20.0, "n1"), ("n3", 30.0, "")]),
        ({"n2": True, "n3": True}, {"n2": "n1", "n3": "n1"}, [("n2", 20.0, "n1"), ("n3", 30.0, "n1")]),
    ],
)
def test_a_node_that_was_lost_itself_serves_no_data_of_another_one(
    connected: dict[str, bool], servers: dict[str, str], gone: list[Any]
) -> None:
    health = cluster_health(seen_by_n1(connected, servers), NOW)
    assert [(one.name, one.seconds, one.served_by) for one in health.gone] == gone
    assert health.summary.count("serves its data") == sum(server != "" for _, _, server in gone)
    waiting = sum(7 for _, _, server in gone if not server)
    assert ("messages wait for" in health.summary) == (waiting > 0) and (f"{waiting} messages" in health.summary) == (
        waiting > 0
    )


def test_a_node_that_another_one_answers_for_is_gone_in_tables() -> None:
    ready = {"status": "ok", "reasons": []}
    gone = [{"name": "n3", "served_by": "n2"}]
    nodes = [
        {
            "node": name,
            "version": "1",
            "ready": ready,
            "holds": {},
            "totals": {"dropped": 0},
            "latency": {"turn": {"p99_ms": 1.0}},
            "cluster": {"gone": gone if name == "n1" else []},
        }
        for name in ("n1", "n2", "n3")
    ]
    found = {"node": "n1", "nodes": nodes}
    assert gone_nodes(found) == {"n3": "gone; n2 serves its data"}
    assert [one["ready"] for one in node_rows(found)] == ["ok", "ok", "gone; n2 serves its data"]
    assert gone_nodes({"node": "n1", "nodes": [nodes[0] | {"cluster": None}]}) == {}


def test_a_link_to_a_node_that_is_gone_names_the_node_at_its_other_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def link(node: str, peer: str, served_by: str = "") -> dict[str, Any]:
        return {
            "node": node,
            "peer": peer,
            "connected": True,
            "served_by": served_by,
            "through": "",
            "round_trip_ms": 1.0,
            "queued": 0,
            "queued_bytes": 0,
            "unacknowledged": 0,
            "heard_seconds": 0.1,
        }

    told = [link("n1", "n2"), link("n1", "n3", "n2"), link("n3", "n1")]
    found = {"node": "n1", "peers": told, "missing": []}
    monkeypatch.setattr(AskedBroker, "ask_within", lambda *words: found)
    done = CliRunner().invoke(whole_app(), ["peers", "--data-dir", "."], catch_exceptions=False)
    _, *rows = [re.split(r"  +", line)[:3] for line in done.stdout.splitlines()]
    assert rows == [
        ["n1", "n2", "yes"],
        ["n1", "n3", "no; to n2, which serves its data"],
        ["n3 (gone; n2 serves its data)", "n1", "yes"],
    ]


@pytest.mark.parametrize("connected", [True, False])
def test_a_node_that_accepts_no_clients_is_unavailable_and_says_why(connected: bool) -> None:
    cluster = seen_by_n1({"n2": True, "n3": connected}, {})
    health = cluster_health(cluster, NOW, ("memory is short",))
    assert health.status == "unavailable" and health.summary.endswith("quorum holds; memory is short")
    assert cluster_health(cluster, NOW).status == ("healthy" if connected else "degraded")


def conditions(cluster: Cluster) -> list[Condition]:
    node = SimpleNamespace(cluster=cluster, serving=True, driver=SimpleNamespace(clock=lambda: NOW))
    return list(Conditions._cluster(cast(Conditions, SimpleNamespace(_local_node=node))))


def alarms(cluster: Cluster) -> dict[str, str]:
    return {one.kind: one.severity for one in conditions(cluster)}


def test_a_node_that_was_stopped_is_told_from_one_that_crashed() -> None:
    cluster = seen_by_n1({"n2": False, "n3": False}, {})
    assert re.search(r"n2 stopped since \S+ \(20 s\); n3 gone since \S+ \(30 s\)", cluster_health(cluster, NOW).summary)
    found = {one.subject: one.text for one in conditions(cluster) if one.kind == "node"}
    assert found == {"n2": "n2 was stopped; 7 messages wait for it", "n3": "n3 is gone; 7 messages wait for it"}


def test_data_without_a_whole_copy_elsewhere_is_a_critical_alarm_of_its_own() -> None:
    cluster = seen_by_n1({"n2": True, "n3": True}, {})
    assert not conditions(cluster)
    copies: Any = cluster.copies
    copies.roles.registry.origins_at_risk = lambda: ["n2"]
    (found,) = conditions(cluster)
    assert (found.kind, found.subject, found.severity) == ("last_copy", "n2", "critical")
    assert "the next loss may lose data" in found.text and "ctl cluster copies" in found.next


@pytest.mark.parametrize(("gone", "severity"), [("n2", "warning"), ("n3", "critical")])
def test_data_at_risk_while_a_node_is_stopped_on_purpose_is_a_warning(gone: str, severity: str) -> None:
    cluster = seen_by_n1({"n2": gone != "n2", "n3": gone != "n3"}, {})  # n2 was stopped
    copies: Any = cluster.copies
    copies.roles.registry.origins_at_risk = lambda: ["n1"]
    assert [one.severity for one in conditions(cluster) if one.kind == "last_copy"] == [severity]


def test_a_node_that_is_gone_an_etcd_without_majority_and_a_lost_quorum_are_alarms() -> None:
    cluster = seen_by_n1({"n2": True, "n3": True}, {})
    assert alarms(cluster) == {}
    cluster = seen_by_n1({"n2": True, "n3": False}, {})
    state: Any = cluster.state
    assert alarms(cluster) == {"node": "warning"}
    state.members.available = False
    assert alarms(cluster) == {"node": "warning", "etcd": "warning"}
    state.quorum.enough = lambda: False
    assert alarms(cluster)["quorum"] == "critical"
