"""The screen of ``starlingmq top``, from answers as a broker gives them; test_ctl.py asks a running broker."""

from __future__ import annotations

from typing import Any

from starlingmq.cli.top import TopData


def overview(now: float, received: int, name: str = "n1") -> dict[str, Any]:
    names = ("messages_received", "messages_sent", "bytes_received", "bytes_sent", "forwards_sent", "dropped")
    return {
        "node": name,
        "now": now,
        "ready": {"status": "ok"},
        "totals": dict.fromkeys(names, received),
        "holds": {"clients": 1, "sessions": 2, "queued": 0},
        "latency": {"turn": {"p99_ms": 0.1}},
    }


def test_rates_are_of_what_came_between_two_looks_and_a_new_life_has_none() -> None:
    answers = [(0.0, 100), (2.0, 500), (4.0, 10)]

    def ask(action: str, **arguments: str) -> dict[str, Any]:
        now, received = answers.pop(0)
        return {"nodes": [overview(now, received), overview(now, 2 * received, "n2")], "missing": []}

    data = TopData(ask, "")
    looks = [data.look("nodes", "messages_in")["rows"] for _ in range(3)]
    assert [sorted((row["node"], row["messages_in"]) for row in rows) for rows in looks] == [
        [("n1", 0.0), ("n2", 0.0)],
        [("n1", 200.0), ("n2", 400.0)],
        [("n1", 0.0), ("n2", 0.0)],
    ]
    assert [row["node"] for row in looks[1]] == ["n2", "n1"]


def test_topics_are_counted_as_messages_of_a_tail_go_by() -> None:
    told = [{"node": node, "topic": topic, "size": 10} for node, topic in (("n1", "a"), ("n1", "b"), ("n2", "a"))]
    asked: list[str] = []

    def ask(action: str, **arguments: str) -> dict[str, Any]:
        asked.append(action)
        return {"trace": "7", "events": told, "missing": []}

    data = TopData(ask, "")
    data.look("topics", "messages")
    rows = data.look("topics", "bytes")["rows"]
    assert [(row["topic"], row["messages"], row["bytes"], row["share"]) for row in rows] == [
        ("a", 4, 40, 0.6667),
        ("b", 2, 20, 0.3333),
    ]
    data.close()
    assert asked == ["trace.begin", "trace.next", "trace.next", "trace.end"]
    one = TopData(ask, "n2")
    assert [row["topic"] for row in one.look("topics", "messages")["rows"]] == ["a"]
