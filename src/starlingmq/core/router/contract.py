"""Contracts: what payloads of some topics must be. A route has the one of its topic, so others cost nothing."""

from __future__ import annotations

from collections.abc import Callable

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

    def broken_by(self, payload: bytes) -> str:
        """Why, for the publisher and the log; "" if it is not."""
        fault = self.fault(payload)
        return f"contract {self.name}: {fault}" if fault else ""


def contract_of(contracts: list[Contract], topic: bytes) -> Contract | None:
    """The first one with a filter that matches."""
    for contract in contracts:
        for filter in contract.filters:
            if matches(filter, topic):
                return contract
    return None
