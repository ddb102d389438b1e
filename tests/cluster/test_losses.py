"""A chaos run's judgement of sessions that were not found (``tests.cluster.losses``), and when it fails the run."""

from __future__ import annotations

import logging
import time

import pytest
from tests.cluster.losses import Fault, GivenUp, Line, Loss, Losses, Memory, lines_of
from tests.cluster.real import AwayError, complaints_in

from starlingmq.core.context.ready import Notice
from starlingmq.node.connection_log import NoticeLog
from starlingmq.wire.mqtt import Ack, Publish
from starlingmq.wire.packets import PUBACK, PUBREL

KILLED: Fault = (100.0, 105.0, "kill a node", "n1")


def judged(before: str, owners: tuple[str, ...], *faults: Fault, at: float = 106.0) -> Losses:
    losses = Losses(faults)
    losses.judge([Loss(at, "c", "n2", before)], {"n2": [Line(at - 0.2, "c", owners)]})
    return losses


def test_a_loss_after_its_node_was_killed_is_counted_as_that() -> None:
    losses = judged("", ("n1",), KILLED)
    assert losses.counts == {"its node could not be reached: kill a node": 1} and not losses.wrong


def test_a_fault_of_another_node_or_of_another_time_explains_nothing() -> None:
    assert judged("", ("n3",), KILLED).counts == {"its node could be reached": 1}
    assert judged("", ("n1",), KILLED, at=130.0).counts == {"its node could be reached": 1}


def test_a_loss_that_is_told_again_to_a_client_that_was_answered_is_wrong() -> None:
    assert judged("answered since", ()).wrong
    assert judged("answered since", (), KILLED, at=103.0).wrong, "what the client knows was stored before its answer"
    assert not judged("it had sent nothing", ()).wrong


def test_a_client_that_left_before_it_read_of_a_later_loss_may_be_told_again() -> None:
    for at, excused in ((99.0, False), (105.5, True), (106.5, False)):
        losses = Losses(())
        loss = Loss(106.0, "c", "n2", "answered since", 100.0)
        losses.judge([loss], {"n1": [Line(at, "c", ("n3",))], "n2": [Line(105.8, "c", ())]})
        assert bool(losses.wrong) is not excused, at
        losses = Losses(())
        losses.judge([loss], {"n1": [Line(at, "another", ("n3",))], "n2": [Line(105.8, "c", ())]})
        assert losses.wrong, "another client's loss explains nothing"


def test_a_loss_without_a_line_in_the_log_of_its_node_is_wrong() -> None:
    losses = Losses([KILLED])
    losses.judge([Loss(106.0, "c", "n2", "")], {"n2": [Line(106.0, "another", ("n1",)), Line(60.0, "c", ("n1",))]})
    assert losses.wrong


def test_only_an_answer_shows_that_the_node_has_read_something() -> None:
    memory = Memory()
    assert memory.accepted(False) == ""
    assert memory.accepted(False) == "it had sent nothing"
    memory.sends()
    memory.hears(Publish(b"t", b"x"))
    memory.hears(Ack(PUBREL, 1))
    assert memory.accepted(False) == "it had sent something"
    memory.sends()
    memory.hears(Ack(PUBACK, 1))
    assert memory.accepted(True) == "answered since"
    assert memory.accepted(False) == "", "it has gone on in a session since"


def test_the_lines_of_the_log_are_read_as_the_broker_writes_them(caplog: pytest.LogCaptureFixture) -> None:
    notices = NoticeLog(0, time.monotonic, lambda delay, call: pytest.fail("nothing is left out"))
    details = (
        "node n1 may have its session and is not connected; bring it back",
        "node n1 or n3 may have its session and is not connected; bring it back",
        "its session was lost before, and it",
    )
    with caplog.at_level(logging.INFO):
        for detail in details:
            notices.add(Notice("session_lost", "c", "127.0.0.1:1", detail, False))
        notices.add(Notice("session_lost", "c", "no connection", details[0], False))
        notices.add(Notice("session_taken_over", "c", "127.0.0.1:1", "another connection"))
    log = "\n".join(f"2026-11-22 13:41:19,862 WARNING {record.getMessage()}" for record in caplog.records)
    assert [(line.client, line.owners) for line in lines_of(log)] == [
        ("c", ("n1",)),
        ("c", ("n1", "n3")),
        ("c", ()),
        ("c", ("n1",)),
    ]


class FakeNode:
    name, frozen, runs = "n1", False, True

    class process:
        pid = 1

    def __init__(self) -> None:
        self.count = 0
        self.away = False

    def status(self) -> dict[str, dict[str, int]]:
        if self.away:
            raise AwayError("away")
        return {"sessions": {"unsettled_qos2": self.count}}


def test_losses_of_earlier_incarnations_still_count(monkeypatch: pytest.MonkeyPatch) -> None:
    node, given_up = FakeNode(), GivenUp()
    node.count = 3
    given_up.ask(node)  # type: ignore[arg-type]
    node.away = True
    given_up.ask(node)  # type: ignore[arg-type]
    assert given_up.total == 3
    monkeypatch.setattr(node.process, "pid", 2)
    node.away, node.count = False, 2
    given_up.ask(node)  # type: ignore[arg-type]
    assert given_up.total == 5


def test_a_traceback_is_one_complaint_with_its_error() -> None:
    log = """2026-11-23 07:00:00,000 ERROR   a turn failed
Traceback (most recent call last):
  File "a.py", line 1, in turn
    raise ValueError
ValueError: 7
2026-11-23 07:00:01,000 INFO    serving
2026-11-23 07:00:02,000 CRITICAL gone"""
    first, second = complaints_in(log)
    assert "a turn failed" in first and first.endswith("ValueError: 7")
    assert second.endswith("gone")
