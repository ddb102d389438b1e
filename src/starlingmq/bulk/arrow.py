"""Columns as an Arrow batch, without copying their buffers."""

from __future__ import annotations

import pyarrow as pa  # type: ignore[import-untyped]
from librt.strings import BytesWriter

from starlingmq.bulk.columns import Columns, Texts
from starlingmq.bulk.protocol import SCHEMA


def batch_of(columns: Columns, node: str) -> pa.RecordBatch:
    rows = columns.count
    names = _texts(columns.names, columns.properties, pa.string())
    values = _texts(columns.values, columns.properties, pa.string())
    properties = SCHEMA.field("properties").type
    pairs = pa.StructArray.from_arrays([names, values], fields=list(properties.value_type))
    retain = pa.Array.from_buffers(pa.uint8(), rows, [None, _buffer(columns.retain)])
    return pa.RecordBatch.from_arrays(
        [
            _texts(columns.topics, rows, pa.string()),
            _texts(columns.payloads, rows, pa.binary()),
            pa.Array.from_buffers(pa.int8(), rows, [None, _buffer(columns.qos)]),
            retain.cast(pa.bool_()),
            _texts(columns.clients, rows, pa.string()),
            pa.Array.from_buffers(properties, rows, [None, _buffer(columns.property_ends)], children=[pairs]),
            pa.Array.from_buffers(SCHEMA.field("timestamp").type, rows, [None, _buffer(columns.times)]),
            pa.repeat(pa.scalar(node, pa.string()), rows),
            pa.Array.from_buffers(pa.int64(), rows, [None, _buffer(columns.offsets)]),
        ],
        schema=SCHEMA,
    )


def _buffer(column: BytesWriter) -> pa.Buffer:
    return pa.py_buffer(column.getvalue())


def _texts(column: Texts, rows: int, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, _buffer(column.ends), _buffer(column.data)])
