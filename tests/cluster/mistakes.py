"""Mistakes planted in the code of the cluster, each with the scene that finds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import pytest
from tests.cluster.fleet import Fleet

from starlingmq.wire.mqtt import Packet, Suback

Test = TypeVar("Test", bound=Callable[..., None])


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


def each_scene(mistakes: Mapping[str, Mistake]) -> pytest.MarkDecorator:
    """Parametrize a test with the scenes that are not tests of other files, each once."""
    found = dict.fromkeys(mistake.scene for mistake in mistakes.values())
    return pytest.mark.parametrize("scene", [one for one in found if not one.__name__.startswith("test_")])


def each_mistake(mistakes: Mapping[str, Mistake], *stay: str) -> Callable[[Test], Test]:
    """Parametrize a test with the mistakes. It runs interpreted only; those not in ``stay``, if any is named, are
    long."""
    assert all(name in mistakes for name in stay)
    interpreted = pytest.mark.interpreted_only("compiled code cannot be patched")
    each = pytest.mark.parametrize(
        "mistake",
        [
            pytest.param(mistake, id=name, marks=() if name in (stay or mistakes) else pytest.mark.long)
            for name, mistake in mistakes.items()
        ],
    )
    return lambda test: interpreted(each(test))


def numbers(fleet: Fleet) -> list[int]:
    return [node.cluster.number for node in fleet.nodes]


def acknowledged(packets: list[Packet]) -> bool:
    """Whether a SUBACK is among them, and grants the subscription."""
    return any(isinstance(packet, Suback) and max(packet.reasons) < 0x80 for packet in packets)
