"""Sessions, groups and queues that read a stream, over crashes that also tear appends; and mistakes that this finds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from tests.core.streams.reader_worlds import GROUP, KINDS, QUEUE, READER, run
from tests.few import drawn, few
from tests.planting import FAILURES, Plant, around, first_to_find

from starlingmq.core.jetstream.stream_readers import MqttReaders
from starlingmq.core.jetstream.work_queues import WorkQueues
from starlingmq.core.messages.message import Message
from starlingmq.core.streams.feeder import Feeder

SEEDS_MAX = 40


@drawn(4, 200)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.timeout(1800)
def test_each_message_arrives_whatever_happens(kind: str, examples: int) -> None:
    for seed in range(examples):
        try:
            run(seed, kind)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


def _beside_the_message(sound: object, self: MqttReaders, feeder: Feeder, message: Message, stored: bool) -> None:
    feeder.moved = stored  # in another record of the turn


def _not_at_all(sound: object, self: MqttReaders, feeder: Feeder, message: Message, stored: bool) -> None:
    pass


def _one_too_far(sound: object, self: Feeder) -> bytes:
    return b"%d %d" % (self.stream.number, self.next + 1)


def _no_answer(sound: object, self: WorkQueues, queue: object, seq: int, kind: int) -> None:
    pass


BESIDE = partial(around, MqttReaders, "_store_position", _beside_the_message)
NOT_AT_ALL = partial(around, MqttReaders, "_store_position", _not_at_all)
TOO_FAR = partial(around, Feeder, "value", _one_too_far)
MISTAKES: dict[str, tuple[Callable[[], Plant], str]] = {
    "a session's position in another record": (BESIDE, READER),
    "a group's position in another record": (BESIDE, GROUP),
    "no position of a session": (NOT_AT_ALL, READER),
    "no position of a group": (NOT_AT_ALL, GROUP),
    "a session's position one too far": (TOO_FAR, READER),
    "a group's position one too far": (TOO_FAR, GROUP),
    "no acknowledgement in a queue": (partial(around, WorkQueues, "_answer", _no_answer), QUEUE),
}


@pytest.mark.interpreted_only("what is compiled cannot be patched")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", few(MISTAKES, "a session's position one too far", "no acknowledgement in a queue"))
def test_each_mistake_is_found(name: str) -> None:
    plant, kind = MISTAKES[name]
    found = first_to_find(range(SEEDS_MAX), plant, partial(run, kind=kind), FAILURES)
    assert found >= 0, f"no seed below {SEEDS_MAX} finds it"
