"""The order of a rolling restart, and what it waits for, without brokers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from starlingmq.cli import ctl_restart
from starlingmq.cli.declare import CommandError
from starlingmq.cli.remote import AnswerLost, Unreachable

LIMIT = 50  # questions


class Nodes:
    """Answers as a cluster of which ``gone`` nodes are lost; each look sees other seconds."""

    def __init__(self, names: list[str], gone: list[str]) -> None:
        self.names, self.gone = names, gone
        self.restarted: list[str] = []
        self.lines: list[str] = []
        self.asked = 0
        self.lost: dict[str, Exception] = {}  # in place of the answer of a node that restarts
        self.refused: dict[str, Exception] = {}
        self.away = 0  # looks for which a node that restarts does not answer
        self.slow = 0  # looks at the cluster for which a node is missing after its restart

    def ask(self, action: str, node: str = "") -> dict[str, Any]:
        self.asked += 1
        assert self.asked < LIMIT, "it waits for ever"
        if action == "restart.begin":
            if node in self.gone:
                raise CommandError(f"{node}: is not connected")
            if node in self.refused:
                raise self.refused[node]
            self.restarted.append(node)
            self.slow = 3
            if node in self.lost:
                self.away = 6
                raise self.lost[node]
            return {"node": node}
        if action == "overview":
            self.away = max(self.away - 1, 0)
            if self.away:
                raise CommandError(f"{node}: is not connected")
            uptime = 0.0 if node in self.restarted else 1000.0
            return {"node": node, "uptime": uptime, "ready": {"reasons": []}, "version": "1"}
        away = [*self.gone, *(self.restarted[-1:] if self.slow else ())]
        self.slow = max(self.slow - 1, 0)
        health = {
            "status": "degraded" if away else "healthy",
            "summary": f"{', '.join(away)} gone ({self.asked} s)",
            "gone": [{"name": name} for name in away],
            "at_risk": [],
        }
        return {"node": self.names[0], "members": [{"name": name} for name in self.names], "health": health}

    def report(self, what: str, done: int, total: int, unit: str) -> None:
        self.lines.append(what)

    def roll(self, force: bool = False) -> list[str]:
        return [one["node"] for one in ctl_restart._rolling(self.ask, force, self.report)]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctl_restart, "LOOK_SECONDS", 0.0)


def test_the_node_that_is_asked_is_the_last_and_each_reason_to_wait_has_one_line() -> None:
    nodes = Nodes(["n1", "n2", "n3"], [])
    assert nodes.roll() == ["n2", "n3", "n1"]
    assert dict.fromkeys(nodes.lines) == dict.fromkeys(f"{name}: {name} is not there" for name in ("n2", "n3", "n1"))


def test_with_force_a_node_that_is_missing_is_left_out_and_not_waited_for() -> None:
    nodes = Nodes(["n1", "n2", "n3"], ["n2"])
    with pytest.raises(CommandError, match=r"^no node was restarted: n2 gone \(1 s\); mend this first"):
        nodes.roll()
    assert nodes.roll(force=True) == ["n3", "n1"]
    assert "n3: n3 is not there" in nodes.lines, "what is new is waited for"


@pytest.mark.parametrize("error", [CommandError("n2: no answer"), AnswerLost("http://n2: reset"), OSError("reset")])
def test_an_answer_that_is_lost_as_a_node_stops_does_not_end_the_command(error: Exception) -> None:
    nodes = Nodes(["n1", "n2", "n3"], [])
    nodes.lost = {"n2": error}
    assert nodes.roll() == ["n2", "n3", "n1"] == nodes.restarted


def test_a_node_that_refuses_to_restart_ends_the_command_with_its_reason() -> None:
    nodes = Nodes(["n1", "n2", "n3"], [])
    nodes.refused = {"n3": CommandError("its settings are invalid")}
    with pytest.raises(CommandError, match="its settings are invalid"):
        nodes.roll()
    assert nodes.restarted == ["n2"]


def test_a_broker_that_does_not_run_is_not_waited_for() -> None:
    asked: list[str] = []

    def ask(action: str, node: str = "") -> dict[str, Any]:
        asked.append(action)
        raise Unreachable("no broker is running there")

    with pytest.raises(Unreachable):
        ctl_restart._restarted(ask, "", lambda *_: None)
    assert asked == ["restart.begin"]


def test_while_it_waits_it_says_what_the_broker_answered() -> None:
    lines: list[str] = []
    answers: Iterator[CommandError | OSError | str] = iter(
        [CommandError("http://broker: 401 wrong token"), OSError(111, "Connection refused"), ""]
    )

    def why() -> str:
        answer = next(answers)
        if isinstance(answer, str):
            return answer
        raise answer

    ctl_restart._wait(why, "n1", lambda what, done, total, unit: lines.append(what))
    assert lines == [
        "n1: no answer yet: http://broker: 401 wrong token",
        "n1: no answer yet: Connection refused",
    ]
