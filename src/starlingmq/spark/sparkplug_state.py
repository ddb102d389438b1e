"""Sparkplug B with a state for each edge node, which Spark keeps across batches and restarts (``transformWithState``).

    aliases   a row for each metric, as ``decode_sparkplug`` gives, with the name and datatype of its birth and ``gap``
    nodes     a row for each node and device whose state a batch may have changed: its state after the batch

The rules are in ``sparkplug_sessions``. An edge node is a key of the state, so one task has all its rows of a batch,
and sorts them. A payload that cannot be decoded, and a metric whose alias is unknown, have the reason in
``_malformed``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from starlingmq.spark.binary_payloads import reason
from starlingmq.spark.payloads import MALFORMED, WHOLE
from starlingmq.spark.sparkplug import (
    METRIC,
    NAMESPACE,
    STATE,
    STRANGE,
    host_columns,
    metric_columns,
    of_edge_node,
    payload_class,
    payload_columns,
)
from starlingmq.spark.sparkplug_sessions import (
    BD_SEQ,
    NODE,
    Applied,
    EdgeMessage,
    EdgeNode,
    MetricKey,
    in_order,
)
from starlingmq.spark.state_store import use_rocksdb

SparkplugState = Literal["none", "aliases", "nodes"]
KEY: Final = "_edge_node"
AT: Final = "at"
TOPIC: Final = (
    StructType()
    .add("message_type", "string")
    .add("group", "string")
    .add("edge_node", "string")
    .add("device", "string")
    .add("host", "string")
    .add("sent", "timestamp")
    .add("seq", "long")
)
NODES: Final = (
    StructType()
    .add("group", "string")
    .add("edge_node", "string")
    .add("device", "string")
    .add("online", "boolean")
    .add("since", "timestamp")
    .add("born", "timestamp")
    .add("metrics", "integer")
    .add("unresolved", "long")
    .add("gaps", "long")
    .add("missing", "long")
    .add("bd_seq", "long")
    .add("seen", "timestamp")
    .add("messages", "long")
)


def decode_sparkplug_with_state(rows: DataFrame, state: SparkplugState, mode: str = "append") -> DataFrame:
    """Return the rows that ``state`` names. The columns of the source except the payload follow those of a metric; the
    rows of ``nodes`` have none of them. ``rows`` needs ``topic``, ``payload``, ``timestamp``, ``node`` and ``offset``.
    """
    use_rocksdb(rows.sparkSession)
    kept = [field for field in rows.schema.fields if field.name != "payload"]
    if state == "nodes":
        fields = [*NODES.fields, *(field for field in kept if field.name == WHOLE)]
    else:
        fields = [*TOPIC.fields, *METRIC.fields, StructField("gap", IntegerType()), *kept]
    nullable = [StructField(field.name, field.dataType) for field in (*fields, StructField(MALFORMED, StringType()))]
    level = F.split("topic", "/")
    of_edge = (F.get(level, F.lit(0)) == NAMESPACE) & (F.get(level, F.lit(1)) != STATE) & (F.size(level) > 3)
    edge = F.concat_ws("/", F.get(level, F.lit(1)), F.get(level, F.lit(3)))
    keyed: Any = rows.withColumns(
        {KEY: F.when(of_edge, edge).otherwise(F.col("topic")), AT: F.unix_micros("timestamp")}
    )
    found: DataFrame = keyed.groupBy(KEY).transformWithState(
        statefulProcessor=EdgeNodeProcessor(state, [field.name for field in kept]),
        outputStructType=StructType(nullable),
        outputMode=mode.capitalize(),
        timeMode="none",
    )
    return found


class EdgeNodeProcessor(StatefulProcessor):
    def __init__(self, state: SparkplugState, kept: list[str]) -> None:
        self._of_nodes = state == "nodes"
        self._kept = kept

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._stored = handle.getValueState("edge_node", "body binary")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Any]:
        found = self._stored.get()
        edge = EdgeNode() if found is None else msgspec.msgpack.decode(bytes(found[0]), type=EdgeNode)
        changed: set[str] = set()
        messages = edge.messages
        levels: list[str] = []
        for row in in_order(rows):
            levels = row.topic.split("/")
            try:
                decoded = list(self._decoded(edge, row, levels, changed))
            except Exception as error:  # DecodeError, and times beyond those of Spark
                decoded = [self._strange(row, {}, reason(error))]
            for columns in decoded:
                yield Row(**columns)
        if self._of_nodes:
            for device in sorted(changed & edge.states.keys()):
                yield Row(**node_columns(edge, levels[1], levels[3], device))
        if edge.messages > messages:
            self._stored.update((msgspec.msgpack.encode(edge),))

    def _decoded(self, edge: EdgeNode, row: Any, levels: list[str], changed: set[str]) -> Iterator[dict[str, Any]]:
        if levels[:2] == [NAMESPACE, STATE] and len(levels) == 3:
            found = host_columns(row.payload)
            if not self._of_nodes:
                (metric,) = found.pop("metrics")
                yield found | metric | {"message_type": STATE, "host": levels[2]} | self._source(row)
            return
        if not of_edge_node(levels):
            yield self._strange(row, {}, STRANGE)
            return
        payload = payload_class().FromString(row.payload)
        payload_part = payload_columns(payload)
        applied = edge.apply(edge_message(payload, payload_part["seq"], levels, row))
        changed |= applied.changed
        if not self._of_nodes:
            of_topic = {
                "message_type": levels[2],
                "group": levels[1],
                "edge_node": levels[3],
                "device": _device(levels),
            }
            yield from self._metrics(row, payload, of_topic | payload_part | {"gap": applied.gap}, applied)

    def _metrics(self, row: Any, payload: Any, message: dict[str, Any], applied: Applied) -> Iterator[dict[str, Any]]:
        """A message has one row as a dead letter, with its first reason."""
        if not payload.metrics:
            yield message | self._source(row)
        unknown = [metric.reason for metric in applied.metrics if metric.reason]
        told = False
        for metric, named in zip(payload.metrics, applied.metrics, strict=True):
            columns = message | metric_columns(metric, named.name, named.datatype)
            if not named.reason:
                yield columns | self._source(row)
            elif told:
                yield columns | self._source(row) | {MALFORMED: named.reason}
            else:
                more = f" ({len(unknown)} such metrics in this message)" if len(unknown) > 1 else ""
                yield self._strange(row, columns, named.reason + more)
                told = True

    def _strange(self, row: Any, columns: dict[str, Any], why: str) -> dict[str, Any]:
        whole = {WHOLE: row[WHOLE]} if WHOLE in self._kept else {}
        return columns | self._source(row) | whole | {MALFORMED: why}

    def _source(self, row: Any) -> dict[str, Any]:
        if self._of_nodes:
            return {}
        return {name: row[name] for name in self._kept if name != WHOLE}


def edge_message(payload: Any, seq: int | None, levels: list[str], row: Any) -> EdgeMessage:
    """The metrics of a payload, without their values."""
    bd_seq = next((metric.long_value or metric.int_value for metric in payload.metrics if metric.name == BD_SEQ), None)
    return EdgeMessage(
        kind=levels[2],
        device=_device(levels) or NODE,
        node=row.node,
        at=row.at,
        seq=seq,
        bd_seq=bd_seq,
        metrics=tuple(
            MetricKey(metric.name, metric.alias if metric.HasField("alias") else None, metric.datatype)
            for metric in payload.metrics
        ),
    )


def node_columns(edge: EdgeNode, group: str, name: str, device: str) -> dict[str, Any]:
    """Return the columns ``NODES`` of an edge node, or of one of its devices. ``seq`` is of the edge node."""
    state = edge.states[device]
    session = edge.current
    found = {
        "group": group,
        "edge_node": name,
        "device": device,
        "online": state.online,
        "since": state.since if state.since >= 0 else None,
        "born": state.born if state.born >= 0 else None,
        "metrics": state.metrics if state.born >= 0 else None,
        "unresolved": state.unresolved,
        "seen": edge.seen,
        "messages": edge.messages,
    }
    if device == NODE:
        found |= {"gaps": edge.gaps, "missing": edge.missing, "bd_seq": session.bd_seq if session else None}
    return found


def _device(levels: list[str]) -> str | None:
    return levels[4] if len(levels) == 5 else None
