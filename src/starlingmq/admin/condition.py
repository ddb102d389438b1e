"""A condition of a node, or of what it uses, that operators should know of."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

Severity = Literal["warning", "critical"]


class Condition(Struct, frozen=True):
    kind: str
    subject: str
    severity: Severity
    text: Annotated[str, Meta(description="One line that states the problem.")]
    next: Annotated[str, Meta(description="What to do, in one line.")]
