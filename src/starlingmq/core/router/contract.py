"""Contracts: what payloads of some topics must be. A route has the one of its topic, so others cost nothing."""

from __future__ import annotations

from collections.abc import Callable

from starlingmq.core.messages.message import Message
from starlingmq.core.topics.topics import matches


class Contract:
    """``fault`` returns why a payload breaks it, "" if it does not. ``letters``: topic of messages that do; empty: they
    are refused."""

    name: str
    filters: list[bytes]
    fault: Callable[[bytes], str]
    letters: bytes

    def __init__(self, name: str, filters: list[bytes], fault: Callable[[bytes], str], letters: bytes) -> None:
        self.name = name
        self.filters = filters
        self.fault = fault
        self.letters = letters

    def broken_by(self, message: Message) -> str:
        """Why, for the publisher and the log; "" if it is not. An empty message that deletes a retained one has no
        form."""
        if message.retain and not message.payload:
            return ""
        fault = self.fault(message.payload)
        return f"contract {self.name}: {fault}" if fault else ""


def contract_of(contracts: list[Contract], topic: bytes) -> Contract | None:
    """The first one with a filter that matches."""
    for contract in contracts:
        for filter in contract.filters:
            if matches(filter, topic):
                return contract
    return None
