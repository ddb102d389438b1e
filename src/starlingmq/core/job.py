"""Long work in pieces: what would stall the event loop if it were done at once."""

from __future__ import annotations


class Job:
    """Subclasses do a bounded piece a call."""

    def step(self) -> bool:
        """Do a piece; True when everything is done."""
        raise NotImplementedError
