"""``python -m tests.sim.planted_seeds``: planted mistakes that their recorded seed no longer finds, with one that does.

A change of the core changes every world. A mistake is then searched through up to SEEDS_MAX worlds, in each run of the
tests: two minutes for a single one. Write what this prints into ``FOUND``, in planted.py or planted_retained.py.
"""

from __future__ import annotations

import logging

from tests.sim.planted import FOUND, SEEDS_MAX, caught


def main() -> None:
    logging.disable(logging.CRITICAL)
    for mistake, (seed, theme) in FOUND.items():
        if caught(mistake, (seed,), theme) < 0:
            print(f"{mistake.__name__}: {seed} -> {caught(mistake, range(SEEDS_MAX), theme)}", flush=True)


if __name__ == "__main__":
    main()
