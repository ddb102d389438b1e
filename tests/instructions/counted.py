"""``python -m tests.instructions.counted LIBRARY CELL...``, run by valgrind: counts each cell and dumps it.

Prints, as JSON, for each cell how often it was counted and how many messages that were.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from typing import Final

from tests.instructions.cell import Cell, Empty
from tests.instructions.cells import CELLS, WITHOUT_BOUNDS, planted

EMPTY: Final = "empty"
WITH_A_FLAW: Final = "with a flaw"


def made(name: str) -> Cell | Empty:
    if name == EMPTY:
        return Empty()
    return planted() if name == WITH_A_FLAW else (CELLS | WITHOUT_BOUNDS)[name]()


def main(library: str, names: list[str]) -> None:
    requests = ctypes.CDLL(library)
    requests.instrument()
    work: dict[str, tuple[int, int]] = {}
    for name in names:
        cell = made(name)
        # As a node does (starlingmq.node.node_process, Node.start): only what is young is ever looked at.
        gc.collect()
        gc.freeze()
        requests.zero()
        cell.run(requests.toggle)
        requests.dump(name.encode())
        work[name] = cell.counted, cell.rounds * cell.messages
    print(json.dumps(work))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
