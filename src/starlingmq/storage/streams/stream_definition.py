"""The definition of a stream, as its file and other nodes have it. Not compiled: msgspec reads its annotations."""

from __future__ import annotations

from typing import Literal

import msgspec


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """The definition of a stream. ``retention_time`` in seconds and ``retention_size`` in bytes of files, 0: no bound.
    ``created`` in Unix seconds. ``id`` is random: a stream of the same name that is created again has another one, and
    so has one that was restored. ``begin``: its first offset. ``earlier``: ids that it had before a restore, each with
    the offset at which its rows end; up to there they are this stream's rows too. ``jetstream``: the settings of a
    stream with one sequence, as JSON; "" for all others."""

    name: str
    number: int
    topics: tuple[str, ...]
    retention_time: float = 0.0
    retention_size: int = 0
    when_full: Literal["drop_oldest", "refuse"] = "drop_oldest"
    created: float = 0.0
    id: str = ""
    begin: int = 0
    earlier: dict[str, int] = {}
    jetstream: str = ""


def identity(definition: Definition) -> str:
    """The stream's id; streams of earlier versions have none, and their number is as unique in practice."""
    return definition.id or f"{definition.number:x}"
