"""Reads some rows of a stream without Spark, spread over its nodes and offsets."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from starlingmq.pipeline.config import PipelineConfig
from starlingmq.pipeline.inference import PayloadSample
from starlingmq.pipeline.run import PipelineError, source_options
from starlingmq.spark.nodes import StreamError
from starlingmq.spark.option_error import OptionError
from starlingmq.spark.read_options import read_options
from starlingmq.spark.row_reading import RowPartition, read_part
from starlingmq.spark.source import BatchReader

PARTS_MIN: Final = 8  # places of the stream at which rows are taken


def take_sample(pipeline: PipelineConfig, path: str | Path, rows: int) -> tuple[list[PayloadSample], int]:
    """Return up to about ``rows`` rows, and the number of rows of the stream, before topic filters. Raises
    PipelineError.
    """
    found: list[PayloadSample] = []
    try:
        options = source_options(pipeline.source) | {"minPartitions": str(PARTS_MIN)}
        reader = BatchReader(read_options(options, streaming=False))
        parts = [part for part in reader.partitions() if isinstance(part, RowPartition)]
        share = -(-rows // max(1, len(parts)))
        for part in parts:
            found += _first(part, reader, share)
    except (StreamError, OptionError) as error:
        raise PipelineError(f"{path}: source: {error}") from None
    return found[:rows], sum(part.end - part.start for part in parts)


def _first(part: RowPartition, reader: BatchReader, count: int) -> list[PayloadSample]:
    """Return the first rows of a part."""
    end = part.end if reader.options.filters else min(part.end, part.start + count)
    cut = RowPartition(part.node, part.address, part.start, end, part.forgive, part.stream)
    found: list[PayloadSample] = []
    for batch in read_part(cut, reader.options):
        columns = [batch.column(name).slice(0, count - len(found)).to_pylist() for name in ("topic", "payload")]
        found += [PayloadSample(topic, payload or b"") for topic, payload in zip(*columns, strict=True)]
        if len(found) >= count:
            break
    return found
