"""The cost of one request."""

from __future__ import annotations

from typing import Any

import pytest
from tests.jetstream.fake_hub import ApiAlone

from starlingmq.jetstream.api import changes


def test_filters_of_consumers_are_compared_up_to_a_number_of_pairs() -> None:
    alone = ApiAlone()
    assert "error" not in alone.ask("STREAM.CREATE.Q", {"name": "Q", "subjects": ["q.>"], "retention": "workqueue"})

    def make(name: str, count: int) -> dict[str, Any]:
        subjects = [f"q.{name}.{each}" for each in range(count)]
        config = {"durable_name": name, "ack_policy": "explicit", "filter_subjects": subjects}
        made: dict[str, Any] = alone.ask(f"CONSUMER.DURABLE.CREATE.Q.{name}", {"stream_name": "Q", "config": config})
        return made

    assert "error" not in make("a", 500)
    assert make("b", 500)["error"]["err_code"] == 10023
    assert "error" not in make("c", 300)


def test_a_request_names_a_bounded_number_of_subjects_whose_last_messages_it_wants() -> None:
    alone = ApiAlone()
    assert "error" not in alone.ask("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "allow_direct": True})
    alone.hub.streams["S"].add(b"s/1", b"text")
    subjects = [f"s.{each}" for each in range(1024)]
    answer, request = alone.request("DIRECT.GET.S", {"multi_last": subjects})
    assert answer is None and len(request.sent) == 2
    answer, request = alone.request("DIRECT.GET.S", {"multi_last": [*subjects, "s.*"]})
    assert answer is None and request.sent[0][0].startswith(b"NATS/1.0 413 ")


@pytest.mark.parametrize("subject", ["STREAM.CREATE.S", "STREAM.PURGE.S", "CONSUMER.CREATE.S.c", "STREAM.MSG.DELETE.S"])
def test_an_answer_that_tells_of_a_change_waits_for_the_store(subject: str) -> None:
    assert changes(f"$JS.API.{subject}")


@pytest.mark.parametrize("subject", ["INFO", "STREAM.INFO.S", "STREAM.NAMES", "CONSUMER.LIST.S", "STREAM.MSG.GET.S"])
def test_other_answers_come_while_a_disk_is_full(subject: str) -> None:
    """Those that wait for the store end the connection then."""
    assert not changes(f"$JS.API.{subject}")
