"""Spark and streams (docs/SPARK.md): ``register(spark)``, then ``spark.readStream.format("starlingmq")``."""

from __future__ import annotations

from starlingmq.spark.payloads import decode_json
from starlingmq.spark.source import COLUMNS, StarlingSource, register

__all__ = ["COLUMNS", "StarlingSource", "decode_json", "register"]
