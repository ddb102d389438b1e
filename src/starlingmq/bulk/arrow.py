"""Columns as an Arrow batch, without copying their buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa  # type: ignore[import-untyped]
from librt.strings import BytesWriter

from starlingmq.bulk.columns import Columns, Texts
from starlingmq.bulk.protocol import SCHEMA, schema_of


def batch_of(columns: Columns, node: str, names: Sequence[str] = ()) -> pa.RecordBatch:
    """``names``: of the columns that are wanted; none: all."""
    rows = columns.count

    def properties() -> pa.Array:
        kind = SCHEMA.field("properties").type
        pairs = [_texts(texts, columns.properties, pa.string()) for texts in (columns.names, columns.values)]
        children = [pa.StructArray.from_arrays(pairs, fields=list(kind.value_type))]
        return pa.Array.from_buffers(kind, rows, [None, _buffer(columns.property_ends)], children=children)

    makers: dict[str, Callable[[], pa.Array]] = {
        "topic": lambda: _texts(columns.topics, rows, pa.string()),
        "payload": lambda: _texts(columns.payloads, rows, pa.binary()),
        "qos": lambda: _numbers(columns.qos, rows, pa.int8()),
        "retain": lambda: _numbers(columns.retain, rows, pa.uint8()).cast(pa.bool_()),
        "client_id": lambda: _texts(columns.clients, rows, pa.string()),
        "properties": properties,
        "timestamp": lambda: _numbers(columns.times, rows, SCHEMA.field("timestamp").type),
        "node": lambda: pa.repeat(pa.scalar(node, pa.string()), rows),
        "offset": lambda: _numbers(columns.offsets, rows, pa.int64()),
    }
    return pa.RecordBatch.from_arrays([makers[name]() for name in names or SCHEMA.names], schema=schema_of(names))


def _buffer(column: BytesWriter) -> pa.Buffer:
    return pa.py_buffer(column.getvalue())


def _texts(column: Texts, rows: int, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, _buffer(column.ends), _buffer(column.data)])


def _numbers(column: BytesWriter, rows: int, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, _buffer(column)])
