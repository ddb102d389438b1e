"""Sinks into tables and topics, as far as they need no server; tests/lake has the others."""

from __future__ import annotations

import pytest

from starlingmq.pipeline.config import SinkConfig
from starlingmq.pipeline.jdbc import beside, newer_or_equal
from starlingmq.pipeline.kafka import Begun, DeletedMessages, KafkaTopics, Offsets
from starlingmq.pipeline.run import error_line

NAME_BYTES_MAX = 63  # of PostgreSQL, which cuts longer names
LONG = "n" * 62


@pytest.mark.parametrize(
    ("table", "schema"),
    [
        ("readings", ""),
        (LONG, ""),
        (f"plant.{LONG}", "plant."),
        ('"Plant.A"."My ""Table"""', '"Plant.A".'),
        ('"a.b"', ""),
    ],
)
def test_a_staging_table_is_in_the_schema_of_its_table_with_a_name_that_is_not_cut(table: str, schema: str) -> None:
    stage = beside(table, "query")
    assert stage.startswith(f"{schema}starlingmq_")
    assert len(stage.removeprefix(schema)) <= NAME_BYTES_MAX
    assert len({stage, beside(table, "another"), beside(f"{table}2", "query")}) == 3


def test_a_row_that_is_not_older_replaces_another() -> None:
    assert newer_or_equal(["at"], "t") == (
        '((EXCLUDED."at" IS NOT NULL AND (t."at" IS NULL OR EXCLUDED."at" > t."at")) '
        'OR (EXCLUDED."at" IS NOT DISTINCT FROM t."at" AND TRUE))'
    )


@pytest.mark.parametrize(("start", "refused"), [(0, False), (3, False), (4, True)])
def test_a_batch_whose_messages_may_have_been_deleted_is_refused(
    start: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention has deleted the messages below ``start``; the batch began at 3."""
    topics = KafkaTopics(SinkConfig(format="kafka"), "none")
    monkeypatch.setattr(topics, "_offsets", lambda spark, topic: Offsets({"0": start}, {"0": 9}))
    begun = Begun(7, {"out": {"0": 3}})
    error: type[Exception] = DeletedMessages
    text = "topic out, partition 0: messages from offset 3 on were deleted before batch 7"
    if not refused:  # it goes on to Spark, which is not here
        error, text = AttributeError, "'NoneType' object has no attribute 'read'"
    with pytest.raises(error, match=text):
        topics._published(None, begun, "")  # type: ignore[arg-type]


def test_an_error_of_a_sink_is_its_line() -> None:
    told = "Traceback\n  x\nstarlingmq.pipeline.kafka.DeletedMessages: topic out is short\n\nJVM stacktrace: y"
    assert error_line(Exception(told)) == "topic out is short"
