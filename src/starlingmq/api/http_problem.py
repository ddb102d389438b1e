"""What an answer says that is none."""

from __future__ import annotations

from msgspec import Struct


class Problem(Struct, frozen=True):
    error: str
