"""Long work in pieces, because as one piece it would stall the event loop."""

from __future__ import annotations


class Job:
    """Subclasses do a bounded piece of work per call."""

    def step(self) -> bool:
        """Do a piece. Returns True when all work is done."""
        raise NotImplementedError
