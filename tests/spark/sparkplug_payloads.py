"""Payloads of Sparkplug B."""

from __future__ import annotations

from typing import Any, Final

from starlingmq.spark.sparkplug import payload_class

SENT: Final = 1_700_000_000_000


def sparkplug(seq: int | None, *metrics: dict[str, Any]) -> bytes:
    payload = payload_class()(timestamp=SENT)
    if seq is not None:
        payload.seq = seq
    for metric in metrics:
        payload.metrics.add(**metric)
    data: bytes = payload.SerializeToString()
    return data


def bd_seq(number: int) -> dict[str, Any]:
    return {"name": "bdSeq", "datatype": 8, "long_value": number}
