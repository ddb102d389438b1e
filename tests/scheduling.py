"""Which tests pytest-xdist gives to the same process: those of a file, and all tests with Spark."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]  # it has no types

SPARK = "tests/spark/"


class ByFile(LoadFileScheduling):  # type: ignore[misc]
    """As ``--dist loadfile``, but Spark starts only once: each process has a session of its own (``spark``)."""

    def _split_scope(self, nodeid: str) -> str:
        return SPARK if nodeid.startswith(SPARK) else str(super()._split_scope(nodeid))
