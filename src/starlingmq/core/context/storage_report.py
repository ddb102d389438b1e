"""The state of the storage as the store reports it: present state, number of failures, and what was safe at the last
failure."""

from __future__ import annotations


class StorageReport:
    state: str  # "ok", or the fault with its cause and begin
    failures: int  # number of times that the state left "ok"
    records_lost: int  # records that a disk failed to write
    stored_before: int  # at the last failure, messages below this offset were stored
    # those below this were written, but not synced: they may or may not exist after a power failure
    written_before: int

    def __init__(self) -> None:
        self.state = "ok"
        self.failures = 0
        self.records_lost = 0
        self.stored_before = 0
        self.written_before = 0

    def set_state(self, state: str, failures: int) -> None:
        """Set the state."""
        self.state = state
        self.failures = failures

    def lose(self, records: int) -> None:
        """Count written records that are unreadable."""
        self.records_lost += records
