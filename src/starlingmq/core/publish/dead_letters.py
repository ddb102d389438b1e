"""Messages that broke a contract, at the topic that the contract has for them."""

from __future__ import annotations

from typing import Final

from starlingmq.core.messages.message import Message
from starlingmq.core.router.contract import Contract
from starlingmq.wire.properties import USER_PROPERTY, encode_property_bytes

REASON: Final = "starlingmq-reason"  # User Properties of dead letters, also of rules
TOPIC: Final = "topic"


def letter_of(message: Message, contract: Contract, why: str, now: float) -> Message:
    """With the payload as it came, and reason and topic as properties."""
    pairs = [(REASON, why), (TOPIC, message.topic.decode())]
    properties = encode_property_bytes({USER_PROPERTY: list(pairs)})
    return Message(contract.letters, message.payload, 1, False, properties, 0.0, message.publisher, now)
