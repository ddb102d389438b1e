"""Decodes Sparkplug B: one row for each metric of a payload.

    spBv1.0/GROUP/TYPE/EDGE_NODE[/DEVICE]   Protobuf
    spBv1.0/STATE/HOST                      JSON: {"online": true, "timestamp": 1700000000000}; here a metric "online"

The schema is that of Eclipse Tahu, as far as columns need it; data sets, templates, metadata and properties are left
out. A metric of DDATA or NDATA may have an alias instead of a name: ``sparkplug_state`` adds the names.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from starlingmq.spark.binary_payloads import by_arrow, reason
from starlingmq.spark.payloads import MALFORMED
from starlingmq.spark.value_rules import MICROS_END, RANGE

NAMESPACE: Final = "spBv1.0"
STATE: Final = "STATE"
OF_NODES: Final = ("NBIRTH", "NDEATH", "NDATA", "NCMD")
OF_DEVICES: Final = ("DBIRTH", "DDEATH", "DDATA", "DCMD")
STRANGE: Final = (
    f"the topic is not one of Sparkplug B: {NAMESPACE}/GROUP/TYPE/EDGE_NODE[/DEVICE], {NAMESPACE}/STATE/HOST"
)
VALUE: Final = "value"  # the oneof of the fields whose names end with it
METRIC: Final = (
    StructType()
    .add("metric", "string")
    .add("alias", "long")
    .add("metric_timestamp", "timestamp")
    .add("datatype", "string")
    .add("is_historical", "boolean")
    .add("is_null", "boolean")
    .add("number", "double")
    .add("integer", "long")
    .add("flag", "boolean")
    .add("text", "string")
    .add("bytes", "binary")
)
METRIC_NAMES: Final = tuple(METRIC.fieldNames())
MetricRow = tuple[Any, ...]  # values of these columns
PAYLOAD: Final = StructType().add("sent", "timestamp").add("seq", "long").add("metrics", ArrayType(METRIC))
DECODED: Final = StructType([StructField(VALUE, PAYLOAD), StructField(MALFORMED, StringType())])
DATATYPES: Final = (
    "Unknown",
    *("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float", "Double", "Boolean", "String"),
    *("DateTime", "Text", "UUID", "DataSet", "Bytes", "File", "Template"),
)
SIGNED_BITS: Final = {1: 8, 2: 16, 3: 32, 4: 64}  # by datatype: sent as unsigned numbers in two's complement
LONG_MAX: Final = (1 << 63) - 1
# name, number, type and label of the fields (descriptor.proto)
OPTIONAL, REPEATED = 1, 3
UINT64, UINT32, FLOAT, DOUBLE, BOOL, STRING, BYTES, MESSAGE = 4, 13, 2, 1, 8, 9, 12, 11
METRIC_FIELDS: Final = (
    ("name", 1, STRING),
    ("alias", 2, UINT64),
    ("timestamp", 3, UINT64),
    ("datatype", 4, UINT32),
    ("is_historical", 5, BOOL),
    ("is_null", 7, BOOL),
    ("int_value", 10, UINT32),
    ("long_value", 11, UINT64),
    ("float_value", 12, FLOAT),
    ("double_value", 13, DOUBLE),
    ("boolean_value", 14, BOOL),
    ("string_value", 15, STRING),
    ("bytes_value", 16, BYTES),
)
PAYLOAD_FIELDS: Final = (("timestamp", 1, UINT64), ("seq", 3, UINT64), ("uuid", 4, STRING), ("body", 5, BYTES))


@cache
def payload_class() -> Any:
    """Return the Protobuf class of a payload."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="sparkplug_b.proto", package="starlingmq.sparkplug", syntax="proto2")
    for name, fields in (("Metric", METRIC_FIELDS), ("Payload", PAYLOAD_FIELDS)):
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            made = message.field.add(name=field, number=number, type=kind, label=OPTIONAL)
            if field.endswith(f"_{VALUE}"):
                made.oneof_index = 0
    file.message_type[0].oneof_decl.add(name=VALUE)
    metrics = file.message_type[1].field.add(name="metrics", number=2, type=MESSAGE, label=REPEATED)
    metrics.type_name = ".starlingmq.sparkplug.Metric"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("starlingmq.sparkplug.Payload"))


class HostState(msgspec.Struct, frozen=True):
    """The payload of a STATE message."""

    online: bool
    timestamp: int


def decode_sparkplug(rows: DataFrame) -> DataFrame:
    """Return a row for each metric, with the columns of ``METRIC``; ``group``, ``message_type``, ``edge_node``,
    ``device``, ``host`` of the topic; ``sent`` and ``seq`` of the payload; and the columns of the source except the
    payload. A payload without metrics has one row. A row whose payload cannot be decoded, or whose topic is not one of
    Sparkplug B, has the reason in ``_malformed``.
    """
    found = rows.withColumn("_decoded", by_arrow(decoded_payloads, DECODED, "payload", "topic"))
    found = found.withColumn("_metric", F.explode_outer("_decoded.value.metrics"))
    level = F.split("topic", "/")
    of_state = F.get(level, F.lit(1)) == STATE
    ours = F.get(level, F.lit(0)) == NAMESPACE
    type_level = F.when(of_state, F.lit(STATE)).otherwise(F.get(level, F.lit(2)))
    columns = [F.when(ours, type_level).alias("message_type")]
    columns += [
        F.when(ours & ~of_state, F.get(level, F.lit(index))).alias(name)
        for name, index in {"group": 1, "edge_node": 3, "device": 4}.items()
    ]
    columns += [F.when(ours & of_state, F.get(level, F.lit(2))).alias("host")]
    columns += [F.col("_decoded.value.sent"), F.col("_decoded.value.seq")]
    columns += [F.col(f"_metric.{name}") for name in METRIC.fieldNames()]
    kept = [F.col(name) for name in rows.columns if name != "payload"]
    return found.select(*columns, *kept, F.col(f"_decoded.{MALFORMED}").alias(MALFORMED))


def decoded_payloads(payloads: pa.Array, topics: pa.Array) -> pa.Array:
    """Return an array of ``DECODED``, built column by column rather than with a map for each metric."""
    found = DecodedColumns()
    for payload, topic in zip(payloads.to_pylist(), topics.to_pylist(), strict=True):
        try:
            sent, seq, metrics = _decoded(payload, topic.split("/"))
        except StrangeTopic as error:
            found.add_reason(str(error))
        except Exception as error:  # DecodeError, and times beyond those of Arrow
            found.add_reason(reason(error))
        else:
            found.add(sent, seq, metrics)
    return found.array()


class DecodedColumns:
    def __init__(self) -> None:
        self._sent: list[int | None] = []
        self._seq: list[int | None] = []
        self._metrics: list[MetricRow] = []
        self._ends: list[int] = [0]
        self._reasons: list[str | None] = []

    def add(self, sent: int | None, seq: int | None, metrics: list[MetricRow]) -> None:
        self._sent.append(sent)
        self._seq.append(seq)
        self._metrics += metrics
        self._ends.append(len(self._metrics))
        self._reasons.append(None)

    def add_reason(self, why: str) -> None:
        self.add(None, None, [])
        self._reasons[-1] = why

    def array(self) -> pa.Array:
        payload = to_arrow_type(PAYLOAD, timezone="UTC")
        metrics = payload.field("metrics").type
        metric = metrics.value_type
        columns = zip(*self._metrics, strict=True) if self._metrics else [()] * len(METRIC)
        values = [pa.array(column, field.type) for column, field in zip(columns, metric, strict=True)]
        rows = pa.StructArray.from_arrays(values, fields=list(metric))
        lists = pa.ListArray.from_arrays(pa.array(self._ends, pa.int32()), rows, type=metrics)
        reasons = pa.array(self._reasons, pa.string())
        parts = [
            pa.array(self._sent, payload.field("sent").type),
            pa.array(self._seq, payload.field("seq").type),
            lists,
        ]
        value = pa.StructArray.from_arrays(parts, fields=list(payload), mask=reasons.is_valid())
        return pa.StructArray.from_arrays([value, reasons], [VALUE, MALFORMED])


class StrangeTopic(ValueError):
    """The topic is not one of Sparkplug B."""


def _decoded(payload: bytes, levels: list[str]) -> tuple[int | None, int | None, list[MetricRow]]:
    """Return sent, seq and metrics. Raises StrangeTopic, and other errors for a payload that is not of the kind of its
    topic.
    """
    if levels[:2] == [NAMESPACE, STATE] and len(levels) == 3:
        state = msgspec.json.decode(payload, type=HostState)
        return _time(state.timestamp), None, [_online(state)]
    if not of_edge_node(levels):
        raise StrangeTopic(STRANGE)
    message = payload_class().FromString(payload)
    metrics = [metric_row(metric, metric.name, metric.datatype) for metric in message.metrics]
    return _sent(message), _seq(message), metrics


def of_edge_node(levels: Sequence[str]) -> bool:
    """Whether the levels of a topic are those of an edge node or device."""
    kinds = {4: OF_NODES, 5: OF_DEVICES}.get(len(levels), ())
    return levels[0] == NAMESPACE and len(levels) > 2 and levels[2] in kinds


def _online(state: HostState) -> MetricRow:
    """The metric of a STATE message."""
    return ("online", None, None, "Boolean", False, False, None, None, state.online, None, None)


def host_columns(payload: bytes) -> dict[str, Any]:
    """Return the columns of a STATE message."""
    state = msgspec.json.decode(payload, type=HostState)
    online = dict(zip(METRIC_NAMES, _online(state), strict=True))
    return {"sent": _time(state.timestamp), "seq": None, "metrics": [online]}


def payload_columns(message: Any) -> dict[str, Any]:
    return {"sent": _sent(message), "seq": _seq(message)}


def metric_columns(metric: Any, name: str, datatype: int) -> dict[str, Any]:
    return dict(zip(METRIC_NAMES, metric_row(metric, name, datatype), strict=True))


def metric_row(metric: Any, name: str, datatype: int) -> MetricRow:
    """Return the columns ``METRIC`` of a metric of this name and datatype. A whole number is in two of them."""
    number: float | None = None
    integer: int | None = None
    flag: bool | None = None
    text: str | None = None
    data: bytes | None = None
    is_null = metric.is_null
    kind = None if is_null else metric.WhichOneof(VALUE)
    if kind:
        value = getattr(metric, kind)
        if kind in ("int_value", "long_value"):
            bits = SIGNED_BITS.get(datatype, 0)
            if bits and value & (1 << (bits - 1)):
                value = (value & ((1 << bits) - 1)) - (1 << bits)
            number, integer = float(value), value if value <= LONG_MAX else None
        elif kind in ("float_value", "double_value"):
            number = value
        elif kind == "boolean_value":
            flag = value
        elif kind == "string_value":
            text = value
        else:
            data = value
    return (
        name or None,
        _long(metric.alias) if metric.HasField("alias") else None,
        _time(metric.timestamp) if metric.HasField("timestamp") else None,
        DATATYPES[datatype] if datatype < len(DATATYPES) else str(datatype),
        metric.is_historical,
        is_null,
        number,
        integer,
        flag,
        text,
        data,
    )


def _sent(message: Any) -> int | None:
    return _time(message.timestamp) if message.HasField("timestamp") else None


def _seq(message: Any) -> int | None:
    return _long(message.seq) if message.HasField("seq") else None


def _time(milliseconds: int) -> int:
    """Milliseconds on the wire, microseconds in Arrow."""
    if not 0 <= milliseconds * 1000 < MICROS_END:
        raise ValueError(f"the time {milliseconds} ms is {RANGE}")
    return milliseconds * 1000


def _long(value: int) -> int:
    if value > LONG_MAX:
        raise ValueError(f"{value} does not fit bigint")
    return value
