"""Operator requests between nodes follow cluster.view.operator_rpc: once, to the intended incarnation, and in time."""

from __future__ import annotations

import pytest
from tests.cluster.fleet import Fleet, NodeWorld

from starlingmq.cluster.cluster_state import ClusterReady
from starlingmq.cluster.links.control_frames import OperatorCall, OperatorReply
from starlingmq.cluster.view import operator_rpc
from starlingmq.cluster.view.operator_rpc import BUSY, REMEMBERED, SERVED_MAX, TOO_MUCH, OperatorRpc, Outcome

NOW = 1000.0


class Shell:
    """The shell of each node of a fleet: it answers, unless the node is mute, and keeps the outcomes."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.called: list[tuple[str, bytes]] = []
        self.outcomes: list[Outcome] = []
        self.mute: set[str] = set()
        for node in fleet.nodes:
            node.on_cluster_ready = self.look

    def look(self, node: NodeWorld, ready: ClusterReady) -> None:
        for called in ready.called:
            self.called.append((node.name, called.question))
            if node.name not in self.mute:
                node.cluster.operator_rpc.answer(called, b"from " + node.name.encode())
        self.outcomes += ready.outcomes


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(3)


def ask(fleet: Fleet, source: int, target: int, question: bytes = b"?", seconds: float = 2.0) -> int:
    return fleet[source].cluster.operator_rpc.ask(fleet[target].cluster.number, question, fleet.now, seconds)


def test_a_question_is_answered_and_an_empty_one_by_the_link_itself(fleet: Fleet) -> None:
    shell = Shell(fleet)
    number = ask(fleet, 0, 1)
    empty = ask(fleet, 0, 2, b"")
    fleet.advance(0.1)
    assert {(one.number, one.answer, one.problem) for one in shell.outcomes} == {
        (number, b"from n2", ""),
        (empty, b"", ""),
    }
    assert shell.called == [("n2", b"?")]


def test_a_third_node_relays_between_nodes_that_cannot_reach_each_other(fleet: Fleet) -> None:
    shell = Shell(fleet)
    fleet.cut(fleet[0].cluster.number, fleet[1].cluster.number)
    fleet.advance(5.0)
    ask(fleet, 0, 1)
    fleet.advance(0.1)
    assert [one.answer for one in shell.outcomes] == [b"from n2"]


def test_a_request_ends_after_its_timeout(fleet: Fleet) -> None:
    shell = Shell(fleet)
    shell.mute.add("n2")
    ask(fleet, 0, 1, seconds=2.0)
    fleet.advance(1.9)
    assert shell.outcomes == []
    fleet.advance(0.2)
    assert [(one.answer, one.problem) for one in shell.outcomes] == [(b"", "it did not answer within 2.0 s")]


def test_a_node_that_is_gone_is_no_reason_to_wait(fleet: Fleet) -> None:
    shell = Shell(fleet)
    shell.mute.add("n2")
    ask(fleet, 0, 1, seconds=60.0)
    for other in (1, 3):
        fleet.cut(fleet[1].cluster.number, other)
    fleet.advance(10.0)
    assert [one.problem for one in shell.outcomes] == ["the connection to it was lost"]
    ask(fleet, 0, 1, seconds=60.0)
    fleet.advance(0.1)
    assert shell.outcomes[-1].problem == "it is not connected"


# One side, one thing at a time


def test_a_question_that_comes_twice_is_looked_at_once() -> None:
    node = OperatorRpc(lambda _: True)
    for number in (1, 2, 1, 2, REMEMBERED + 2, 2):
        node.called(7, 1, OperatorCall(number, b"kick"))
    assert [one.number for one in node.take_called()] == [1, 2, REMEMBERED + 2]


def test_requests_of_an_earlier_incarnation_are_ignored() -> None:
    node = OperatorRpc(lambda _: True)
    node.called(7, 1, OperatorCall(1, b"a"))
    (first,) = node.take_called()
    node.called(7, 2, OperatorCall(1, b"b"))
    node.called(7, 1, OperatorCall(2, b"c"))
    assert [one.question for one in node.take_called()] == [b"b"]
    node.answer(first, b"late")
    assert node.take_frames() == []


def test_an_answer_counts_once_and_only_from_the_node_that_was_asked() -> None:
    node = OperatorRpc(lambda _: True)
    number = node.ask(7, b"?", NOW, 1.0)
    node.replied(8, OperatorReply(number, b"from another"), NOW)
    node.replied(7, OperatorReply(number + 1, b"to another"), NOW)
    assert node.take_outcomes() == []
    node.replied(7, OperatorReply(number, b"yes"), NOW + 0.5)
    node.replied(7, OperatorReply(number, b"again"), NOW + 0.6)
    assert node.take_outcomes() == [Outcome(number, 7, b"yes", "", 0.5)]
    node.turn(NOW + 2.0)
    assert node.take_outcomes() == []


def test_concurrent_requests_and_answers_are_bounded() -> None:
    node = OperatorRpc(lambda _: True)
    for number in range(1, SERVED_MAX + 2):
        node.called(7, 1, OperatorCall(number, b"?"))
    assert node.take_frames() == [(7, OperatorReply(SERVED_MAX + 1, BUSY))]
    first, *_ = node.take_called()
    node.answer(first, b"x" * (operator_rpc.ANSWER_BYTES_MAX + 1))
    assert node.take_frames() == [(7, OperatorReply(1, TOO_MUCH))]
    node.called(7, 1, OperatorCall(SERVED_MAX + 2, b"?"))
    assert len(node.take_called()) == 1
    for _ in range(operator_rpc.WAITING_MAX + 1):
        node.ask(7, b"?", NOW, 1.0)
    assert [one.problem for one in node.take_outcomes()] == ["too many requests are waiting for its answers"]
