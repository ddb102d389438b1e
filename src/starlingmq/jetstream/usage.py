"""Figures of all streams together, as nats-server names them."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlingmq.core.streams.sequenced_stream import SequencedStream


def usage(streams: Collection[SequencedStream]) -> dict[str, int]:
    """Bytes that are stored, and that the streams may store, in memory and in files."""
    octets, reserved = [0, 0], [0, 0]  # in files, in memory
    for stream in streams:
        octets[stream.policy.memory] += stream.index.octets
        reserved[stream.policy.memory] += max(stream.policy.max_bytes, 0)
    return {
        "memory": octets[1],
        "storage": octets[0],
        "reserved_memory": reserved[1],
        "reserved_storage": reserved[0],
    }


def counts(streams: Collection[SequencedStream]) -> dict[str, int]:
    return {"streams": len(streams), "consumers": sum(len(stream.consumers) for stream in streams)}
