"""What a store has said of itself: how it is, how often it failed, and what was safe when it failed last."""

from __future__ import annotations


class StorageReport:
    state: str  # "ok", or how it is not, why, and since when
    failures: int  # how often that began
    records_lost: int  # by a disk that failed to write them
    stored_before: int  # messages with an offset below this were stored when it failed last
    written_before: int  # those below this were written, if not safe: they may be there after a power failure or not

    def __init__(self) -> None:
        self.state = "ok"
        self.failures = 0
        self.records_lost = 0
        self.stored_before = 0
        self.written_before = 0

    def tell(self, state: str, failures: int) -> None:
        """How it is from now on."""
        self.state = state
        self.failures = failures

    def lose(self, records: int) -> None:
        """So many records that were written can not be read any more."""
        self.records_lost += records
