"""Mistakes planted in the code of the cluster, each with the scene that finds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
from tests.cluster.fleet import Fleet

from starlingmq.wire.mqtt import Packet, Suback


class Mistake(NamedTuple):
    """``name`` of ``place``, a class or a module, is replaced by ``wrong``."""

    place: Any
    name: str
    wrong: Callable[..., object]
    scene: Callable[[], None]

    def must_show(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The scene fails while the mistake is in the code."""
        monkeypatch.setattr(self.place, self.name, self.wrong)
        with pytest.raises(AssertionError):
            self.scene()


def scenes(mistakes: Mapping[str, Mistake]) -> list[Callable[[], None]]:
    """The scenes that are not tests of other files, each once."""
    found = dict.fromkeys(mistake.scene for mistake in mistakes.values())
    return [scene for scene in found if not scene.__name__.startswith("test_")]


def numbers(fleet: Fleet) -> list[int]:
    return [node.cluster.number for node in fleet.nodes]


def acknowledged(packets: list[Packet]) -> bool:
    """Whether a SUBACK is among them, and grants the subscription."""
    return any(isinstance(packet, Suback) and max(packet.reasons) < 0x80 for packet in packets)
