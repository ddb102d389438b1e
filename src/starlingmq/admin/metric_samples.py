"""Samples of metrics as JSON has them."""

from __future__ import annotations

from msgspec import Struct


class Sample(Struct, frozen=True):
    name: str
    labels: dict[str, str]
    value: float


class MetricsReply(Struct, frozen=True):
    node: str
    samples: list[Sample]
