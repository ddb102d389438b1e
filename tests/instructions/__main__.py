"""``python -m tests.instructions``: count all cells and write bounds.json.

``--profile CELL`` writes nothing and prints the functions that take most of one cell's instructions.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.instructions.bounds import load, store
from tests.instructions.callgrind import count, missing, toolchain
from tests.instructions.cells import CELLS, WITHOUT_BOUNDS

import starlingmq
from compiling.checkout import Checkout

LINES: Final = 60


def profile(cell: str, place: Path) -> None:
    counted = count([cell], place)
    print(f"{cell}: {counted[cell]:.1f} instructions a message")
    annotate = ["callgrind_annotate", "--threshold=100", "--auto=no", str(place / "found.2")]
    told = subprocess.run(annotate, capture_output=True, text=True, check=True).stdout
    print("\n".join([line for line in told.splitlines() if "%)" in line][:LINES]))


def rewrite(place: Path) -> None:
    counts = count(list(CELLS), place)
    before = load().get(toolchain(), {})
    for cell, found in counts.items():
        change = f"  {found / before[cell] - 1:+.1%}" if cell in before else ""
        print(f"{cell:28}{found:10.1f}{change}")
    store(toolchain(), counts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", metavar="CELL", choices=[*CELLS, *WITHOUT_BOUNDS])
    arguments = parser.parse_args()
    if lacking := missing():
        print(f"error: {lacking}", file=sys.stderr)
        return 2
    if not starlingmq.compiled() or not Checkout().up_to_date():
        print("error: the hot modules are not compiled from these sources: make setup", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as place:
        if arguments.profile:
            profile(arguments.profile, Path(place))
        else:
            rewrite(Path(place))
    return 0


if __name__ == "__main__":
    sys.exit(main())
