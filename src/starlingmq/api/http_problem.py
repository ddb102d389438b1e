"""The body of an error response."""

from __future__ import annotations

from msgspec import Struct


class Problem(Struct, frozen=True):
    error: str
