"""Which tests pytest-xdist gives to the same process: those of a lot (tests/durations.py)."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]  # it has no types

from tests.durations import lot


class ByFile(LoadFileScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        return lot(nodeid.partition("::")[0])
