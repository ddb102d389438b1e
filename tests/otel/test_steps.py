"""A node's part in a message, as spans: each follows on the right one, at every node."""

from __future__ import annotations

from starlingmq.core.observe.event_lines import Event
from starlingmq.otel import steps as module
from starlingmq.otel.steps import Step, Steps

OWN = "n1:7~"
FOREIGN = "n1:8~" + "S_kvNXezTaajzpKdDg5HNg" + "APBnqgupArc"  # of the example in W3C Trace Context


def event(kind: str, id: str, client: str, at: float = 1.0, **more: object) -> tuple[str, Event]:
    return kind, {"n": int(at * 1000), "at": at, "id": id, "client": client, "topic": "a/b", "qos": 1, **more}


def told(steps: Steps, number: int, *events: tuple[str, Event]) -> list[Step]:
    found = [steps.of(kind, one, number) for kind, one in events]
    return [step for step in found if step is not None]


def test_a_message_from_who_publishes_to_who_acknowledges() -> None:
    accept, deliver, acknowledge = told(
        Steps("n1"),
        1,
        event("accepted", OWN, "author", 1.0, size=3, retain=True),
        event("due", OWN, "reader", 1.0, kept=True),
        event("delivered", OWN, "reader", 1.5, dup=False),
        event("acknowledged", OWN, "reader", 1.75),
    )
    assert [(step.name, step.kind) for step in (accept, deliver, acknowledge)] == [
        ("accept", "server"),
        ("deliver", "producer"),
        ("acknowledge", "internal"),
    ]
    assert accept.parent == 0 and deliver.parent == accept.span and acknowledge.parent == deliver.span
    assert accept.trace == deliver.trace == acknowledge.trace != 0
    assert len({accept.span, deliver.span, acknowledge.span}) == 3
    assert (deliver.start, deliver.end, acknowledge.start, acknowledge.end) == (1.0, 1.5, 1.5, 1.75)
    assert accept.attributes == {
        "messaging.system": "starlingmq",
        "messaging.operation.name": "accept",
        "messaging.destination.name": "a/b",
        "messaging.message.id": OWN,
        "messaging.client.id": "author",
        "messaging.message.body.size": 3,
        "starlingmq.qos": 1,
        "starlingmq.retain": True,
    }


def test_the_trace_of_an_application_goes_on_over_two_nodes_that_know_nothing_of_each_other() -> None:
    accept, forward = told(
        Steps("n1"), 1, event("accepted", FOREIGN, "author"), event("due", FOREIGN, "$node/2", 1.0, kept=True)
    )
    arrive, deliver = told(
        Steps("n2"),
        2,
        event("delivered", FOREIGN, "$node/2", 2.0, dup=False),
        event("due", FOREIGN, "reader", 2.0),
        event("delivered", FOREIGN, "reader", 2.0, dup=False),
    )
    assert f"{accept.parent:016x}" == "00f067aa0ba902b7" and accept.remote
    assert forward.parent == accept.span and arrive.parent == forward.span and arrive.remote
    assert deliver.parent == arrive.span
    assert {step.trace for step in (accept, forward, arrive, deliver)} == {0x4BF92F3577B34DA6A3CE929D0E0E4736}
    assert forward.attributes["starlingmq.peer"] == "2"


def test_a_node_that_was_started_anew_follows_on_how_it_came_in() -> None:
    (accept,) = told(Steps("n1"), 1, event("accepted", OWN, "author"))
    (deliver,) = told(Steps("n2"), 2, event("delivered", OWN, "reader", 9.0, dup=True))
    assert deliver.parent == accept.span and deliver.start == deliver.end and deliver.attributes["starlingmq.dup"]


def test_queued_group_messages_and_drops_have_spans() -> None:
    _, queue, deliver, drop, refuse = told(
        Steps("n1"),
        1,
        event("accepted", OWN, "author"),
        event("due", OWN, "$group/workers/jobs", 1.0),
        event("delivered", OWN, "$group/workers/jobs", 3.0, dup=False),
        event("due", OWN, "one", 3.0),
        event("delivered", OWN, "one", 3.0, dup=False),
        event("due", OWN, "two", 3.0),
        event("dropped", OWN, "two", 4.0, reason="queue_full"),
        event("refused", OWN, "author", 4.0, reason="expired"),
    )
    assert (queue.name, queue.start, queue.end) == ("queue", 1.0, 3.0)
    assert queue.attributes["messaging.consumer.group.name"] == "workers/jobs"
    assert deliver.error == "" and (drop.name, drop.error, drop.start) == ("drop", "queue_full", 3.0)
    assert (refuse.name, refuse.error) == ("refuse", "expired")


def test_remembered_steps_are_bounded() -> None:
    steps = Steps("n1")
    for number in range(module.REMEMBERED_MAX + 5):
        told(steps, 1, event("accepted", f"n1:{number}~", "author"), event("due", f"n1:{number}~", "reader"))
    assert len(steps._due) == len(steps._entries) == module.REMEMBERED_MAX
