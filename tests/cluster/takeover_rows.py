"""Which rows of the takeover's tables are taken in simulated worlds: ``python -m tests.cluster.takeover_rows SEEDS``.

Prints how often each row was taken, and those that no world took: only hand tests hold these
(``tests.cluster.test_takeover_states``).
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

from tests.cluster import drain_world, presence_world, return_world, takeover_world

from starlingmq.cluster.takeover.inbound_states import INBOUND_TABLE, RESET_TABLE, SOURCE_TABLE
from starlingmq.cluster.takeover.outbound_states import OUTBOUND_TABLE
from starlingmq.core.structures.state_table import Row, StateTable

TABLES: Final[tuple[StateTable[Any, Any, Any], ...]] = (SOURCE_TABLE, INBOUND_TABLE, RESET_TABLE, OUTBOUND_TABLE)
WORLDS: Final = (takeover_world, presence_world, return_world, drain_world)


@contextmanager
def counting() -> Iterator[Counter[Row[Any, Any, Any]]]:
    """How often each row is taken inside."""
    taken: Counter[Row[Any, Any, Any]] = Counter()
    step = StateTable.step

    def counted(table: StateTable[Any, Any, Any], state: Any, event: Any) -> Row[Any, Any, Any]:
        row = step(table, state, event)
        taken[row] += 1
        return row

    with patch.object(StateTable, "step", counted):
        yield taken


def taken_in(seeds: Iterable[int]) -> Counter[Row[Any, Any, Any]]:
    with counting() as taken:
        for seed in seeds:
            for world in WORLDS:
                try:
                    world.run(seed)
                except AssertionError as error:
                    print(f"{world.__name__} seed {seed}: {str(error)[:200]}", file=sys.stderr)
    return taken


def main(seeds: int) -> None:
    logging.getLogger("starlingmq").setLevel(logging.CRITICAL)
    taken = taken_in(range(seeds))
    for table in TABLES:
        print(table.about)
        for row in sorted(table.rows.values(), key=lambda row: -taken[row]):
            print(f"{taken[row] or 'never':>8} {row.state.name} on {row.event.name}: {row.next.name}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
