"""Advisories: what happened to streams and consumers, for subscribers of ``$JS.EVENT.>``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from starlingmq.jetstream.timestamps import time_text

KINDS: Final[dict[str, tuple[str, str, dict[str, str]]]] = {
    "STREAM.CREATED": ("ADVISORY", "advisory.v1.stream_action", {"action": "create"}),
    "STREAM.UPDATED": ("ADVISORY", "advisory.v1.stream_action", {"action": "modify"}),
    "STREAM.DELETED": ("ADVISORY", "advisory.v1.stream_action", {"action": "delete"}),
    "CONSUMER.CREATED": ("ADVISORY", "advisory.v1.consumer_action", {"action": "create"}),
    "CONSUMER.DELETED": ("ADVISORY", "advisory.v1.consumer_action", {"action": "delete"}),
    "CONSUMER.PAUSE": ("ADVISORY", "advisory.v1.consumer_pause", {}),
    "CONSUMER.MAX_DELIVERIES": ("ADVISORY", "advisory.v1.max_deliver", {}),
    "CONSUMER.MSG_NAKED": ("ADVISORY", "advisory.v1.nak", {}),
    "CONSUMER.MSG_TERMINATED": ("ADVISORY", "advisory.v1.terminated", {}),
    "CONSUMER.ACK": ("METRIC", "metric.v1.consumer_ack", {}),
}
"""The part of the subject before the kind, the type, and fields that belong to the kind."""


class Advisories:
    """``publish`` takes a subject and a payload; ``has_interest`` says whether a subject has subscribers: without any,
    nothing is written."""

    def __init__(
        self,
        publish: Callable[[str, bytes], None],
        has_interest: Callable[[str], bool],
        unique: Callable[[], str],
    ) -> None:
        self.publish = publish
        self.has_interest = has_interest
        self.unique = unique

    def tell(self, kind: str, now: float, stream: str, consumer: str = "", **fields: object) -> None:
        """``fields`` are named as in the JSON, in its order."""
        place, type_name, own = KINDS[kind]
        subject = f"$JS.EVENT.{place}.{kind}.{stream}"
        who = {"stream": stream}
        if consumer:
            subject = f"{subject}.{consumer}"
            who["consumer"] = consumer
        if self.has_interest(subject):
            head = {"type": f"io.nats.jetstream.{type_name}", "id": self.unique(), "timestamp": time_text(now)}
            self.publish(subject, msgspec.json.encode({**head, **who, **own, **fields}))
